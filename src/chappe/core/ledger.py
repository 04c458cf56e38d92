"""What a node holds of one object: verified chunks, and the order in which they came.

The ledger decides nothing and does no I/O. It is fed by any number of sources with disjoint or overlapping ranges (one
per stripe and parent), and read by any number of children, each with a cursor into the arrival log: a child that is
slow, stopped or late costs its parent nothing but a number.

    sources ──add──▶ RangeSet `held`
                        └─ arrivals: [0,40) [60,80) [40,60) ...   append-only, coalesced
                                        ▲ cursor of child A   ▲ cursor of child B
"""

from __future__ import annotations

from dataclasses import dataclass

from chappe.core.ranges import Range, RangeSet


@dataclass(slots=True)
class Cursor:
    """A reader's place in the arrival log: the number of the run, and how far into it."""

    run: int = 0
    offset: int = 0


class Ledger:
    """Verified chunks of one object. `total` is None until the header is known: an object may have no chunks at all."""

    __slots__ = ("_arrivals", "dropped", "expected", "held", "total")

    def __init__(self, total: int | None = None, held: RangeSet | None = None) -> None:
        self.total = total
        self.held = held.copy() if held is not None else RangeSet()
        self.expected = RangeSet()
        """Chunks that are here and lack only their page to be proven: not held, and not asked for either."""
        self.dropped = 0
        """How many chunks were ever dropped: what is held may grow in the meantime, and hide it."""
        self._arrivals: list[Range] = list(self.held.ranges())

    @property
    def arrived(self) -> int:
        """How many chunks were ever added: never less than before."""
        return len(self.held) + self.dropped

    @property
    def complete(self) -> bool:
        return self.total is not None and len(self.held) == self.total

    def add(self, start: int, stop: int) -> list[Range]:
        """Record verified chunks and return the part that is new. Raises ValueError past `total`."""
        if self.total is not None and stop > self.total:
            raise ValueError(f"chunks [{start}, {stop}) of an object of {self.total} chunks")
        new = self.held.add(start, stop)
        for a, b in new:
            if self._arrivals and self._arrivals[-1][1] == a:
                self._arrivals[-1] = (self._arrivals[-1][0], b)
            else:
                self._arrivals.append((a, b))
        return new

    def drop(self, start: int, stop: int) -> list[Range]:
        """Forget chunks that turned out not to be there (rotten, unreadable) and return what was dropped.

        The arrival log keeps them: readers skip what is not held, and a second arrival is a new entry.
        """
        gone = self.held.discard(start, stop)
        self.dropped += sum(b - a for a, b in gone)
        return gone

    def missing(self) -> list[Range]:
        """What is not held and not expected, with an open end (see `OPEN_END`) while the total is unknown."""
        missing = self.held.missing(0, OPEN_END if self.total is None else self.total)
        if self.expected:
            missing = [gap for start, stop in missing for gap in self.expected.missing(start, stop)]
        return missing

    def ready(self, cursor: Cursor, wanted: RangeSet) -> bool:
        """Whether `take` would return anything. Nothing is moved."""
        return bool(self.take(Cursor(cursor.run, cursor.offset), wanted.copy(), 1))

    def take(self, cursor: Cursor, wanted: RangeSet, most: int) -> list[int]:
        """Up to `most` chunks that arrived at or after the cursor, are still held, and are in `wanted`.

        Moves the cursor behind what it returns and removes that from `wanted`, the reader's own: a chunk that was
        dropped and came again stands in the log twice and is still returned once.
        """
        taken: list[int] = []
        while cursor.run < len(self._arrivals) and len(taken) < most:
            start, stop = self._arrivals[cursor.run]
            at = start + cursor.offset
            if at >= stop:
                if cursor.run == len(self._arrivals) - 1:
                    break  # the last run may still grow
                cursor.run, cursor.offset = cursor.run + 1, 0
                continue
            ready = wanted.within(at, stop)
            if not ready:
                cursor.offset = stop - start
                continue
            a, b = ready[0]
            b = min(b, a + most - len(taken))
            for held_start, held_stop in self.held.within(a, b):
                taken.extend(range(held_start, held_stop))
                wanted.discard(held_start, held_stop)
            cursor.offset = b - start
        return taken


OPEN_END = 1 << 63
"""How an unknown end is written in a range, also on the wire."""
