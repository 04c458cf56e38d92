from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from chappe.errors import DiskFullError, SnapshotError
from chappe.origin import spool as spool_module
from chappe.origin.spool import FILE_NAME, spool_tensors
from chappe.payload.safetensors import SafetensorsHeader, parse_header

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def header_of(path: Path) -> SafetensorsHeader:
    data = path.read_bytes()
    return parse_header(data, len(data))


def bits(tensor: Any) -> Any:
    """A tensor's bytes in order, for dtypes that cannot be compared."""
    return tensor.contiguous().view(-1).view(torch.uint8) if tensor.numel() else tensor.numel()


def from_file(path: Path, name: str, like: Any) -> Any:
    [info] = [t for t in header_of(path).tensors if t.name == name]
    data = bytearray(path.read_bytes()[info.begin : info.end])
    if not data:
        return torch.empty(like.shape, dtype=like.dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(like.dtype).view(like.shape)


TORCH_DTYPES = [
    "bool uint8 int8 int16 uint16 float16 bfloat16 int32 uint32 float32 complex64 float64 int64 uint64",
    "float8_e5m2 float8_e4m3fn float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz float4_e2m1fn_x2",
]


@pytest.mark.parametrize("dtype", " ".join(TORCH_DTYPES).split())
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided", "expanded", "empty"])
def test_every_dtype_and_layout_is_kept_bit_for_bit(tmp_path: Path, dtype: str, layout: str) -> None:
    dtype = getattr(torch, dtype)
    raw = torch.arange(6 * 8 * 8, dtype=torch.int64).to(torch.uint8)
    raw = raw & 1 if dtype is torch.bool else raw
    width = torch.empty(0, dtype=dtype).element_size()
    tensor = raw[: 6 * 8 * width].view(dtype).view(6, 8)
    tensor = {
        "contiguous": lambda: tensor,
        "transposed": lambda: tensor.t(),
        "strided": lambda: tensor[1::2, ::3],
        "expanded": lambda: tensor[:1].expand(5, 8),
        "empty": lambda: tensor[:0],
    }[layout]()
    with spool_tensors({"pad": torch.zeros(3, dtype=torch.uint8), "x": tensor}, tmp_path) as spooled:
        [entry] = [t for t in spooled.snapshot.tensors if t.name == "x"]
        shape = tuple(tensor.shape)
        assert entry.shape == ((*shape[:-1], shape[-1] * 2) if entry.dtype == "F4" else shape)
        assert torch.equal(
            torch.as_tensor(bits(from_file(spooled.path, "x", tensor))),
            torch.as_tensor(bits(tensor)),
        )


def test_the_file_is_the_one_that_safetensors_would_write(tmp_path: Path) -> None:
    tensors = {
        "b": torch.randn(3, 5).bfloat16(),
        "a": torch.randn(7),
        "scalar": torch.tensor(2.5),
        "flag": torch.tensor([True, False]),
        "ü": torch.arange(4),
        "fp8": torch.ones(5).to(torch.float8_e4m3fn),
        "fp4": torch.zeros(2, 2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    }
    with spool_tensors(tensors, tmp_path) as spooled:
        assert spooled.path.name == FILE_NAME
        assert spooled.path.read_bytes() == safetensors_torch.save(tensors, {"format": "pt"})


@pytest.mark.parametrize("make", [np.asfortranarray, np.ascontiguousarray, lambda a: a[::-1], lambda a: a[:, ::2]])
@pytest.mark.parametrize(
    "dtype", ["<f4", ">f4", "<i8", ">u2", "?", "c8", "bfloat16", "float8_e4m3fn", "float8_e8m0fnu"]
)
def test_numpy_tensors_are_kept(tmp_path: Path, dtype: str, make: Any) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype) if hasattr(ml_dtypes, dtype) else dtype)
    array = make(np.arange(24).reshape(4, 6).astype(kind))
    with spool_tensors({"x": array, "s": np.float32(1.5)}, tmp_path) as spooled:
        [info] = [t for t in header_of(spooled.path).tensors if t.name == "x"]
        data = spooled.path.read_bytes()[info.begin : info.end]
        assert data == array.astype(kind.newbyteorder("<")).tobytes()
        assert info.shape == array.shape
        assert header_of(spooled.path).metadata == {"format": "np"}


def test_the_copy_is_consistent_after_the_trainer_writes_on(tmp_path: Path) -> None:
    weight, other = torch.ones(1000), np.ones(1000, np.float32)
    with spool_tensors({"w": weight, "o": other}, tmp_path) as spooled:
        weight.zero_()
        other[:] = 0
        loaded = safetensors.numpy.load_file(spooled.path)
        assert loaded["w"].min() == loaded["o"].min() == 1
        spooled.snapshot.unchanged()
    assert list(tmp_path.iterdir()) == []


def test_tied_tensors_are_stored_once_as_save_model_does(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(10, 4)
            self.head = torch.nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight
            self.norm = torch.nn.LayerNorm(4)

    model = Tied()
    safetensors_torch.save_model(model, tmp_path / "theirs")
    with spool_tensors(model.state_dict(), tmp_path) as spooled:
        ours, theirs = header_of(spooled.path), header_of(tmp_path / "theirs")
        assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
        assert ours.aliases() == theirs.aliases() == {"head.weight": "embed.weight"}
        reloaded = Tied()
        reloaded.embed.weight.data.zero_()
        safetensors_torch.load_model(reloaded, spooled.path)
        assert torch.equal(reloaded.head.weight, model.head.weight)


def test_disjoint_views_of_one_storage_are_not_tied(tmp_path: Path) -> None:
    base = torch.arange(12.0)
    array = np.arange(6.0)
    tensors = {"q": base[:4], "k": base[4:8], "e": base[8:8], "v": base[8:], "l": array[:3], "r": array[3:]}
    with spool_tensors(tensors, tmp_path) as spooled:
        assert len(spooled.snapshot.tensors) == 6
        assert header_of(spooled.path).aliases() == {}


BASE, ARRAY = torch.arange(12.0), np.arange(12.0, dtype=np.float32)


@pytest.mark.parametrize(
    "tensors",
    [
        {"one": BASE[:8], "two": BASE[4:]},
        {"one": BASE, "two": BASE[:4]},
        {"one": BASE.view(3, 4), "two": BASE.view(3, 4).t()},
        {"one": BASE.view(3, 4), "two": BASE},
        {"one": BASE, "two": BASE.view(torch.int32)},
        {"one": BASE[::2], "two": BASE[1::2]},
        {"one": ARRAY[:8], "two": ARRAY[4:]},
        {"one": ARRAY, "two": ARRAY[::-1]},
        {"one": ARRAY, "two": torch.from_numpy(ARRAY)[:3]},
    ],
)
def test_memory_that_is_shared_otherwise_is_refused_by_name(tmp_path: Path, tensors: dict[str, Any]) -> None:
    with pytest.raises(SnapshotError, match=r"'(one|two)' and '(one|two)' share memory"):
        spool_tensors(tensors, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore")  # torch's own, about quantized and nested tensors
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.zeros(2, dtype=torch.complex128), "complex128"),
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.eye(3).to_sparse_csr(), "sparse"),
        (lambda: torch.zeros(3, device="meta"), "meta"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "quantized"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "dense first"),
        (lambda: torch.nn.parameter.UninitializedParameter(), "not initialized"),
        (lambda: torch.tensor([1], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)[0], "scalar of two"),
        (lambda: np.zeros(2, "U3"), "<U3"),
        (lambda: np.zeros(2, object), "object"),
        (lambda: np.zeros(2, "c16"), "complex128"),
        (lambda: np.zeros(2, ml_dtypes.float4_e2m1fn), "float4"),
        (lambda: np.zeros(2, [("a", "i4")]), "i4"),
        (lambda: [1.0, 2.0], "list"),
        (lambda: None, "NoneType"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_by_name(tmp_path: Path, make: Any, why: str) -> None:
    with pytest.raises(SnapshotError, match=r"tensor 'layer\.bad'") as caught:
        spool_tensors({"good": torch.ones(2), "layer.bad": make()}, tmp_path)
    assert why in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_tensors_without_plain_memory_are_refused_by_name(tmp_path: Path) -> None:
    class Wrapper(torch.Tensor):  # type: ignore[misc, name-defined]
        @staticmethod
        def __new__(cls, inner: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented

    with pytest.raises(SnapshotError, match=r"'sharded' is a .*Wrapper without plain memory"):
        spool_tensors({"sharded": Wrapper(torch.ones(2))}, tmp_path)


def test_parameters_lazy_conjugates_and_gradients_are_ordinary(tmp_path: Path) -> None:
    value = torch.complex(torch.ones(2), torch.arange(2.0))
    with spool_tensors({"p": torch.nn.Parameter(torch.ones(3)), "c": value.conj()}, tmp_path) as spooled:
        assert torch.equal(from_file(spooled.path, "c", value), value.conj().resolve_conj())
        assert torch.equal(from_file(spooled.path, "p", torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("name", ["__metadata__", 3])
def test_a_name_that_the_format_cannot_hold_is_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(SnapshotError, match="is not a name for a tensor"):
        spool_tensors({name: torch.ones(2)}, tmp_path)


def test_no_tensors_and_no_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no tensors"):
        spool_tensors({}, tmp_path)
    with pytest.raises(SnapshotError, match="nowhere"):
        spool_tensors({"a": torch.ones(2)}, tmp_path / "nowhere")


def test_a_tensor_named_like_the_framework_leaves_no_false_tie(tmp_path: Path) -> None:
    with spool_tensors({"pt": torch.ones(2)}, tmp_path) as spooled:
        assert header_of(spooled.path).metadata == {}


def test_no_room_is_an_error_before_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(spool_module.os, "posix_fallocate", full)
    with pytest.raises(DiskFullError, match=f"{tmp_path} has no room"):
        spool_tensors({"a": torch.ones(2)}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_shared_memory_is_taken_only_with_room_for_the_copy_and_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module.os, "access", lambda *_: True)
    free = {"shm": 1 << 30, "memory": 1 << 30}
    monkeypatch.setattr(spool_module, "free_bytes", lambda _: free["shm"])
    monkeypatch.setattr(spool_module, "_free_memory_bytes", lambda: free["memory"])
    room = (1 << 30) - spool_module.MARGIN_BYTES
    assert spool_module.choose_directory(room) == spool_module.SHARED_MEMORY
    assert spool_module.choose_directory(room + 1) != spool_module.SHARED_MEMORY
    free["memory"] -= 1
    assert spool_module.choose_directory(room) != spool_module.SHARED_MEMORY


def test_free_memory_is_read_from_this_host() -> None:
    assert 0 < spool_module._free_memory_bytes() < 1 << 50


def test_leftovers_of_a_killed_publisher_are_removed_and_living_ones_kept(tmp_path: Path) -> None:
    script = (
        "import os, sys, numpy; from pathlib import Path; from chappe.origin.spool import spool_tensors;"
        "spool_tensors({'a': numpy.ones(3)}, Path(sys.argv[1])); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == 9
    [leftover] = tmp_path.iterdir()
    with spool_tensors({"a": np.ones(3)}, tmp_path) as first, spool_tensors({"a": np.ones(3)}, tmp_path) as second:
        assert not leftover.exists()
        assert set(tmp_path.iterdir()) == {first.directory, second.directory}
    assert list(tmp_path.iterdir()) == []
    first.close()


def test_a_leftover_that_fills_the_memory_does_not_send_the_next_copy_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    monkeypatch.setattr(spool_module, "SHARED_MEMORY", memory)
    leftover, lock = spool_module.make_directory(memory)
    monkeypatch.setattr(spool_module, "free_bytes", lambda home: 0 if leftover.exists() else 1 << 30)
    monkeypatch.setattr(spool_module, "_free_memory_bytes", lambda: 1 << 30)
    assert spool_module.choose_directory(1) != memory  # in use
    os.close(lock)
    assert spool_module.choose_directory(1) == memory


def test_numpy_tensors_are_spooled_without_torch(tmp_path: Path) -> None:
    script = (
        "import json, sys, numpy; from pathlib import Path; from chappe.origin.spool import spool_tensors\n"
        "with spool_tensors({'a': numpy.ones(3)}, Path(sys.argv[1])) as s: print(json.dumps(['torch' in sys.modules]))"
    )
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True, text=True)
    assert json.loads(run.stdout) == [False]
