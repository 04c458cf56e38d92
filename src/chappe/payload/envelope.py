"""A delta as one file, to travel like any other object: what it belongs to, then its chunks.

    magic | varint n, n bytes: zstd(prologue) | (varint length, chunk)* | (varint length, closing chunk)

    prologue    base root | digest of the base's table | header of the full object that the delta leads to, verbatim

Each text and length is a varint and that many bytes. The header gives the target's table, so that whoever has applied
the delta holds the full object, to the bit the one that the publisher serves. Everything read may come from a hostile
peer: lengths are bounded before anything is allocated, and what the prologue claims is only as good as the root that
comes out in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import zstandard

from chappe.core.digest import Algorithm
from chappe.errors import CodecError
from chappe.payload.blocks import Piece
from chappe.payload.container import PARSED_BYTES_MAX, ROOT_BYTES_MAX, Closing, DataChunk, parse_chunk
from chappe.payload.plan import DeltaPlan
from chappe.payload.planes import Buffer, Reader, put_varint

MAGIC = b"chappe delta 1\n"
PROLOGUE_BYTES_MAX = 129 << 20
"""Unpacked: the longest header that travels, and a little."""
PACKED_BYTES_MAX = 32 << 20
_DIGEST_BYTES_MAX = 64
_VARINT_BYTES = 10
_HELD_SHARE_MAX, _HELD_BYTES_MIN = 2, 1 << 16
"""A block's pieces are hardly longer than the block: what is held until the last one has come is bounded by this."""

ReadAt: TypeAlias = Callable[[int, int], Buffer]
"""(offset, length) to bytes of the file, fewer only at its end, none behind it. May wait for them to arrive."""


@dataclass(frozen=True, slots=True)
class Prologue:
    """`table` is `SnapshotTable.digest` of the base, `header` a serialized Header of the full object."""

    base_root: str
    table: bytes
    header: bytes


def pack_prologue(prologue: Prologue) -> bytes:
    """What the file begins with. Raises CodecError for a header that is too long to travel."""
    plain = bytearray()
    for field in (prologue.base_root.encode(), prologue.table, prologue.header):
        put_varint(plain, len(field))
        plain += field
    packed = zstandard.ZstdCompressor(level=3).compress(bytes(plain))
    if len(plain) > PROLOGUE_BYTES_MAX or len(packed) > PACKED_BYTES_MAX:
        raise CodecError(f"the header of the snapshot has {len(prologue.header)} bytes: too long for a delta")
    out = bytearray(MAGIC)
    put_varint(out, len(packed))
    return bytes(out + packed)


def pack_chunk(chunk: bytes) -> bytes:
    out = bytearray()
    put_varint(out, len(chunk))
    return bytes(out) + chunk


class Envelope:
    """A delta's file, read from its beginning. Raises CodecError for what no publisher writes."""

    def __init__(self, read: ReadAt, size_bytes: int) -> None:
        """`size_bytes` is what it has, or what it has at most: where it ends, `read` says."""
        self._read = read
        self._size = size_bytes
        if bytes(self._take(0, len(MAGIC))) != MAGIC:
            raise CodecError("this is not a delta, or one of another format: upgrade this node")
        at, length = self._length(len(MAGIC), PACKED_BYTES_MAX, "the prologue's length")
        self.prologue = _unpack(self._take(at, length))
        self._first = at + length

    def spans(self) -> Iterator[tuple[int, int]]:
        """Where all chunks are in the file, in order: offset and length."""
        at = self._first
        while at < self._size and len(self._read(at, 1)):
            at, length = self._length(at, PARSED_BYTES_MAX, "a chunk's length")
            yield at, length
            at += length

    def chunks(self) -> Iterator[memoryview]:
        """All chunks in order, each as it is read."""
        for at, length in self.spans():
            yield memoryview(self._take(at, length))

    def _length(self, at: int, limit: int, what: str) -> tuple[int, int]:
        head = self._read(at, min(_VARINT_BYTES, self._size - at))
        length = Reader(head).varint(limit, what)
        used = 1
        while head[used - 1] & 0x80:
            used += 1
        return at + used, length

    def _take(self, at: int, length: int) -> Buffer:
        data = self._read(at, length) if length <= self._size - at else b""
        if len(data) != length:
            raise CodecError(f"a delta that has {length} bytes more at {at} is cut short")
        return data


def _unpack(packed: Buffer) -> Prologue:
    try:
        size = zstandard.get_frame_parameters(packed).content_size
        if size > PROLOGUE_BYTES_MAX:
            raise CodecError(f"a prologue of {size} bytes")
        plain = zstandard.ZstdDecompressor().decompress(packed, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"the prologue of a delta cannot be read: {error}") from None
    reader = Reader(plain)
    limits = ((ROOT_BYTES_MAX, "the base's root"), (_DIGEST_BYTES_MAX, "a digest"), (PROLOGUE_BYTES_MAX, "a header"))
    root, table, header = (
        bytes(reader.take(reader.varint(limit, f"the length of {what}"), what)) for limit, what in limits
    )
    reader.end()
    if not root.isascii():
        raise CodecError("the root of a delta's base is not ASCII")
    return Prologue(root.decode("ascii"), table, header)


@dataclass(frozen=True, slots=True)
class WholeBlock:
    """A block with all of its pieces; none: it does not change. `digest` is that of its final bytes."""

    ordinal: int
    digest: bytes
    pieces: tuple[Piece, ...]


class BlockStream:
    """All blocks of a delta in order, each as soon as its last piece is read: once, and from a file that still grows.

    Holds the pieces of one block. Raises CodecError when the chunks are not in the order in which they are written,
    when something is missing, or when the closing chunk commits to other blocks.
    """

    def __init__(self, plan: DeltaPlan, algorithm: Algorithm, envelope: Envelope) -> None:
        self._plan, self._algorithm, self._envelope = plan, algorithm, envelope
        self._content = algorithm.start()
        self._due = 0
        self._pieces: list[Piece] = []
        self._digest = b""
        self._held_bytes = 0
        self.closing: Closing | None = None
        """Once all blocks have been read."""

    def __iter__(self) -> Iterator[WholeBlock]:
        for data in self._envelope.chunks():
            if self.closing is not None:
                raise CodecError("a delta goes on behind its closing chunk")
            chunk = parse_chunk(self._plan, self._algorithm, data)
            if isinstance(chunk, Closing):
                self._close(chunk)
            else:
                yield from self._take(chunk)
        if self.closing is None:
            raise CodecError("a delta without its closing chunk")

    def _take(self, chunk: DataChunk) -> Iterator[WholeBlock]:
        of: dict[int, list[Piece]] = {}
        for record in chunk.records:
            of.setdefault(record.ordinal, []).append(record.piece)
        for ordinal in range(chunk.first, chunk.stop):
            if ordinal != self._due or (self._pieces and self._digest != chunk.digest_of(ordinal)):
                raise CodecError(f"block {ordinal} of a delta where {self._due} was due")
            self._digest = chunk.digest_of(ordinal)
            for piece in of.get(ordinal, ()):
                self._hold(ordinal, piece)
            if self._pieces and len(self._pieces) < 1 << self._pieces[0].log2:
                continue  # the rest of it is in the next chunk
            self._content.update(self._digest)
            yield WholeBlock(ordinal, self._digest, tuple(self._pieces))
            self._due, self._pieces, self._held_bytes = self._due + 1, [], 0

    def _hold(self, ordinal: int, piece: Piece) -> None:
        self._held_bytes += sum(len(data) for _, data, _ in piece.planes)
        if self._held_bytes > _HELD_SHARE_MAX * self._plan.block(ordinal).length + _HELD_BYTES_MIN:
            raise CodecError(f"the pieces of block {ordinal} are longer than any encoder makes them")
        self._pieces.append(piece)

    def _close(self, closing: Closing) -> None:
        if self._due != self._plan.blocks_total or self._pieces:
            raise CodecError(f"a delta of {self._due} blocks for a snapshot of {self._plan.blocks_total}")
        if self._content.digest() != closing.content:
            raise CodecError("the blocks of a delta are not those that its closing chunk names")
        self.closing = closing
