"""The base that a publisher keeps: one copy, proven, for this process or the next."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from chappe.core.digest import XXH3_128
from chappe.core.manifest import Manifest
from chappe.errors import PublicationCancelledError, SnapshotChangedError
from chappe.origin.bases import Bases
from chappe.origin.blocksources import Compared
from chappe.origin.deltas import DeltaFile, estimate
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import Snapshot, scan
from chappe.origin.spool import spool_tensors


def model(path: Path, seed: int, changed: int = 0) -> Snapshot:
    path.mkdir()
    weights = np.random.default_rng(seed).integers(0, 1 << 16, 200_000, dtype=np.uint16)
    weights[:changed] += 1
    save_file({"w": weights}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"seed": seed}))
    return scan(path)


async def keep(bases: Bases, snapshot: Snapshot, version: int, run: str = "run") -> str:
    root = hash_snapshot(snapshot)
    bases.published(run, snapshot, root, version, None)
    await bases.settled()
    return root


async def test_files_are_copied_and_found_by_the_next_process(tmp_path: Path) -> None:
    bases = Bases(tmp_path / "cache")
    assert await bases.get("run") is None
    assert bases.why == "nothing was published from here yet"
    await keep(bases, model(tmp_path / "a", 1), 1)
    root = await keep(bases, model(tmp_path / "b", 2), 2)
    await bases.close()
    home = tmp_path / "cache" / "run"
    assert len([path for path in home.iterdir() if path.is_dir()]) == 1  # one copy
    (home / "left-by-a-killed-process").mkdir()

    again = Bases(tmp_path / "cache")
    base = await again.get("run")
    assert base is not None
    assert (base.root, base.version, hash_snapshot(base.snapshot)) == (root, 2, root)
    assert len([path for path in home.iterdir() if path.is_dir()]) == 1
    other = Bases(tmp_path / "cache")
    assert await other.get("run") is None
    assert "another publisher uses" in other.why
    assert await Bases(tmp_path / "cache").get("another run") is None
    await again.close()


async def test_without_a_folder_it_goes_with_the_publisher(tmp_path: Path) -> None:
    bases = Bases(None)
    root = await keep(bases, model(tmp_path / "a", 1), 1)
    base = await bases.get("run")
    assert base is not None
    assert base.root == root
    place = base.snapshot.files[0].location
    assert place.exists()
    await bases.close()
    assert not place.exists()
    off = Bases(None, enabled=False)
    await keep(off, model(tmp_path / "b", 1), 1)
    assert await off.get("run") is None


async def test_the_copy_of_tensors_is_kept_as_it_is(tmp_path: Path) -> None:
    bases = Bases(None)
    spools = [spool_tensors({"w": np.full(10, i)}, tmp_path) for i in range(2)]
    for version, spool in enumerate(spools):
        bases.published("run", spool.snapshot, f"xxh3_128:{version:032x}", version + 1, spool)
        spool.close()  # its publication is over
        base = await bases.get("run")
        assert base is not None
        assert (base.version, spool.path.exists()) == (version + 1, True)
    assert not spools[0].path.exists()
    await bases.close()
    assert not spools[1].path.exists()


async def test_files_that_change_while_they_are_copied_are_no_base(tmp_path: Path) -> None:
    snapshot = model(tmp_path / "a", 1)
    bases = Bases(tmp_path / "cache")
    with (tmp_path / "a" / "config.json").open("a") as file:
        file.write(" ")
    bases.published("run", snapshot, "xxh3_128:" + "0" * 32, 1, None)
    await bases.settled()
    assert await bases.get("run") is None
    assert "changed" in bases.why
    await bases.close()


@pytest.mark.parametrize("record", ["", "{}", '{"root": "md5:1", "version": 1, "folder": "x"}'])
async def test_a_record_that_is_none(tmp_path: Path, record: str) -> None:
    bases = Bases(tmp_path / "cache")
    await keep(bases, model(tmp_path / "a", 1), 1)
    await bases.close()
    (tmp_path / "cache" / "run" / "base.json").write_text(record)
    again = Bases(tmp_path / "cache")
    assert await again.get("run") is None
    assert "cannot be read" in again.why
    await again.close()


@pytest.mark.parametrize("folder", ["..", ".", "", "run", "/", 7])
async def test_a_record_that_names_another_folder_leads_nowhere(tmp_path: Path, folder: object) -> None:
    """What is named there is removed when the next base takes its place."""
    cache = tmp_path / "cache"
    model(cache, 5)  # somebody's own, in the folder that was given
    bases = Bases(cache)
    await keep(bases, model(tmp_path / "a", 1), 1)
    await bases.close()
    record = cache / "run" / "base.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"folder": folder}))
    again = Bases(cache)
    assert await again.get("run") is None
    assert "is not the name of a kept folder" in again.why
    await keep(again, model(tmp_path / "b", 2), 2)
    await again.close()
    assert sorted(path.name for path in cache.iterdir()) == ["config.json", "model.safetensors", "run"]
    assert {path.name for path in (cache / "run").iterdir()} >= {"base.json", "lock"}


async def delta_file(tmp_path: Path, changed: int = 100) -> DeltaFile:
    bases = Bases(tmp_path / "cache")
    await keep(bases, model(tmp_path / "a", 1), 1)
    base = await bases.get("run")
    assert base is not None
    target = model(tmp_path / "b", 1, changed)
    full = Manifest("f" * 32, XXH3_128, 1 << 16, target.entries, target.tensors)
    assert estimate(base.snapshot, target) < 0.01
    assert estimate(base.snapshot, model(tmp_path / "c", 7)) > 0.9
    return DeltaFile(Compared(base, target), full, tmp_path)


async def test_a_base_that_was_altered_is_found_before_a_delta_is_made(tmp_path: Path) -> None:
    file = await delta_file(tmp_path)
    assert isinstance(file.source, Compared)
    path = file.source.base.snapshot.files[-1].location
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapshotChangedError):
        file.encode()
    file.discard()


async def test_a_delta_that_is_not_wanted_any_more_leaves_nothing(tmp_path: Path) -> None:
    file = await delta_file(tmp_path)
    file.encode()
    assert (file.changed_elements, file.compared_elements) == (100, 200_000)
    file.close("xxh3_128:" + "1" * 32)
    assert 0 < file.payload_bytes < 10_000
    file.discard()
    file.discard()
    assert not [name for name in os.listdir(tmp_path) if name.startswith("chappe-spool-")]
    with pytest.raises(PublicationCancelledError):
        file.encode()
