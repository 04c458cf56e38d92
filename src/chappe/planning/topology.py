"""How many chains, who stands where, and the bound that no topology beats.

Pure: rates and sizes in, placements with their reasons out. It knows no sessions, objects or epochs.

A worker passes on at most min(downlink, uplink), its hop rate. Bw is the lower median of the targeted hop rates: the
minimum would let a single slow line turn the fleet into a star, the mean would follow a single fast one. Workers are
ranked by hop rate and dealt to the chains in turn, so that chains differ by at most one worker and the slowest stand
last, where nobody waits behind them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chappe.units import format_rate

OVERCOMMIT = 1.05
"""B0/Bw of 2.95 is three chains: links are rarely declared to the last per cent."""


@dataclass(frozen=True, slots=True)
class Link:
    """A worker's links in bytes per second. `source` is measured, declared or assumed."""

    worker_id: str
    name: str
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    source: str

    @property
    def hop_bytes_per_s(self) -> float:
        return min(self.uplink_bytes_per_s, self.downlink_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Placement:
    """`slot` is the chain's number at the origin, position 0 its head, rank 1 the fastest."""

    worker_id: str
    slot: int
    position: int
    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    chains: int
    chain_bytes_per_s: float  # Bw
    placements: tuple[Placement, ...]  # chain by chain, from the head
    why: str  # of the number of chains


def rank(links: Sequence[Link]) -> list[Link]:
    """Fastest hop first; equal hops by uplink, then by name, so that a plan does not depend on who joined first."""
    return sorted(links, key=lambda k: (-k.hop_bytes_per_s, -k.uplink_bytes_per_s, k.name, k.worker_id))


def worker_rate(links: Sequence[Link]) -> float:
    """Bw: the lower median of the hop rates. Raises ValueError without workers."""
    if not links:
        raise ValueError("no workers")
    hops = sorted(k.hop_bytes_per_s for k in links)
    return hops[(len(hops) - 1) // 2]


def chain_count(origin_bytes_per_s: float, worker_bytes_per_s: float, workers: int, previous: int | None = None) -> int:
    """floor(1.05 * B0/Bw), at least one, at most one per worker.

    `previous` holds its ground while B0/Bw is within 5 % of the border, so that noise does not flip it.
    """
    ratio = origin_bytes_per_s / worker_bytes_per_s
    wanted = math.floor(OVERCOMMIT * ratio)
    if previous is not None and math.floor(ratio) <= previous <= math.floor(OVERCOMMIT * OVERCOMMIT * ratio):
        wanted = previous
    return max(1, min(wanted, workers))


def plan_chains(
    origin_bytes_per_s: float, links: Sequence[Link], *, chains: int = 0, previous: int | None = None
) -> Plan:
    """Chains for equal shares of the origin's uplink. `chains` overrides their number (0: planned)."""
    if not links:
        return Plan(max(1, chains), 0.0, (), "no workers yet")
    ranked = rank(links)
    rate = worker_rate(links)
    if chains:
        count = min(chains, len(links))
        why = f"{count} chains as asked for" if count == chains else f"{chains} chains asked for, {count} workers"
    else:
        count = chain_count(origin_bytes_per_s, rate, len(links), previous)
        why = (
            f"{count} = floor(1.05 x {format_rate(origin_bytes_per_s)} / {format_rate(rate)}) for {len(links)} workers"
        )
    dealt: list[list[Placement]] = [[] for _ in range(count)]
    for i, link in enumerate(ranked):
        slot, position = i % count, i // count
        reason = f"rank {i + 1} of {len(ranked)} by hop rate {format_rate(link.hop_bytes_per_s)} ({link.source})"
        dealt[slot].append(Placement(link.worker_id, slot, position, i + 1, reason))
    return Plan(count, rate, tuple(p for chain in dealt for p in chain), why)


def plan_star(origin_bytes_per_s: float, links: Sequence[Link]) -> Plan:
    """Every worker fed by the origin itself."""
    share = origin_bytes_per_s / max(1, len(links))
    ranked = rank(links)
    placements = tuple(
        Placement(k.worker_id, i, 0, i + 1, f"star: its own stream from the origin, {format_rate(share)} each")
        for i, k in enumerate(ranked)
    )
    return Plan(max(1, len(links)), share, placements, f"star of {len(links)}")


def broadcast_floor(
    payload_bytes: int,
    origin_bytes_per_s: float,
    uplinks_bytes_per_s: Sequence[float],
    downlinks_bytes_per_s: Sequence[float],
    fraction: float = 1.0,
) -> float:
    """Seconds that no topology beats: max(F/B0, F/d_q, N*F/(B0 + sum u)).

    d_q is the downlink of the slowest worker that the target fraction still needs. Raises ValueError without workers.
    """
    workers = len(downlinks_bytes_per_s)
    if not workers:
        raise ValueError("no workers")
    needed = max(1, math.ceil(fraction * workers - 1e-9))
    slowest = sorted(downlinks_bytes_per_s, reverse=True)[needed - 1]
    capacity = origin_bytes_per_s + sum(uplinks_bytes_per_s)
    return max(payload_bytes / origin_bytes_per_s, payload_bytes / slowest, needed * payload_bytes / capacity)
