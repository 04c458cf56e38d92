"""One block's difference <-> bytes: the codec proper. Integer arithmetic only, so that every bit pattern survives.

    difference = target - base, element by element, unsigned, modulo the width; zeros where there is no base
    sparse     positions (u8 gaps with escapes, or a bitmap) and the zigzag of each difference
    dense      the zigzag of every difference, one plane a byte
    plain      the difference itself, one plane a byte: what suits new tensors and text

What is written is a function of the difference alone, never of base or target: a delta folded out of two is the same,
byte for byte, as one made directly. A block whose bytes would exceed a chunk is cut into 2^k pieces of equal length,
each of them decodable alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chappe.errors import CodecError
from chappe.payload.difference import TYPES, Difference, Elements, Positions
from chappe.payload.planes import Buffer, Bytes, Reader, pack, put_varint, unpack

SPARSE, DENSE, PLAIN = range(3)
_BITMAP, _NIBBLES = 4, 8
_MODES = {SPARSE, SPARSE | _BITMAP, SPARSE | _NIBBLES, SPARSE | _BITMAP | _NIBBLES, DENSE, PLAIN}

PIECES_LOG2_MAX = 12
PIECE_ELEMENTS_MIN = 1 << 12
_PROBE_LOG2 = 4
_PROBE_CHANGED = 1 << 15  # below, a block of 2-byte elements fits a chunk of 64 KiB
_SAMPLE_ELEMENTS = 1 << 12
_BITMAP_OVER = 1 / 8  # from here on one bit an element costs no more than a coded gap
_ESCAPE = 255
_ESCAPE_PLANES = 3  # a gap is below 2^20
_NIBBLE_ESCAPE = 15
_NIBBLE_ESCAPES_MAX = 1 / 8
_SHIFTED_WIDTH_MAX = 4
"""Up to here numpy shifts all elements once for each plane sooner (2 bytes: 3 to 5 times) than it steps over bytes."""


def encode(difference: Difference, limit_bytes: int) -> list[bytes]:
    """The pieces of a changed block, each of about half to all of `limit_bytes` when it must be cut."""
    mode = _choose(difference)
    log2 = _first_cut(difference, mode, limit_bytes)
    while True:
        pieces = [_encode_piece(piece, mode, log2, i) for i, piece in enumerate(_cut(difference, log2))]
        longest = max(map(len, pieces))
        if longest <= limit_bytes * 3 // 2 or not _may_cut(difference.elements, log2 + 1):
            return pieces
        log2 += 1


def _may_cut(elements: int, log2: int) -> bool:
    return log2 <= PIECES_LOG2_MAX and elements >> log2 >= PIECE_ELEMENTS_MIN


def _first_cut(difference: Difference, mode: int, limit_bytes: int) -> int:
    """How often to halve, from the middle sixteenth: most blocks are then encoded once."""
    log2 = 0
    if difference.changed * difference.width > 2 * _PROBE_CHANGED and _may_cut(difference.elements, _PROBE_LOG2):
        start, stop = piece_bounds(difference.elements, _PROBE_LOG2, 1 << _PROBE_LOG2 >> 1)
        expected = len(_encode_piece(difference.slice(start, stop), mode, 0, 0)) << _PROBE_LOG2
        while expected > limit_bytes << log2 and _may_cut(difference.elements, log2 + 1):
            log2 += 1
    return log2


def piece_bounds(elements: int, log2: int, index: int) -> tuple[int, int]:
    """First and last element of a piece; all but the last have the same length."""
    length = -(-elements // (1 << log2))
    return min(index * length, elements), min((index + 1) * length, elements)


def _cut(difference: Difference, log2: int) -> list[Difference]:
    if log2 == 0:
        return [difference]
    return [difference.slice(*piece_bounds(difference.elements, log2, i)) for i in range(1 << log2)]


def _encode_piece(difference: Difference, mode: int, log2: int, index: int) -> bytes:
    """In the block's mode, but sparse where little has changed."""
    return _write(difference, mode if difference.positions is None else SPARSE, log2, index)


def _choose(difference: Difference) -> int:
    """Sparse up to 30 % of changed elements; above, what is shortest for a sample of the block."""
    if difference.positions is not None:
        return SPARSE
    sample = _sample(difference.values)
    return min((SPARSE, DENSE, PLAIN), key=lambda mode: len(_write(sample, mode, 0, 0)))


def _sample(values: Elements) -> Difference:
    """Four stretches of a dense difference, spread over it."""
    if values.size > 4 * _SAMPLE_ELEMENTS:
        starts = [i * (values.size - _SAMPLE_ELEMENTS) // 3 for i in range(4)]
        values = np.concatenate([values[start : start + _SAMPLE_ELEMENTS] for start in starts])
    return Difference(values.size, values.itemsize, int(np.count_nonzero(values)), values, None)


def _write(difference: Difference, mode: int, log2: int, index: int) -> bytes:
    escapes: tuple[int, ...] = ()
    if mode == SPARSE:
        mode, escapes, planes = _sparse_planes(difference)
    else:
        dense = difference.dense()
        planes = _split(_zigzag(dense) if mode == DENSE else dense, difference.width)
    out = bytearray((mode,))
    for number in (log2, index, difference.changed, *escapes):
        put_varint(out, number)
    packed = [pack(plane) for plane in planes]
    for form, data in packed:
        put_varint(out, len(data) << 2 | form)
    return b"".join((out, *(data for _, data in packed)))


def _sparse_planes(difference: Difference) -> tuple[int, tuple[int, ...], list[Bytes]]:
    positions, values = difference.positions, difference.values
    if positions is None:
        positions = np.flatnonzero(values != 0)
        values = values.take(positions)
    mode = SPARSE
    escapes: list[int] = []
    planes: list[Bytes]
    if difference.changed > _BITMAP_OVER * difference.elements:
        mode |= _BITMAP
        mask = np.zeros(difference.elements, np.bool_)
        mask[positions] = True
        planes = [np.packbits(mask.view(np.uint8), bitorder="little")]
    else:
        gaps = positions.copy()
        np.subtract(positions[1:], positions[:-1], out=gaps[1:])
        gaps[1:] -= 1
        far = (gaps >= _ESCAPE).nonzero()[0]
        rest = (gaps.take(far) - _ESCAPE).astype("<u4")
        near = gaps.astype(np.uint8)
        near[far] = _ESCAPE
        planes = [near, *_split(rest, _ESCAPE_PLANES)]
        escapes.append(rest.size)
    steps = _zigzag(values)
    large = (steps >= _NIBBLE_ESCAPE).nonzero()[0]
    rare = large.size
    if rare <= _NIBBLE_ESCAPES_MAX * steps.size:
        mode |= _NIBBLES
        small = np.zeros(steps.size + 1 & ~1, np.uint8)
        small[: steps.size] = steps
        small[large] = _NIBBLE_ESCAPE
        pairs = small[1::2] << np.uint8(4)
        pairs |= small[0::2]
        planes += [pairs, *_split(steps.take(large) - steps.dtype.type(_NIBBLE_ESCAPE), steps.itemsize)]
        escapes.append(rare)
    else:
        planes += _split(steps, steps.itemsize)
    return mode, tuple(escapes), planes


@dataclass(frozen=True, slots=True)
class Piece:
    """A parsed piece: every number is within the block's bounds, no plane is decoded yet."""

    elements: int
    width: int
    mode: int
    log2: int
    index: int
    changed: int
    gap_escapes: int
    step_escapes: int
    planes: tuple[tuple[int, memoryview, int], ...]  # form, data, decoded length

    @property
    def bounds(self) -> tuple[int, int]:
        """Its elements in the block, when `elements` is that of the block."""
        return piece_bounds(self.elements, self.log2, self.index)

    @property
    def call_elements(self) -> int:
        """For how many bytes or elements numpy's calls are that `decode` makes, most of them: those that have changed
        where each has a gap, all of the piece in any other mode."""
        if self.mode & ~_NIBBLES == SPARSE:
            return self.changed
        start, stop = self.bounds
        return (stop - start) * self.width


def parse_piece(data: Buffer, elements: int, width: int) -> Piece:
    """Read the numbers of a piece of a block of `elements`. Raises CodecError for what cannot be."""
    reader = Reader(data)
    mode = reader.varint(255, "a mode")
    if mode not in _MODES:
        raise CodecError(f"mode {mode} is not known here: upgrade this node")
    log2 = reader.varint(PIECES_LOG2_MAX, "a piece's size")
    index = reader.varint((1 << log2) - 1, "a piece's number")
    start, stop = piece_bounds(elements, log2, index)
    length = stop - start
    changed = reader.varint(length, "a number of changed elements")
    gap_escapes = step_escapes = 0
    if mode & 3 == SPARSE:
        lengths = [-(-length // 8)]
        if not mode & _BITMAP:
            gap_escapes = reader.varint(changed, "a number of escapes")
            lengths = [changed] + [gap_escapes] * _ESCAPE_PLANES
        if mode & _NIBBLES:
            step_escapes = reader.varint(changed, "a number of escapes")
            lengths += [-(-changed // 2)] + [step_escapes] * width
        else:
            lengths += [changed] * width
    else:
        lengths = [length] * width
    heads = [reader.varint(1 << 32, "a plane's length") for _ in lengths]
    planes = tuple(
        (head & 3, reader.take(head >> 2, "a plane"), size) for head, size in zip(heads, lengths, strict=True)
    )
    reader.end()
    return Piece(elements, width, mode, log2, index, changed, gap_escapes, step_escapes, planes)


def decode(piece: Piece) -> Difference:
    """The difference of the piece's elements. Raises CodecError for planes that no encoder writes."""
    start, stop = piece.bounds
    planes = [unpack(*plane) for plane in piece.planes]
    if piece.mode & 3 == SPARSE:
        positions, values = _read_sparse(piece, planes, stop - start)
        return Difference(stop - start, piece.width, piece.changed, values, positions)
    values = _join(planes, piece.width)
    return Difference(
        stop - start, piece.width, piece.changed, _unzigzag(values) if piece.mode == DENSE else values, None
    )


def add_piece(piece: Piece, block: Elements) -> None:
    """Add a piece's difference to `block`, the whole block's elements. Raises CodecError; `block` is then undefined."""
    start, stop = piece.bounds
    part = block[start:stop]
    decode(piece).add_to(part, part)


def _read_sparse(piece: Piece, planes: list[Bytes], length: int) -> tuple[Positions, Elements]:
    if piece.mode & _BITMAP:
        positions = np.flatnonzero(np.unpackbits(planes[0], count=length, bitorder="little").view(np.bool_))
        used = 1
    else:
        gaps = planes[0].astype(np.int64)
        far = (planes[0] == _ESCAPE).nonzero()[0]
        if far.size != piece.gap_escapes:
            raise CodecError("a piece has another number of escapes than it says")
        if piece.gap_escapes:
            gaps[far] += _join([*planes[1:4], np.zeros(piece.gap_escapes, np.uint8)], 4)
        gaps += 1
        positions = np.cumsum(gaps, out=gaps)
        positions -= 1
        used = 1 + _ESCAPE_PLANES
    if positions.size != piece.changed or (positions.size and positions[-1] >= length):
        raise CodecError("the positions of a piece are not those of its elements")
    return positions, _unzigzag(_read_steps(piece, planes[used:]))


def _read_steps(piece: Piece, planes: list[Bytes]) -> Elements:
    if not piece.mode & _NIBBLES:
        return _join(planes, piece.width)
    pairs = np.empty(planes[0].size * 2, np.uint8)
    np.bitwise_and(planes[0], 15, out=pairs[0::2])
    np.right_shift(planes[0], 4, out=pairs[1::2])
    steps = pairs[: piece.changed].astype(TYPES[piece.width])
    large = (pairs[: piece.changed] == _NIBBLE_ESCAPE).nonzero()[0]
    if large.size != piece.step_escapes:
        raise CodecError("a piece has another number of escapes than it says")
    if piece.step_escapes:
        steps[large] += _join(planes[1:], piece.width)
    return steps


def _zigzag(values: Elements) -> Elements:
    """Small steps up and down become small numbers."""
    steps: Elements = values << 1
    signed = values.view(f"<i{values.itemsize}")
    steps ^= (signed >> (8 * values.itemsize - 1)).view(values.dtype)  # of all bits the sign
    return steps


def _unzigzag(steps: Elements) -> Elements:
    signs = np.negative(steps & 1)
    values: Elements = steps >> 1
    values ^= signs
    return values


def _split(values: Elements, planes: int) -> list[Bytes]:
    """The lowest byte planes, lowest first, each contiguous."""
    width = values.itemsize
    if 1 < width <= _SHIFTED_WIDTH_MAX:
        shifted = (values >> values.dtype.type(8 * i) if i else values for i in range(planes))
        return [plane.astype(np.uint8) for plane in shifted]
    flat = np.ascontiguousarray(values).view(np.uint8)
    return [np.ascontiguousarray(flat[i::width]) for i in range(planes)]


def _join(planes: list[Bytes], width: int) -> Elements:
    if width == 1:
        return planes[0]
    if width <= _SHIFTED_WIDTH_MAX:
        values: Elements = planes[width - 1].astype(TYPES[width])
        for plane in reversed(planes[: width - 1]):
            values <<= 8
            values |= plane
        return values
    flat = np.empty(planes[0].size * width, np.uint8)
    for i, plane in enumerate(planes):
        flat[i::width] = plane
    return flat.view(TYPES[width])
