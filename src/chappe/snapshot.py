"""A landed snapshot on the rollout host, and its tensors without a copy.

Files are mapped, so that the kernel pages in what is touched and every process on the host shares it. A landed
version is never written to again (design.md, "Landing on disk"): a mapping stays good when newer versions land, and
when this one is removed. Nothing here talks to relayd.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ml_dtypes
import numpy as np

from chappe.errors import SafetensorsError, SnapshotError
from chappe.payload.adapter import BINDING_FILE, parse_binding
from chappe.payload.paths import check_path
from chappe.payload.safetensors import (
    DTYPES,
    LENGTH_BYTES,
    SafetensorsHeader,
    TensorInfo,
    header_span,
    parse_header,
    parse_json_object,
)

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

INDEX_NAME = "model.safetensors.index.json"

_NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}

_TORCH = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",  # two elements a byte: the last dimension counts bytes
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One landed version. `path` is its directory, in the layout in which it was published."""

    version: int
    path: Path
    root: str
    run: str = ""

    @property
    def adapter_of(self) -> str | None:
        """The root of the snapshot that this adapter is for; None for one that is no adapter. Raises SnapshotError."""
        try:
            return parse_binding((self.path / BINDING_FILE).read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SnapshotError(f"{self.path / BINDING_FILE} cannot be read: {error.strerror}") from error

    def load(self) -> dict[str, np.ndarray[Any, Any]]:
        """Every tensor of the snapshot, as read-only arrays over the mapped files.

        bf16 and fp8 come with ml_dtypes' types. fp4 and fp6 have no NumPy element and come packed as uint8, with the
        last dimension in bytes (one dimension in all where a row does not fill its last byte). Tied tensors that the
        publisher stored once appear under each of their names, sharing memory.

        Raises SnapshotError for a snapshot without safetensors files, or with one tensor in two files.
        """
        return _load(self.path, mmap.ACCESS_READ, _numpy_view)

    def torch(self) -> dict[str, torch.Tensor]:
        """As `load`, as torch tensors on the CPU without a copy.

        They may be written to: torch knows no read-only tensor, so the mapping is private, and a page that is written
        is copied. The files stay as they are. fp4 comes as float4_e2m1fn_x2, fp6 packed as uint8. Raises
        SnapshotError for a dtype that the installed torch does not have.
        """
        import torch

        def view(buffer: mmap.mmap, tensor: TensorInfo) -> torch.Tensor:
            element = getattr(torch, _TORCH.get(tensor.dtype, "uint8"), None)
            if element is None:
                raise SnapshotError(
                    f"tensor {tensor.name!r} is {tensor.dtype}, which torch {torch.__version__} does not have"
                )
            shape = _shape(tensor)
            if tensor.begin == tensor.end:
                return torch.empty(shape, dtype=element)
            return torch.frombuffer(buffer, dtype=element, count=math.prod(shape), offset=tensor.begin).reshape(shape)

        return _load(self.path, mmap.ACCESS_COPY, view)


def _shape(tensor: TensorInfo) -> tuple[int, ...]:
    """The tensor's shape; in bytes where its elements are smaller than one."""
    bits, shape = DTYPES[tensor.dtype], tensor.shape
    if bits >= 8:
        return shape
    if shape and shape[-1] * bits % 8 == 0:
        return (*shape[:-1], shape[-1] * bits // 8)
    return (math.prod(shape) * bits // 8,)


def _numpy_view(buffer: mmap.mmap, tensor: TensorInfo) -> np.ndarray[Any, Any]:
    element, shape = _NUMPY.get(tensor.dtype, np.dtype(np.uint8)), _shape(tensor)
    return np.frombuffer(buffer, dtype=element, count=math.prod(shape), offset=tensor.begin).reshape(shape)


def _load(path: Path, access: int, view: Callable[[mmap.mmap, TensorInfo], T]) -> dict[str, T]:
    tensors: dict[str, T] = {}
    aliases: dict[str, str] = {}
    for file in _shards(path):
        buffer, header = _map(file, access)
        for entry in header.tensors:
            if entry.name in tensors:
                raise SnapshotError(f"{path}: tensor {entry.name!r} is in two files, the second is {file.name}")
            tensors[entry.name] = view(buffer, entry)
        aliases |= header.metadata
    for alias, kept in aliases.items():
        if alias not in tensors and kept in tensors:  # how safetensors names tied tensors: removed -> kept
            tensors[alias] = tensors[kept]
    return tensors


def _shards(path: Path) -> Iterator[Path]:
    """The safetensors files that make up the model: those of the index where there is one, else all here."""
    index = path / INDEX_NAME
    if index.is_file():
        weight_map = parse_json_object(index.read_bytes(), f"{index}").get("weight_map")
        if not isinstance(weight_map, dict):
            raise SafetensorsError(f"{index} has no weight_map")
        yield from (path / check_path(str(name)) for name in sorted(set(weight_map.values())))
        return
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise SnapshotError(f"{path} has no safetensors file")
    yield from files


def _map(file: Path, access: int) -> tuple[mmap.mmap, SafetensorsHeader]:
    with file.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        try:
            span = header_span(opened.read(LENGTH_BYTES), size)
            buffer = mmap.mmap(opened.fileno(), 0, access=access)
            return buffer, parse_header(buffer[:span], size)
        except SafetensorsError as error:
            raise SafetensorsError(f"{file}: {error}") from error
