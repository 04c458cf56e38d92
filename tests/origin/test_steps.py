"""The deltas that a publisher keeps: folded for whoever is behind, undone for a way back; damage is found out."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from chappe.core.digest import XXH3_128
from chappe.core.manifest import DELTA_FILE, Manifest
from chappe.errors import SnapshotError
from chappe.origin.bases import Bases, Making
from chappe.origin.blocksources import Compared, Folded
from chappe.origin.deltas import DeltaFile
from chappe.origin.encoder import table_of
from chappe.origin.hashing import hash_snapshot
from chappe.origin.reading import Reading
from chappe.origin.scan import Snapshot, scan
from chappe.origin.steps import DROPPED_FILE, HEADER_FILE, Base, OpenStep

COUNT = 100_000


def model(path: Path, seed: int, *, small: str = "small") -> Snapshot:
    """Version `seed`: 1 % differs from any other; sidecars and headers change their length. `small` is one more."""
    path.mkdir()
    rng, base = np.random.default_rng(seed), np.random.default_rng(0)
    tensors = {}
    for name in "ab":
        values = base.integers(0, 1 << 16, COUNT, dtype=np.uint16)
        values[rng.choice(COUNT, COUNT // 100, replace=False)] += np.uint16(3)
        tensors[name] = values
    if small:
        tensors[small] = rng.random(500)
    save_file(tensors, path / "model.safetensors", metadata={"step": "9" * seed})
    (path / "config.json").write_text(json.dumps({"step": 10**seed}))
    return scan(path)


def file_between(base: Base, target: Snapshot, tmp_path: Path) -> DeltaFile:
    return DeltaFile(Compared(base, target), manifest(target), tmp_path)


def manifest(target: Snapshot) -> Manifest:
    return Manifest("f" * 32, XXH3_128, 1 << 16, target.entries, target.tensors)


async def history(bases: Bases, models: list[Snapshot], tmp_path: Path) -> list[str]:
    """Publish all in a row, each with the delta that leads to it. Returns their roots."""
    roots = []
    for version, snapshot in enumerate(models, start=1):
        root = hash_snapshot(snapshot)
        base = await bases.get("run")
        making = None
        if base is not None:
            file = file_between(base, snapshot, tmp_path)
            file.encode()
            file.close(root)
            making = Making(file, asyncio.get_running_loop().create_future())
            making.whole.set_result(True)
        bases.published("run", snapshot, root, version, None, making)
        await bases.settled()
        if making is not None:
            making.file.discard()
        roots.append(root)
    return roots


async def kept(tmp_path: Path, models: list[Snapshot]) -> tuple[Base, list[str]]:
    bases = Bases(tmp_path / "cache")
    roots = await history(bases, models, tmp_path)
    await bases.close()
    again = Bases(tmp_path / "cache")
    base = await again.get("run")
    await again.close()
    assert base is not None
    return base, roots


@pytest.mark.parametrize("small", [["s"] * 4, ["s", "", "n", "n"], ["", "s", "", "s"]])
async def test_folded_is_the_direct_delta_and_undone_is_the_old_version(tmp_path: Path, small: list[str]) -> None:
    """Tensors that come and go, too."""
    models = [model(tmp_path / str(i), i, small=name) for i, name in enumerate(small, start=1)]
    base, roots = await kept(tmp_path, models[:3])
    assert [(step.base_root, step.versions, step.root) for step in base.steps] == [
        (roots[0], (1,), roots[1]),
        (roots[1], (2,), roots[2]),
    ]
    now = models[3]
    file = file_between(base, now, tmp_path)
    file.encode()
    file.close("xxh3_128:" + "0" * 32)
    for step, old in zip(reversed(base.steps), reversed(models[:2]), strict=True):
        folded = DeltaFile(Folded(step, file.path, file.plan), manifest(now), tmp_path)
        folded.encode()
        folded.close("xxh3_128:" + "0" * 32)
        direct = file_between(Base(step.base_root, step.versions, old), now, tmp_path)
        direct.encode()
        direct.close("xxh3_128:" + "0" * 32)
        # The same but for what was away or had another length in between, which it has whole.
        if len(set(small)) == 1:
            assert folded.changed_elements == direct.changed_elements
        assert abs(folded.payload_bytes - direct.payload_bytes) < 5000
        direct.discard()
        file.discard()
        file = folded
    file.discard()
    reading = Reading(base.snapshot)
    read = reading.read
    opened = [OpenStep(step) for step in reversed(base.steps)]
    for step, old in zip(opened, reversed(models[:2]), strict=True):
        read = step.before_from(read)
        assert step.before == table_of(old)
        for number, source in enumerate(old.files):
            assert read(number, 0, source.size_bytes) == source.location.read_bytes()
    for step in opened:
        step.close()
    reading.close()


@pytest.mark.parametrize("name", [DELTA_FILE, HEADER_FILE, DROPPED_FILE])
async def test_a_step_that_was_altered_is_found_out(tmp_path: Path, name: str) -> None:
    base, _ = await kept(tmp_path, [model(tmp_path / "1", 1), model(tmp_path / "2", 2)])
    (step,) = base.steps
    path = step.folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapshotError, match="not what was kept"):
        OpenStep(step)
    path.unlink()
    with pytest.raises(SnapshotError, match="cannot be read"):
        OpenStep(step)


async def test_so_many_and_of_so_many_bytes(tmp_path: Path) -> None:
    models = [model(tmp_path / str(seed), seed) for seed in range(1, 6)]
    bases = Bases(tmp_path / "cache", deltas_kept=2)
    await history(bases, models, tmp_path)
    base = await bases.get("run")
    assert base is not None
    assert [step.versions for step in base.steps] == [(3,), (4,)]
    home = tmp_path / "cache" / "run"
    assert len(list(home.glob("step-*"))) == 2
    size = sum(p.stat().st_size for step in base.steps for p in step.folder.iterdir())
    assert size == sum(step.size_bytes for step in base.steps) < 0.1 * base.snapshot.snapshot_bytes
    await bases.close()
    none = Bases(tmp_path / "none", deltas_kept=0)
    await history(none, models[:2], tmp_path)
    base = await none.get("run")
    assert base is not None
    assert base.steps == ()
    await none.close()


async def test_the_chain_of_steps_ends_where_one_is_missing(tmp_path: Path) -> None:
    models = [model(tmp_path / str(seed), seed) for seed in range(1, 5)]
    base, roots = await kept(tmp_path, models)
    record = tmp_path / "cache" / "run" / "base.json"
    told = json.loads(record.read_text())
    del told["steps"][1]
    record.write_text(json.dumps(told))
    bases = Bases(tmp_path / "cache")
    again = await bases.get("run")
    assert again is not None
    assert [step.root for step in again.steps] == [roots[3]]
    assert not base.steps[0].folder.exists()  # nobody leads on from there
    bases.published("run", models[0], roots[0], 5, None)  # in full: nothing leads back from it
    await bases.settled()
    full = await bases.get("run")
    assert full is not None
    assert (full.versions, full.steps) == ((5,), ())
    bases.published("run", models[0], roots[0], 6, None)
    await bases.settled()
    same = await bases.get("run")
    assert same is not None
    assert same.versions == (5, 6)
    await bases.close()
    shutil.rmtree(tmp_path / "cache")
