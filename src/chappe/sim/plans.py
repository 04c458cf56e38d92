"""In which order a child takes what its parent has and gets, and how much of that could have come by now.

    plan = what the parent held when it was made (fixed), then what the parent itself is receiving, in its order (live)

Pure arithmetic on chunks: when a plan is made anew, and how fast it is followed, is decided in `flow`.
"""

from __future__ import annotations

from collections.abc import Sequence

from chappe.core.ranges import Range, RangeSet
from chappe.sim.stripes import Live, spans
from chappe.sim.tracks import EPSILON, View


class Plan:
    """Positions are chunks from the beginning of `ranges`, or of a longer plan that goes on (`after`)."""

    __slots__ = ("_fixed", "_live", "ranges", "total")

    def __init__(self, ranges: list[Range], fixed: int, live: Sequence[Live], total: int) -> None:
        self.ranges = ranges
        self.total = total
        self._fixed = fixed  # how much of it the parent has anyway
        self._live = live

    def after(self, done: int) -> Plan:
        """The same, behind so many chunks that have been taken already."""
        live = [(own + done, at, length, span) for own, at, length, span in self._live]
        return Plan(self.ranges, self._fixed + done, live, self.total + done)

    def available(self, seen: float, rate: float) -> tuple[float, float, float]:
        """With the parent at `seen`: how far the plan could be, how fast that grows while the parent moves at `rate`,
        and the parent's position at which this changes."""
        available, slope, boundary = float(self._fixed), 0.0, float("inf")
        for own, at, length, span in self._live:
            if seen < at - EPSILON:
                boundary = at
                break
            if seen < at + span - EPSILON:
                share = length / span
                available, slope, boundary = own + (seen - at) * share, rate * share, at + span
                break
            available = float(own + length)
        return available, slope, boundary


NOTHING = Plan([], 0, (), 0)


def plan_of(view: View, wanted: RangeSet, *, striped: bool) -> Plan:
    """All that is wanted, as far as the parent has it or is about to get it."""
    plan: list[Range] = []
    for start, stop in wanted:
        plan += view.base.within(start, stop)
    fixed = sum(b - a for a, b in plan)
    live: list[Live] = []
    at, own = 0, fixed
    for a, b in view.plan:
        for start, stop in wanted.within(a, b):
            for piece in view.base.missing(start, stop) if plan else [(start, stop)]:
                plan.append(piece)
                size = piece[1] - piece[0]
                live.append((own, at + piece[0] - a, size, size))
                own += size
        at += b - a
    if striped and len(view.plan) < len(live):
        live = spans(live)
    return Plan(plan, fixed, live, own)
