"""Loading a landed snapshot: the same values as safetensors gives, without a copy, and safe against writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from chappe.errors import SafetensorsError, SnapshotError, UnsafePathError
from chappe.payload.safetensors import TensorSpec, build_header
from chappe.snapshot import Snapshot

torch = pytest.importorskip("torch")


def landed(path: Path) -> Snapshot:
    return Snapshot(version=3, path=path, root="xxh3_128:00", run="r")


def write_raw(file: Path, tensors: list[tuple[str, str, tuple[int, ...], bytes]], metadata: Any = None) -> None:
    header = build_header([TensorSpec(name, dtype, shape) for name, dtype, shape, _ in tensors], metadata)
    file.write_bytes(header + b"".join(data for *_, data in tensors))


def test_one_file_gives_what_was_saved(tmp_path: Path) -> None:
    saved: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "zero_dim": np.array(5, dtype=np.int64),
        "empty": np.empty((0, 7), dtype=np.float16),
        "flag": np.array([True, False]),
    }
    save_file(saved, tmp_path / "model.safetensors")
    loaded = landed(tmp_path).load()
    assert loaded.keys() == saved.keys()
    for name, array in saved.items():
        assert loaded[name].dtype == array.dtype
        np.testing.assert_array_equal(loaded[name], array)


@given(
    array=hnp.arrays(
        dtype=st.sampled_from(["<f4", "<i8", "|u1", "<u2", "<c8"]), shape=hnp.array_shapes(min_side=0, min_dims=0)
    )
)
@settings(max_examples=40, deadline=None)
def test_any_array_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray[Any, Any]
) -> None:
    path = tmp_path_factory.mktemp("any")
    save_file({"x": array.copy(order="C")}, path / "m.safetensors")
    loaded = landed(path)
    assert loaded.load()["x"].tobytes() == array.tobytes()
    assert loaded.load()["x"].shape == array.shape
    assert loaded.torch()["x"].numpy().tobytes() == array.tobytes()


def test_arrays_are_views_of_the_file_and_read_only(tmp_path: Path) -> None:
    save_file({"a": np.zeros(8, dtype=np.float32)}, tmp_path / "model.safetensors")
    array = landed(tmp_path).load()["a"]
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_mapped_tensors_outlive_the_files(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.arange(1 << 16, dtype=np.int32)}, file)
    array, tensor = landed(tmp_path).load()["a"], landed(tmp_path).torch()["a"]
    file.unlink()
    assert int(array[-1]) == int(tensor[-1]) == (1 << 16) - 1


def test_writing_to_a_torch_tensor_leaves_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": np.zeros(8, dtype=np.float32)}, file)
    os.chmod(file, 0o444)
    before = file.read_bytes()
    tensor = landed(tmp_path).torch()["a"]
    tensor += 1
    assert float(tensor.sum()) == 8
    assert file.read_bytes() == before
    assert float(landed(tmp_path).torch()["a"].sum()) == 0


@pytest.mark.parametrize(
    ("dtype", "numpy_type", "torch_type"),
    [
        ("BF16", ml_dtypes.bfloat16, torch.bfloat16),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
        ("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz, torch.float8_e4m3fnuz),
        ("F8_E5M2", ml_dtypes.float8_e5m2, torch.float8_e5m2),
        ("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz, torch.float8_e5m2fnuz),
        ("F8_E8M0", ml_dtypes.float8_e8m0fnu, torch.float8_e8m0fnu),
    ],
)
def test_small_floats_have_their_types_and_values(tmp_path: Path, dtype: str, numpy_type: Any, torch_type: Any) -> None:
    values = np.array([0.5, 1.0, 2.0, 4.0], dtype=numpy_type)
    write_raw(tmp_path / "m.safetensors", [("x", dtype, (2, 2), values.tobytes())])
    array, tensor = landed(tmp_path).load()["x"], landed(tmp_path).torch()["x"]
    assert array.dtype == np.dtype(numpy_type)
    assert array.astype(np.float32).tolist() == [[0.5, 1.0], [2.0, 4.0]]
    assert tensor.dtype == torch_type
    assert tensor.to(torch.float32).tolist() == [[0.5, 1.0], [2.0, 4.0]]


def test_fp4_of_torch_comes_back_as_torch_saved_it(tmp_path: Path) -> None:
    from safetensors.torch import save_file as save_torch

    packed = torch.arange(24, dtype=torch.uint8).reshape(4, 6)
    save_torch({"x": packed.view(torch.float4_e2m1fn_x2)}, tmp_path / "m.safetensors")
    tensor, array = landed(tmp_path).torch()["x"], landed(tmp_path).load()["x"]
    assert tensor.dtype == torch.float4_e2m1fn_x2
    assert tensor.shape == (4, 6)
    assert torch.equal(tensor.view(torch.uint8), packed)
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(array, packed.numpy())


def test_fp6_is_packed_bytes_flat_where_a_row_ends_within_a_byte(tmp_path: Path) -> None:
    data = bytes(range(6))
    write_raw(tmp_path / "m.safetensors", [("whole", "F6_E2M3", (2, 4), data), ("split", "F6_E3M2", (4, 2), data)])
    loaded = landed(tmp_path)
    assert loaded.load()["whole"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded.load()["split"].tolist() == list(data)
    assert loaded.torch()["whole"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_unaligned_tensor_is_read_right(tmp_path: Path) -> None:
    values = np.array([1.5, -2.5], dtype=np.float64)
    write_raw(tmp_path / "m.safetensors", [("odd", "U8", (3,), b"abc"), ("x", "F64", (2,), values.tobytes())])
    assert landed(tmp_path).load()["x"].tolist() == [1.5, -2.5]
    assert landed(tmp_path).torch()["x"].tolist() == [1.5, -2.5]


def test_tied_tensors_appear_under_both_names_and_share_memory(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.a = torch.nn.Linear(4, 4, bias=False)
    model.b = torch.nn.Linear(4, 4, bias=False)
    model.b.weight = model.a.weight
    from safetensors.torch import save_model

    save_model(model, str(tmp_path / "model.safetensors"))
    tensors = landed(tmp_path).torch()
    assert tensors.keys() == {"a.weight", "b.weight"}
    assert tensors["a.weight"].data_ptr() == tensors["b.weight"].data_ptr()
    assert np.shares_memory(*list(landed(tmp_path).load().values())[:2])


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    save_file({"a": np.ones(2, dtype=np.float32)}, tmp_path / "model-1.safetensors")
    save_file({"b": np.zeros(2, dtype=np.float32)}, tmp_path / "model-2.safetensors")
    save_file({"stray": np.zeros(2, dtype=np.float32)}, tmp_path / "adapter.safetensors")
    index = {"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert landed(tmp_path).load().keys() == {"a", "b"}


@pytest.mark.parametrize("name", ["../model-1.safetensors", "/etc/passwd"])
def test_an_index_may_not_lead_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UnsafePathError):
        landed(tmp_path).load()


def test_an_index_without_a_map_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(SafetensorsError, match="weight_map"):
        landed(tmp_path).load()


def test_one_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"x": np.ones(2, dtype=np.float32)}, tmp_path / name)
    with pytest.raises(SnapshotError, match="two files"):
        landed(tmp_path).load()


def test_a_snapshot_without_tensors_says_so(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="no safetensors"):
        landed(tmp_path).load()


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 16, (2).to_bytes(8, "little") + b"[]"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(SafetensorsError, match=r"bad\.safetensors"):
        landed(tmp_path).load()
