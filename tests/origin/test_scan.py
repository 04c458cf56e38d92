from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from chappe.core.manifest import FileEntry
from chappe.errors import SafetensorsError, SnapshotChangedError, SnapshotError, UnsafePathError
from chappe.origin.scan import scan
from chappe.payload.safetensors import TensorSpec, build_header


def weights(*names: str, shape: tuple[int, ...] = (4,)) -> bytes:
    specs = [TensorSpec(name, "U8", shape) for name in names]
    return build_header(specs) + b"".join(bytes([i]) * (shape[0] if shape else 1) for i in range(len(specs)))


def put(path: Path, data: bytes | str = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def sharded(directory: Path) -> Path:
    put(directory / "model-00001-of-00002.safetensors", weights("a", "b"))
    put(directory / "model-00002-of-00002.safetensors", weights("c"))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"}}
    put(directory / "model.safetensors.index.json", json.dumps(index))
    put(directory / "config.json", "{}")
    put(directory / "tokenizer" / "vocab.txt", "")
    return directory


def test_one_file_is_a_snapshot(tmp_path: Path) -> None:
    file = put(tmp_path / "m.safetensors", weights("w"))
    snapshot = scan(file)
    assert snapshot.entries == (FileEntry("m.safetensors", file.stat().st_size),)
    assert [(t.name, t.file, t.begin, t.end) for t in snapshot.tensors] == [
        ("w", 0, file.stat().st_size - 4, file.stat().st_size)
    ]


def test_a_model_directory_is_taken_whole_but_for_hidden_names(tmp_path: Path) -> None:
    directory = sharded(tmp_path / "model")
    put(directory / ".git" / "config")
    put(directory / ".gitattributes")
    put(directory / ".cache" / "x.safetensors", b"broken")
    snapshot = scan(directory)
    assert [f.path for f in snapshot.files] == [
        "config.json",
        "model.safetensors.index.json",
        "tokenizer/vocab.txt",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    assert [(t.name, t.file) for t in snapshot.tensors] == [("a", 3), ("b", 3), ("c", 4)]
    assert snapshot.snapshot_bytes == sum(
        p.stat().st_size for p in directory.rglob("[!.]*") if p.is_file() and "/." not in str(p)
    )


@pytest.mark.parametrize(
    ("weight_map", "error", "message"),
    [
        ({"a": "model-00003-of-00002.safetensors"}, SnapshotError, "is not in the snapshot"),
        ({"c": "model-00001-of-00002.safetensors"}, SnapshotError, "tensor 'c'"),
        ({"a": "../outside.safetensors"}, UnsafePathError, "outside"),
        ({"a": ".cache/x.safetensors"}, SnapshotError, "is not in the snapshot"),
    ],
)
def test_an_index_that_is_not_true_is_refused(
    tmp_path: Path, weight_map: dict[str, str], error: type[SnapshotError], message: str
) -> None:
    directory = sharded(tmp_path / "model")
    put(tmp_path / "outside.safetensors", weights("a"))
    put(directory / "model.safetensors.index.json", json.dumps({"weight_map": weight_map}))
    with pytest.raises(error, match=message):
        scan(directory)


def test_a_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    directory = sharded(tmp_path)
    bad = put(directory / "extra.safetensors", weights("a") + b"tail")
    with pytest.raises(SafetensorsError, match=r"extra\.safetensors: the tensors end at byte"):
        scan(directory)
    bad.write_bytes(b"version 1\noid 5\nsize 9\n")
    with pytest.raises(SafetensorsError, match="git lfs pull"):
        scan(directory)
    bad.write_bytes(b"")
    with pytest.raises(SafetensorsError, match="too short"):
        scan(directory)


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="nothing-there"):
        scan(tmp_path / "nothing-there")
    put(tmp_path / "pytorch_model.bin")
    with pytest.raises(SnapshotError, match=r"no \.safetensors file"):
        scan(tmp_path)
    with pytest.raises(SnapshotError, match="neither"):
        scan(tmp_path / "pytorch_model.bin")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SnapshotError, match="pipe is not a regular file"):
        scan(tmp_path)


def test_a_relay_s_store_is_no_snapshot_and_what_lies_in_it_is(tmp_path: Path) -> None:
    put(tmp_path / "store/snapshots/1/model.safetensors", weights("w"))
    (tmp_path / "store/objects").mkdir()
    with pytest.raises(SnapshotError, match="is the store of a relay: name its `current`"):
        scan(tmp_path / "store")
    assert len(scan(tmp_path / "store/snapshots/1").files) == 1


@pytest.mark.parametrize("name", ["a:b", "a\\b", "a\nb", b"\xff".decode(errors="surrogateescape")])
def test_a_name_that_no_host_should_take_is_refused(tmp_path: Path, name: str) -> None:
    sharded(tmp_path)
    put(tmp_path / name)
    with pytest.raises(UnsafePathError):
        scan(tmp_path)


def test_symlinks_stay_inside(tmp_path: Path) -> None:
    directory = sharded(tmp_path / "model")
    (directory / "alias.json").symlink_to("config.json")
    assert "alias.json" in [f.path for f in scan(directory).files]
    (tmp_path / "current").symlink_to("model")
    assert scan(tmp_path / "current") == scan(directory)

    secret = put(tmp_path / "secret")
    (directory / "leak.json").symlink_to(secret)
    with pytest.raises(UnsafePathError, match=r"leak\.json is a symlink out of"):
        scan(directory)
    (directory / "leak.json").unlink()
    (directory / "up").symlink_to("..")
    with pytest.raises(UnsafePathError, match="symlink to a directory"):
        scan(directory)
    (directory / "up").unlink()
    (directory / "gone").symlink_to("nowhere")
    with pytest.raises(SnapshotError, match="symlink to nothing"):
        scan(directory)
    (directory / "gone").unlink()
    (directory / "loop").symlink_to("loop")
    with pytest.raises(SnapshotError, match="loop"):
        scan(directory)


def test_a_hub_cache_is_followed_into_its_blobs_only(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    put(repository / "blobs" / "0abc", weights("w"))
    put(repository / "refs" / "main")
    directory = repository / "snapshots" / "f00d"
    directory.mkdir(parents=True)
    (directory / "model.safetensors").symlink_to("../../blobs/0abc")
    [file] = scan(directory).files
    assert (file.path, file.location) == ("model.safetensors", repository / "blobs" / "0abc")
    (directory / "main").symlink_to("../../refs/main")
    with pytest.raises(UnsafePathError, match="symlink out of"):
        scan(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes() + b"x"), "its size went from"),
        (lambda p: os.utime(p, ns=(0, p.stat().st_mtime_ns + 1)), "it was written to"),
        (lambda p: p.unlink(), "was removed"),
        (
            lambda p: put(p.with_suffix(".new"), p.read_bytes()).replace(p),
            "another file took its place",
        ),
    ],
)
def test_a_changed_file_is_named(tmp_path: Path, change: object, message: str) -> None:
    directory = sharded(tmp_path)
    snapshot = scan(directory)
    snapshot.unchanged()
    change(directory / "config.json")  # type: ignore[operator]
    with pytest.raises(SnapshotChangedError, match=rf"config\.json.*{message}"):
        snapshot.unchanged()
    with pytest.raises(SnapshotChangedError, match=message):
        snapshot.files[0].open()
