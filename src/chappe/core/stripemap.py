"""Which chunks belong to which stripe: weighted interleaving in short runs, the same at every node.

    weights 2 1 1, run 3:   stripe 0 ███   ░░░ stripe 1   ▒▒▒ stripe 2   stripe 0 ███   and again
                     chunk  0..2          3..5            6..8           9..11

The pattern is the smoothest one of its weights (the stripe that is furthest behind its share is next), so that stripes
which keep their rates fill pages in order. Runs are longer in large objects: what a node holds is told as ranges, and
there is about one for each run by which stripes are apart.

The map travels with the edge to the child, and with the child's request to its parent, which serves what the child
says: they cannot disagree. No map is one stripe with everything in it: the plain chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from chappe.core.ranges import Range, RangeSet

STRIPES_MAX = 64
WEIGHTS_MAX = 256
"""Their sum: the length of the pattern."""
RUN_MAX = 1 << 20
RUNS_WANTED = 4096
"""Of an object: holdings are told to the coordinator once a second."""


@dataclass(frozen=True, slots=True)
class StripeMap:
    """Raises ValueError for weights or a run that nobody would make."""

    weights: tuple[int, ...] = (1,)
    run: int = 1  # chunks

    def __post_init__(self) -> None:
        if not 1 <= len(self.weights) <= STRIPES_MAX or min(self.weights) < 1 or sum(self.weights) > WEIGHTS_MAX:
            shown = self.weights[: STRIPES_MAX + 1]
            raise ValueError(f"stripe weights {shown}: 1 to {STRIPES_MAX}, each above 0, together up to {WEIGHTS_MAX}")
        if not 1 <= self.run <= RUN_MAX:
            raise ValueError(f"runs of {self.run} chunks in a stripe: 1 to {RUN_MAX}")

    @classmethod
    def of(cls, weights: Sequence[int], chunks_total: int) -> StripeMap:
        """With runs that suit the size of an object."""
        return cls(tuple(weights), max(1, min(RUN_MAX, chunks_total // RUNS_WANTED)))

    @property
    def plain(self) -> bool:
        return len(self.weights) == 1

    def pattern(self) -> tuple[int, ...]:
        """One period, a stripe for each run."""
        return _pattern(self.weights)

    def stripe_of(self, chunk: int) -> int:
        pattern = _pattern(self.weights)
        return pattern[chunk // self.run % len(pattern)]

    def within(self, stripe: int, ranges: Iterable[Range], total: int) -> Iterator[Range]:
        """What belongs to the stripe, of these ranges (sorted, disjoint, possibly with an open end), below `total`."""
        if self.plain:
            yield from ((a, min(b, total)) for a, b in ranges if a < total)
            return
        starts = [i * self.run for i, s in enumerate(self.pattern()) if s == stripe]
        period = sum(self.weights) * self.run
        for start, stop in ranges:
            end = min(stop, total)
            base = start - start % period
            while base < end:
                for at in starts:
                    a, b = max(start, base + at), min(end, base + at + self.run)
                    if a < b:
                        yield a, b
                base += period

    def counts(self, ranges: Iterable[Range], total: int) -> list[int]:
        """How many chunks of each stripe are in these ranges (sorted, disjoint), below `total`."""
        pattern, weights = self.pattern(), self.weights
        period = len(pattern) * self.run
        before = [[0] * len(weights)]  # of the runs below each one of a period
        for stripe in pattern:
            before.append([n + (s == stripe) for s, n in enumerate(before[-1])])

        def below(chunk: int) -> list[int]:
            periods, rest = divmod(chunk, period)
            runs, part = divmod(rest, self.run)
            found = [self.run * (periods * w + n) for w, n in zip(weights, before[runs], strict=True)]
            found[pattern[runs]] += part
            return found

        counts = [0] * len(weights)
        for start, stop in ranges:
            if start < min(stop, total):
                a, b = below(start), below(min(stop, total))
                counts = [n + y - x for n, x, y in zip(counts, a, b, strict=True)]
        return counts

    def restrict(self, stripe: int, wanted: RangeSet, total: int) -> RangeSet:
        return RangeSet(self.within(stripe, wanted.ranges(), total))

    def lacks(self, stripe: int, held: Sequence[Range], total: int) -> bool:
        """Whether a chunk of the stripe is in none of these ranges (sorted, disjoint)."""
        return next(self.within(stripe, _gaps(held, total), total), None) is not None


PLAIN = StripeMap()


@lru_cache(maxsize=64)
def _pattern(weights: tuple[int, ...]) -> tuple[int, ...]:
    whole = sum(weights)
    credit = [0] * len(weights)
    runs: list[int] = []
    for _ in range(whole):
        for stripe, weight in enumerate(weights):
            credit[stripe] += weight
        chosen = max(range(len(credit)), key=lambda s: (credit[s], -s))
        credit[chosen] -= whole
        runs.append(chosen)
    return tuple(runs)


def _gaps(held: Sequence[Range], total: int) -> Iterator[Range]:
    at = 0
    for start, stop in held:
        if at < start:
            yield at, start
        at = stop
    if at < total:
        yield at, total
