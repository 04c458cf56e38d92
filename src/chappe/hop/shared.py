"""A ledger and sets of chunks that several threads use: the event loop, and a thread for each data connection.

Each call is one step for everybody else; two calls are two. The rules are those of `chappe.core`, without threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from chappe.core.ledger import Cursor, Ledger
from chappe.core.ranges import Range, RangeSet


class SharedRanges(RangeSet):
    """A RangeSet for any thread."""

    __slots__ = ("_lock",)

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._lock = threading.RLock()
        super().__init__(ranges)

    def add(self, start: int, stop: int) -> list[Range]:
        with self._lock:
            return RangeSet.add(self, start, stop)

    def discard(self, start: int, stop: int) -> list[Range]:
        with self._lock:
            return RangeSet.discard(self, start, stop)

    def within(self, start: int, stop: int) -> list[Range]:
        with self._lock:
            return RangeSet.within(self, start, stop)

    def covers(self, start: int, stop: int) -> bool:
        with self._lock:
            return RangeSet.covers(self, start, stop)

    def __contains__(self, number: int) -> bool:
        with self._lock:
            return RangeSet.__contains__(self, number)

    def __iter__(self) -> Iterator[Range]:
        return iter(self.ranges())

    def ranges(self) -> tuple[Range, ...]:
        with self._lock:
            return super().ranges()

    def copy(self) -> RangeSet:
        with self._lock:
            return super().copy()


class SharedLedger(Ledger):
    """A Ledger for any thread. A cursor and what its reader wants belong to one reader at a time."""

    __slots__ = ("_lock",)

    def __init__(self, total: int | None = None) -> None:
        super().__init__(total)
        self._lock = threading.RLock()
        self.held = SharedRanges()

    @property
    def arrived(self) -> int:
        with self._lock:
            return len(self.held) + self.dropped

    def add(self, start: int, stop: int) -> list[Range]:
        with self._lock:
            return Ledger.add(self, start, stop)

    def drop(self, start: int, stop: int) -> list[Range]:
        with self._lock:
            return Ledger.drop(self, start, stop)

    def take(self, cursor: Cursor, wanted: RangeSet, most: int) -> list[int]:
        with self._lock:
            return Ledger.take(self, cursor, wanted, most)
