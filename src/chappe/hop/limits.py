"""A cap on a link's rate, shared by every stream that uses it (`--limit-uplink`, `--limit-downlink`).

Each `take` books the next span of the link's time and sleeps until that span is over, less the burst. Spans are booked
in the order of the calls, so users share fairly message by message, and from the end of the last span, so that a late
wake-up is made up for by the next: over a long run the rate is exact, whatever the timer's precision.

    booked ─────────▶|<─ size / rate ─▶|
                          |<─  burst  ─▶|      `take` returns at the burst's start; an idle link's next message at once
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from chappe.clock import boot_now

BURST_S = 0.02
_MEANWHILE_S = 0.5


class TokenBucket:
    """Bytes per second of payload; headers of the layers below come on top.

    The burst is 20 ms of the rate, or one message if that is more: a message is never split.
    """

    __slots__ = ("_booked_until", "_burst_s", "_now", "_sleep", "rate_bytes_per_s")

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

    async def take(self, size_bytes: int, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Return when these bytes may go. First come, first served.

        `meanwhile` is called twice a second in a long wait.
        """
        span_s = size_bytes / self.rate_bytes_per_s
        end_s = max(self._booked_until, self._now()) + span_s
        self._booked_until = end_s
        start_s = end_s - max(self._burst_s, span_s)
        try:
            while (wait_s := start_s - self._now()) > 0:
                await self._sleep(wait_s if meanwhile is None else min(wait_s, _MEANWHILE_S))
                if meanwhile is not None and self._now() < start_s:
                    await meanwhile()
        except asyncio.CancelledError:
            if self._booked_until == end_s:  # nobody booked behind: the span can be given back
                self._booked_until -= span_s
            raise
