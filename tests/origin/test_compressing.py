"""What compressing a snapshot is said to bring, and its file, are those of the snapshot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from chappe.core.digest import XXH3_128
from chappe.core.manifest import Manifest
from chappe.errors import PublicationCancelledError, SnapshotError
from chappe.origin.blocksources import Whole
from chappe.origin.compressing import measure
from chappe.origin.deltas import DeltaFile
from chappe.origin.scan import Snapshot, scan


def snapshot(folder: Path, tensor: np.ndarray[tuple[int], np.dtype[np.uint16]]) -> Snapshot:
    folder.mkdir()
    save_file({"weight": tensor}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return scan(folder)


def trained(elements: int) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    floats = (0.02 * np.random.default_rng(0).standard_normal(elements, np.float32)).view(np.uint32)
    return (floats >> 16).astype(np.uint16)


def file_of(source: Snapshot, spool: Path) -> DeltaFile:
    full = Manifest("1" * 32, XXH3_128, 1 << 20, source.entries, source.tensors)
    return DeltaFile(Whole(source), full, spool)


def test_the_sample_tells_what_the_file_weighs(tmp_path: Path) -> None:
    source = snapshot(tmp_path / "model", trained(5 << 20))
    found = measure(source)
    assert 0.6 < found.payload_bytes / source.snapshot_bytes < 0.75
    assert found.encode_bytes_per_s > 1e6
    assert found.decode_bytes_per_s > 1e6
    file = file_of(source, tmp_path)
    file.encode()
    file.close("xxh3_128:" + "0" * 32)
    assert file.payload_bytes == pytest.approx(found.payload_bytes, rel=0.01)
    assert (file.base_root, file.compared_elements) == ("", 0)
    file.discard()


def test_noise_is_told_to_be_noise(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 1 << 16, 3 << 20, dtype=np.uint16)
    source = snapshot(tmp_path / "model", noise)
    assert measure(source).payload_bytes >= 0.99 * source.snapshot_bytes


def test_tiny_snapshots_have_a_sample_too(tmp_path: Path) -> None:
    source = snapshot(tmp_path / "model", np.zeros(10, np.uint16))
    assert measure(source).payload_bytes < 2 * source.snapshot_bytes


def test_a_file_that_changes_meanwhile_is_found(tmp_path: Path) -> None:
    source = snapshot(tmp_path / "model", trained(1 << 20))
    with (tmp_path / "model/model.safetensors").open("ab") as out:
        out.write(b"x")
    with pytest.raises(SnapshotError, match="changed"):
        measure(source)
    file = file_of(source, tmp_path)
    with pytest.raises(SnapshotError, match="changed"):
        file.encode()
    file.discard()
    with pytest.raises(PublicationCancelledError):
        file.encode()
