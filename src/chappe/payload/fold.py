"""Deltas out of deltas, without a snapshot: two in a row as one, and one backwards.

    have ──first──▶ mid ──second──▶ now        fold(first, second) = the chunks of the direct delta have ──▶ now
    have ──delta──▶ now                        inverse(delta)      = the chunks of the direct delta now ──▶ have

Differences add up and change sign; what is written is a function of the difference, so the bytes are those of a direct
comparison as long as the same regions are compared. They are not when a tensor was away in between, or a header or a
sidecar had another length: the folded delta then has it whole, which is as right, and longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chappe.core.digest import Algorithm
from chappe.errors import CodecError, SnapshotError
from chappe.payload.blocks import Piece, add_piece, encode
from chappe.payload.census import counted
from chappe.payload.container import CHUNK_BYTES_DEFAULT, Closing, DataChunk, EncodedBlock, parse_chunk
from chappe.payload.delta import Mapper, ReadRange
from chappe.payload.difference import TYPES, Difference, Elements, elements_of
from chappe.payload.index import Index
from chappe.payload.plan import DeltaPlan
from chappe.payload.planes import Buffer
from chappe.payload.table import NO_BASE


@dataclass(frozen=True)
class Delta:
    """A whole delta at hand. `read_chunk` gives a data chunk again by its number; it is called from any thread."""

    plan: DeltaPlan
    algorithm: Algorithm
    index: Index
    read_chunk: Callable[[int], Buffer]

    @staticmethod
    def of(plan: DeltaPlan, algorithm: Algorithm, chunks: Sequence[Buffer]) -> Delta:
        """From all chunks, closing included. Raises CodecError when they are not a whole delta of this plan."""
        index = Index(plan)
        closing = None
        for number, data in enumerate(chunks):
            chunk = parse_chunk(plan, algorithm, data)
            if isinstance(chunk, Closing):
                closing = chunk
            else:
                index.add(number, chunk)
        if closing is None:
            raise CodecError("a delta without its closing chunk")
        index.prove(closing, algorithm)
        return Delta(plan, algorithm, index, chunks.__getitem__)

    def pieces(self, ordinal: int) -> list[Piece]:
        pieces: list[Piece] = []
        for number in self.index.chunks_of(ordinal):
            chunk = parse_chunk(self.plan, self.algorithm, self.read_chunk(number))
            if not isinstance(chunk, DataChunk):
                raise CodecError(f"chunk {number} is not the one that was indexed")
            pieces += chunk.pieces_of(ordinal)
        return sorted(pieces, key=lambda piece: piece.index)

    def add_block(self, ordinal: int, values: Elements) -> None:
        """Add the difference of a block to all of its elements."""
        for piece in self.pieces(ordinal):
            add_piece(piece, values)

    def add_region(self, region: int, begin: int, end: int, values: Elements) -> None:
        """Add the difference of bytes [begin, end) of a target region."""
        place = self.plan.target.regions[region]
        at, stop = place.begin + begin, place.begin + end
        filled = 0
        while at < stop:
            ordinal = self.plan.block_at(place.file, at)
            block = self.plan.block(ordinal)
            start = (at - block.offset) // block.width
            count = min(stop - at, block.offset + block.length - at) // block.width
            if self.index.chunks_of(ordinal):
                if (start, count) == (0, block.elements):
                    self.add_block(ordinal, values[filled : filled + count])
                else:
                    whole = np.zeros(block.elements, TYPES[block.width])
                    self.add_block(ordinal, whole)
                    values[filled : filled + count] += whole[start : start + count]
            filled += count
            at += count * block.width

    def digest(self, ordinal: int) -> bytes:
        digest = self.index.digest(ordinal)
        if digest is None:
            raise CodecError(f"block {ordinal} is not here")
        return digest


def folded_plan(first: DeltaPlan, second: DeltaPlan) -> DeltaPlan:
    """have -> now. Raises ValueError when the second does not begin where the first ends."""
    if first.target != second.base:
        raise ValueError("the second delta does not begin where the first one ends")
    mapping = tuple(NO_BASE if mid == NO_BASE else first.mapping[mid] for mid in second.mapping)
    return DeltaPlan(first.base, second.target, mapping)


def fold(
    first: Delta, second: Delta, *, chunk_bytes: int = CHUNK_BYTES_DEFAULT, mapper: Mapper = map
) -> Iterator[EncodedBlock]:
    """The blocks of have -> now, in order, for a Packer. The plan is `folded_plan`."""
    folded, plan = folded_plan(first.plan, second.plan), second.plan

    def one(ordinal: int) -> EncodedBlock:
        block = plan.block(ordinal)
        values = np.zeros(block.elements, TYPES[block.width])
        second.add_block(ordinal, values)
        for span in plan.spans(block):
            mid = plan.mapping[span.region]
            if mid != NO_BASE:
                part = values[span.at // block.width : (span.at + span.end - span.begin) // block.width]
                first.add_region(mid, span.begin, span.end, part)
        return _encoded(folded, ordinal, second.digest(ordinal), values, chunk_bytes)

    yield from mapper(one, range(plan.blocks_total))


def inverse_plan(plan: DeltaPlan) -> DeltaPlan:
    """now -> have."""
    mapping = [NO_BASE] * len(plan.base.regions)
    for number, base in enumerate(plan.mapping):
        if base != NO_BASE:
            mapping[base] = number
    return DeltaPlan(plan.target, plan.base, tuple(mapping))


def inverse(
    delta: Delta,
    digests: Sequence[bytes],
    *,
    read_base: ReadRange | None = None,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
    mapper: Mapper = map,
) -> Iterator[EncodedBlock]:
    """The blocks of now -> have, in order, for a Packer. The plan is `inverse_plan`.

    `digests` are those of have's blocks, as its own delta or full encoding has stated them (`Index.digest`). What the
    delta dropped is read with `read_base`; raises SnapshotError when there is such a region and no way to read it.
    """
    plan = inverse_plan(delta.plan)
    if len(digests) != plan.blocks_total:
        raise ValueError(f"{len(digests)} digests for {plan.blocks_total} blocks")

    def one(ordinal: int) -> EncodedBlock:
        block = plan.block(ordinal)
        values = np.zeros(block.elements, TYPES[block.width])
        for span in plan.spans(block):
            part = values[span.at // block.width : (span.at + span.end - span.begin) // block.width]
            now = plan.mapping[span.region]
            if now != NO_BASE:
                delta.add_region(now, span.begin, span.end, part)
                np.negative(part, out=part)
            elif read_base is not None:
                data = read_base(block.file, block.offset + span.at, span.end - span.begin)
                part[:] = elements_of(data, block.width)
            else:
                raise SnapshotError(
                    f"{plan.target.label(span.region)[:120]!r} has no successor in this delta, and its old bytes are "
                    "not here: publish the old files instead"
                )
        return _encoded(plan, ordinal, digests[ordinal], values, chunk_bytes)

    yield from mapper(one, range(plan.blocks_total))


def _encoded(plan: DeltaPlan, ordinal: int, digest: bytes, values: Elements, chunk_bytes: int) -> EncodedBlock:
    difference = Difference.of(values)
    pieces = encode(difference, chunk_bytes) if difference.changed else []
    return counted(plan, ordinal, digest, difference, pieces)
