"""Make a delta out of two snapshots, and a snapshot out of a base and a delta. Block by block; bytes in, bytes out.

    read base, read target ──▶ encode_block (any thread) ──▶ Packer (in order) ──▶ chunks
    chunk ──▶ parse_chunk ──▶ Index ──▶ apply_block (any thread): base block + pieces ──▶ target block

Each call works on one block: its bytes, and beside them at most some 16 MiB. Threads are the caller's:
`mapper` is `map`, or one that keeps order and works ahead by a bounded number (`chappe.hop.ordered`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

from chappe.core.digest import Algorithm
from chappe.errors import CodecError
from chappe.payload.blocks import Piece, decode, encode
from chappe.payload.census import counted
from chappe.payload.container import CHUNK_BYTES_DEFAULT, EncodedBlock
from chappe.payload.difference import Difference, copy_elements, elements_of
from chappe.payload.plan import Block, DeltaPlan, Source
from chappe.payload.planes import Buffer
from chappe.payload.table import NO_BASE

ReadRange: TypeAlias = Callable[[int, int, int], Buffer]
"""(file, offset, length) to exactly these bytes of a snapshot. Called from the caller's threads."""


Brief: TypeAlias = Callable[[int], AbstractContextManager[object]]
"""Entered around a row of short numpy calls for so many elements: see `chappe.hop.ordered.one_at_a_time`."""


def freely(_elements: int) -> AbstractContextManager[object]:
    """Without threads, or with few."""
    return nullcontext()


class Mapper(Protocol):
    """`map`, or the same with threads: results in order."""

    def __call__(
        self, function: Callable[[int], EncodedBlock], ordinals: Iterable[int], /
    ) -> Iterable[EncodedBlock]: ...


class BlockState(enum.Enum):
    """What `apply_block` found."""

    PRESENT = "present"  # the target's bytes were there already: nothing was written
    APPLIED = "applied"  # base and pieces gave the target's bytes
    WRONG = "wrong"  # neither: fetch this block whole (`encode_whole`) from an ancestor


def base_bytes(plan: DeltaPlan, block: Block, read: ReadRange) -> Buffer | None:
    """The bytes that a block is compared with; None where all of it is new. No copy when they lie in one piece."""
    return joined(plan.sources(block), read)


def joined(sources: Sequence[Source], read: ReadRange) -> Buffer | None:
    if all(source.file == NO_BASE for source in sources):
        return None
    if len(sources) == 1:
        return _read(read, sources[0])
    data = bytearray(sum(source.length for source in sources))
    at = 0
    for source in sources:
        if source.file != NO_BASE:
            data[at : at + source.length] = _read(read, source)
        at += source.length
    return data


def _read(read: ReadRange, source: Source) -> Buffer:
    data = read(source.file, source.offset, source.length)
    if len(data) != source.length:
        raise ValueError(f"{len(data)} bytes were read where {source.length} were asked for")
    return data


def difference_of(plan: DeltaPlan, ordinal: int, read_base: ReadRange, read_target: ReadRange) -> Difference:
    block = plan.block(ordinal)
    target = elements_of(read_target(block.file, block.offset, block.length), block.width)
    base = base_bytes(plan, block, read_base)
    return Difference.between(None if base is None else elements_of(base, block.width), target)


def encode_block(
    plan: DeltaPlan,
    algorithm: Algorithm,
    ordinal: int,
    read_base: ReadRange,
    read_target: ReadRange,
    *,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
    brief: Brief = freely,
) -> EncodedBlock:
    """Compare one block and encode what changed."""
    block = plan.block(ordinal)
    target = read_target(block.file, block.offset, block.length)
    if len(target) != block.length:
        raise ValueError(f"{len(target)} bytes were read where {block.length} were asked for")
    base = base_bytes(plan, block, read_base)
    hasher = algorithm.start()
    difference = Difference.between(
        None if base is None else elements_of(base, block.width), elements_of(target, block.width), hasher
    )
    with brief(difference.changed):
        pieces = encode(difference, chunk_bytes) if difference.changed else []
    return counted(plan, ordinal, hasher.digest(), difference, pieces)


def encode_delta(
    plan: DeltaPlan,
    algorithm: Algorithm,
    read_base: ReadRange,
    read_target: ReadRange,
    *,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
    mapper: Mapper = map,
    brief: Brief = freely,
) -> Iterator[EncodedBlock]:
    """All blocks in order, for `Packer.pack`. With `DeltaPlan.whole` this compresses a full snapshot."""

    def one(ordinal: int) -> EncodedBlock:
        return encode_block(plan, algorithm, ordinal, read_base, read_target, chunk_bytes=chunk_bytes, brief=brief)

    yield from mapper(one, range(plan.blocks_total))


def apply_block(
    plan: DeltaPlan,
    algorithm: Algorithm,
    ordinal: int,
    digest: bytes,
    pieces: Sequence[Piece],
    base: Buffer | None,
    out: memoryview,
    *,
    check_present: bool = False,
    brief: Brief = freely,
) -> BlockState:
    """Make the final bytes of a block in `out`, and prove them while they are in cache.

    `pieces` are all pieces of the block in order, or none when it does not change; `base` is `base_bytes`; `digest` is
    the chunk's. `base` may be `out` itself: it is then changed in place. With `check_present` (after a restart) `out`
    holds what the target file has there, and is left alone when that is right. WRONG says that the base is not what it
    should be: `out` is then undefined.
    Raises CodecError for pieces that no encoder makes.
    """
    block = plan.block(ordinal)
    if len(out) != block.length or (base is not None and len(base) != block.length):
        raise ValueError(f"block {ordinal} has {block.length} bytes")
    if pieces and [piece.index for piece in pieces] != list(range(1 << pieces[0].log2)):
        raise CodecError(f"block {ordinal} has {len(pieces)} of {1 << pieces[0].log2} pieces")
    if any((p.log2, p.elements, p.width) != (pieces[0].log2, block.elements, block.width) for p in pieces):
        raise CodecError(f"the pieces of block {ordinal} do not fit together")
    if check_present and algorithm.once(out) == digest:
        return BlockState.PRESENT
    new = elements_of(out, block.width)
    old = None if base is None else new if base is out else elements_of(base, block.width)
    hasher = algorithm.start()
    if not pieces:
        copy_elements(old, new, hasher)
    for piece in pieces:
        start, stop = piece.bounds
        part = new[start:stop]
        with brief(piece.call_elements):
            difference = decode(piece)
        difference.add_to(None if old is None else part if old is new else old[start:stop], part, hasher)
    return BlockState.APPLIED if hasher.digest() == digest else BlockState.WRONG


def encode_whole(plan: DeltaPlan, algorithm: Algorithm, ordinal: int, target: Buffer) -> EncodedBlock:
    """One block without its base, for a peer whose base is broken there. Apply it with `base=None`."""
    block = plan.block(ordinal)
    difference = Difference.of(elements_of(target, block.width))
    pieces = encode(difference, CHUNK_BYTES_DEFAULT) if difference.changed else []
    return counted(plan, ordinal, algorithm.once(memoryview(target)), difference, pieces)
