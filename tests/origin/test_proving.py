"""A base is proven while it is compared: whatever of it was altered, also what the target has no use for."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from safetensors.numpy import save_file

from chappe.core.digest import BLAKE3, XXH3_128, Algorithm
from chappe.errors import SnapshotChangedError
from chappe.origin import proving
from chappe.origin.blocksources import Compared
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import Snapshot, scan
from chappe.origin.steps import Base

SIZES = {"a": 900_000, "b": 700_000, "c": 300_001, "d": 5}


def snapshot(path: Path, names: dict[str, str], **sidecars: str) -> Snapshot:
    """`names`: tensor to file."""
    path.mkdir()
    for file in sorted(set(names.values())):
        inside = [name for name in names if names[name] == file]
        tensors = {n: np.random.default_rng(ord(n)).integers(0, 99, SIZES[n], np.uint16) for n in inside}
        save_file(tensors, path / f"{file}.safetensors")
    for name, text in sidecars.items():
        (path / f"{name}.json").write_text(text)
    return scan(path)


CASES = {
    "the same": {"a": "m", "b": "m", "c": "m", "d": "m"},
    "shards": {"a": "m", "b": "m", "c": "n", "d": "n"},
    "dropped": {"a": "m", "c": "m"},
    "none of it": {"d": "x"},
    "backwards": {"c": "k", "d": "k", "a": "n", "b": "n"},
}
BASE = {"a": "m", "b": "m", "c": "m", "d": "m"}


def encode(base: Base, target: Snapshot, algorithm: Algorithm = XXH3_128) -> int:
    """How often the base was hashed in a pass of its own."""
    with patch.object(proving, "hash_snapshot", wraps=hash_snapshot) as hashed, Compared(base, target).opened() as made:
        for _ in made[1](algorithm, map):
            pass
    return hashed.call_count


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("algorithm", [XXH3_128, BLAKE3])
def test_a_base_that_is_right(tmp_path: Path, case: str, algorithm: Algorithm) -> None:
    kept = snapshot(tmp_path / "base", BASE, config="{}", other="[]")
    target = snapshot(tmp_path / "target", CASES[case], config="{ }")
    assert encode(Base(hash_snapshot(kept, algorithm), 1, kept), target) in (0, 1)


def test_two_versions_of_one_model_need_no_other_pass(tmp_path: Path) -> None:
    kept = snapshot(tmp_path / "base", BASE, config="{}", other="[]")
    base = Base(hash_snapshot(kept), 1, kept)
    for number, target in enumerate((BASE, {"a": "m", "c": "m"})):
        assert encode(base, snapshot(tmp_path / str(number), target, config="{ }")) == 0
    moved = snapshot(tmp_path / "moved", CASES["backwards"])
    assert encode(base, moved) == 1  # c lies behind a in the base


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("where", [0.0, 0.3, 0.6, 0.95, 1.0])
def test_a_base_that_rotted_without_a_trace(tmp_path: Path, case: str, where: float) -> None:
    kept = snapshot(tmp_path / "base", BASE, config="{}", other="[]")
    base = Base(hash_snapshot(kept), 1, kept)
    target = snapshot(tmp_path / "target", CASES[case], config="{}")
    path = tmp_path / "base" / "m.safetensors"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(8 + round(where * (before.st_size - 9)))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SnapshotChangedError, match="is not what was published"):
        encode(base, target)
