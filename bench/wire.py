"""One direction of a link: what happens to each frame between its ends. Pure: frames and times in and out.

    push ──▶ lost? ──▶ queue full? ──▶ serialised at the rate ──▶ held for delay + jitter ──▶ pop
              │ loss      │ queue_bytes
              ▼           ▼
            counted     counted

Frames leave in the order in which they came unless `reorder` is asked for. The same seed loses the same frames.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import asdict, dataclass

FRAMES_MAX = 100_000
"""Held at once, whatever the delay: 150 MB of full frames."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """What a direction does to frames. Raises ValueError for what no link does."""

    delay_s: float = 0.0
    """One way, at least."""
    jitter_s: float = 0.0
    """On top of the delay, uniform from 0 to this."""
    loss: float = 0.0
    """Share of the frames that vanish, independent of each other, 0 to 1."""
    reorder: bool = False
    """Let the jitter of a frame take it past another one."""
    rate_bytes_per_s: float | None = None
    queue_bytes: int = 1 << 20
    """What may wait for the rate; a frame that finds more is dropped."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.delay_s < 0 or self.jitter_s < 0:
            raise ValueError(f"a delay of {self.delay_s} s and a jitter of {self.jitter_s} s: neither can be negative")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"a loss of {self.loss}: it is a share, 0 to 1")
        if self.rate_bytes_per_s is not None and self.rate_bytes_per_s <= 0:
            raise ValueError(f"a rate of {self.rate_bytes_per_s} B/s: above 0, or None for no limit")


@dataclass(slots=True)
class Counts:
    """Frames since the line was made. taken = delivered + lost + overflowed + still held."""

    taken: int = 0
    delivered: int = 0
    lost: int = 0
    """By chance, as asked."""
    overflowed: int = 0
    """For want of room in the queue."""

    def to_json(self) -> dict[str, int]:
        return asdict(self)


class Line:
    """Frames on their way. Times are seconds of one monotonic clock, and never go back."""

    def __init__(self, impairment: Impairment | None = None) -> None:
        self.counts = Counts()
        self._held: list[tuple[float, int, bytes]] = []  # (due, number, frame), a heap
        self._busy_until_s = 0.0
        self._last_due_s = 0.0
        self.change(impairment or Impairment())

    def change(self, impairment: Impairment) -> None:
        """From the next frame on. What is on its way arrives as it would have; the dice start at the seed."""
        self.impairment = impairment
        self._dice = random.Random(impairment.seed)

    def push(self, frame: bytes, now_s: float) -> None:
        """A frame enters."""
        how, counts = self.impairment, self.counts
        counts.taken += 1
        if how.loss and self._dice.random() < how.loss:
            counts.lost += 1
            return
        leaves_s = now_s
        if how.rate_bytes_per_s is not None:
            begins_s = max(now_s, self._busy_until_s)
            if (begins_s - now_s) * how.rate_bytes_per_s > how.queue_bytes:
                counts.overflowed += 1
                return
            leaves_s = self._busy_until_s = begins_s + len(frame) / how.rate_bytes_per_s
        if len(self._held) >= FRAMES_MAX:
            counts.overflowed += 1
            return
        due_s = leaves_s + how.delay_s
        if how.jitter_s:
            due_s += self._dice.random() * how.jitter_s
        if not how.reorder:
            due_s = self._last_due_s = max(due_s, self._last_due_s)
        heapq.heappush(self._held, (due_s, counts.taken, frame))

    def pop(self, now_s: float) -> list[bytes]:
        """The frames that are due, first to last."""
        due: list[bytes] = []
        while self._held and self._held[0][0] <= now_s:
            due.append(heapq.heappop(self._held)[2])
        self.counts.delivered += len(due)
        return due

    def next_due_s(self) -> float | None:
        """When the next frame arrives; None when nothing is on its way."""
        return self._held[0][0] if self._held else None
