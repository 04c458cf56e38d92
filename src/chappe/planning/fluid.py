"""When each worker of a set of chains holds everything, with bytes as a fluid.

The origin's uplink B0 is shared max-min fairly by the chains that still take from it (TCP on one bottleneck does about
that); each hop is limited by its sender's uplink and its receiver's downlink; a relay forwards what it has as it comes.
A head's rate only grows (others finish), so its progress is convex, and a child's is its parent's with every slope cut
at the hop's capacity from the first moment at which the parent is faster: the hop has a backlog from then on.

Pure arithmetic: rates in bytes per second, sizes in bytes, times in seconds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A worker's access link, and whether peers can dial it (NAT)."""

    name: str
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    dialable: bool = True

    @property
    def pass_through_bytes_per_s(self) -> float:
        """The most that can reach the worker behind this one."""
        return min(self.uplink_bytes_per_s, self.downlink_bytes_per_s)


Segment = tuple[float, float]
"""(duration_s, rate): progress as slopes in order of time."""


SHARED_AGAIN_MAX = 64
"""With more chains than this, what a finished head leaves of B0 is not counted: small, and quadratic to follow."""


def _fair_shares(capacity: float, caps: Sequence[float]) -> list[float]:
    """Max-min fair shares of `capacity` among users that can each take at most `caps[i]`."""
    shares = [0.0] * len(caps)
    left = capacity
    order = sorted(range(len(caps)), key=caps.__getitem__)
    for taken, i in enumerate(order):
        shares[i] = min(caps[i], left / (len(order) - taken))
        left -= shares[i]
    return shares


def _head_progress(payload_bytes: float, b0_bytes_per_s: float, caps: Sequence[float]) -> list[list[Segment]]:
    """Each head's progress until it holds everything."""
    if len(caps) > SHARED_AGAIN_MAX:
        return [[(payload_bytes / rate, rate)] for rate in _fair_shares(b0_bytes_per_s, caps)]
    progress: list[list[Segment]] = [[] for _ in caps]
    left = dict.fromkeys(range(len(caps)), payload_bytes)
    while left:
        active = sorted(left)
        rates = dict(zip(active, _fair_shares(b0_bytes_per_s, [caps[i] for i in active]), strict=True))
        step_s = min(left[i] / rates[i] for i in active)
        for i in active:
            progress[i].append((step_s, rates[i]))
            left[i] -= step_s * rates[i]
            if left[i] <= payload_bytes * 1e-12:
                del left[i]
    return progress


def _behind(progress: Sequence[Segment], capacity: float, payload_bytes: float) -> list[Segment]:
    """The progress of a child whose hop carries `capacity`, behind a parent with this (convex) progress."""
    child: list[Segment] = []
    done = 0.0
    for duration_s, rate in progress:
        if rate > capacity:
            break
        child.append((duration_s, rate))
        done += duration_s * rate
    if payload_bytes - done > payload_bytes * 1e-12:
        child.append(((payload_bytes - done) / capacity, capacity))
    return child


def completion_times(
    payload_bytes: float, b0_bytes_per_s: float, chains: Sequence[Sequence[Host]], *, fill_s: float = 0.0
) -> list[list[float]]:
    """Seconds until each worker holds everything, in the shape of `chains`.

    `fill_s` is added for every hop before a worker: a relay forwards nothing before a chunk is whole.
    """
    if not chains:
        return []
    heads = _head_progress(payload_bytes, b0_bytes_per_s, [chain[0].downlink_bytes_per_s for chain in chains])
    times: list[list[float]] = []
    for chain, head in zip(chains, heads, strict=True):
        progress, row = head, [math.fsum(d for d, _ in head)]
        for parent, child in itertools.pairwise(chain):
            capacity = min(parent.uplink_bytes_per_s, child.downlink_bytes_per_s)
            if len(progress) > 1:
                progress = _behind(progress, capacity, payload_bytes)
                row.append(math.fsum(d for d, _ in progress) + len(row) * fill_s)
                continue
            if capacity < progress[0][1]:  # one rate from beginning to end, as nearly everywhere in a large fleet
                progress = [(payload_bytes / capacity, capacity)]
            row.append(progress[0][0] + len(row) * fill_s)
        times.append(row)
    return times


def quantile_time(times: Sequence[Sequence[float]], fraction: float) -> float:
    """The time at which `fraction` of all workers are done (the first ceil(fraction * N))."""
    flat = sorted(t for row in times for t in row)
    return flat[max(0, math.ceil(fraction * len(flat) - 1e-9) - 1)] if flat else 0.0
