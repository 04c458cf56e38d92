"""The bytes of a delta object: how encoded blocks become chunks, and chunks become blocks again.

    payload = data chunk, data chunk, ..., closing chunk              each decodable alone, opaque to relays

    data chunk    D | first block | n | m | n digests of final bytes | m records
                  covers blocks [first, first + n): one without a record here has no change
    record        block - first | length | piece (see `blocks`)
    closing       C | blocks | algorithm's digest over all blocks' digests | target root | signature

Numbers are varints. A block cut into pieces appears in each chunk that has some of them. Chunks tile the blocks in
order, so that they leave while later blocks are still being compared. How chunks are cut depends only on the pieces and
the chunk size. Everything parsed may come from a hostile peer: every length is bounded before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chappe.core.digest import Algorithm
from chappe.errors import CodecError
from chappe.payload.blocks import Piece, parse_piece
from chappe.payload.plan import DeltaPlan
from chappe.payload.planes import Buffer, Reader, put_varint

CHUNK_BYTES_DEFAULT = 1 << 16
CHUNK_BYTES_MIN = 1 << 14
CHUNK_BYTES_MAX = 1 << 20  # wanted; one piece may be half as long again, and the protocol's limit is 2 MiB
PARSED_BYTES_MAX = 2 << 20
BLOCKS_PER_CHUNK_MAX = 1024
ROOT_BYTES_MAX = 160
SIGNATURE_BYTES_MAX = 128
_DATA, _CLOSING = 0x44, 0x43
_RECORD_BYTES_MAX = 12  # of its two numbers


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block as it will travel. `digest` is that of the target's bytes; no piece: it has not changed."""

    ordinal: int
    digest: bytes
    changed: int  # elements of tensors that have a base
    changed_bytes: int  # about what these take, of the pieces
    pieces: tuple[bytes, ...]

    @property
    def piece_bytes(self) -> int:
        return sum(map(len, self.pieces))


@dataclass(frozen=True, slots=True)
class Record:
    ordinal: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class DataChunk:
    """Blocks [first, first + len(digests)), and pieces of those that change."""

    first: int
    digests: tuple[bytes, ...]
    records: tuple[Record, ...]

    @property
    def stop(self) -> int:
        return self.first + len(self.digests)

    def digest_of(self, ordinal: int) -> bytes:
        return self.digests[ordinal - self.first]

    def pieces_of(self, ordinal: int) -> list[Piece]:
        return [record.piece for record in self.records if record.ordinal == ordinal]


@dataclass(frozen=True, slots=True)
class Closing:
    """The last chunk. `content` commits to the digest of every block."""

    blocks: int
    content: bytes
    root: str
    signature: bytes


class Packer:
    """Collects encoded blocks, in order, into chunks of about half to all of `chunk_bytes`.

    Holds one chunk and a digest of the digests: memory does not grow with the payload.
    """

    def __init__(self, algorithm: Algorithm, chunk_bytes: int = CHUNK_BYTES_DEFAULT) -> None:
        if not CHUNK_BYTES_MIN <= chunk_bytes <= CHUNK_BYTES_MAX:
            raise ValueError(f"chunks of {chunk_bytes} bytes; {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX} work")
        self._chunk_bytes = chunk_bytes
        self._content = algorithm.start()
        self._digest_bytes = algorithm.digest_bytes
        self._next = 0
        self._first = 0
        self._digests: list[bytes] = []
        self._records: list[tuple[int, bytes]] = []
        self._size = 0
        self.chunks = 0
        self.changed = 0
        self.changed_bytes = 0
        self.changed_blocks = 0
        self.payload_bytes = 0

    def pack(self, blocks: Iterable[EncodedBlock]) -> Iterator[bytes]:
        """The data chunks of all blocks, each as soon as it is full."""
        for block in blocks:
            yield from self.add(block)
        yield from self.flush()

    def add(self, block: EncodedBlock) -> list[bytes]:
        """Blocks come in order, all of them. Returns the chunks that became full."""
        if block.ordinal != self._next or len(block.digest) != self._digest_bytes:
            raise ValueError(f"block {block.ordinal} where {self._next} was due, or a digest of another algorithm")
        self._next += 1
        self._content.update(block.digest)
        self.changed += block.changed
        self.changed_bytes += block.changed_bytes
        self.changed_blocks += bool(block.pieces)
        full: list[bytes] = []
        if len(self._digests) == BLOCKS_PER_CHUNK_MAX or self._size + len(block.digest) > self._chunk_bytes:
            full += self.flush()
        self._cover(block)
        for number, piece in enumerate(block.pieces):
            if self._records and self._size + len(piece) + _RECORD_BYTES_MAX > self._chunk_bytes:
                if number == 0:  # nothing of this block has left: it belongs to the next chunk
                    self._digests.pop()
                full += self.flush()
                self._cover(block)
            self._records.append((block.ordinal, piece))
            self._size += len(piece) + _RECORD_BYTES_MAX
        return full

    def flush(self) -> list[bytes]:
        """What is left, as a chunk."""
        if not self._digests:
            return []
        out = bytearray((_DATA,))
        for number in (self._first, len(self._digests), len(self._records)):
            put_varint(out, number)
        parts: list[bytes] = [b"", *self._digests]
        for ordinal, piece in self._records:
            head = bytearray()
            put_varint(head, ordinal - self._first)
            put_varint(head, len(piece))
            parts += (bytes(head), piece)
        parts[0] = bytes(out)
        self._digests, self._records, self._size = [], [], 0
        return [self._counted(b"".join(parts))]

    def close(self, root: str, signature: bytes = b"") -> bytes:
        """The closing chunk, after the last flush."""
        if self._digests:
            raise ValueError("flush first")
        out = bytearray((_CLOSING,))
        put_varint(out, self._next)
        out += self._content.digest()
        for text in (root.encode(), signature):
            put_varint(out, len(text))
            out += text
        return self._counted(bytes(out))

    def _cover(self, block: EncodedBlock) -> None:
        if not self._digests:
            self._first = block.ordinal
        self._digests.append(block.digest)
        self._size += len(block.digest)

    def _counted(self, chunk: bytes) -> bytes:
        self.chunks += 1
        self.payload_bytes += len(chunk)
        return chunk


def parse_chunk(plan: DeltaPlan, algorithm: Algorithm, data: Buffer) -> DataChunk | Closing:
    """Read one chunk of a delta. Raises CodecError, before any plane is decoded, for what does not fit the plan."""
    if len(data) > PARSED_BYTES_MAX:
        raise CodecError(f"a chunk of {len(data)} bytes; the limit is {PARSED_BYTES_MAX}")
    reader = Reader(data)
    kind = reader.varint(255, "a chunk's kind")
    if kind == _CLOSING:
        return _parse_closing(plan, algorithm, reader)
    if kind != _DATA:
        raise CodecError(f"a chunk of kind {kind} is not known here: upgrade this node")
    first = reader.varint(max(0, plan.blocks_total - 1), "a block's number")
    covered = reader.varint(min(BLOCKS_PER_CHUNK_MAX, plan.blocks_total - first), "a number of blocks")
    count = reader.varint(len(data), "a number of records")
    digests = tuple(bytes(reader.take(algorithm.digest_bytes, "a digest")) for _ in range(covered))
    records: list[Record] = []
    last = (-1, -1)
    for _ in range(count):
        ordinal = first + reader.varint(max(0, covered - 1), "a block's number")
        body = reader.take(reader.varint(len(data), "a record's length"), "a record")
        block = plan.block(ordinal)
        piece = parse_piece(body, block.elements, block.width)
        if (ordinal, piece.index) <= last or not covered:
            raise CodecError(f"a piece of block {ordinal} is there twice, or out of order")
        last = (ordinal, piece.index)
        records.append(Record(ordinal, piece))
    reader.end()
    return DataChunk(first, digests, tuple(records))


def _parse_closing(plan: DeltaPlan, algorithm: Algorithm, reader: Reader) -> Closing:
    blocks = reader.varint(plan.blocks_total, "a number of blocks")
    if blocks != plan.blocks_total:
        raise CodecError(f"a delta of {blocks} blocks for a snapshot of {plan.blocks_total}")
    content = bytes(reader.take(algorithm.digest_bytes, "a digest"))
    root = bytes(reader.take(reader.varint(ROOT_BYTES_MAX, "the root's length"), "the root"))
    signature = bytes(reader.take(reader.varint(SIGNATURE_BYTES_MAX, "the signature's length"), "the signature"))
    reader.end()
    if not root.isascii():
        raise CodecError("the root of a delta is not ASCII")
    return Closing(blocks, content, root.decode("ascii"), signature)
