"""In which rows the blocks of a delta are given to the threads or processes that make them.

    1 1 1 1   2 2 2 2   4 4 4 4   ...  as long as may be  ...  shorter towards the end
    chunks leave at once                                       no hand has much to do when the others have finished

A long run costs less: each is handed over, and the leaf of the base that lies across its end is read once more by
whoever proves the base. But all that it becomes is in memory until it is packed, so that how long one may be follows
from how small the ones before it became, and how soon. Where that changes within a snapshot, `chappe.origin.encoder`
ends a run that has become too large: the rest of it is asked for again when it is due, in short ones for all hands.
These have nothing else to do: as much as may wait has been made ahead by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

RUN_BLOCKS_MAX = 32
RUN_BYTES_MAX = 16 << 20
"""Of what a run becomes, and of what it is read from where that is not known to get smaller: small against what may
wait in memory, where a run that a thread waits for, or that waits for the ones before it, is there twice for a
moment."""
READ_BYTES_MAX = 64 << 20
"""Of what a run is read from, always. Of snapshots of 1 GB, of which 1 % had changed, two processes gained as much with
it as two that have no publisher, and nine tenths of that with 16 MiB (`python -m bench delta`)."""
RUN_S_MAX = 0.25
"""Where files are read slowly a run stays short: a process that has not answered for long is taken for lost."""
_EXPECTED_BYTES_MAX = RUN_BYTES_MAX // 2
_BLOCKS_AT_THE_END = 8


class Runs(Iterator[range]):
    """All blocks in order, for so many hands. `became` is told meanwhile how small they get, and how soon; one thread
    uses it."""

    def __init__(self, blocks_total: int, hands: int, bytes_of: Callable[[int], int]) -> None:
        """`bytes_of` tells a block's."""
        self._total, self._hands, self._bytes_of = blocks_total, hands, bytes_of
        self._longest = max(1, min(RUN_BLOCKS_MAX, blocks_total // (4 * hands)))
        self._next, self._given, self._length = 0, 0, 1
        self._bytes_max = RUN_BYTES_MAX

    def __next__(self) -> range:
        start = self._next
        if start == self._total:
            raise StopIteration
        run = self._row(range(start, start + self._blocks_max()), self._bytes_max)
        self._next, self._given = run.stop, self._given + 1
        if self._given % (2 * self._hands) == 0:
            self._length = min(2 * self._length, self._longest)
        return run

    def again(self, rest: range) -> Iterator[range]:
        """The rest of one, for all hands: where layers that change lie between some that do not, that is most of it. At
        most `READ_BYTES_MAX`, once, is what it adds to what waits."""
        length = max(1, len(rest) // (2 * self._hands))
        while rest:
            run = self._row(rest[:length], RUN_BYTES_MAX)
            yield run
            rest = rest[len(run) :]

    def _row(self, blocks: range, bytes_max: int) -> range:
        """So many of them that they have at most these bytes, and at least one."""
        count, run_bytes = 1, self._bytes_of(blocks[0])
        while count < len(blocks):
            run_bytes += self._bytes_of(blocks[count])
            if run_bytes > bytes_max:
                break
            count += 1
        return blocks[:count]

    def _blocks_max(self) -> int:
        left = self._total - self._next
        return min(left, self._length, max(_BLOCKS_AT_THE_END, left // (2 * self._hands)))

    def became(self, read_bytes: int, encoded_bytes: int, took_s: float) -> None:
        """How large a run was, how large its blocks are now, and how long that took."""
        small = read_bytes * _EXPECTED_BYTES_MAX // max(encoded_bytes, 1)
        soon = read_bytes * RUN_S_MAX / max(took_s, 1e-6)
        self._bytes_max = max(RUN_BYTES_MAX, min(READ_BYTES_MAX, small, round(soon)))
