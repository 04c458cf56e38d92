"""The edges that a layout gives its nodes: who is the way out when a parent is lost, and who dials."""

from __future__ import annotations

from itertools import count

import pytest

from chappe.core.chain import Chain, Layout
from chappe.core.edges import EdgeBook, EdgeMaker
from chappe.core.effects import Dialer, Edge, PeerRef
from chappe.core.events import Hello, Role
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.workers import Worker

NAMES = ("a", "b", "c", "d", "e")


def edges_of(name: str, *, behind_nat: tuple[str, ...] = ()) -> Edge:
    """Of one member of the chain o, a, b, c, d, e."""
    workers = {n: Worker(n, Role.ORIGIN if n == "o" else Role.RELAY, n, 1, f"{n}:1") for n in ("o", *NAMES)}
    for nat in behind_nat:
        workers[nat].dialable = False
    layout = Layout([Chain(0, 0, list(NAMES))])
    maker = EdgeMaker("obj", layout, EdgeBook(), workers, "o", count(1).__next__, lambda *_: 1e6)
    (edge,) = maker.of_relay(workers[name])
    return edge


def test_the_next_ancestors_are_the_way_out_nearest_first() -> None:
    assert [f.parent.name for f in edges_of("d").fallbacks] == ["b", "a", "o"]
    assert [f.parent.name for f in edges_of("b").fallbacks] == ["o"]
    assert edges_of("a").fallbacks == ()


@pytest.mark.parametrize(
    ("behind_nat", "left"),
    [(("b",), ["a", "o"]), (("o",), ["b", "a"]), (("a", "b", "o"), []), (("d",), ["b", "a", "o"])],
)
def test_who_cannot_be_dialled_is_no_way_out(behind_nat: tuple[str, ...], left: list[str]) -> None:
    """A child heals alone, by dialling: nobody is there to tell an ancestor that it should."""
    assert [f.parent.name for f in edges_of("d", behind_nat=behind_nat).fallbacks] == left


def test_the_parent_dials_where_the_child_cannot() -> None:
    assert edges_of("c").dialer is Dialer.CHILD
    assert edges_of("c", behind_nat=("b",)).dialer is Dialer.PARENT
    assert edges_of("c", behind_nat=("c",)).dialer is Dialer.CHILD
    assert [slot.dialer for slot in edges_of("b", behind_nat=("b",)).children] == [Dialer.PARENT]


def test_a_child_is_told_where_its_parent_takes_data_connections() -> None:
    fleet = Fleet(FleetConfig("run", probes=False))
    fleet.handle(Hello("o", 1, Role.ORIGIN, "o", 1, "o:1", 2e6, data_port=7402), 0.0)
    assert fleet.state.workers["o"].peer.data_port == 7402
    fleet.handle(Hello("o", 2, Role.ORIGIN, "o", 1, "o:1", 2e6), 1.0)  # of another release, or without any
    assert fleet.state.workers["o"].peer == PeerRef("o", "o", "o:1", 0)
    assert fleet.state.workers["o"].peer.data_port == 0
