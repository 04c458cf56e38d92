"""Closed-form broadcast times over equal links: the published models, and ours with small chunks.

    star-unlimited   F / Bw                           every worker at its own rate, whatever the trainer has
    star-limited     max(F / Bw, N * F / B0)           one uplink feeds all
    chain-pipelined  F / R + (depth - 1) * chunk / R   n = floor(B0/Bw) chains, R = min(Bw, B0/n), depth = ceil(N/n)

Sources: the first two are arithmetic; the third is ECHO-2's pipeline with its 64 MB chunks, of which a relay forwards
nothing before it is whole. T(f) is the time at which the first ceil(f * N) workers hold everything: in a star of
equal links all finish together, in chains layer by layer. Sizes in bytes, rates in bytes per second, times in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chappe.core.manifest import chunk_bytes_for
from chappe.planning.errors import PlanInputError, at_least, positive

PUBLISHED_CHUNK_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class EqualFleet:
    """N workers of Bw each behind one origin of B0, and the payload F."""

    payload_bytes: float
    b0_bytes_per_s: float
    bw_bytes_per_s: float
    workers: int

    def __post_init__(self) -> None:
        positive("payload_bytes", self.payload_bytes)
        positive("b0_bytes_per_s", self.b0_bytes_per_s)
        positive("bw_bytes_per_s", self.bw_bytes_per_s)
        at_least("workers", self.workers, 1)

    @property
    def chains(self) -> int:
        """floor(B0/Bw), at least one, never more than workers."""
        return max(1, min(math.floor(self.b0_bytes_per_s / self.bw_bytes_per_s + 1e-9), self.workers))

    @property
    def chain_bytes_per_s(self) -> float:
        """R: what flows down each chain."""
        return min(self.bw_bytes_per_s, self.b0_bytes_per_s / self.chains)

    @property
    def depth(self) -> int:
        return -(-self.workers // self.chains)


def snapshot_bytes(parameters: float, bytes_per_parameter: float) -> float:
    """8.2e9 parameters of 2 bytes (bf16) are 16.4e9 bytes."""
    return positive("parameters", parameters) * positive("bytes_per_parameter", bytes_per_parameter)


def delta_bytes(
    snapshot_size_bytes: float, density: float, *, bytes_per_element: float, bytes_per_change: float
) -> float:
    """The payload of a delta by its encoded bytes: changed elements x bytes per change (index and value together).

    Density times the snapshot's size is wrong: it leaves out what an index costs.
    """
    if not 0 <= density <= 1:
        raise PlanInputError(f"density must be from 0 to 1, not {density}")
    elements = positive("snapshot_size_bytes", snapshot_size_bytes) / positive("bytes_per_element", bytes_per_element)
    return elements * density * positive("bytes_per_change", bytes_per_change)


def floor_s(fleet: EqualFleet) -> float:
    """max(F/B0, F/Bw, N*F/(B0 + N*Bw)), uplinks taken as equal to Bw."""
    f, n = fleet.payload_bytes, fleet.workers
    together = n * f / (fleet.b0_bytes_per_s + n * fleet.bw_bytes_per_s)
    return max(f / fleet.b0_bytes_per_s, f / fleet.bw_bytes_per_s, together)


def star_unlimited_s(fleet: EqualFleet, fraction: float = 1.0) -> float:
    """F / Bw for every fraction."""
    _copies(fleet, fraction)
    return fleet.payload_bytes / fleet.bw_bytes_per_s


def star_limited_s(fleet: EqualFleet, fraction: float = 1.0) -> float:
    """max(F/Bw, N*F/B0) for every fraction: fair shares finish together."""
    _copies(fleet, fraction)
    return max(fleet.payload_bytes / fleet.bw_bytes_per_s, fleet.workers * fleet.payload_bytes / fleet.b0_bytes_per_s)


def chain_pipelined_s(fleet: EqualFleet, fraction: float = 1.0, *, chunk_bytes: float | None = None) -> float:
    """F/R + (d - 1) * chunk/R with d the layer in which worker number ceil(f*N) stands.

    `chunk_bytes` None takes the chunk that Chappe cuts for these links (about 10 ms of them).
    """
    size = chunk_bytes_for(fleet.chain_bytes_per_s) if chunk_bytes is None else positive("chunk_bytes", chunk_bytes)
    layer = -(-_copies(fleet, fraction) // fleet.chains)
    return (fleet.payload_bytes + (layer - 1) * size) / fleet.chain_bytes_per_s


def _copies(fleet: EqualFleet, fraction: float) -> int:
    if not 0 < fraction <= 1:
        raise PlanInputError(f"fraction must be above 0 and at most 1, not {fraction}")
    return max(1, math.ceil(fraction * fleet.workers - 1e-9))
