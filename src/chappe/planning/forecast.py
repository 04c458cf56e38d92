"""T(f) of a broadcast to given links, before it happens: the planner's own chains, a star, and the physical bound.

Whoever stands where is `planning.topology`'s decision, when each has everything is `planning.fluid`'s; this module puts
them together for one payload. A forecast is of the transfer: hashing, the final fsync and the install hook are not in
it. Sizes in bytes, rates in bytes per second, times in seconds; infinite for a worker that nobody can talk to.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from chappe.core.manifest import chunk_bytes_for
from chappe.planning.errors import at_least, positive
from chappe.planning.fluid import Host, completion_times, quantile_time
from chappe.planning.layout import bound_s
from chappe.planning.topology import Link, Plan, plan_chains


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the workers hold everything: `times_s` chain by chain, from the head, in the shape of `chains` (names)."""

    chains: tuple[tuple[str, ...], ...]
    times_s: tuple[tuple[float, ...], ...]

    def at(self, fraction: float) -> float:
        """T(f): the time at which the first ceil(f * N) workers hold everything."""
        return quantile_time(self.times_s, fraction)


@dataclass(frozen=True, slots=True)
class ChainForecast(Forecast):
    """`plan` says why: the number of chains, and each worker's place."""

    plan: Plan
    chunk_bytes: float


def equal_links(workers: int, downlink_bytes_per_s: float, uplink_bytes_per_s: float) -> tuple[Link, ...]:
    """A fleet of `workers` with the same links, named worker-1 and so on."""
    positive("downlink_bytes_per_s", downlink_bytes_per_s)
    positive("uplink_bytes_per_s", uplink_bytes_per_s)
    digits = len(str(at_least("workers", workers, 1)))
    names = [f"worker-{i:0{digits}d}" for i in range(1, workers + 1)]
    return tuple(Link(name, name, uplink_bytes_per_s, downlink_bytes_per_s, "declared") for name in names)


def chain_forecast(
    payload_bytes: float,
    b0_bytes_per_s: float,
    links: Sequence[Link],
    *,
    fraction: float = 1.0,
    chains: int = 0,
    chunk_bytes: float | None = None,
) -> ChainForecast:
    """The chains that the coordinator would make of these links, and when each worker has everything.

    `fraction` is the target fraction that the layout is best for, `chains` overrides their number (0: planned).
    `chunk_bytes` None takes the chunk that Chappe cuts for these links; each hop adds the time of one, because a relay
    forwards nothing before a chunk is whole (Bw is the rate). The origin can be dialled.
    """
    positive("payload_bytes", payload_bytes)
    positive("b0_bytes_per_s", b0_bytes_per_s)
    plan = plan_chains(b0_bytes_per_s, links, chains=chains, payload_bytes=payload_bytes, fraction=fraction)
    by_id = {link.worker_id: link for link in links}
    hosts: list[list[Host]] = [[] for _ in range(plan.chains)]
    for placement in plan.placements:  # chain by chain, from the head
        hosts[placement.slot].append(_host(by_id[placement.worker_id]))
    hosts = [chain for chain in hosts if chain]
    rate = min(plan.chain_bytes_per_s, b0_bytes_per_s / max(1, len(hosts)))
    chunk = chunk_bytes_for(rate) if chunk_bytes is None else positive("chunk_bytes", chunk_bytes)
    times = completion_times(payload_bytes, b0_bytes_per_s, hosts, fill_s=chunk / rate)
    reached = tuple(_reached(chain, row) for chain, row in zip(hosts, times, strict=True))
    return ChainForecast(_names(hosts), reached, plan, chunk)


def star_forecast(payload_bytes: float, b0_bytes_per_s: float, links: Sequence[Link]) -> Forecast:
    """Everybody fed by the origin itself; B0 is shared max-min fairly."""
    hosts = [[_host(link)] for link in links]
    times = completion_times(
        positive("payload_bytes", payload_bytes), positive("b0_bytes_per_s", b0_bytes_per_s), hosts
    )
    return Forecast(_names(hosts), tuple(tuple(row) for row in times))


def physical_bound_s(
    payload_bytes: float, b0_bytes_per_s: float, links: Sequence[Link], *, fraction: float = 1.0
) -> float:
    """max(F/B0, F/d_q, N*F/(B0 + sum u)): what no topology beats (`planning.layout.bound_s`)."""
    return bound_s(payload_bytes, b0_bytes_per_s, [_host(link) for link in links], fraction=fraction)


def _host(link: Link) -> Host:
    return Host(link.name, link.uplink_bytes_per_s, link.downlink_bytes_per_s, link.dialable)


def _names(hosts: Sequence[Sequence[Host]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(host.name for host in chain) for chain in hosts)


def _reached(chain: Sequence[Host], times_s: Sequence[float]) -> tuple[float, ...]:
    """Two neighbours that cannot be dialled never talk: what is behind them has nothing."""
    broken = next(
        (
            i
            for i, (parent, child) in enumerate(itertools.pairwise(chain), start=1)
            if not (parent.dialable or child.dialable)
        ),
        len(chain),
    )
    return tuple(t if i < broken else math.inf for i, t in enumerate(times_s))
