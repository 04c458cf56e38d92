"""What the spool must know of a torch or numpy tensor: its dtype and shape in safetensors' terms, where its memory
lies, and how its bits get into a file. All that touches torch's or numpy's API for tensors is here.

Bits are moved as unsigned integers of the element's width: neither library can copy all of fp8 and fp4 otherwise.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chappe.errors import SnapshotError
from chappe.payload.safetensors import METADATA_KEY, TensorSpec

_COMMON = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
NUMPY_DTYPES = _COMMON
"""numpy's and ml_dtypes' names. ml_dtypes holds fp4 and fp6 one value a byte: not how the format packs them."""
TORCH_DTYPES = _COMMON | {"float4_e2m1fn_x2": "F4"}

_UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_SIGNED = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # torch's unsigned ones cannot be copied everywhere


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor to be spooled. `memory` is what it touches, [begin, end) on `device`; `view` tells two views apart."""

    spec: TensorSpec
    bits: Any  # the tensor, reinterpreted as integers
    is_torch: bool
    device: str
    memory: tuple[int, int]
    view: tuple[object, ...]

    def plain_bytes(self) -> memoryview | None:
        """The bytes where they lie, without a copy; None when they are not contiguous in this host's memory."""
        array = self.bits
        if self.is_torch:
            if self.device != "cpu" or not array.is_contiguous():
                return None
            array = array.numpy()
        elif not array.flags.c_contiguous or not array.dtype.isnative:
            return None
        return memoryview(array.reshape(-1).view(np.uint8))

    def copy_into(self, descriptor: int, offset: int, size: int) -> None:
        """Copy into the file through a mapping, in the order of the format. Blocking, also for a GPU."""
        start = offset - offset % mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(descriptor, offset + size - start, offset=start) as window:
            if self.is_torch:
                self._copy_torch(window, offset - start, size)
            else:
                dtype = self.bits.dtype.newbyteorder("=")
                np.copyto(np.ndarray(self.bits.shape, dtype, window, offset - start), self.bits)

    def _copy_torch(self, window: mmap.mmap, at: int, size: int) -> None:
        torch = sys.modules["torch"]
        count = size // self.bits.element_size()
        # `payload_order` keeps every tensor aligned to its element, as torch wants it.
        target = torch.frombuffer(window, dtype=self.bits.dtype, count=count, offset=at)
        target.view(self.bits.shape).copy_(self.bits)


def describe(name: str, value: Any) -> HostTensor:
    """Raises SnapshotError naming a tensor that cannot be published, and why."""
    if not isinstance(name, str) or name == METADATA_KEY:
        raise SnapshotError(f"{name!r} is not a name for a tensor")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _describe_torch(torch, name, value)
    if isinstance(value, np.ndarray | np.generic):
        return _describe_numpy(name, np.asarray(value))
    raise SnapshotError(f"tensor {name!r} is a {type(value).__qualname__}, neither a torch nor a numpy tensor")


def _describe_torch(torch: Any, name: str, value: Any) -> HostTensor:
    problem = _torch_problem(torch, value)
    if problem is not None:
        raise SnapshotError(f"tensor {name!r} {problem}")
    tensor = value.detach().resolve_conj().resolve_neg()
    dtype = TORCH_DTYPES.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise SnapshotError(f"tensor {name!r} is of dtype {tensor.dtype}, which safetensors cannot hold: convert it")
    shape = tuple(tensor.shape)
    if dtype == "F4":  # torch counts bytes of two values
        if not shape:
            raise SnapshotError(f"tensor {name!r} is a scalar of two fp4 values, which safetensors cannot hold")
        shape = (*shape[:-1], shape[-1] * 2)
    bits = tensor.view(getattr(torch, _SIGNED[tensor.element_size()]))
    begin = tensor.data_ptr()
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    end = begin + reach * tensor.element_size() if tensor.numel() else begin
    return HostTensor(
        TensorSpec(name, dtype, shape),
        bits,
        True,
        str(tensor.device),
        (begin, end),
        (dtype, shape, tensor.stride()),
    )


def _torch_problem(torch: Any, value: Any) -> str | None:
    if torch.nn.parameter.is_lazy(value):
        return "is not initialized yet: run the model once first"
    if type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return f"is a {type(value).__qualname__} without plain memory: gather or dequantize it first"
    if value.layout is not torch.strided or value.is_nested:
        return f"is of layout {value.layout}: make it dense first"
    if value.is_quantized:
        return f"is quantized ({value.dtype}): dequantize it, or publish its integers and scales"
    if value.device.type == "meta":
        return "is on the meta device and has no values"
    return None


def _describe_numpy(name: str, array: np.ndarray[Any, Any]) -> HostTensor:
    dtype = NUMPY_DTYPES.get(array.dtype.name)
    if dtype is None:
        raise SnapshotError(f"tensor {name!r} is of dtype {array.dtype}, which safetensors cannot hold: convert it")
    begin, end = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
    unsigned = np.dtype(_UNSIGNED[array.dtype.itemsize]).newbyteorder(array.dtype.byteorder)
    return HostTensor(
        TensorSpec(name, dtype, array.shape),
        array.view(unsigned),
        False,
        "cpu",
        (begin, end),
        (dtype, array.shape, array.strides, array.dtype.byteorder, array.__array_interface__["data"][0]),
    )


def find_ties(tensors: Sequence[HostTensor]) -> dict[str, str]:
    """Removed name to kept name for tensors that are the same view of the same memory; the first name by order is kept.

    Raises SnapshotError for tensors that share memory otherwise: which of them owns it cannot be told.
    """
    ties: dict[str, str] = {}
    last: HostTensor | None = None
    by_place = sorted(
        (tensor for tensor in tensors if tensor.memory[0] < tensor.memory[1]),
        key=lambda tensor: (tensor.device, tensor.memory, tensor.spec.name),
    )
    for tensor in by_place:
        if last is None or last.device != tensor.device or last.memory[1] <= tensor.memory[0]:
            last = tensor
        elif last.memory == tensor.memory and last.view == tensor.view:
            ties[tensor.spec.name] = last.spec.name
        else:
            raise SnapshotError(
                f"tensors {last.spec.name!r} and {tensor.spec.name!r} share memory and are not the same view of it: "
                f"clone() one of them"
            )
    return ties
