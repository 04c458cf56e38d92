"""The invariants see what they are there to see: each is broken on purpose once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chappe.core import events as ev
from chappe.core.chain import Chain
from chappe.core.edges import EdgeBook, Issued
from chappe.core.effects import Assign, Edge, PeerRef, PersistEpoch
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.invariants import History, _cycles, broken, touched
from chappe.core.publication import Publication
from chappe.core.reasons import RebuildReason


def offered() -> Fleet:
    """Chains a - c and b - d, nothing received."""
    fleet = Fleet(FleetConfig("run"))
    for session, name in enumerate("abcd", start=1):
        fleet.handle(ev.Hello(name, session, ev.Role.RELAY, name, 1, f"{name}:1", 1e6, 1e6), 0.0)
    fleet.handle(ev.Hello("o", 9, ev.Role.ORIGIN, "o", 1, "o:1", 2e6), 0.0)
    fleet.handle(ev.PublishRequested(1, "o", "obj", 1, 1.0, ev.Topology.CHAINS, 0, 100, 0.0), 0.0)
    fleet.handle(ev.Offered("o", 9, "obj", 1, "full", 100, 100, 10), 0.0)
    return fleet


def twice_in_a_stripe(fleet: Fleet, publication: Publication) -> None:
    publication.layout.chains[0].members.append("b")


def same_slot(fleet: Fleet, publication: Publication) -> None:
    publication.layout.chains.append(Chain(0, 0))


def stranger(fleet: Fleet, publication: Publication) -> None:
    publication.layout.insert(publication.layout.chains[0], "stranger")


def out_of_place(fleet: Fleet, publication: Publication) -> None:
    publication.layout.remove("d")


def miscounted(fleet: Fleet, publication: Publication) -> None:
    publication.members["a"].level = 2


def told_nothing(fleet: Fleet, publication: Publication) -> None:
    fleet._assignments.forget("a")


def second_child(fleet: Fleet, publication: Publication) -> None:
    """The head of the other chain is told the same slot of the same parent."""
    publication.layout.chains[1].slot = 0
    fleet.handle(ev.Hello("b", 12, ev.Role.RELAY, "b", 1, "b:1", 1e6, 1e6), 1.0)


def starving(fleet: Fleet, publication: Publication) -> None:
    publication.origin_out = True
    fleet.state.workers["c"].holdings["obj"] = ev.Holding("obj", ev.ObjectState.RECEIVED, 0, "", ((0, 10),), 10)


@pytest.mark.parametrize(
    ("breakage", "says"),
    [
        (twice_in_a_stripe, "stands 2 times"),
        (same_slot, "2 chains in slot 0"),
        (stranger, "is no member"),
        (out_of_place, "has no place"),
        (miscounted, "recounted"),
        (told_nothing, "was told nothing"),
        (second_child, "which serves"),
        (starving, "starves while"),
    ],
)
def test_seen(breakage: Callable[[Fleet, Publication], None], says: str) -> None:
    fleet = offered()
    assert broken(fleet) == []
    breakage(fleet, fleet.state.publications["obj"])
    assert any(says in sentence for sentence in broken(fleet)), broken(fleet)


def edge(epoch: int, parent: str, slot: int = 0) -> Edge:
    return Edge("obj", 0, epoch, PeerRef(parent, parent, f"{parent}:1"), slot)


def told(fleet: Fleet, worker_id: str) -> Assign:
    """What this worker was told last, once more."""
    content = fleet.assignment(worker_id)
    assert content is not None
    return Assign(worker_id, 1, 1, 99, *content)


def in_front_of_another(fleet: Fleet, publication: Publication) -> Assign:
    assign = told(fleet, "c")
    fleet._placement.move_to_end(publication, publication.layout.places("a")[0], RebuildReason.FALLBACK)
    return assign


def not_behind(fleet: Fleet, publication: Publication) -> Assign:
    assign = told(fleet, "a")
    publication.layout.remove("c")
    return assign


def parent_not_told(fleet: Fleet, publication: Publication) -> Assign:
    assign = told(fleet, "c")
    fleet._assignments._sent["a"] = (1, ((), (), ()), 0.0)
    return assign


def of_nothing(fleet: Fleet, publication: Publication) -> Assign:
    publication.retired = True
    return told(fleet, "c")


def no_place(fleet: Fleet, publication: Publication) -> Assign:
    assign = told(fleet, "c")
    publication.layout.remove("c")
    return assign


def other_heads(fleet: Fleet, publication: Publication) -> Assign:
    assign = told(fleet, "o")
    publication.layout.remove("a")
    return assign


@pytest.mark.parametrize(
    ("breakage", "says"),
    [
        (in_front_of_another, "was told parent a"),
        (not_behind, "was told children"),
        (parent_not_told, "which was not told of it"),
        (of_nothing, "which nobody is served"),
        (no_place, "is here and has no place"),
        (other_heads, "the heads are"),
    ],
)
def test_seen_at_those_who_are_touched(breakage: Callable[[Fleet, Publication], Assign], says: str) -> None:
    fleet = offered()
    everybody = [told(fleet, worker_id) for worker_id in fleet.state.workers]
    assert touched(fleet, everybody) == []
    found = touched(fleet, [breakage(fleet, fleet.state.publications["obj"])])
    assert any(says in sentence for sentence in found), found


def test_a_cycle_is_seen() -> None:
    ring = {("obj", 0, a): edge(1, b) for a, b in [("a", "b"), ("b", "c"), ("c", "a")]}
    assert _cycles(ring)
    ring["obj", 0, "c"] = edge(1, "o")
    assert _cycles(ring) == []


def test_history_sees_what_went_back() -> None:
    fleet = offered()
    history = History()
    first = Assign("a", 1, 1, 5, (), (edge(5, "o"),))
    assert history.observe(fleet, [PersistEpoch(100), first]) == []
    same_epoch = Assign("a", 1, 1, 6, (), (edge(5, "b"),))
    assert history.observe(fleet, [same_epoch]) == ["a: another parent under the same epoch 5"]
    lower_edge = Assign("a", 1, 1, 7, (), (edge(4, "b"),))
    assert history.observe(fleet, [lower_edge]) == ["a: edge epoch went from 5 to 4"]
    assert history.observe(fleet, [first])[0] == "assignment epoch 5 after 7"
    unreserved = Assign("a", 1, 1, 101, (), ())
    assert history.observe(fleet, [unreserved, Assign("a", 1, 1, 102, (), (edge(101, "c"),))]) == [
        "epoch 102 was sent before it was reserved"
    ]
    fleet.state.workers["a"].installed = 3
    history.observe(fleet, [])
    fleet.state.workers["a"].installed = 2
    assert history.observe(fleet, []) == ["a went back from version 3 to 2"]


def test_adopting_an_old_fallback_never_lowers_the_epoch() -> None:
    book = EdgeBook()
    book.fallback[0, "c"] = {"a": Issued("a", 0, 1, 1, 5, 7)}
    book.main[0, "c"] = Issued("b", 0, 1, 1, 0, 6)
    assert not book.adopt(0, "c", "a", 8)
    assert book.adopt(0, "c", "a", 7)
    assert book.main[0, "c"] == Issued("a", 0, 1, 1, 0, 7)
    book.main[0, "c"] = Issued("b", 0, 2, 1, 0, 9)
    assert book.adopt(0, "c", "a", 7)
    assert (0, "c") not in book.main  # the next derivation issues a newer one
