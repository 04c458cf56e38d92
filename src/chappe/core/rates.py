"""Which rate is believed of a link: what was measured, else what its host declared, else what is assumed of everybody.

Reads workers, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from chappe.core.events import Role
from chappe.core.links import Estimate
from chappe.core.workers import Worker
from chappe.planning.topology import Link, worker_rate


class Source(StrEnum):
    MEASURED = "measured"
    DECLARED = "declared"
    ASSUMED = "assumed"


_ORDER = [Source.ASSUMED, Source.DECLARED, Source.MEASURED]


@dataclass(frozen=True, slots=True)
class Figure:
    """`age_s` since it was last measured, None when it never was or is too old to count."""

    bytes_per_s: float
    source: Source
    age_s: float | None = None

    @property
    def known(self) -> float | None:
        """Only what somebody has said or seen: an assumption is no evidence."""
        return None if self.source is Source.ASSUMED else self.bytes_per_s


def _figure(estimate: Estimate, declared: float | None, assumed: float, now: float) -> Figure:
    if estimate.known(now):
        return Figure(estimate.bytes_per_s, Source.MEASURED, max(0.0, now - estimate.measured_s))
    return Figure(declared, Source.DECLARED) if declared else Figure(assumed, Source.ASSUMED)


def uplink(worker: Worker, assumed: float, now: float) -> Figure:
    return _figure(worker.links.up, worker.uplink_bytes_per_s, assumed, now)


def downlink(worker: Worker, assumed: float, now: float) -> Figure:
    return _figure(worker.links.down, worker.downlink_bytes_per_s, assumed, now)


def link_of(worker: Worker, assumed: float, now: float) -> Link:
    """A worker's links as the planner takes them. `source` is that of the slower direction."""
    up, down = uplink(worker, assumed, now), downlink(worker, assumed, now)
    return Link(
        worker.worker_id,
        worker.name,
        up.bytes_per_s,
        down.bytes_per_s,
        min((up, down), key=lambda f: (f.bytes_per_s, _ORDER.index(f.source))).source.value,
        worker.links.success_rate(now),
        worker.dialable is not False,
        worker.demoted,
        worker.standby,
    )


def fleet_rate(workers: Iterable[Worker], assumed: float, now: float) -> float:
    """Bw of the relays that are here and trusted; of all that are here when none is; what is assumed without any."""
    here = [w for w in workers if w.role is Role.RELAY and w.present]
    trusted = [w for w in here if not w.demoted] or here
    return worker_rate([link_of(w, assumed, now) for w in trusted]) if trusted else assumed


def hop_rate(parent: Worker, child: Worker, streams: int, assumed: float, now: float) -> float:
    """What this hop should carry, 0 when that is only assumed; `streams` is how many share the parent's uplink."""
    up, down = uplink(parent, assumed, now), downlink(child, assumed, now)
    share = up.bytes_per_s / max(1, streams)
    if (up if share < down.bytes_per_s else down).known is None:
        return 0.0
    return min(share, down.bytes_per_s)
