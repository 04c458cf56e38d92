"""Entropy coding of byte planes, and the numbers around them. A plane is raw, one repeated byte, or a zstd frame.

zstd runs at level 1 with matches of 7 bytes or more: in planes of gaps and steps shorter matches are accidents, and
cost more than their Huffman codes. Frames are magicless and without a content size: the reader knows every length
before it decodes, and a frame that claims one of its own is refused before anything is allocated.

Thread-safe: contexts are kept in lists whose pop and append are atomic. zstandard releases the GIL while it works.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from chappe.errors import CodecError

Buffer: TypeAlias = bytes | bytearray | memoryview
Bytes: TypeAlias = npt.NDArray[np.uint8]

RAW, FILL, ZSTD = range(3)
_ZSTD_BYTES_MIN = 48
_SHORT_BYTES = 4 << 10
_WINDOW_LOG = 20  # the longest plane has 2^20 bytes
_UNKNOWN_SIZE = (1 << 64) - 1
_PARAMETERS = zstandard.ZstdCompressionParameters(
    format=zstandard.FORMAT_ZSTD1_MAGICLESS,
    strategy=zstandard.STRATEGY_FAST,
    window_log=_WINDOW_LOG,
    hash_log=13,
    chain_log=6,
    search_log=1,
    min_match=7,
    write_content_size=False,
    write_checksum=False,
    write_dict_id=False,
)
_compressors: list[zstandard.ZstdCompressor] = []
_decompressors: list[zstandard.ZstdDecompressor] = []


def pack(plane: Bytes) -> tuple[int, Buffer]:
    """The shortest of the three forms of a contiguous plane. The same bytes give the same answer."""
    if plane.size == 0:
        return RAW, b""
    first = int(plane[0])
    if first == int(plane[-1]) and _is_filled(plane, first):
        return FILL, bytes((first,))
    if plane.size >= _ZSTD_BYTES_MIN:
        compressor = _compressor()
        frame = compressor.compress(plane.data)
        _compressors.append(compressor)
        if len(frame) < plane.size:
            return ZSTD, frame
    return RAW, plane.tobytes()


def unpack(form: int, data: memoryview, length: int) -> Bytes:
    """A plane of exactly `length` bytes. Raises CodecError; allocates no more than `length`."""
    if form == RAW and len(data) == length:
        return np.frombuffer(data, np.uint8)
    if form == FILL and len(data) == 1 and length:
        return np.full(length, data[0], np.uint8)
    if form != ZSTD or not length:
        raise CodecError(f"a plane of {length} bytes in form {form} with {len(data)} bytes")
    try:
        frame = zstandard.get_frame_parameters(data, format=zstandard.FORMAT_ZSTD1_MAGICLESS)
        if frame.content_size != _UNKNOWN_SIZE or frame.window_size > 1 << _WINDOW_LOG or frame.dict_id:
            raise CodecError("a zstd frame with a size, window or dictionary that no encoder here writes")
        decompressor = _decompressor()
        plain = decompressor.decompress(data, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"a plane of {length} bytes is not a zstd frame: {error}") from None
    _decompressors.append(decompressor)
    if len(plain) != length:
        raise CodecError(f"a plane has {len(plain)} bytes, not {length}")
    return np.frombuffer(plain, np.uint8)


def _is_filled(plane: Bytes, byte: int) -> bool:
    if plane.size <= _SHORT_BYTES:
        return plane.tobytes().count(byte) == plane.size  # sooner than numpy has begun
    return not np.any(plane != byte)


def _compressor() -> zstandard.ZstdCompressor:
    try:
        return _compressors.pop()
    except IndexError:  # asking first would race
        return zstandard.ZstdCompressor(compression_params=_PARAMETERS)


def _decompressor() -> zstandard.ZstdDecompressor:
    try:
        return _decompressors.pop()
    except IndexError:
        return zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS, max_window_size=1 << _WINDOW_LOG)


def put_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


class Reader:
    """A cursor over a peer's bytes: every read is bounded by what is there. Raises CodecError."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data).cast("B")
        self._at = 0

    def varint(self, limit: int, what: str) -> int:
        """A number of 0..limit."""
        value = shift = 0
        while True:
            if self._at >= len(self._data):
                raise CodecError(f"the chunk ends within {what}")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise CodecError(f"{what} is not a number")
        if value > limit:
            raise CodecError(f"{what} is {value}, the limit is {limit}")
        return value

    def take(self, length: int, what: str) -> memoryview:
        if length > len(self._data) - self._at:
            raise CodecError(f"the chunk ends within {what}")
        self._at += length
        return self._data[self._at - length : self._at]

    def end(self) -> None:
        if self._at != len(self._data):
            raise CodecError(f"{len(self._data) - self._at} bytes too many in a chunk")
