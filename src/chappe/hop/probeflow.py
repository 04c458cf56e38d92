"""One direction of a probe: how much it may take, how much of it may be under way, and what arrived.

    sender: Limits.filler ──▶ room in the Window? ──▶ a piece of filler ──▶ kernel, shaper, link ──▶ receiver: Arrivals
                 Window ◀───────────────────────── taken_bytes ◀─────────────────────────────────────────────┘

What is under way when a publication begins has to drain first, and nobody can call it back: what a kernel and gRPC take
without being asked to stop is a megabyte, a second of a link of 10 Mbit/s. So a sender has no more under way than the
link needs: twice the best rate seen times the shortest way there and back (as BBR sizes its window: Cardwell et al.,
"BBR: Congestion-Based Congestion Control", 2016), from acknowledgements of the far end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from chappe.clock import boot_now
from chappe.hop.limits import TokenBucket

PROBE_BYTES_MAX = 8 << 20
PROBE_SECONDS_MAX = 2.0
"""In each direction, whatever an order says."""
WINDOW_MIN_BYTES = 128 << 10
"""Also what may be under way before the first acknowledgement."""
PIECE_MIN_BYTES, PIECE_MAX_BYTES = 16 << 10, 64 << 10
PIECE_S = 0.01
_FILLER = os.urandom(PIECE_MAX_BYTES)  # random, so that nothing on the way can compress it


class Arrivals:
    """Filler as it arrives."""

    def __init__(self) -> None:
        self.bytes = 0
        self._times: list[tuple[float, int]] = []

    def add(self, size_bytes: int, now: float) -> None:
        self.bytes += size_bytes
        self._times.append((now, self.bytes))

    def bytes_per_s(self) -> float:
        """Without the first quarter, in which windows still grow. 0 when too little came to tell."""
        if len(self._times) < 2:
            return 0.0
        start = next(i for i, (_, total) in enumerate(self._times) if total >= self.bytes / 4)
        start = min(start, len(self._times) - 2)
        (start_s, start_bytes), (end_s, end_bytes) = self._times[start], self._times[-1]
        return (end_bytes - start_bytes) / (end_s - start_s) if end_s > start_s else 0.0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of filler under way."""

    stop: int  # what had been sent with it
    sent_s: float
    taken: int  # what had been taken when it was sent, and when that was known
    taken_s: float


class Window:
    """What a sender may have under way: everything, until the far end acknowledges for the first time."""

    def __init__(self) -> None:
        self.sent_bytes = self.taken_bytes = 0
        self.acknowledged = False
        self._taken_s = -math.inf
        self._pieces: deque[_Piece] = deque()
        self._rate_bytes_per_s, self._round_trip_s = 0.0, math.inf
        self._changed = asyncio.Event()

    @property
    def bytes(self) -> float:
        """How much may be under way."""
        if not self.acknowledged:
            return math.inf
        known = math.isfinite(self._round_trip_s)
        return max(WINDOW_MIN_BYTES, 2 * self._rate_bytes_per_s * self._round_trip_s if known else 0.0)

    @property
    def piece_bytes(self) -> int:
        """Of which size the next message should be: ten milliseconds, within limits."""
        return int(min(PIECE_MAX_BYTES, max(PIECE_MIN_BYTES, PIECE_S * self._rate_bytes_per_s)))

    def sent(self, size_bytes: int, now: float) -> None:
        if self.taken_bytes == self.sent_bytes:  # nothing is under way: the far end's pause is none of the link's
            self._taken_s = now
        self.sent_bytes += size_bytes
        self._pieces.append(_Piece(self.sent_bytes, now, self.taken_bytes, self._taken_s))

    def taken(self, total_bytes: int, now: float) -> None:
        """The far end has so much. Raises ValueError when that is less than before, or more than was sent."""
        if not self.taken_bytes <= total_bytes <= self.sent_bytes:
            raise ValueError(f"{total_bytes} bytes taken, of {self.sent_bytes} that were sent")
        self.acknowledged = True
        self.taken_bytes, self._taken_s = total_bytes, now
        while self._pieces and self._pieces[0].stop <= total_bytes:
            piece = self._pieces.popleft()
            self._round_trip_s = min(self._round_trip_s, now - piece.sent_s)
            if now > piece.taken_s:
                rate = (total_bytes - piece.taken) / (now - piece.taken_s)
                self._rate_bytes_per_s = max(self._rate_bytes_per_s, rate)
        self._changed.set()

    async def room(self, until_s: float) -> None:
        """Return when there is room for another piece, or when the time (of `boot_now`) has come."""
        await self._until(until_s, lambda: self.sent_bytes - self.taken_bytes + self.piece_bytes <= self.bytes)

    async def empty(self, until_s: float) -> None:
        """Return when everything has been taken, or when the time has come."""
        await self._until(until_s, lambda: self.taken_bytes == self.sent_bytes)

    async def opened(self, until_s: float, ended: asyncio.Future[Any]) -> None:
        """Return when the far end has acknowledged something, has `ended` instead, or when the time has come."""
        ended.add_done_callback(lambda _: self._changed.set())
        await self._until(until_s, lambda: self.acknowledged or ended.done())

    async def _until(self, until_s: float, holds: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - boot_now())):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()


class Limits:
    """How much one direction may still take."""

    def __init__(self, bytes_max: int, seconds_max: float) -> None:
        self.left_bytes = min(bytes_max, PROBE_BYTES_MAX)
        self.seconds = seconds_max if 0 < seconds_max < PROBE_SECONDS_MAX else PROBE_SECONDS_MAX

    async def filler(self, bucket: TokenBucket | None, window: Window) -> AsyncIterator[bytes]:
        """Pieces to send, each as soon as it may be."""
        end_s = boot_now() + self.seconds
        while True:
            await window.room(end_s)
            if self.left_bytes <= 0 or boot_now() >= end_s:
                return
            piece = _FILLER[: min(self.left_bytes, window.piece_bytes if window.acknowledged else PIECE_MAX_BYTES)]
            self.left_bytes -= len(piece)
            if bucket is not None:
                await bucket.take(len(piece))
            window.sent(len(piece), boot_now())
            yield piece
