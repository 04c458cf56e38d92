"""The fleet machine with striped publications: the invariants of plain chains, in each stripe."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chappe.core import events as ev
from chappe.core.bridging import mend
from chappe.core.chain import SOURCE, Chain, Layout
from chappe.core.feeding import served
from chappe.core.fleet import Fleet
from chappe.core.links import SUCCESS_SHARE
from chappe.core.publication import Publication
from chappe.core.reasons import ParentLossReason
from chappe.core.state import FleetConfig, FleetState
from chappe.core.striped import hop_bytes_per_s
from chappe.core.stripemap import StripeMap
from chappe.core.workers import Worker
from tests.core.test_fleet_random import Storm


class StripedStorm(Storm):
    """Payloads are large enough, and links unequal enough, that most publications get stripes."""

    topologies = (ev.Topology.STRIPED, ev.Topology.STRIPED, ev.Topology.CHAINS)
    factor = 1_000_000
    ups = (1e6, 2e6, 4e6, 2e7)
    downs = (8e6, 8e6, 8e6, 8e6, None)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.most = 0
        self.moved = 0

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        stripes = [len(p.layout.stripes) for p in self.fleet.state.publications.values()]
        self.most = max([self.most, *stripes])


class MixedStorm(StripedStorm):
    """Now and then a node comes as one of a release without stripes, and later as one that knows them again."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.older, self.given_up = random.Random(seed), 0

    def tell(self, event: ev.Event) -> None:
        if isinstance(event, ev.Hello) and self.older.random() < 0.08:
            event = replace(event, stripes=False)
        before = {p.object_id for p in self.fleet.state.publications.values() if not p.stripes.plain}
        super().tell(event)
        workers = self.fleet.state.workers
        for publication in self.fleet.state.publications.values():
            if publication.stripes.plain:
                self.given_up += publication.object_id in before
                assert publication.layout.stripes in ([], [0])
                assert all(stripe == 0 for stripe, _ in publication.edges.main)
            elif publication.active:
                named = [*publication.layout.workers()]
                named += [] if publication.origin_out or publication.source_failed else [publication.origin_id]
                assert [w for w in named if w in workers and not workers[w].stripes] == []


def test_storms_with_older_nodes() -> None:
    most, given_up = 0, 0
    for seed in (0, 4, 8, 13, 14, 16, 25, 29):  # of the first 32 those in which there are stripes at all
        storm = MixedStorm(seed)
        storm.play()
        most, given_up = max(most, storm.most), given_up + storm.given_up
    assert most >= 5
    assert given_up >= 2


def test_who_does_not_know_stripes_is_named() -> None:
    storm = laid()
    for node in storm.relays[:2]:
        assert node.session is not None
        storm.sessions += 1
        node.session = storm.sessions
        storm.tell(
            ev.Hello(
                node.worker_id, node.session, node.role, node.name, node.generation, "h:1", 1e6, 8e6, stripes=False
            )
        )
    (publication,) = storm.fleet.state.publications.values()
    assert publication.stripes.plain
    assert "of a release without stripes" in publication.grounds.why
    while len(storm.fleet.state.publications) < 2:
        storm.do_publish()
    newest = max(storm.fleet.state.publications.values(), key=lambda p: p.version)
    names = ", ".join(sorted(node.name for node in storm.relays[:2]))
    assert newest.grounds.why.startswith(f"plain: {names} are of a release without stripes; ")


@pytest.mark.parametrize(
    ("topology", "mbytes_per_s", "plain"),
    [(ev.Topology.AUTO, 8, False), (ev.Topology.AUTO, 800, True), (ev.Topology.STRIPED, 800, False)],
)
def test_where_hosts_are_the_limit_stripes_have_to_be_asked_for(
    topology: ev.Topology, mbytes_per_s: int, plain: bool
) -> None:
    down = mbytes_per_s * 1e6
    fleet = Fleet(FleetConfig("run"))
    fleet.handle(ev.Hello("o", 1, ev.Role.ORIGIN, "o", 1, "o:1", 2 * down), 0.0)
    for number, share in enumerate((1, 1, 0.5, 0.25, 0.25)):
        name = f"w{number}"
        fleet.handle(ev.Hello(name, 2 + number, ev.Role.RELAY, name, 1, f"{name}:1", share * down, down), 0.0)
    size = round(20 * down)
    fleet.handle(ev.PublishRequested(1, "o", "x", 1, 1.0, topology, 0, size, 0.0), 1.0)
    fleet.handle(ev.Offered("o", 1, "x", 1, "full", size, size, size >> 16), 1.0)
    (publication,) = fleet.state.publications.values()
    assert publication.stripes.plain is plain
    assert ("hosts are the limit" in publication.grounds.why) is plain
    assert (publication.grounds.rate_bytes_per_s is None) is plain


@pytest.mark.parametrize("block", range(3))
def test_storms_with_stripes(block: int) -> None:
    most = 0
    for seed in range(block * 8, block * 8 + 8):
        storm = StripedStorm(seed)
        storm.play()
        most = max(most, storm.most)
    assert most >= 3


def laid() -> StripedStorm:
    """Six workers, everybody here, one publication."""
    for seed in range(200):
        storm = StripedStorm(seed)
        if len(storm.relays) < 6:
            continue
        for node in storm.nodes:
            node.no_dial_in = False
            storm.hello(node)
        storm.topologies = (ev.Topology.STRIPED,)
        storm.do_publish()
        publication = next(iter(storm.fleet.state.publications.values()), None)
        if publication is not None and len(publication.layout.stripes) >= 3:
            return storm
    raise AssertionError("no seed gives stripes")


def test_a_relays_edges_name_the_map_and_what_a_stripe_carries() -> None:
    storm = laid()
    (publication,) = storm.fleet.state.publications.values()
    content = storm.fleet.assignment(storm.relays[0].worker_id)
    assert content is not None
    edges = content[1]
    assert [edge.stripe for edge in edges] == publication.layout.stripes
    assert all(edge.stripes == publication.stripes for edge in edges)
    assert all(len(edge.children) <= 1 for edge in edges)
    for edge in edges:
        assert edge.expected_bytes_per_s == pytest.approx(hop_bytes_per_s(publication, edge.stripe), rel=0.1)


def test_who_goes_costs_each_of_its_stripes_one_edge() -> None:
    storm = laid()
    (publication,) = storm.fleet.state.publications.values()
    dead = max(storm.relays, key=lambda node: passes_on(publication, node.worker_id))
    before = parents(publication)
    inner = passes_on(publication, dead.worker_id)
    assert inner >= 1
    assert dead.session is not None
    storm.tell(ev.LeaveRequested(dead.worker_id, dead.session))
    after = parents(publication)
    moved = {key for key, parent in before.items() if key[1] != dead.worker_id and after.get(key) != parent}
    assert len(moved) == inner
    assert all(key[1] != dead.worker_id for key in after)


def test_a_parent_that_cannot_be_reached_in_one_stripe_loses_its_place_there_alone() -> None:
    storm = laid()
    (publication,) = storm.fleet.state.publications.values()
    stripe, child = next(
        (place.chain.stripe, worker)
        for worker in publication.layout.workers()
        for place in publication.layout.places(worker)
        if place.position == 1
    )
    before = publication.layout.to_json()
    node = next(n for n in storm.relays if n.worker_id == child)
    edge = next(e for e in node.edges if e.stripe == stripe)
    assert node.session is not None
    for _ in range(2):
        storm.tell(ev.ParentLost(node.worker_id, node.session, edge, ParentLossReason.STALLED))
    after = publication.layout.to_json()
    assert {old["stripe"] for old, new in zip(before, after, strict=True) if old != new} == {stripe}
    assert publication.layout.place(stripe, child).position == 0  # type: ignore[union-attr]


def passes_on(publication: Publication, worker_id: str) -> int:
    """In how many stripes it has a child."""
    return sum(publication.layout.child(place) is not None for place in publication.layout.places(worker_id))


def parents(publication: Publication) -> dict[tuple[int, str], str]:
    layout = publication.layout
    return {
        (place.chain.stripe, worker): (layout.ancestors(place, 1) or [SOURCE])[0]
        for worker in layout.workers()
        for place in layout.places(worker)
    }


def test_who_comes_later_has_a_place_in_every_stripe_and_says_where_it_passes_on() -> None:
    storm = laid()
    (publication,) = storm.fleet.state.publications.values()
    node = storm.relays[0]
    assert node.session is not None
    storm.tell(ev.LeaveRequested(node.worker_id, node.session))
    assert node.worker_id not in publication.layout
    node.generation += 1
    node.edges = ()
    storm.hello(node)
    places = publication.layout.places(node.worker_id)
    assert len(places) == len(publication.layout.stripes)
    assert "stripes" in publication.members[node.worker_id].why


def test_restart_of_the_coordinator_keeps_the_map() -> None:
    storm = laid()
    (before,) = storm.fleet.state.publications.values()
    storm.do_coordinator()
    (after,) = storm.fleet.state.publications.values()
    assert (after.stripes, after.stripe_bytes_per_s) == (before.stripes, before.stripe_bytes_per_s)
    assert after.layout.stripes == before.layout.stripes
    assert not after.stripes.plain


def test_equal_links_get_plain_chains_all_the_same() -> None:
    storm = StripedStorm(1)
    storm.random.choice = lambda options: options[-1]  # type: ignore[method-assign]
    for node in storm.nodes:
        node.no_dial_in = False
        storm.hello(node)
    storm.topologies = (ev.Topology.STRIPED,)
    storm.do_publish()
    (publication,) = storm.fleet.state.publications.values()
    assert publication.stripes.plain


def test_a_death_is_one_failure_in_however_many_stripes() -> None:
    storm = laid()
    (publication,) = storm.fleet.state.publications.values()
    dead = max(storm.relays, key=lambda node: passes_on(publication, node.worker_id))
    assert passes_on(publication, dead.worker_id) >= 2
    assert dead.session is not None
    worker = storm.fleet.state.workers[dead.worker_id]
    before = worker.links.success_rate(storm.now)
    storm.tell(ev.SessionLost(dead.worker_id, dead.session))
    for _ in range(6):
        storm.now += 1.0
        for node in storm.relays:
            if node is not dead and node.session is not None:
                storm.tell(ev.Heard(node.worker_id, node.session))
        storm.tell(ev.Tick())
    assert dead.worker_id not in publication.layout
    assert worker.links.success_rate(storm.now) == pytest.approx((1 - SUCCESS_SHARE) * before, rel=0.05)


def test_who_has_its_stripe_gives_way_in_it_to_somebody_else_who_cannot_be_dialled() -> None:
    """Others wait in each stripe: with whole objects only nobody would ever be done, and all would wait for ever."""
    stripes = StripeMap((1, 1))
    layout = Layout([Chain(0, 0, ["d", "x", "y"]), Chain(1, 0, ["d", "y", "x"])])
    publication = Publication("obj", 1, "id-o", 1.0, ev.Topology.STRIPED, 0, 1, 4, 0.0)
    publication.layout, publication.stripes = layout, stripes
    state = FleetState()
    for worker_id, held in {"x": ((0, 1), (2, 3)), "y": ((1, 2), (3, 4))}.items():
        worker = Worker(worker_id, ev.Role.RELAY, worker_id, 1, "a:1", session=1)
        worker.holdings["obj"] = ev.Holding("obj", ev.ObjectState.RECEIVING, chunks=held, chunks_total=4)
        state.workers[worker_id] = worker
    for stripe, has, lacks in ((0, "x", "y"), (1, "y", "x")):
        assert served(state, publication, stripe, ["x", "y"]) == {has}
        near, moved = mend(layout, stripe, {"x", "y"}, source_dialable=False, usable=bool, served={has})
        assert moved == [lacks]
        assert lacks in near
        assert layout.of_stripe(stripe)[0].members == ["d", lacks, has]


@pytest.mark.parametrize("unknown", ["nobody", "a relay's uplink", "a relay's downlink", "the publisher's uplink"])
def test_auto_has_stripes_only_where_every_link_is_known(unknown: str) -> None:
    """What is assumed is nothing to stripe by."""
    storm = StripedStorm(3)
    workers = storm.fleet.state.workers
    for i, node in enumerate(storm.relays + storm.origins[:1]):
        node.no_dial_in = False
        storm.hello(node)
        worker = workers[node.worker_id]
        worker.uplink_bytes_per_s, worker.downlink_bytes_per_s = (4e6, 1e6)[i % 2], 8e6
    origin, relay = workers[storm.origins[0].worker_id], workers[storm.relays[0].worker_id]
    origin.uplink_bytes_per_s = None if "publisher" in unknown else 16e6
    if "relay" in unknown:
        setattr(relay, "uplink_bytes_per_s" if "uplink" in unknown else "downlink_bytes_per_s", None)
    assert origin.session is not None
    storm.tell(ev.PublishRequested(1, origin.worker_id, "obj", 0, 1.0, ev.Topology.AUTO, 0, 10**9, 0.1))
    storm.tell(ev.Offered(origin.worker_id, origin.session, "obj", 1, "full", 10**9, 10**9, 4000))
    (publication,) = storm.fleet.state.publications.values()
    assert publication.layout
    assert publication.stripes.plain is (unknown != "nobody")
