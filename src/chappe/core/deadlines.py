"""When something may be due, for thousands of workers, without looking at all of them at each event.

A deadline that has moved later is noticed when the old one comes up: whoever pops it asks what is due, and sets the
next one.
"""

from __future__ import annotations

import heapq
import math


class Deadlines:
    """The earliest time per key; times are rounded up to `grain_s`, so that many come up together."""

    def __init__(self, grain_s: float) -> None:
        self._grain_s = grain_s
        self._heap: list[tuple[float, str]] = []
        self._of: dict[str, float] = {}

    def at(self, key: str, time_s: float) -> None:
        """Look at `key` at this time at the latest."""
        due = math.ceil(time_s / self._grain_s - 1e-6) * self._grain_s
        if due < self._of.get(key, math.inf):
            self._of[key] = due
            heapq.heappush(self._heap, (due, key))

    def pop(self, now: float) -> list[str]:
        """The keys that are due, earliest first. Each has to be set again if it is to come up again."""
        due: list[str] = []
        while self._heap and self._heap[0][0] <= now + 1e-9:
            time_s, key = heapq.heappop(self._heap)
            if self._of.get(key) == time_s:
                del self._of[key]
                due.append(key)
        return due

    @property
    def next_s(self) -> float | None:
        while self._heap and self._of.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
