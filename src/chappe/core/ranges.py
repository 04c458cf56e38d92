"""Sets of chunk numbers as sorted, disjoint, half-open ranges.

A broadcast holds one or two ranges per relay nearly all of the time, so a sorted list beats a bitmap at every size.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]


class RangeSet:
    """A mutable set of non-negative integers. Adjacent ranges are always merged."""

    __slots__ = ("_count", "_starts", "_stops")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._count = 0
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> list[Range]:
        """Add [start, stop) and return what was not in the set before, in order.

        Raises ValueError for a negative start or a stop before the start.
        """
        if start < 0 or stop < start:
            raise ValueError(f"[{start}, {stop}) is not a range of chunks")
        if start == stop:
            return []
        if self._stops and self._stops[-1] == start:  # what comes in order: nearly always
            self._stops[-1] = stop
            self._count += stop - start
            return [(start, stop)]
        first = bisect_left(self._stops, start)  # first range that touches or follows
        last = bisect_right(self._starts, stop)  # one past the last that touches
        new: list[Range] = []
        cursor = start
        for i in range(first, last):
            if cursor < self._starts[i]:
                new.append((cursor, self._starts[i]))
            cursor = max(cursor, self._stops[i])
        if cursor < stop:
            new.append((cursor, stop))
        merged_start = min(start, self._starts[first]) if first < last else start
        merged_stop = max(stop, self._stops[last - 1]) if first < last else stop
        self._starts[first:last] = [merged_start]
        self._stops[first:last] = [merged_stop]
        self._count += sum(b - a for a, b in new)
        return new

    def discard(self, start: int, stop: int) -> list[Range]:
        """Remove [start, stop) and return what was in the set, in order."""
        if self._starts and self._starts[0] == start < stop < self._stops[0]:  # what is taken in order: nearly always
            self._starts[0] = stop
            self._count -= stop - start
            return [(start, stop)]
        gone = self.within(start, stop)
        if not gone:
            return []
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        keep: list[Range] = []
        if self._starts[first] < start:
            keep.append((self._starts[first], start))
        if self._stops[last - 1] > stop:
            keep.append((stop, self._stops[last - 1]))
        self._starts[first:last] = [a for a, _ in keep]
        self._stops[first:last] = [b for _, b in keep]
        self._count -= sum(b - a for a, b in gone)
        return gone

    def within(self, start: int, stop: int) -> list[Range]:
        """The members in [start, stop), as ranges in order."""
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        return [
            (max(self._starts[i], start), min(self._stops[i], stop))
            for i in range(first, last)
            if max(self._starts[i], start) < min(self._stops[i], stop)
        ]

    def missing(self, start: int, stop: int) -> list[Range]:
        """The numbers of [start, stop) that are not members, as ranges in order."""
        gaps: list[Range] = []
        cursor = start
        for a, b in self.within(start, stop):
            if cursor < a:
                gaps.append((cursor, a))
            cursor = b
        if cursor < stop:
            gaps.append((cursor, stop))
        return gaps

    def covers(self, start: int, stop: int) -> bool:
        """True when all of [start, stop) is in the set."""
        if start >= stop:
            return True
        i = bisect_right(self._starts, start) - 1
        return i >= 0 and self._stops[i] >= stop

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self._starts, number) - 1
        return i >= 0 and number < self._stops[i]

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._starts, self._stops, strict=True)))

    def ranges(self) -> tuple[Range, ...]:
        """As a tuple. `tuple(self)` would reserve room for as many ranges as there are numbers (`len`)."""
        return tuple(zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        """How many numbers (not how many ranges) are in the set."""
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"RangeSet({list(self.ranges())!r})"

    def copy(self) -> RangeSet:
        twin = RangeSet()
        twin._starts, twin._stops, twin._count = self._starts[:], self._stops[:], self._count
        return twin
