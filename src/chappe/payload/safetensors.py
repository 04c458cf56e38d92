"""The rules of the safetensors format: parse and validate a header, build one. Bytes in, values out; no files here.

    file = u64 little-endian N │ N bytes of JSON │ data
    JSON = {"__metadata__": {str: str}?, name: {"dtype": str, "shape": [int], "data_offsets": [begin, end]}, ...}

Accepted is what the reference implementation accepts, less what it lets pass silently: a duplicate key at any level, a
header that does not begin with `{`, metadata that is null. Offsets here are absolute, in the file, header included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from chappe.errors import SafetensorsError

LENGTH_BYTES = 8
HEADER_BYTES_MAX = 100_000_000
"""Of the JSON text, by the rules of the format."""
METADATA_KEY = "__metadata__"
_U64 = 1 << 64

DTYPES: Mapping[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits of one element. In the format's own order, from the smallest alignment to the largest: see `payload_order`."""

_RANK = {dtype: rank for rank, dtype in enumerate(DTYPES)}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written: everything but its place."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file: its bytes are [begin, end) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """`header_bytes` counts the length field and the JSON: the data begins there. Tensors are ordered by offset."""

    header_bytes: int
    tensors: tuple[TensorInfo, ...]
    metadata: dict[str, str]

    def aliases(self) -> dict[str, str]:
        """Names of tied tensors that were stored once: removed name to the name that is there.

        This is how safetensors' own `save_model` records them: an entry of the metadata whose key is no tensor and
        whose value is one.
        """
        names = {tensor.name for tensor in self.tensors}
        return {key: value for key, value in self.metadata.items() if value in names and key not in names}


def header_span(prefix: bytes, file_bytes: int) -> int:
    """How many bytes from the start of the file `parse_header` needs, from its first 8. Raises SafetensorsError."""
    if file_bytes < LENGTH_BYTES or len(prefix) < LENGTH_BYTES:
        raise SafetensorsError(f"{file_bytes} bytes are too short for a safetensors file")
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if length > HEADER_BYTES_MAX:
        raise SafetensorsError(f"the header says that it is {length} bytes long; the format allows {HEADER_BYTES_MAX}")
    if LENGTH_BYTES + length > file_bytes:
        raise SafetensorsError(f"the header says that it is {length} bytes long, in a file of {file_bytes}")
    return LENGTH_BYTES + length


def parse_header(data: bytes, file_bytes: int) -> SafetensorsHeader:
    """Validate the start of a file (`header_span` bytes or more of it) against all rules of the format.

    Raises SafetensorsError: the message names the tensor and the rule, the caller adds the file.
    """
    span = header_span(data, file_bytes)
    if len(data) < span:
        raise SafetensorsError(f"the header is {span} bytes long and only {len(data)} of them are there")
    fields = _parse_json(data[LENGTH_BYTES:span])
    metadata = _parse_metadata(fields.pop(METADATA_KEY, {}))
    tensors = [_parse_tensor(name, value, span) for name, value in fields.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    cursor = span
    for tensor in tensors:
        if tensor.begin != cursor:
            what = "a hole" if tensor.begin > cursor else "an overlap"
            raise SafetensorsError(f"tensor {_shown(tensor.name)}: {what} before it, offsets must be contiguous")
        cursor = tensor.end
    if cursor != file_bytes:
        raise SafetensorsError(f"the tensors end at byte {cursor} of a file of {file_bytes}")
    return SafetensorsHeader(span, tuple(tensors), metadata)


def data_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a tensor. Raises SafetensorsError for an unknown dtype, an overflow, or a broken last byte."""
    if dtype not in DTYPES:
        raise SafetensorsError(f"dtype {_shown(dtype)} is not one of {', '.join(DTYPES)}")
    elements = 1
    for dimension in shape:
        elements *= dimension
        if not 0 <= elements < _U64:
            raise SafetensorsError("its shape overflows 64 bits")
    bits = elements * DTYPES[dtype]
    if bits >= _U64:
        raise SafetensorsError("its size overflows 64 bits")
    if bits % 8:
        raise SafetensorsError(f"{elements} elements of {dtype} do not fill whole bytes")
    return bits // 8


def payload_order(tensors: Iterable[TensorSpec]) -> list[TensorSpec]:
    """The order in which safetensors writes: largest alignment first, so that every tensor is aligned; then by name."""
    return sorted(tensors, key=lambda tensor: (-_RANK[tensor.dtype], tensor.name))


def build_header(tensors: Sequence[TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """The length field and the JSON for tensors that follow one another in this order, padded to 8 bytes.

    Raises SafetensorsError for what `parse_header` would refuse.
    """
    fields: dict[str, Any] = {}
    if metadata:
        fields[METADATA_KEY] = dict(sorted(metadata.items()))
    offset = 0
    for tensor in tensors:
        if tensor.name in fields or tensor.name == METADATA_KEY:
            raise SafetensorsError(f"tensor {_shown(tensor.name)}: this name is taken")
        try:
            size = data_bytes(tensor.dtype, tensor.shape)
        except SafetensorsError as error:
            raise SafetensorsError(f"tensor {_shown(tensor.name)}: {error}") from None
        fields[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    try:
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        raise SafetensorsError("a tensor's name or the metadata is not valid UTF-8") from None
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_BYTES_MAX:
        raise SafetensorsError(
            f"the header of {len(tensors)} tensors is {len(text)} bytes; {HEADER_BYTES_MAX} is the limit"
        )
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _shown(name: str) -> str:
    return repr(name if len(name) <= 120 else name[:120] + "...")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise SafetensorsError(f"the key {_shown(key)} is there twice")
            seen.add(key)
    return fields


def _no_constant(text: str) -> NoReturn:
    raise SafetensorsError(f"{text} is not JSON")


def parse_json_object(text: bytes, what: str) -> dict[str, Any]:
    """Strict JSON from somebody else: an object in UTF-8, no duplicate key anywhere. Raises SafetensorsError."""
    try:
        # UTF-8 cannot hold lone surrogates, a JSON escape can: encoding again finds them.
        value = json.loads(text.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise SafetensorsError(f"{what} is nested too deeply") from None
    except ValueError as error:  # of JSON, of UTF-8, and of integers with thousands of digits
        raise SafetensorsError(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise SafetensorsError(f"{what} is not a JSON object")
    return value


def _parse_json(text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise SafetensorsError("the header does not begin with '{'")
    return parse_json_object(text, "the header")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SafetensorsError(f"{_shown(text)} is not valid UTF-8") from None


def _parse_metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SafetensorsError(f"{METADATA_KEY} is not a map of strings")
    for key, text in value.items():
        if not isinstance(text, str):
            raise SafetensorsError(f"{METADATA_KEY}: the value of {_shown(key)} is not a string")
        _check_text(key)
        _check_text(text)
    return value


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _U64  # a bool is an int, and not a size


def _parse_tensor(name: str, value: Any, data_start: int) -> TensorInfo:
    _check_text(name)
    what = f"tensor {_shown(name)}"
    if not isinstance(value, dict):
        raise SafetensorsError(f"{what}: its description is not a JSON object")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str):
        raise SafetensorsError(f"{what}: dtype is not a string")
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise SafetensorsError(f"{what}: shape is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise SafetensorsError(f"{what}: data_offsets is not a pair of offsets")
    begin, end = offsets
    try:
        size = data_bytes(dtype, shape)
    except SafetensorsError as error:
        raise SafetensorsError(f"{what}: {error}") from None
    if end - begin != size:
        raise SafetensorsError(f"{what}: {dtype} {shape} is {size} bytes, its offsets span {end - begin}")
    return TensorInfo(name, dtype, tuple(shape), data_start + begin, data_start + end)
