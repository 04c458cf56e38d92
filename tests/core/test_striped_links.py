"""What the hops of stripes say about links: each row of the list in `core/striped_links`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from bench.faults import UPLINKS
from bench.fleetfluid import FleetFluid, Line
from chappe.core import events as ev
from chappe.core.chain import SOURCE
from chappe.core.effects import Effect, Log
from chappe.core.links import Estimate
from chappe.core.publication import Publication
from chappe.core.striped import hop_bytes_per_s
from tests.core.test_fleet_random import Node
from tests.core.test_fleet_striped import StripedStorm, laid, passes_on

SLOW = 0.4


def fed_by(publication: Publication, node: Node) -> dict[str, int]:
    """Whom it feeds, and in how many stripes each."""
    layout = publication.layout
    return dict(Counter(c for place in layout.places(node.worker_id) if (c := layout.child(place)) is not None))


def parents_of(publication: Publication, node: Node) -> dict[str, int]:
    layout = publication.layout
    above = (layout.ancestors(place, 1)[0] for place in layout.places(node.worker_id))
    return dict(Counter(publication.origin_id if parent == SOURCE else parent for parent in above))


def node_of(storm: StripedStorm, worker_id: str) -> Node:
    return next(node for node in storm.nodes if node.worker_id == worker_id)


def shares(publication: Publication, node: Node, *, sending: bool = True) -> dict[str, float]:
    """What the plan gives a stream, by peer: stripes weigh differently, and a peer may have several."""
    layout = publication.layout
    hops: list[tuple[str | None, int]] = [
        (chain.members[0], chain.stripe)
        for chain in layout.chains
        if chain.members and node.worker_id == publication.origin_id
    ]
    for place in layout.places(node.worker_id):
        above = layout.ancestors(place, 1)[0]
        peer = layout.child(place) if sending else publication.origin_id if above == SOURCE else above
        hops.append((peer, place.chain.stripe))
    found: dict[str, list[float]] = {}
    for peer, stripe in hops:
        if peer is not None:
            found.setdefault(peer, []).append(hop_bytes_per_s(publication, stripe))
    return {peer: sum(rates) / len(rates) for peer, rates in found.items()}


def times(factor: float, rates: dict[str, float]) -> dict[str, float]:
    return {peer: factor * rate for peer, rate in rates.items()}


def total(rates: dict[str, float], streams: dict[str, int]) -> float:
    return sum(rates[peer] * streams[peer] for peer in streams)


def report(
    storm: StripedStorm, node: Node, rates: dict[str, float], streams: dict[str, int], *, sending: bool = True
) -> None:
    """Two seconds of each of these hops, all of them busy."""
    tell(storm, node, samples(rates, streams, sending=sending))


def samples(rates: dict[str, float], streams: dict[str, int], *, sending: bool) -> list[ev.LinkSample]:
    return [
        ev.LinkSample(peer, sending, rate, 2.0 * streams[peer], 4, round(2 * rate * streams[peer]))
        for peer, rate in rates.items()
    ]


def tell(storm: StripedStorm, node: Node, said: list[ev.LinkSample]) -> None:
    assert node.session is not None
    storm.tell(ev.LinksMeasured(node.worker_id, node.session, tuple(said)))


Factor = Callable[[str, str], float]
"""Of what the plan gives a hop, what it carries: by parent and child."""


def rounds(storm: StripedStorm, publication: Publication, factor: Factor, count: int = 4) -> None:
    """Everybody tells of both sides, every two seconds; the first time says only when telling begins."""
    for _ in range(count):
        storm.now += 2.0
        for node in storm.nodes:
            fed = fed_by(publication, node)
            if node.worker_id == publication.origin_id:
                fed = dict(Counter(c.members[0] for c in publication.layout.chains if c.members))
            sent = {p: factor(node.worker_id, p) * rate for p, rate in shares(publication, node).items() if p in fed}
            said = samples(sent, fed, sending=True)
            if node.worker_id != publication.origin_id:
                parents = parents_of(publication, node)
                got = shares(publication, node, sending=False)
                taken = {p: factor(p, node.worker_id) * rate for p, rate in got.items()}
                said += samples(taken, parents, sending=False)
            tell(storm, node, said)


def sender_to_two(storm: StripedStorm) -> tuple[Publication, Node, dict[str, int]]:
    """A relay that feeds two others or more, none of which has everything from it."""
    (publication,) = storm.fleet.state.publications.values()
    for node in storm.relays:
        fed = fed_by(publication, node)
        if len(fed) >= 2 and passes_on(publication, node.worker_id) >= 3:
            return publication, node, fed
    raise AssertionError("nobody feeds two")


def up(storm: StripedStorm, node: Node) -> Estimate:
    return storm.fleet.state.workers[node.worker_id].links.up


def down(storm: StripedStorm, node: Node) -> Estimate:
    return storm.fleet.state.workers[node.worker_id].links.down


def slow_sender(node: Node) -> Factor:
    return lambda parent, _: SLOW if parent == node.worker_id else 1.0


def test_all_hops_of_a_sender_are_slow() -> None:
    storm = laid()
    publication, node, fed = sender_to_two(storm)
    layout = publication.layout.to_json()
    rounds(storm, publication, slow_sender(node), 3)
    assert not up(storm, node).known(storm.now), "two reports are no evidence"
    rounds(storm, publication, slow_sender(node), 1)
    assert up(storm, node).bytes_per_s == pytest.approx(SLOW * total(shares(publication, node), fed))
    assert publication.layout.to_json() == layout, "who is moved, and where to, is another question"
    assert "its uplink carries" in publication.members[node.worker_id].why
    others = [other for other in storm.relays if other is not node]
    assert not any(up(storm, other).known(storm.now) or down(storm, other).known(storm.now) for other in others)
    storm.do_coordinator()
    assert storm.fleet.state.workers[node.worker_id].links.up.known(storm.now), "it is stored"


def test_what_is_known_is_not_said_again() -> None:
    storm = laid()
    publication, node, _ = sender_to_two(storm)
    said: list[Log] = []
    true = storm.fleet.handle

    def handle(event: ev.Event, now: float) -> list[Effect]:
        effects = true(event, now)
        said.extend(e for e in effects if isinstance(e, Log) and e.event == "uplink_short")
        return effects

    storm.fleet.handle = handle  # type: ignore[method-assign]
    rounds(storm, publication, slow_sender(node), 16)
    assert len(said) == 1


@pytest.mark.parametrize(
    "case", ["one hop is well", "good reports between", "one receiver only", "its receivers are slow with everybody"]
)
def test_what_is_no_evidence_against_an_uplink(case: str) -> None:
    storm = laid()
    publication, node, fed = sender_to_two(storm)
    most = max(fed, key=lambda peer: fed[peer] * shares(publication, node)[peer])

    def factor(parent: str, child: str) -> float:
        ours = parent == node.worker_id
        match case:
            case "one hop is well":
                return SLOW if ours and child != most else 1.0
            case "one receiver only":
                return SLOW if child == most else 1.0
            case "its receivers are slow with everybody":
                return SLOW if child in fed else 1.0
            case _:
                return SLOW if ours else 1.0

    for _ in range(5):
        rounds(storm, publication, factor, 2)
        if case == "good reports between":
            rounds(storm, publication, lambda *_: 1.0, 2)
    assert not up(storm, node).known(storm.now)


def test_who_is_not_heard_is_no_evidence() -> None:
    storm = laid()
    publication, node, fed = sender_to_two(storm)
    slow = times(SLOW, shares(publication, node))
    first = max(fed, key=lambda peer: fed[peer] * slow[peer])
    rounds(storm, publication, lambda *_: 1.0, 1)
    for _ in range(5):
        storm.now += 2.0
        report(storm, node, {peer: rate for peer, rate in slow.items() if peer != first}, fed)
    assert not up(storm, node).known(storm.now)


def receiver_of_two(storm: StripedStorm) -> tuple[Publication, Node, dict[str, int]]:
    """A relay with two parents or more that feed others, too."""
    (publication,) = storm.fleet.state.publications.values()
    for node in storm.relays:
        parents = parents_of(publication, node)
        feeds = [fed_by(publication, node_of(storm, p)) for p in parents if p != publication.origin_id]
        if sum(len(fed) >= 2 for fed in feeds) >= 2 and passes_on(publication, node.worker_id) >= 1:
            return publication, node, parents
    raise AssertionError("nobody has two such parents")


@pytest.mark.parametrize("others", ["are well", "are slow", "say nothing"])
def test_all_hops_of_a_receiver_are_slow(others: str) -> None:
    storm = laid()
    publication, node, parents = receiver_of_two(storm)
    slow = times(SLOW, shares(publication, node, sending=False))

    def factor(parent: str, child: str) -> float:
        return SLOW if child == node.worker_id or (others == "are slow" and parent in parents) else 1.0

    if others == "say nothing":
        for _ in range(5):
            storm.now += 2.0
            report(storm, node, slow, parents, sending=False)
    else:
        rounds(storm, publication, factor)
    if others == "are well":
        assert down(storm, node).bytes_per_s == pytest.approx(total(slow, parents))
        assert passes_on(publication, node.worker_id) == 0, "it would throttle whoever is behind it"
        assert len(publication.layout.places(node.worker_id)) == len(publication.layout.stripes)
        assert "its downlink carries" in publication.members[node.worker_id].why
    else:
        assert not down(storm, node).known(storm.now)
        assert passes_on(publication, node.worker_id) >= 1


@pytest.mark.parametrize("agreed", [True, False])
def test_a_sum_that_is_more_than_was_believed_counts_as_far_as_both_ends_say_it(agreed: bool) -> None:
    storm = laid()
    _, node, fed = sender_to_two(storm)
    worker = storm.fleet.state.workers[node.worker_id]
    declared = worker.uplink_bytes_per_s or storm.config.assumed_bytes_per_s
    per_stream = 2 * declared / sum(fed.values())
    for _ in range(3):
        storm.now += 2.0
        report(storm, node, dict.fromkeys(fed, per_stream), fed)
        for child, streams in fed.items() if agreed else ():
            report(storm, node_of(storm, child), {node.worker_id: per_stream}, {node.worker_id: streams}, sending=False)
    if agreed:
        assert worker.links.up.bytes_per_s == pytest.approx(2 * declared, rel=0.1)
    else:
        assert not worker.links.up.known(storm.now)


def test_a_full_uplink_is_no_slow_downlink() -> None:
    """What its owner receives waits for ACKs: its parents get on well with everybody else."""
    storm = laid()
    publication, node, _ = sender_to_two(storm)
    rounds(storm, publication, slow_sender(node))
    assert up(storm, node).known(storm.now)
    rounds(storm, publication, lambda parent, child: SLOW if node.worker_id in (parent, child) else 1.0, 6)
    assert not down(storm, node).known(storm.now)
    assert passes_on(publication, node.worker_id) >= 1


def test_who_was_silent_begins_anew() -> None:
    storm = laid()
    publication, node, _ = sender_to_two(storm)
    for _ in range(4):
        rounds(storm, publication, slow_sender(node), 2)
        storm.now += 6.0
    assert not up(storm, node).known(storm.now)


def halved(victim: str, shares_of: Sequence[float], factor: float = 0.5) -> FleetFluid:
    """The fleet of `bench faults --topology striped`, in which somebody's uplink drops at half of the bytes."""
    rate = 1.25e6
    lines = [Line(f"w{i}", rate * up, rate, rate * up, rate) for i, up in enumerate(shares_of)]
    fluid = FleetFluid(24_000_000, 2 * rate, lines)
    fluid.begin()
    half = fluid.total * len(lines) // 2
    fluid.until(lambda: sum(len(node.held) for node in fluid.nodes.values()) >= half)
    node = fluid.nodes[victim]
    node.line = replace(node.line, up=factor * node.line.up)
    return fluid


@pytest.mark.parametrize("victim", ["w0", "w1", "w2", "w3", "w4"])
def test_an_uplink_that_halves_in_the_middle_is_noticed_within_ten_seconds(victim: str) -> None:
    fluid = halved(victim, UPLINKS)
    fault_s = fluid.now
    feeds = {fluid.publication.layout.child(place) for place in fluid.publication.layout.places(victim)}
    assert len(feeds - {None}) >= 2
    fluid.until(lambda: fluid.logs["uplink_short"] > 0 or fluid.now > fault_s + 10.0)
    assert fluid.logs["uplink_short"] == 1
    links = fluid.fleet.state.workers[victim].links
    assert links.up.bytes_per_s == pytest.approx(fluid.nodes[victim].line.up, rel=0.25)
    fluid.run()
    blamed = [line for line in fluid.trail if "_short" in line and f"'{victim}'" not in line]
    assert blamed == []


def test_nobody_is_blamed_where_links_are_what_they_are() -> None:
    fluid = halved("w0", UPLINKS, 1.0)
    fluid.run()
    assert not fluid.logs["uplink_short"] + fluid.logs["downlink_short"]
