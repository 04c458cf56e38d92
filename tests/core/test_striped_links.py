"""What the hops of stripes say about links: each row of the list in `core/striped_links`."""

from __future__ import annotations

from collections import Counter

import pytest

from chappe.core import events as ev
from chappe.core.chain import SOURCE
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
    assert node.session is not None
    samples = [
        ev.LinkSample(peer, sending, rate, 2.0 * streams[peer], 4, round(2 * rate * streams[peer]))
        for peer, rate in rates.items()
    ]
    storm.tell(ev.LinksMeasured(node.worker_id, node.session, tuple(samples)))


def sender_to_two(storm: StripedStorm) -> tuple[Publication, Node, dict[str, int]]:
    """A relay that feeds two others or more."""
    (publication,) = storm.fleet.state.publications.values()
    for node in storm.relays:
        fed = fed_by(publication, node)
        if len(fed) >= 2 and passes_on(publication, node.worker_id) >= 3:
            return publication, node, fed
    raise AssertionError("nobody feeds two")


def test_all_hops_of_a_sender_are_slow() -> None:
    storm = laid()
    publication, node, fed = sender_to_two(storm)
    share, layout = shares(publication, node), publication.layout.to_json()
    slow = times(SLOW, share)
    report(storm, node, slow, fed)
    storm.now += 2.0
    worker = storm.fleet.state.workers[node.worker_id]
    assert not worker.links.up.known(storm.now), "two seconds are no evidence"
    report(storm, node, slow, fed)
    assert worker.links.up.bytes_per_s == pytest.approx(SLOW * total(share, fed))
    assert publication.layout.to_json() == layout, "who is moved, and where to, is another question"
    assert "its uplink carries" in publication.members[node.worker_id].why
    storm.do_coordinator()
    assert storm.fleet.state.workers[node.worker_id].links.up.known(storm.now), "it is stored"


@pytest.mark.parametrize("case", ["one hop is well", "one is not heard", "a good report between", "one receiver only"])
def test_what_is_no_evidence_against_an_uplink(case: str) -> None:
    storm = laid()
    publication, node, fed = sender_to_two(storm)
    share = shares(publication, node)
    slow = times(SLOW, share)
    first, *rest = fed
    for turn in range(4):
        storm.now += 2.0
        match case:
            case "one hop is well":
                report(storm, node, slow | {first: share[first]}, fed)
            case "one is not heard":
                report(storm, node, {peer: slow[peer] for peer in rest}, fed)
            case "a good report between":
                report(storm, node, slow if turn % 2 else share, fed)
            case _:
                report(storm, node, {first: slow[first]}, fed)
    links = storm.fleet.state.workers[node.worker_id].links
    assert links.up.bytes_per_s in (0.0, pytest.approx(total(share, fed)))


def receiver_of_two(storm: StripedStorm) -> tuple[Publication, Node, dict[str, int]]:
    """A relay with two parents or more that feed others, too."""
    (publication,) = storm.fleet.state.publications.values()
    for node in storm.relays:
        parents = parents_of(publication, node)
        feeds = [fed_by(publication, node_of(storm, p)) for p in parents if p != publication.origin_id]
        if sum(len(fed) >= 2 for fed in feeds) >= 2 and passes_on(publication, node.worker_id) >= 1:
            return publication, node, parents
    raise AssertionError("nobody has two such parents")


def well(storm: StripedStorm, publication: Publication, but: str) -> None:
    """Everybody sends well, except to this one."""
    heads = Counter(c.members[0] for c in publication.layout.chains if c.members)
    for node in storm.nodes:
        if node.worker_id == but:
            continue
        fed = dict(heads) if node.worker_id == publication.origin_id else fed_by(publication, node)
        rates = {peer: rate * (SLOW if peer == but else 1) for peer, rate in shares(publication, node).items()}
        report(storm, node, rates, fed)


@pytest.mark.parametrize("others", ["are well", "are slow", "say nothing"])
def test_all_hops_of_a_receiver_are_slow(others: str) -> None:
    storm = laid()
    publication, node, parents = receiver_of_two(storm)
    slow = times(SLOW, shares(publication, node, sending=False))
    for _ in range(2):
        storm.now += 2.0
        if others == "are well":
            well(storm, publication, node.worker_id)
        elif others == "are slow":
            for parent in parents:
                sender = node_of(storm, parent)
                fed = fed_by(publication, sender)
                slow_too = {peer: SLOW * rate for peer, rate in shares(publication, sender).items() if peer in fed}
                report(storm, sender, slow_too, fed)
        report(storm, node, slow, parents, sending=False)
    worker = storm.fleet.state.workers[node.worker_id]
    if others == "are well":
        assert worker.links.down.bytes_per_s == pytest.approx(total(slow, parents))
        assert passes_on(publication, node.worker_id) == 0, "it would throttle whoever is behind it"
        assert len(publication.layout.places(node.worker_id)) == len(publication.layout.stripes)
        assert "its downlink carries" in publication.members[node.worker_id].why
    else:
        assert not worker.links.down.known(storm.now)
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


def test_claims_of_long_ago_are_none() -> None:
    storm = laid()
    publication, node, parents = receiver_of_two(storm)
    slow = times(SLOW, shares(publication, node, sending=False))
    for _ in range(2):
        storm.now += 2.0
        well(storm, publication, node.worker_id)
    for _ in range(4):
        storm.now += 6.0
        report(storm, node, slow, parents, sending=False)
    assert not storm.fleet.state.workers[node.worker_id].links.down.known(storm.now)
