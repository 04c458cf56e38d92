"""The directory form that slime and miles write and SGLang pulls: names, metadata, and the changes of one tensor.

    DIR/weight_v000012/   one version; versions follow one another without a gap, version 0 is the engine's own model
        full:   a Hugging Face directory as it is
        delta:  model-NNNNN-of-NNNNN.safetensors   changed tensor -> U8, its zstd frame; metadata: tensor -> checksum
                model.safetensors.index.json       written last; "delta_encoding" in its metadata makes it a delta

    metadata    version, base_version ("000012"), delta_encoding, compression_format ("zstd"), checksum_format
    xor         new ^ old, all bytes of the tensor
    overwrite   u32 n | n u32 byte offsets | n bytes
    checksum    hex digest of the tensor's new bytes: xxh3-128, blake3 or adler32

Read on 2026-11-30 in public sources: THUDM/slime, `slime/backends/megatron_utils/update_weight/
update_weight_from_disk_delta.py` and `slime/utils/disk_delta.py` (PRs 1806, 2089, 2181); radixark/miles,
`miles/backends/megatron_utils/update_weight/update_weight_from_distributed/delta.py` (PR 1235); the reader is SGLang's
`sglang.srt.weight_sync.disk_delta` behind `/pull_weights` (sgl-project/sglang PRs 30366, 30367). It applies in place,
tensor by tensor, takes a delta only onto the version before it, and copies of a full version the files at its top.
Bytes in, bytes out: no files here.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import blake3
import numpy as np
import xxhash
import zstandard

from chappe.errors import SafetensorsError, SnapshotError
from chappe.payload.safetensors import parse_json_object

INDEX = "model.safetensors.index.json"
ENCODINGS = ("xor", "overwrite")
STEP_BYTES = 2 << 20
"""Of a tensor worked on at a time."""
_LEVEL = 1
_WINDOW_LOG_MAX = 27
_OVERWRITE_BYTES_MAX = 1 << 32  # its offsets have 32 bits
_VERSION = re.compile(r"weight_v(\d{6,})")

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""(offset, length) to exactly these bytes of a tensor."""


class Checksum(Protocol):
    def update(self, data: Any, /) -> Any: ...
    def hexdigest(self) -> str: ...


class _Adler32:
    def __init__(self) -> None:
        self._value = 1

    def update(self, data: Any, /) -> None:
        self._value = zlib.adler32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


CHECKSUMS: dict[str, Callable[[], Checksum]] = {
    "xxh3-128": xxhash.xxh3_128,
    "blake3": blake3.blake3,
    "adler32": _Adler32,
}


def version_name(version: int) -> str:
    return f"weight_v{version:06d}"


def version_of(name: str) -> int | None:
    """Of a directory's name; None for another kind of name."""
    found = _VERSION.fullmatch(name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class DeltaIndex:
    """What the index of a delta says of it as a whole."""

    version: int
    base_version: int
    encoding: str
    checksum: str

    def pack(self, weight_map: dict[str, str]) -> bytes:
        metadata = {
            "version": f"{self.version:06d}",
            "base_version": f"{self.base_version:06d}",
            "delta_encoding": self.encoding,
            "compression_format": "zstd",
            "checksum_format": self.checksum,
        }
        return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2).encode()


def parse_delta_index(text: bytes) -> tuple[DeltaIndex, dict[str, str]] | None:
    """The index of a delta and its weight map; None for the index of an ordinary model. Raises SnapshotError."""
    try:
        fields = parse_json_object(text, "the index")
    except SafetensorsError as error:
        raise SnapshotError(str(error)) from None
    metadata, weight_map = fields.get("metadata", {}), fields.get("weight_map", {})
    if not isinstance(metadata, dict) or "delta_encoding" not in metadata:
        return None
    encoding, checksum = metadata["delta_encoding"], metadata.get("checksum_format")
    if encoding not in ENCODINGS:
        raise SnapshotError(f"delta_encoding {encoding!r} is not one of {', '.join(ENCODINGS)}")
    if checksum not in CHECKSUMS:
        raise SnapshotError(f"checksum_format {checksum!r} is not one of {', '.join(CHECKSUMS)}")
    if metadata.get("compression_format") != "zstd":
        raise SnapshotError(f"compression_format {metadata.get('compression_format')!r} is not zstd")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise SnapshotError("weight_map is not a map from tensors to shards")
    return DeltaIndex(_number(metadata, "version"), _number(metadata, "base_version"), encoding, checksum), weight_map


def _number(metadata: dict[str, Any], key: str) -> int:
    value = str(metadata.get(key))
    if not re.fullmatch(r"\d{1,18}", value, re.ASCII):
        raise SnapshotError(f"{key} is {metadata.get(key)!r}, not a version")
    return int(value)


# ---- a tensor's change -----------------------------------------------------------------------------------------------


def encode_change(encoding: str, checksum: str, size: int, old: ReadAt, new: ReadAt) -> tuple[bytes, str] | None:
    """The compressed change of a tensor and the checksum of its new bytes; None when it has not changed.

    Raises SnapshotError for a tensor that is too large for overwrite.
    """
    if encoding == "overwrite" and size >= _OVERWRITE_BYTES_MAX:
        raise SnapshotError(f"a tensor of {size} bytes is too large for the encoding overwrite: take xor")
    hasher = CHECKSUMS[checksum]()
    changed = False
    offsets, values, parts = [], [], []
    compressor = zstandard.ZstdCompressor(level=_LEVEL).compressobj(size=size)
    for start in range(0, size, STEP_BYTES):
        length = min(STEP_BYTES, size - start)
        before = np.frombuffer(old(start, length), np.uint8)
        after = np.frombuffer(new(start, length), np.uint8)
        hasher.update(after.data)
        if encoding == "xor":
            difference = before ^ after
            changed = changed or bool(difference.any())
            parts.append(compressor.compress(difference.data))
        else:
            at = np.flatnonzero(before != after)
            changed = changed or at.size > 0
            offsets.append((at + start).astype("<u4"))
            values.append(after[at])
    if not changed:
        return None
    if encoding == "xor":
        return b"".join((*parts, compressor.flush())), hasher.hexdigest()
    count = np.array([sum(at.size for at in offsets)], "<u4")
    plain = b"".join((count.tobytes(), *(at.tobytes() for at in offsets), *(value.tobytes() for value in values)))
    return zstandard.ZstdCompressor(level=_LEVEL).compress(plain), hasher.hexdigest()


def apply_change(
    index: DeltaIndex, change: bytes, want: str, size: int, old: ReadAt, write: Callable[[int, bytes], None]
) -> None:
    """Write a tensor's new bytes, in order. Raises SnapshotError when they are not those of the checksum."""
    hasher = CHECKSUMS[index.checksum]()
    try:
        steps = _xor(change, size, old) if index.encoding == "xor" else _overwrite(change, size, old)
        for start, data in steps:
            hasher.update(data)
            write(start, data)
    except zstandard.ZstdError as error:
        raise SnapshotError(f"its change is not a zstd frame: {error}") from None
    if hasher.hexdigest() != want:
        raise SnapshotError(
            f"its new bytes have the {index.checksum} checksum {hasher.hexdigest()}, the delta says {want}: "
            "it begins at other bytes, or is damaged"
        )


def _xor(change: bytes, size: int, old: ReadAt) -> Iterator[tuple[int, bytes]]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG_MAX)
    with decompressor.stream_reader(change) as reader:
        for start in range(0, size, STEP_BYTES):
            length = min(STEP_BYTES, size - start)
            difference = reader.read(length)
            if len(difference) != length:
                raise SnapshotError(f"its change has {start + len(difference)} bytes, not {size}")
            before = np.frombuffer(old(start, length), np.uint8)
            yield start, (before ^ np.frombuffer(difference, np.uint8)).tobytes()
        if reader.read(1):
            raise SnapshotError(f"its change has more than {size} bytes")


def _overwrite(change: bytes, size: int, old: ReadAt) -> Iterator[tuple[int, bytes]]:
    limit = 4 + 5 * size
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG_MAX)
    with decompressor.stream_reader(change) as reader:
        plain = np.frombuffer(reader.read(limit + 1), np.uint8)
    count = int.from_bytes(plain[:4].tobytes(), "little")
    if plain.size != 4 + 5 * count:
        raise SnapshotError(f"its change of {plain.size} bytes does not hold {count} places and values")
    offsets, values = np.frombuffer(plain[4 : 4 + 4 * count], "<u4"), plain[4 + 4 * count :]
    if count and (int(offsets.max()) >= size or bool((offsets[1:] <= offsets[:-1]).any())):
        raise SnapshotError("its change has places outside of it, or out of order")
    for start in range(0, size, STEP_BYTES):
        length = min(STEP_BYTES, size - start)
        low, high = np.searchsorted(offsets, (start, start + length))
        part = np.frombuffer(bytearray(old(start, length)), np.uint8)
        part[offsets[low:high] - np.uint32(start)] = values[low:high]
        yield start, part.tobytes()
