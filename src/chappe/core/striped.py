"""Stripes in the fleet machine: laying what the planner says, and a seat for whoever comes later.

A plan balances uplinks: in a stripe whoever ends a chain does so because its uplink is used up elsewhere. Who comes
later keeps that, in each stripe alone, with what is left of its own uplink and of those that are there:

    can carry one stripe more ──▶ in front of the tail of the shortest chain: that one stays what it is
    cannot ─────────────────────▶ behind the tail that has the most to spare
    an empty chain of the origin's is taken first; nobody stands in front of a rooted head

Repair needs nothing of its own: a chain of a stripe closes up as any chain does, and nobody gets a second child by it.

A node of a release without stripes that comes later would take everything from each of its parents, and give everything
to each of its children: the stripes are given up, and stripe 0 goes on as plain chains. What is held is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chappe.core.chain import Chain, Layout
from chappe.core.grounds import Grounds
from chappe.core.publication import Publication
from chappe.core.stripemap import PLAIN, StripeMap
from chappe.planning.stripes import ACK_SHARE
from chappe.planning.striping import Striping


def lay(publication: Publication, striping: Striping) -> list[Chain]:
    """The chains of a plan, without who is deferred. Says in the publication which chunks are whose, and how fast."""
    stripes = striping.plan.stripes
    weights = tuple(stripe.weight for stripe in stripes)
    publication.stripes = StripeMap.of(weights, publication.chunks_total)
    publication.stripe_bytes_per_s = striping.plan.rate_bytes_per_s / sum(weights)
    members = publication.members
    for worker_id, why in striping.whys.items():
        members[worker_id].why = why
    return [
        Chain(number, slot, [m for m in chain if not members[m].deferred])
        for number, stripe in enumerate(stripes)
        for slot, chain in enumerate(stripe.chains)
    ]


def lay_plain(publication: Publication) -> None:
    publication.stripes, publication.stripe_bytes_per_s = PLAIN, 0.0


def give_up(publication: Publication, why: str) -> None:
    """Plain chains from here on: those of stripe 0, in which everybody stands. The caller says so to everybody."""
    layout, edges = publication.layout, publication.edges
    for stripe, child in [key for key in edges.main.keys() | edges.fallback.keys() if key[0]]:
        edges.forget(stripe, child)
    publication.layout = Layout(chain for chain in layout.chains if chain.stripe == 0)
    publication.grounds = Grounds(why)
    lay_plain(publication)


def hop_bytes_per_s(publication: Publication, stripe: int) -> float:
    """What a hop of this stripe should carry, by the plan."""
    weights = publication.stripes.weights
    return publication.stripe_bytes_per_s * (weights[stripe] if stripe < len(weights) else 1)


def sends_bytes_per_s(publication: Publication, worker_id: str) -> float:
    """What a worker's uplink carries by its places: stripes that it passes on to somebody who lacks something, and ACKs
    for all that it receives."""
    layout, members = publication.layout, publication.members
    whole = publication.stripe_bytes_per_s * sum(publication.stripes.weights)
    passed = sum(
        hop_bytes_per_s(publication, place.chain.stripe)
        for place in layout.places(worker_id)
        if (child := layout.child(place)) is not None and (child not in members or members[child].level == 0)
    )
    return passed + ACK_SHARE * whole


@dataclass(frozen=True, slots=True)
class Seat:
    chain: Chain
    position: int


def seat(
    publication: Publication,
    stripe: int,
    worker_id: str,
    chains: Sequence[Chain],
    uplink_of: Callable[[str], float],
) -> Seat:
    """Where a newcomer stands in this stripe, among these chains (one at least). `uplink_of` is bytes per second."""
    empty = [chain for chain in chains if not chain.members]
    if empty:
        return Seat(empty[0], 0)

    def spare(member: str) -> float:
        return uplink_of(member) - sends_bytes_per_s(publication, member)

    shortest = min(chains, key=lambda c: (len(c.members), c.slot))
    if spare(worker_id) >= hop_bytes_per_s(publication, stripe):
        return Seat(shortest, max(len(shortest.members) - 1, int(shortest.rooted)))
    best = max(chains, key=lambda c: (spare(c.members[-1]), -len(c.members), -c.slot))
    return Seat(best, len(best.members))


def describe(layout: Layout, worker_id: str) -> str:
    """Of somebody who came later: in how many stripes it passes something on."""
    places = layout.places(worker_id)
    inner = sum(layout.child(place) is not None for place in places)
    return f"inner in {inner} of {len(places)} stripes"
