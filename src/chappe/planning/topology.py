"""How many chains, who stands where and why, and the bound that no topology beats.

Pure: rates and sizes in, placements with their reasons out. It knows no sessions, objects or epochs.

A worker passes on at most min(downlink, uplink), its hop rate. Bw is the lower median of the targeted hop rates: the
minimum would let a single slow line turn the fleet into a star, the mean would follow a single fast one. Workers are
ranked by hop rate times success rate, demoted ones last.

    equal links    floor(1.05 * B0/Bw) chains, dealt in turn, so that chains differ by at most one worker and the least
                   able stand last, where nobody waits behind them
    unequal links  the layout that `planning.layout` finds best for T at the target fraction, then for the rest

Links are equal when no hop rate differs from Bw by more than 10 %, none is demoted, and everybody can be dialled; for a
target below everybody downlinks are about the same, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chappe.planning.fluid import Host
from chappe.planning.layout import Layout, plan_layout
from chappe.units import format_duration, format_rate

OVERCOMMIT = 1.05
"""B0/Bw of 2.95 is three chains: links are rarely declared to the last per cent."""
EQUAL_WITHIN = 0.1
KEEP_WITHIN = 1.05
"""A number of chains is kept while another one promises less than this: measured rates are never twice the same."""
LARGE = 2000
"""From so many workers on only a few numbers of chains are tried: a plan must not hold up the coordinator for long."""
FILL_S = 0.01
"""A relay forwards nothing before a chunk is whole, and a chunk is cut to about this much of a link."""


@dataclass(frozen=True, slots=True)
class Link:
    """A worker's links in bytes per second. `source` is measured, declared or assumed."""

    worker_id: str
    name: str
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    source: str
    success: float = 1.0  # share of the times that those behind it were served
    dialable: bool = True
    demoted: bool = False
    standby: bool = False  # its rollouts are not wanted: it stands last, but before demoted ones

    @property
    def last(self) -> bool:
        """Nobody whose rollouts are wanted stands behind it."""
        return self.demoted or self.standby

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
    """Best first: speed times success; equals by uplink, then by name, so that it does not matter who joined first."""
    return sorted(
        links,
        key=lambda k: (
            k.demoted,
            k.standby,
            -k.hop_bytes_per_s * k.success,
            -k.uplink_bytes_per_s * k.success,
            k.name,
            k.worker_id,
        ),
    )


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
    origin_bytes_per_s: float,
    links: Sequence[Link],
    *,
    chains: int = 0,
    previous: int | None = None,
    payload_bytes: float = 1e9,
    fraction: float = 1.0,
    origin_dialable: bool = True,
) -> Plan:
    """Who stands where. `chains` overrides their number (0: planned), `previous` is what it was last time."""
    if not links:
        return Plan(max(1, chains), 0.0, (), "no workers yet")
    ranked = rank(links)
    rate = worker_rate(links)
    if equal_links(links, rate, fraction):
        count, why = _equal_count(origin_bytes_per_s, rate, len(links), chains, previous)
        dealt: list[list[Link]] = [ranked[slot::count] for slot in range(count)]
        return Plan(count, rate, _placements(ranked, dealt), why)
    hosts = [Host(k.worker_id, k.uplink_bytes_per_s * k.success, k.downlink_bytes_per_s, k.dialable) for k in ranked]
    layout, why = _unequal(
        origin_bytes_per_s, hosts, ranked, chains, previous, payload_bytes, fraction, origin_dialable
    )
    by_id = {k.worker_id: k for k in links}
    dealt = [[by_id[worker_id] for worker_id in chain] for chain in layout.chains] or [[]]
    for worker_id in layout.unplaced:  # it has nobody to talk to there either, but may have as soon as somebody joins
        min(dealt, key=len).append(by_id[worker_id])
    return Plan(len(dealt), rate, _placements(ranked, dealt, set(layout.unplaced)), why)


def equal_links(links: Sequence[Link], rate: float, fraction: float) -> bool:
    """No hop rate differs from `rate` by more than 10 %, nobody is demoted, everybody can be dialled."""
    if not all(
        k.dialable and not k.demoted and abs(k.hop_bytes_per_s - rate) <= EQUAL_WITHIN * rate + 1e-9 for k in links
    ):
        return False
    if fraction >= 1:
        return True
    downlinks = [k.downlink_bytes_per_s for k in links]  # who is needed first may take more than it passes on
    return max(downlinks) <= (1 + 2 * EQUAL_WITHIN) * min(downlinks)


def _equal_count(
    origin_bytes_per_s: float, rate: float, workers: int, chains: int, previous: int | None
) -> tuple[int, str]:
    if chains:
        return min(chains, workers), _as_asked(chains, workers)
    count = chain_count(origin_bytes_per_s, rate, workers, previous)
    return (
        count,
        f"{count} = floor(1.05 x {format_rate(origin_bytes_per_s)} / {format_rate(rate)}) for {workers} workers",
    )


def _as_asked(chains: int, workers: int) -> str:
    return f"{chains} chains as asked for" if chains <= workers else f"{chains} chains asked for, {workers} workers"


def _unequal(
    origin_bytes_per_s: float,
    hosts: Sequence[Host],
    ranked: Sequence[Link],
    chains: int,
    previous: int | None,
    payload_bytes: float,
    fraction: float,
    origin_dialable: bool,
) -> tuple[Layout, str]:
    demoted = frozenset(k.worker_id for k in ranked if k.last)

    def best(counts: Sequence[int] | None) -> Layout:
        return plan_layout(
            payload_bytes,
            origin_bytes_per_s,
            hosts,
            fraction=fraction,
            demoted=demoted,
            fill_s=FILL_S,
            origin_dialable=origin_dialable,
            counts=counts,
        )

    if chains:
        return best([min(chains, len(hosts))]), _as_asked(chains, len(hosts))
    counts = None
    if len(hosts) >= LARGE:
        usual = chain_count(origin_bytes_per_s, worker_rate(ranked), len(hosts))
        counts = sorted({max(1, usual // 2), usual, min(2 * usual, len(hosts))})
    found, kept = best(counts), ""
    if found.unplaced:
        return found, f"{len(found.chains)} chains: {len(found.unplaced)} of {len(hosts)} workers cannot be reached"
    if previous is not None and len(found.chains) != previous <= len(hosts):
        before = best([previous])
        worse = max(before.t_target_s / found.t_target_s, before.t_all_s / found.t_all_s, 1.0)
        if len(before.chains) == previous and not before.unplaced and worse <= KEEP_WITHIN:
            found, kept = before, " (kept)"
    times = f"T(1) {format_duration(found.t_all_s)}"
    if fraction < 1:
        times = f"T({fraction:g}) {format_duration(found.t_target_s)}, {times}"
    return found, f"{len(found.chains)} chains{kept} for {len(hosts)} unequal workers: {times} expected"


def _placements(
    ranked: Sequence[Link], dealt: Sequence[Sequence[Link]], unplaced: set[str] | None = None
) -> tuple[Placement, ...]:
    ranks = {k.worker_id: i for i, k in enumerate(ranked, start=1)}
    return tuple(
        Placement(
            link.worker_id,
            slot,
            position,
            ranks[link.worker_id],
            why_placed(link, ranks[link.worker_id], len(ranked), link.worker_id in (unplaced or ())),
        )
        for slot, chain in enumerate(dealt)
        for position, link in enumerate(chain)
    )


def why_placed(link: Link, place: int, of: int, unplaced: bool = False) -> str:
    """For a person: the rank, what it follows from, and what else counts."""
    notes = [
        f"rank {place} of {of} by hop rate {format_rate(link.hop_bytes_per_s)} ({link.source})",
        *([f"success {link.success:.0%}"] if link.success < 0.995 else []),
        *(["demoted: stands last"] if link.demoted else []),
        *(["on standby: stands last"] if link.standby else []),
        *(["cannot be dialled"] if not link.dialable else []),
        *(["no neighbour that it can talk to"] if unplaced else []),
    ]
    return ", ".join(notes)


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
