"""Positions that move along a list of ranges, and how a child sees its parent's.

Pure arithmetic on chunks and seconds: who moves, and how fast, is decided in `flow`.
"""

from __future__ import annotations

from collections.abc import Callable

from chappe.core.ranges import Range, RangeSet
from chappe.sim.copies import pieces

EPSILON = 1e-6
"""Of a chunk: what two positions may differ by and still be the same."""


class Track:
    """A position along a plan. `take` is called with what has come since it was called last."""

    __slots__ = ("_taken", "plan", "position", "rate", "since_s", "take", "total")

    def __init__(self, plan: list[Range], now: float, take: Callable[[list[Range]], object]) -> None:
        self.plan = plan
        self.total = sum(b - a for a, b in plan)
        self.position = 0.0
        self.since_s = now
        self.rate = 0.0
        self.take = take
        self._taken = 0

    def at(self, now: float) -> float:
        return min(self.total, self.position + self.rate * (now - self.since_s))

    def turn(self, now: float, rate: float) -> None:
        self.position, self.since_s, self.rate = self.at(now), now, rate

    def settle(self, now: float) -> None:
        upto = int(self.at(now) + EPSILON)
        if upto > self._taken:
            start, self._taken = self._taken, upto
            self.take(pieces(self.plan, start, upto))

    def left(self) -> list[Range]:
        return pieces(self.plan, self._taken, self.total)

    def position_of(self, chunk: int, least: int) -> int | None:
        """Where a chunk comes, not before this position; None when it does not."""
        at = 0
        for a, b in self.plan:
            if a <= chunk < b and at + chunk - a >= least:
                return at + chunk - a
            at += b - a
        return None


class View:
    """A parent as its child sees it: what it held, what it was receiving, and how fast."""

    __slots__ = ("base", "header", "pages", "plan", "position", "rate", "since_s", "total")

    def __init__(self, header: bool, base: RangeSet, track: Track | None, now: float, pages: int = 0) -> None:
        self.header, self.pages = header, pages
        self.base = base
        self.plan: list[Range] = [] if track is None else track.plan
        self.total = 0 if track is None else track.total
        self.position = 0.0 if track is None else track.at(now)
        self.rate = 0.0 if track is None else track.rate
        self.since_s = now

    def at(self, now: float) -> float:
        return min(self.total, self.position + self.rate * (now - self.since_s))
