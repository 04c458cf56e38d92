"""A cap on a link's rate, shared by every stream that uses it (`--limit-uplink`, `--limit-downlink`).

Each `take` books the next span of the link's time and sleeps until that span is over, less the burst. Spans are booked
in the order of the calls, so users share fairly message by message, and from the end of the last span, so that a late
wake-up is made up for by the next: over a long run the rate is exact, whatever the timer's precision.

    booked ─────────▶|<─ size / rate ─▶|
                          |<─  burst  ─▶|      `take` returns at the burst's start; an idle link's next message at once
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from chappe.clock import boot_now

BURST_S = 0.02
_MEANWHILE_S = 0.5


@dataclass(frozen=True, slots=True)
class Booking:
    """A span of the link's time. Whoever booked it may begin `wait_s` from then on."""

    wait_s: float
    span_s: float
    end_s: float


class TokenBucket:
    """Bytes per second of payload; headers of the layers below come on top.

    Coroutines `take`; threads `book`, wait as long as it says, and `give_back` what they do not use.

    The burst is 20 ms of the rate, or one message if that is more: a message is never split.
    """

    __slots__ = ("_booked_until", "_burst_s", "_lock", "_now", "_sleep", "rate_bytes_per_s")

    def __init__(
        self,
        rate_bytes_per_s: float,
        *,
        burst_s: float = BURST_S,
        now: Callable[[], float] = boot_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not rate_bytes_per_s > 0:
            raise ValueError(f"a rate of {rate_bytes_per_s} bytes per second")
        self.rate_bytes_per_s = rate_bytes_per_s
        self._burst_s = burst_s
        self._now = now
        self._sleep = sleep
        self._booked_until = float("-inf")
        self._lock = threading.Lock()

    def book(self, size_bytes: int) -> Booking:
        """From any thread. First come, first served."""
        with self._lock:
            now = self._now()
            span_s = size_bytes / self.rate_bytes_per_s
            self._booked_until = end_s = max(self._booked_until, now) + span_s
            return Booking(end_s - max(self._burst_s, span_s) - now, span_s, end_s)

    def give_back(self, booking: Booking) -> None:
        """It is not used. Nothing comes of that when somebody has booked behind it."""
        with self._lock:
            if self._booked_until == booking.end_s:
                self._booked_until -= booking.span_s

    async def take(self, size_bytes: int, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Return when these bytes may go. First come, first served.

        `meanwhile` is called twice a second in a long wait.
        """
        booking = self.book(size_bytes)
        start_s = booking.end_s - max(self._burst_s, booking.span_s)
        try:
            while (wait_s := start_s - self._now()) > 0:
                await self._sleep(wait_s if meanwhile is None else min(wait_s, _MEANWHILE_S))
                if meanwhile is not None and self._now() < start_s:
                    await meanwhile()
        except asyncio.CancelledError:
            self.give_back(booking)
            raise
