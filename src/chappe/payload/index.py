"""What the chunks that are here say about each block: which chunks change it, and whether all of its pieces are here.

    add(number, chunk) ──▶ blocks that can be applied now        chunks come in any order, also from several parents
    prove(closing) ──▶ every block is decided, and is the one that the closing chunk commits to

Holds a digest a block and a number a changed block: about 0.002 % of the snapshot. Knows no bytes.
"""

from __future__ import annotations

from chappe.core.digest import Algorithm
from chappe.errors import CodecError
from chappe.payload.container import Closing, DataChunk
from chappe.payload.plan import DeltaPlan


class Index:
    """Filled as chunks arrive. Raises CodecError when two chunks contradict each other."""

    def __init__(self, plan: DeltaPlan) -> None:
        self._digests: list[bytes | None] = [None] * plan.blocks_total
        self._chunks: dict[int, list[int]] = {}  # of blocks that change
        self._pieces: dict[int, int] = {}
        self._whole: dict[int, int] = {}

    def add(self, number: int, chunk: DataChunk) -> list[int]:
        """Note a chunk; returns the blocks that are decidable now: all pieces are here, or there are none."""
        changed = {record.ordinal for record in chunk.records}
        ready = []
        for ordinal, digest in enumerate(chunk.digests, chunk.first):
            known = self._digests[ordinal]
            if known is not None and (known != digest or ordinal not in self._chunks or ordinal not in changed):
                raise CodecError(f"two chunks speak of block {ordinal}, and not as of pieces of it")
            self._digests[ordinal] = digest
            if ordinal not in changed:
                ready.append(ordinal)
        for record in chunk.records:
            ordinal, pieces = record.ordinal, 1 << record.piece.log2
            if self._whole.setdefault(ordinal, pieces) != pieces:
                raise CodecError(f"block {ordinal} is cut in two ways")
            numbers = self._chunks.setdefault(ordinal, [])
            if number not in numbers:
                numbers.append(number)
            self._pieces[ordinal] = self._pieces.get(ordinal, 0) + 1
            if self._pieces[ordinal] == pieces:
                ready.append(ordinal)
        return ready

    def digest(self, ordinal: int) -> bytes | None:
        """Of the block's final bytes; None before a chunk that covers it is here."""
        return self._digests[ordinal]

    def chunks_of(self, ordinal: int) -> list[int]:
        """Chunks with pieces of the block, in order; none: it does not change."""
        return sorted(self._chunks.get(ordinal, ()))

    def unchanged(self) -> list[bool]:
        """For each block, once all chunks are here: none of them changes it."""
        return [ordinal not in self._chunks for ordinal in range(len(self._digests))]

    def prove(self, closing: Closing, algorithm: Algorithm) -> None:
        """Raises CodecError when the blocks are not those that the closing chunk commits to."""
        content = algorithm.start()
        for ordinal, digest in enumerate(self._digests):
            if digest is None or self._pieces.get(ordinal, 0) != self._whole.get(ordinal, 0):
                raise CodecError(f"block {ordinal} is not complete")
            content.update(digest)
        if content.digest() != closing.content:
            raise CodecError("the blocks of a delta are not those that its closing chunk names")
