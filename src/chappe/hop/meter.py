"""What a hop carries: bytes, and goodput while there was something to send.

A hop that waits for its own parent says nothing about its link, so only busy time counts: the time between two records
unless `idle` was called in between. Both sums decay, so that the estimate follows the link within a few seconds.
"""

from __future__ import annotations

import math

DECAY_S = 5.0
_QUIET_S = 3.0


class HopMeter:
    """One direction of one node (or of one stream). Times are on any steady clock, in seconds."""

    __slots__ = ("_busy_s", "_bytes", "_last_record_s", "_mark_s", "bytes_total")

    def __init__(self) -> None:
        self.bytes_total = 0
        self._bytes = 0.0
        self._busy_s = 0.0
        self._mark_s: float | None = None
        self._last_record_s = -math.inf

    def start(self, now: float) -> None:
        """There is something to send from now on."""
        if self._mark_s is None:
            self._mark_s = now

    def record(self, size_bytes: int, now: float) -> None:
        """These bytes have passed. The time since the last call was busy, if there was something to send."""
        self.bytes_total += size_bytes
        self._last_record_s = now
        if self._mark_s is None:
            self._mark_s = now  # the first bytes after a pause: their own duration is unknown, so they do not count
            return
        self._pass(now)
        self._bytes += size_bytes

    def idle(self, now: float) -> None:
        """Nothing left to send: the time until the next record is not the link's."""
        self._pass(now)
        self._mark_s = None

    def goodput_bytes_per_s(self) -> float | None:
        """Decayed bytes over decayed busy time; None before anything was measured."""
        return self._bytes / self._busy_s if self._busy_s > 0 else None

    def current_bytes_per_s(self, now: float) -> float:
        """The goodput for a gauge: 0 when nothing has passed for three seconds."""
        return (self.goodput_bytes_per_s() or 0.0) if now - self._last_record_s < _QUIET_S else 0.0

    def _pass(self, now: float) -> None:
        if self._mark_s is None:
            return
        elapsed_s = max(0.0, now - self._mark_s)
        self._mark_s = now
        factor = math.exp(-elapsed_s / DECAY_S)
        self._bytes *= factor
        self._busy_s = self._busy_s * factor + elapsed_s
