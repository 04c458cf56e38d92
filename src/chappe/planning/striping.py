"""Striped or plain: whether a fleet's links are worth stripes, and in words why who stands where.

Plain chains are one stripe, and the normal state: equal links give floor(1.05 * B0/Bw) of them (`topology`). Stripes
are laid where they promise to be faster by more than `WORTH`; both are judged with headers, ACKs and fill counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.planning.fluid import Host
from chappe.planning.layout import plan_layout
from chappe.planning.stripes import ACK_SHARE, HEADER_SHARE, StripedPlan, plan_stripes
from chappe.planning.topology import EQUAL_WITHIN, FILL_S, LARGE, Link, chain_count, equal_links, worker_rate
from chappe.units import format_duration, format_rate

WORTH = 1.05
"""Stripes cost streams, and more of them: a promise of less than this is not worth it."""


FILL_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Striping:
    """A striped plan with its reasons: of the number of stripes, and by worker id of its places."""

    plan: StripedPlan
    why: str
    whys: dict[str, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """Stripes, or None and why not. Times are T(fraction) of both, in seconds; None: there are none to compare."""

    striping: Striping | None
    why: str
    striped_s: float | None = None
    plain_s: float | None = None


def plan_striping(
    origin_bytes_per_s: float,
    links: Sequence[Link],
    *,
    payload_bytes: float,
    fraction: float = 1.0,
    origin_dialable: bool = True,
    chunk_bytes: int = 1 << 16,
) -> Striping | None:
    """The stripes of a fleet, or None where plain chains are as good (equal links, small payloads) or the only way."""
    return judge_striping(
        origin_bytes_per_s,
        links,
        payload_bytes=payload_bytes,
        fraction=fraction,
        origin_dialable=origin_dialable,
        chunk_bytes=chunk_bytes,
    ).striping


def judge_striping(
    origin_bytes_per_s: float,
    links: Sequence[Link],
    *,
    payload_bytes: float,
    fraction: float = 1.0,
    origin_dialable: bool = True,
    chunk_bytes: int = 1 << 16,
) -> Judged:
    """`plan_striping` with what it was decided by."""
    if len(links) < 2:
        return Judged(None, "plain: stripes are for two workers or more")
    if equal_links(links, worker_rate(links), fraction) and _send_all(origin_bytes_per_s, links):
        return Judged(None, "plain: links are equal")
    hosts = [Host(k.worker_id, k.uplink_bytes_per_s * k.success, k.downlink_bytes_per_s, k.dialable) for k in links]
    demoted = frozenset(k.worker_id for k in links if k.last)
    plan = plan_stripes(
        payload_bytes,
        origin_bytes_per_s,
        hosts,
        fraction=fraction,
        demoted=demoted,
        origin_dialable=origin_dialable,
        chunk_bytes=chunk_bytes,
    )
    if plan is None:
        return Judged(None, "plain: no stripes in which every hop has a side that can dial, and the origin few streams")
    if len(plan.stripes) < 2:
        return Judged(None, "plain: with stripes the same workers would be tails everywhere")
    target_s, all_s = _plain_s(origin_bytes_per_s, links, hosts, demoted, payload_bytes, fraction, origin_dialable)
    if target_s <= plan.t_target_s * WORTH or all_s * WORTH < plan.t_all_s:
        why = (
            f"plain: not worth stripes, T({fraction:g}) {format_duration(target_s)} expected, "
            f"{format_duration(plan.t_target_s)} with {len(plan.stripes)} stripes"
        )
        return Judged(None, why, plan.t_target_s, target_s)
    count = len(plan.stripes)
    why = (
        f"{count} stripes, together {format_rate(plan.rate_bytes_per_s)}, for {len(links)} unequal workers: "
        f"T({fraction:g}) {format_duration(plan.t_target_s)} expected, plain chains {format_duration(target_s)}"
    )
    return Judged(Striping(plan, why, {k.worker_id: _why(plan, k) for k in links}), why, plan.t_target_s, target_s)


def striped_chunk_bytes(striping: Striping, most: int) -> int:
    """The largest chunk up to `most` whose fill is below `FILL_SHARE` of the time that is expected.

    `striping` was planned with `CHUNK_BYTES_PLAIN`; the fill grows with the size of a chunk.
    """
    size, fill_s = CHUNK_BYTES_PLAIN, striping.plan.fill_s
    while size * 2 <= most and fill_s * 2 <= FILL_SHARE * striping.plan.t_all_s:
        size, fill_s = size * 2, fill_s * 2
    return size


def _send_all(origin_bytes_per_s: float, links: Sequence[Link]) -> bool:
    """Everybody can pass on all that may come: nobody has to be a tail. Equal uplinks under equal downlinks cannot."""
    return all(
        k.uplink_bytes_per_s >= (1 - EQUAL_WITHIN) * min(k.downlink_bytes_per_s, origin_bytes_per_s) for k in links
    )


def _plain_s(
    origin_bytes_per_s: float,
    links: Sequence[Link],
    hosts: Sequence[Host],
    demoted: frozenset[str],
    payload_bytes: float,
    fraction: float,
    origin_dialable: bool,
) -> tuple[float, float]:
    """T(fraction) and T(1.0) of the best plain chains, whose inner workers acknowledge what they receive, too."""
    counts = None
    if len(hosts) >= LARGE:
        usual = chain_count(origin_bytes_per_s, worker_rate(links), len(hosts))
        counts = sorted({max(1, usual // 2), usual, min(2 * usual, len(hosts))})
    layout = plan_layout(
        payload_bytes * (1 + HEADER_SHARE),
        origin_bytes_per_s,
        [Host(h.name, h.uplink_bytes_per_s / (1 + ACK_SHARE), h.downlink_bytes_per_s, h.dialable) for h in hosts],
        fraction=fraction,
        demoted=demoted,
        fill_s=FILL_S,
        origin_dialable=origin_dialable,
        counts=counts,
    )
    return layout.t_target_s, layout.t_all_s


def _why(plan: StripedPlan, link: Link) -> str:
    count, tails, rate = len(plan.stripes), plan.tails[link.worker_id], plan.rate_bytes_per_s
    sends = format_rate(rate * (plan.parts - tails) / plan.parts)
    inner = sum(all(chain[-1] != link.worker_id for chain in stripe.chains) for stripe in plan.stripes)
    reason = f"uplink {format_rate(link.uplink_bytes_per_s)} of {format_rate(rate)} ({link.source})"
    if link.demoted:
        return f"tail in all {count} stripes: demoted"
    if link.standby:
        return f"tail in all {count} stripes: on standby"
    if link.downlink_bytes_per_s < rate:
        return f"tail in all {count} stripes: downlink {format_rate(link.downlink_bytes_per_s)} of {format_rate(rate)}"
    if inner == 0:
        return f"tail in all {count} stripes: {reason}"
    if inner == count:
        return f"inner in all {count} stripes: {reason}"
    return f"inner in {inner} of {count} stripes, sends {sends}: {reason}"
