from __future__ import annotations

import errno
import mmap
import os
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from storekit import KIB, MIB, FaultyDisk, make_model, model_of, receive, tree

from chappe.errors import DiskFullError, StoreError, VersionConflictError
from chappe.hop.landing import current_version, survey
from chappe.hop.records import LandingRecord
from chappe.hop.store import Store
from chappe.hop.verify import verify_directory

ONE, TWO, THREE = (make_model(seed, {"config.json": 20, "d/model": 300 * KIB}) for seed in (1, 2, 3))


def test_a_landed_version_is_the_publisher_s_files_read_only_and_current(store: Store) -> None:
    receive(store, ONE)
    landed = store.land(ONE.object_id, 4, ONE.root)
    assert landed.path == store.layout.root / "snapshots" / "4"
    assert tree(landed.path) == ONE.files
    assert {p.stat().st_mode & 0o777 for p in landed.path.rglob("*") if p.is_file()} == {0o444}
    assert {p.stat().st_mode & 0o777 for p in [landed.path, landed.path / "d"]} == {0o555}
    assert os.readlink(store.layout.current) == "snapshots/4"
    assert store.current() == landed
    assert sorted(p.name for p in store.layout.object(ONE.object_id).root.iterdir()) == ["header", "landing", "pages"]


def test_a_landed_object_serves_its_own_chunks(store: Store) -> None:
    held = receive(store, ONE)
    store.land(ONE.object_id, 1, ONE.root)
    assert [(c, held.read_chunk(c)) for c in range(ONE.manifest.chunks_total)] == ONE.chunks()
    assert [held.page_bytes(i) for i in range(held.pages_held)] == ONE.pages
    assert held.computed_root() == ONE.root


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("foreseen", [True, False])
def test_everything_is_on_the_device_before_the_rename(
    store: Store, disk: FaultyDisk, ordered: bool, foreseen: bool
) -> None:
    disk.ordered = ordered
    held = receive(store, ONE)
    if foreseen:
        held.seals.foresee(LandingRecord(1, ONE.root))
    store.land(ONE.object_id, 1, ONE.root)
    layout, own = store.layout, store.layout.object(ONE.object_id)
    moved = disk.moments.index(("rename", layout.snapshot(1)))
    files = {own.files / path for path in ONE.files}
    frame = {own.files, own.files / "d", own.header, own.pages, own.landing, own.root, layout.objects}
    assert {path for what, path in disk.moments[:moved] if what == "fsync"} >= files | frame
    swapped = disk.moments.index(("rename", layout.current))
    between = {path for _, path in disk.moments[moved + 1 : swapped]}
    assert between == (set() if ordered else {layout.snapshots, own.root})
    assert disk.moments[swapped + 1 :] == [("fsync", layout.root)]


def test_an_older_version_is_durable_though_it_is_not_current(store: Store, disk: FaultyDisk) -> None:
    disk.ordered = True
    receive(store, TWO)
    store.land(TWO.object_id, 2, TWO.root)
    receive(store, ONE)
    store.land(ONE.object_id, 1, ONE.root)
    moved = disk.moments.index(("rename", store.layout.snapshot(1)))
    own = store.layout.object(ONE.object_id)
    assert {path for _, path in disk.moments[moved + 1 :]} == {store.layout.snapshots, own.root}


def test_landing_twice_changes_nothing(store: Store) -> None:
    receive(store, ONE)
    landed = store.land(ONE.object_id, 1, ONE.root)
    inode = landed.path.stat().st_ino
    assert store.land(ONE.object_id, 1, ONE.root) == landed
    assert landed.path.stat().st_ino == inode


def test_current_never_goes_back(store: Store) -> None:
    for model in (TWO, ONE, THREE):
        receive(store, model)
    store.land(TWO.object_id, 2, TWO.root)
    store.land(ONE.object_id, 1, ONE.root)
    assert [s.version for s in store.versions()] == [1, 2]
    assert current_version(store.layout) == 2
    store.land(THREE.object_id, 3, THREE.root)
    assert current_version(store.layout) == 3


def test_a_version_has_one_root(store: Store) -> None:
    receive(store, ONE)
    receive(store, TWO)
    store.land(ONE.object_id, 1, ONE.root)
    with pytest.raises(VersionConflictError, match=f"version 1 has landed with root {ONE.root}, not {TWO.root}"):
        store.land(TWO.object_id, 1, TWO.root)
    with pytest.raises(VersionConflictError, match="landed as version 1"):
        store.land(ONE.object_id, 2, ONE.root)
    assert tree(store.layout.snapshot(1)) == ONE.files
    store.land(TWO.object_id, 2, TWO.root)


def test_the_same_root_as_another_object_is_stored_once(store: Store, tmp_path: Path) -> None:
    twin = model_of(dict(reversed(ONE.files.items())), object_id=f"{8:032x}", chunk_bytes=128 * KIB)
    assert twin.root == ONE.root
    receive(store, ONE)
    inode = store.land(ONE.object_id, 1, ONE.root).path.stat().st_ino
    held = receive(store, twin)
    landed = store.land(twin.object_id, 1, twin.root)
    assert landed.path.stat().st_ino == inode
    assert not store.layout.object(twin.object_id).files.exists()
    assert [(c, held.read_chunk(c)) for c in range(twin.manifest.chunks_total)] == twin.chunks()
    store.close()
    with Store.open(store.layout.root) as again:
        held = again.objects()[twin.object_id]
        assert [(c, held.read_chunk(c)) for c in range(twin.manifest.chunks_total)] == twin.chunks()
        assert [s.version for s in again.versions()] == [1]


@pytest.mark.parametrize("operation", ["fsync", "chmod", "rename", "write_record", "symlink"])
def test_no_room_while_landing_keeps_the_old_version_and_landing_again_works(
    store: Store, disk: FaultyDisk, operation: str
) -> None:
    receive(store, ONE)
    store.land(ONE.object_id, 1, ONE.root)
    held = receive(store, TWO)
    disk.fail([operation], errno.ENOSPC)
    with pytest.raises(DiskFullError):
        store.land(TWO.object_id, 2, TWO.root)
    assert not held.busy
    assert tree(store.layout.current.resolve()) == ONE.files
    disk.heal()
    assert store.land(TWO.object_id, 2, TWO.root).version == 2
    assert tree(store.layout.current.resolve()) == TWO.files
    assert verify_directory(store.layout.root).ok


def test_a_lost_write_is_not_believed_the_second_time(store: Store, disk: FaultyDisk) -> None:
    held = receive(store, ONE)
    disk.fail(["fsync"], errno.EIO)
    with pytest.raises(StoreError, match="lost a write: the object must be received again"):
        store.land(ONE.object_id, 1, ONE.root)
    disk.heal()
    assert held.damaged
    with pytest.raises(StoreError, match="received again"):
        store.land(ONE.object_id, 1, ONE.root)
    assert not store.layout.object(ONE.object_id).journal.exists()  # a restart does not believe it either
    store.discard(ONE.object_id)
    receive(store, ONE)
    assert store.land(ONE.object_id, 1, ONE.root).version == 1


def test_a_directory_that_is_not_ours_is_not_replaced(store: Store) -> None:
    receive(store, ONE)
    store.layout.snapshot(1).mkdir()
    with pytest.raises(VersionConflictError, match="move it away"):
        store.land(ONE.object_id, 1, ONE.root)


def test_a_reader_keeps_its_bytes_while_newer_versions_land_and_old_ones_go(store: Store) -> None:
    receive(store, ONE)
    landed = store.land(ONE.object_id, 1, ONE.root)
    with (landed.path / "d/model").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for model, version in ((TWO, 2), (THREE, 3)):
            receive(store, model)
            store.land(model.object_id, version, model.root)
        assert store.retain([], []).versions == (1,)
        store.empty_trash()
        assert not landed.path.exists()
        assert mapped[:] == ONE.files["d/model"]


def test_rot_while_landing_is_kept_beside(store: Store, disk: FaultyDisk) -> None:
    """A child finds a chunk rotten while the files are being fsynced: nothing is written to them any more."""
    held = receive(store, ONE)
    chunk = ONE.manifest.chunks_total - 1
    step, first = disk._step, threading.Lock()

    def during(operation: str) -> None:
        step(operation)
        if operation == "fsync" and held.landed is None and first.acquire(blocking=False):  # of several threads
            disk._step = step  # type: ignore[method-assign]
            path = store.layout.object(ONE.object_id).files / "d/model"
            inode = path.stat().st_ino
            with path.open("r+b") as file:
                file.seek(ONE.manifest.place(chunk).offset)
                file.write(b"rotten")
            assert held.recheck([chunk]) == [chunk]
            held.put_chunks(ONE.chunks([chunk]))
            assert path.stat().st_ino == inode

    disk._step = during  # type: ignore[method-assign]
    landed = store.land(ONE.object_id, 1, ONE.root)
    assert held.read_chunk(chunk) == ONE.chunk(chunk)
    assert not verify_directory(landed.path).ok
    held.mend()
    assert verify_directory(landed.path).ok


def test_a_survey_changes_nothing(store: Store) -> None:
    receive(store, ONE)
    store.land(ONE.object_id, 1, ONE.root)
    receive(store, TWO, [0])
    (store.layout.objects / "not-an-object").mkdir()
    before = sorted(str(p) for p in store.layout.root.rglob("*"))
    found = survey(store.layout)
    assert sorted(str(p) for p in store.layout.root.rglob("*")) == before
    assert (found.partial, list(found.landed), found.stale, found.trash) == ([TWO.object_id], [ONE.object_id], [], [])


def in_a_child(uid: int, work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgid(uid)
            os.setuid(uid)
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - the child must not go on as a second pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user then")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_ordinary_user_can_do_it_all(tmp_path: Path) -> None:
    """Root may write to and rename read-only things: nobody else may."""
    path = tmp_path / "store"
    path.mkdir()
    os.chown(path, 65534, 65534)
    for parent in tmp_path.parents:
        if (
            parent.stat().st_mode & 0o001 == 0
            and parent.stat().st_uid == 0
            and parent.name.startswith(("pytest", "popen"))
        ):
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)

    def work() -> None:
        assert os.geteuid() == 65534
        with pytest.raises(PermissionError):
            os.listdir("/root/.")
        disk = FaultyDisk()
        with Store.open(path, disk) as store:
            for model, version in ((ONE, 1), (TWO, 2), (THREE, 3)):
                held = receive(store, model)
                disk.fail(["fsync"])
                with pytest.raises(DiskFullError):
                    store.land(model.object_id, version, model.root)  # sealed, but not landed
                disk.heal()
                file = store.layout.object(model.object_id).files / "d/model"
                assert file.stat().st_mode & 0o777 == 0o444
                file.chmod(0o644)
                file.write_bytes(b"x" + file.read_bytes()[1:])
                file.chmod(0o444)
                chunk = model.manifest.chunks_of_file(1)[0]
                assert held.recheck([chunk]) == [chunk]
                held._contents._place()._retire_all()
                held.put_chunks(model.chunks([chunk]))
                store.land(model.object_id, version, model.root)
            store.retain([], [])
            store.empty_trash()
            assert [s.version for s in store.versions()] == [2, 3]
            held = store.objects()[THREE.object_id]
            file = store.layout.snapshot(3) / "d/model"
            file.chmod(0o644)
            file.write_bytes(b"x" + file.read_bytes()[1:])
            file.chmod(0o444)
            chunk = THREE.manifest.chunks_of_file(1)[0]
            assert held.recheck([chunk]) == [chunk]
            held.put_chunks(THREE.chunks([chunk]))
            assert held.mend() == 1
        with Store.open(path) as store:
            assert verify_directory(path).ok
            assert store.current() is not None

    assert in_a_child(65534, work) == 0


def test_leaves_of_large_files_come_out_right_through_the_store(store: Store) -> None:
    model = make_model(6, {"a": 5 * MIB + 3}, chunk_bytes=2 * MIB)
    receive(store, model, reversed(range(model.manifest.chunks_total)))
    assert store.land(model.object_id, 1, model.root).root == model.root
