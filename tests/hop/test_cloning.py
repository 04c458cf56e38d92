"""Stores on file systems that share blocks between files, and power cuts of those that have a journal: for once real
ones, and not what is thought of them.

| what happens                                         | then |
|------------------------------------------------------|------|
| a delta changes few tensors of a file, the first one too | the version takes the room of those |
| a tensor comes from another file of the same size    | its bytes, not those of the file that was cloned |
| the file system fills up while a clone is written to | no room; nothing is left; it lands when there is |
| kill -9                                              | the old version is whole, the next process goes on |
| the power goes at any operation of a landing         | `current` is the old or the new version, whole |
| the power goes when it has landed                    | it is the new one |
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chappe.errors import DiskFullError, StoreError
from chappe.hop.disk import Disk
from chappe.hop.filesystem import keeps_order
from chappe.hop.store import Store
from chappe.hop.verify import verify_directory
from tests.hop.deltamodels import delta_model, files_of, full_model
from tests.hop.mounts import Mounted, unavailable
from tests.hop.storekit import MIB, Model, abandon, receive, tree
from tests.hop.test_apply_killed import land
from tests.payload.deltakit import safetensors_file

SHARD = "model.safetensors"
LAYERS, ELEMENTS = 12, 1 << 20  # of 2 MiB each


def kinds(*names: str) -> pytest.MarkDecorator:
    reasons = {kind: unavailable(kind) for kind in names}
    return pytest.mark.parametrize(
        "kind", [pytest.param(k, marks=pytest.mark.skipif(bool(why), reason=why)) for k, why in reasons.items()]
    )


@pytest.fixture
def mounted(kind: str, tmp_path: Path) -> Iterator[Mounted]:
    with Mounted(kind, tmp_path) as there:
        yield there


def layers(*changed: int) -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    weights = [rng.integers(0, 1 << 16, ELEMENTS, dtype=np.uint16) for _ in range(LAYERS)]
    for number in changed:
        weights[number][:: 100 + number] += 1
    tensors = [(f"layers.{i:02}", "BF16", (ELEMENTS,), weights[i].tobytes()) for i in range(LAYERS)]
    return {"config.json": repr(changed).encode(), SHARD: safetensors_file(tensors)}


def model(number: int, *changed: int) -> Model:
    return full_model(layers(*changed), f"{number:032x}", chunk_bytes=MIB)


def landed(store: Store, received: Model, version: int, root: str) -> None:
    receive(store, received)
    store.land(received.object_id, version, root)


@kinds("xfs", "btrfs")
def test_a_version_takes_the_room_of_what_changed(mounted: Mounted) -> None:
    one, two, three = model(1), model(2, 0, 5), model(3, 0, 5, 11)
    used = []
    with Store.open(mounted.path / "store") as store:
        landed(store, one, 1, one.root)
        for version, (base, target) in enumerate([(one, two), (two, three)], 2):
            receive(store, delta := delta_model(base, target, f"{10 + version:032x}").delta)
            before = mounted.used_bytes()
            store.land(delta.object_id, version, target.root)
            used.append(mounted.used_bytes() - before)
        assert [tree(store.layout.snapshot(i + 1)) for i in range(3)] == [m.files for m in (one, two, three)]
    # Blocks begin where a header ends: each change has a block of 2 MiB, and a page more of another.
    assert used[0] < 6 * MIB
    assert used[1] < 4 * MIB
    assert verify_directory(mounted.path / "store").ok


@kinds("xfs", "btrfs")
def test_what_comes_from_another_file_is_not_taken_for_the_clones(mounted: Mounted) -> None:
    rng = np.random.default_rng(2)
    bits = {name: rng.integers(0, 256, 6 * MIB, dtype=np.uint8).tobytes() for name in "abxy"}

    def shards(*names: str) -> dict[str, bytes]:
        return {
            f"{i}.safetensors": safetensors_file([(name, "U8", (6 * MIB,), bits[name]) for name in pair])
            for i, pair in enumerate(names)
        }

    base, target = full_model(shards("ax", "by"), f"{1:032x}"), full_model(shards("ay", "bx"), f"{2:032x}")
    with Store.open(mounted.path / "store") as store:
        landed(store, base, 1, base.root)
        landed(store, delta_model(base, target, f"{3:032x}").delta, 2, target.root)
        assert tree(store.layout.snapshot(2)) == target.files
        assert tree(store.layout.snapshot(1)) == base.files


class Filling(Disk):
    """Somebody takes all room, once, before the first block is written to a file that is a clone."""

    def __init__(self, ballast: Path) -> None:
        self._ballast = ballast
        self.clones = 0
        self._filled = False

    def clone(self, source: Path, target: Path) -> bool:
        cloned = super().clone(source, target)
        self.clones += cloned
        return cloned

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        if self.clones and not self._filled:
            self._filled = True
            fill(self._ballast)
        super().pwrite(fd, data, offset)


def fill(path: Path) -> None:
    """In ever smaller pieces, as long as there is room."""
    with path.open("wb", buffering=0) as file:
        for size in (8 * MIB, MIB, 1 << 16, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)


@kinds("xfs", "btrfs")
def test_no_room_to_write_to_a_clone(mounted: Mounted) -> None:
    base, target = model(1), model(2, *range(2, LAYERS))
    delta = delta_model(base, target, f"{4:032x}").delta
    disk = Filling(ballast := mounted.path / "ballast")
    with Store.open(mounted.path / "store", disk) as store:
        landed(store, base, 1, base.root)
        held = receive(store, delta)
        with pytest.raises(DiskFullError):
            store.land(delta.object_id, 2, target.root)
        assert disk.clones == 1
        assert not held.work.root.exists()
        assert tree(store.layout.root / "current") == base.files
        ballast.unlink()
        mounted.used_bytes()
        store.land(delta.object_id, 2, target.root)
        assert tree(store.layout.root / "current") == target.files
        assert tree(store.layout.snapshot(1)) == base.files


@kinds("xfs", "btrfs")
def test_killed_while_a_clone_is_made_and_written_to(mounted: Mounted) -> None:
    base, target = model(1), model(2, 0, 3, 4, 9)
    path, rng, killed = mounted.path / "store", random.Random(7), 0
    with Store.open(path) as store:
        landed(store, base, 1, base.root)
        receive(store, delta_model(base, target, f"{4:032x}").delta).flush()
    for step in (4, 9, 20, 1000):
        killed += not land(path, target.root, step, rng.getrandbits(30))
        assert tree(path / "snapshots/1") == base.files
        assert tree(path / "current") in (base.files, target.files)
    assert killed >= 2
    assert tree(path / "current") == target.files
    assert verify_directory(path).ok


class Failing(Disk):
    """The power goes at an operation, once `left` is set to how many there are until then."""

    def __init__(self, mounted: Mounted) -> None:
        self.left = 0
        self._mounted = mounted
        self._lock = threading.Lock()  # whoever is next finds a device that is gone

    def _step(self, operation: str) -> None:
        with self._lock:
            self.left -= 1
            if self.left == 0:
                self._mounted.cut_power()


BASE = full_model(files_of(1), f"{1:032x}")
TARGET = full_model(files_of(1, step=3), f"{2:032x}")
DELTA = delta_model(BASE, TARGET, f"{4:032x}").delta


def land_until_cut(path: Path, mounted: Mounted, at: int) -> bool:
    """Whether it had landed before the power went; it goes in any case."""
    disk = Failing(mounted)
    store = Store.open(path, disk)
    landed(store, BASE, 1, BASE.root)
    receive(store, DELTA).flush()
    os.sync()
    disk.left = at
    try:
        store.land(DELTA.object_id, 2, TARGET.root)
    except (StoreError, OSError):
        assert disk.left <= 0  # it is for that, and nothing else
    in_time = disk.left > 0  # XFS says of a directory that it is synced also when it is lost
    if in_time:
        mounted.cut_power()
    store._write_behind.close()
    abandon(store)
    mounted.power_up()
    return in_time


@kinds("ext4", "xfs")
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_the_power_goes_at_an_operation(mounted: Mounted, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.hop.targetfiles.CLONE_BYTES_MIN", 1)
    assert keeps_order(mounted.path)
    found, at, in_time = [], 1, False
    while not in_time:
        path = mounted.path / str(at)
        in_time = land_until_cut(path, mounted, at)
        found.append(tree(path / "current"))
        with Store.open(path) as store:
            assert (current := store.current()) is not None
            assert tree(current.path) in (BASE.files, TARGET.files)
            assert tree(store.layout.snapshot(1)) == BASE.files
        assert verify_directory(path).ok
        Disk().remove_tree(path)
        at += every
    assert at > 30
    assert found[0] == BASE.files
    assert found[-1] == TARGET.files
    assert all(left in (BASE.files, TARGET.files) for left in found)


@kinds("btrfs")
def test_what_does_not_keep_the_order_of_names_is_known(mounted: Mounted) -> None:
    assert not keeps_order(mounted.path)
