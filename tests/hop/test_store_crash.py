"""What is in the store after a process has died, wherever it died.

| step     | dies                                          | after reopening |
|----------|-----------------------------------------------|---|
| identity | before the rename / after it                  | old generation, never handed out / new one |
| header   | before the header's rename                    | no object; its files are trash |
| header   | after                                         | partial object, nothing claimed |
| page     | in the record                                 | the pages before it; the torn one is overwritten |
| put      | after the pwrite, before the journal's batch  | not held: fetched again, at most 1 MiB of it |
| put      | in the journal's record                       | the claims before it |
| ahead    | the record of what is announced is written    | no record, partial object; nothing else is known of it |
| ahead    | in a thread that syncs what has come          | nothing is lost that was told |
| land     | sealed, files not renamed                     | no record, partial object, current is the old version |
| land     | renamed, current not swapped                  | landed; open() swaps current forward |
| land     | another's copy adopted, own files not yet gone  | no record, partial object; lands as the same again |
| retain   | version in the trash, its object not          | the object is trash |
| retain   | trash half deleted                            | open() empties it |
| mend     | anywhere                                      | the old or the new file; the chunk is still served |

The sweep dies at every single operation of a life that passes through all of these (`make soak`; without it, at every
second). It does so once more as if the power had gone: names are as they were, and what was not synced is zeros.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from storekit import (
    KIB,
    MIB,
    CrashError,
    FaultyDisk,
    Model,
    abandon,
    make_model,
    model_of,
    receive,
    synced_ahead,
    tree,
)

from chappe.hop.disk import Disk
from chappe.hop.records import LandingRecord
from chappe.hop.store import Store
from chappe.hop.verify import verify_directory

SHM = Path("/dev/shm")


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where the host has one: hundreds of lives with their fsyncs are no test of the device."""
    if not os.access(SHM, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=SHM, prefix="chappe-test-") as directory:
        yield Path(directory)


FILES = {"config.json": 10, "d/e/model": 150 * KIB, "empty": 0}
OLD, NEW, PARTIAL, LAST = (make_model(seed, FILES, chunks_per_page=2) for seed in (1, 2, 3, 4))
TWIN = model_of(NEW.files, object_id=f"{9:032x}", chunk_bytes=128 * KIB)
VERSIONS = {1: OLD, 2: NEW, 3: LAST}


def announced(store: Store, model: Model, version: int) -> None:
    store.create(model.object_id).seals.foresee(LandingRecord(version, model.root))


def live(store: Store, passed: Callable[[str], None]) -> None:
    """Three versions, a twin of one, a partial object, retention: every step that writes."""
    receive(store, OLD)
    store.land(OLD.object_id, 1, OLD.root)
    passed("landed 1")
    announced(store, PARTIAL, 2)
    receive(store, PARTIAL, [0])
    announced(store, NEW, 2)
    receive(store, NEW, [2, 0, 1, 3])
    store.objects()[NEW.object_id].flush()
    passed("all of 2 is here")
    store.land(NEW.object_id, 2, NEW.root)
    passed("landed 2")
    store.mark_installed(2)
    passed("installed 2")
    receive(store, TWIN)
    announced(store, TWIN, 2)
    store.land(TWIN.object_id, 2, TWIN.root)
    receive(store, LAST)
    store.land(LAST.object_id, 3, LAST.root)
    passed("landed 3")
    store.retain([], [])
    store.empty_trash()
    passed("retained")


def check(store: Store, passed: list[str]) -> None:
    landed = {snapshot.version: snapshot for snapshot in store.versions()}
    current = store.current()
    newest = max([v for v in VERSIONS if f"landed {v}" in passed], default=0)
    assert (current.version if current else 0) in {newest, newest + 1}
    assert current is None or current.version == max(landed)
    assert {p.name for p in store.layout.snapshots.iterdir()} == {str(v) for v in landed}
    for version, snapshot in landed.items():
        assert tree(snapshot.path) == VERSIONS[version].files
        assert snapshot.root == VERSIONS[version].root
        assert verify_directory(snapshot.path).ok
        assert snapshot.path.stat().st_mode & 0o777 == 0o555
    if "installed 2" in passed and 2 in landed:
        assert landed[2].installed
    if "retained" in passed:
        assert set(landed) == {2, 3}
        assert store.get(PARTIAL.object_id) is None
    assert list(store.layout.trash.iterdir()) == []
    assert store.notes == []  # a crash leaves nothing damaged
    assert not [p for p in store.layout.root.rglob("*.tmp") if "objects" not in p.parts]
    models = {m.object_id: m for m in (OLD, NEW, PARTIAL, TWIN, LAST)}
    for object_id, held in store.objects().items():
        own = store.layout.object(object_id)
        assert own.files.exists() == (held.landed is None)
        assert own.landing.exists() == (held.landed is not None)
        for start, stop in held.ledger.held:
            for chunk in range(start, stop):
                assert held.read_chunk(chunk) == models[object_id].chunk(chunk)
    if "all of 2 is here" in passed and "retained" not in passed:
        assert store.objects()[NEW.object_id].ledger.complete  # nothing that was flushed is lost


def check_reader(path: Path, passed: list[str]) -> None:
    """An engine follows `current` while no relay runs: it finds a whole version from the first landing on."""
    current = path / "current"
    if "landed 1" in passed:
        assert current.is_symlink()
    if current.is_symlink():
        assert tree(current.resolve()) == VERSIONS[int(current.resolve().name)].files


def finish(store: Store) -> None:
    """The relay goes on where it was, and gets there."""
    for version, model in VERSIONS.items():
        if store.landed(version) is None and (current := store.current()) is not None and current.version > version:
            continue  # retention took it
        receive(store, model)
        store.land(model.object_id, version, model.root)
    store.retain([], [])
    store.empty_trash()
    current = store.current()
    assert current is not None
    assert current.version == 3
    assert tree(store.layout.current.resolve()) == LAST.files


def die_at(path: Path, disk: FaultyDisk) -> tuple[list[str], str]:
    """What was passed before the process died where the disk says, and in what; "" when it lived to the end."""
    passed: list[str] = []
    store: Store | None = None
    died = ""
    try:
        store = Store.open(path, disk)
        live(store, passed.append)
    except CrashError as death:
        died = str(death)
    if store is not None:
        for held in store.objects().values():
            if any(isinstance(error, CrashError) for error in synced_ahead(held)):  # nothing of it goes on
                died = died or "ahead"
        abandon(store)
    return passed, died


SWEEPS = pytest.mark.parametrize(
    "every", [pytest.param(2, id="half"), pytest.param(1, marks=pytest.mark.soak, id="all")]
)


@SWEEPS
@pytest.mark.parametrize("ordered", [True, False])
def test_every_operation_is_a_fine_one_to_die_at(memory: Path, ordered: bool, every: int) -> None:
    died_in: set[str] = set()
    for operation in range(0, 10_000, every):
        path = memory / str(operation)
        passed, died = die_at(path, FaultyDisk(operation, ordered=ordered))
        died_in.add(died)
        check_reader(path, passed)
        with Store.open(path) as store:
            for held in store.objects().values():
                held.recover(threads=1)
            check(store, passed)
            if operation // every % 7 == 0 or not died:
                finish(store)
        if not died:
            break
        Disk().remove_tree(path)
    assert died_in >= {"", "rename", "fsync", "chmod", "unlink", "pwrite", "mkdir"}
    if every == 1:
        assert died_in >= {"symlink", "create", "allocate", "write_record", "open", "rmdir"}


class Power(FaultyDisk):
    """Knows whose bytes are on the device."""

    def __init__(self, crash_at: int | None = None, *, ordered: bool | None = None) -> None:
        super().__init__(crash_at, ordered=ordered)
        self.durable: set[int] = set()
        self.recording = False

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        self.durable.discard(os.fstat(fd).st_ino)
        super().pwrite(fd, data, offset)

    def fsync(self, path: Path) -> None:
        at = path.stat().st_ino
        super().fsync(path)
        self.durable.add(at)

    def write_record(self, path: Path, data: bytes | memoryview, *, durable: bool) -> None:
        self.recording = durable
        super().write_record(path, data, durable=durable)
        self.recording = False

    def rename(self, source: Path, target: Path) -> None:
        if self.recording:  # synced already
            self.durable.add(source.stat().st_ino)
        super().rename(source, target)

    def goes(self, top: Path) -> None:
        """The worst that a journal of names allows: they are all there, and nothing that was not synced."""
        for path in top.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.stat().st_ino not in self.durable:
                at = path.stat()
                path.chmod(0o600)
                path.write_bytes(bytes(at.st_size))
                path.chmod(at.st_mode & 0o777)


@SWEEPS
@pytest.mark.parametrize("ordered", [True, False])
def test_whenever_the_power_goes_a_version_is_whole_or_not_there(memory: Path, ordered: bool, every: int) -> None:
    for operation in range(0, 10_000, every if every == 1 else 5):
        path = memory / str(operation)
        disk = Power(operation, ordered=ordered)
        passed, died = die_at(path, disk)
        disk.goes(path)
        check_reader(path, passed)
        with Store.open(path) as store:
            versions = store.versions()
            assert {version for version in VERSIONS if f"landed {version}" in passed} <= {
                v.version for v in versions
            } | ({1} if "landed 3" in passed else set())
            for snapshot in versions:
                assert tree(snapshot.path) == VERSIONS[snapshot.version].files
            for held in store.objects().values():
                held.recover(threads=1)
            finish(store)
        if not died:
            break
        Disk().remove_tree(path)


def test_dying_twice_in_the_same_place_is_dying_once(memory: Path) -> None:
    """The repair of a crash crashes too."""
    for operation in range(40, 400, 13):
        path = memory / str(operation)
        passed, died = die_at(path, FaultyDisk(operation))
        if not died:
            break
        for again in range(60):
            try:
                Store.open(path, FaultyDisk(again)).close()
            except CrashError:
                continue
            break
        with Store.open(path) as store:
            for held in store.objects().values():
                held.recover(threads=1)
            check(store, passed)


def test_mending_dies_between_the_old_file_and_the_new(memory: Path) -> None:
    for operation in range(200):
        path = memory / str(operation)
        with Store.open(path) as store:
            held = receive(store, OLD)
            landed = store.land(OLD.object_id, 1, OLD.root)
            file = landed.path / "d/e/model"
            file.chmod(0o644)
            file.write_bytes(b"\0" + OLD.files["d/e/model"][1:])
            chunk = OLD.manifest.chunks_of_file(1)[0]
            assert held.recheck([chunk]) == [chunk]
            held.put_chunks(OLD.chunks([chunk]))
        disk = FaultyDisk()
        store = Store.open(path, disk)
        disk.operations.clear()
        disk.crash_at = operation
        died = False
        try:
            store.objects()[OLD.object_id].mend()
        except CrashError:
            died = True
        abandon(store)
        assert file.read_bytes()[1:] == OLD.files["d/e/model"][1:]
        with Store.open(path) as store:
            held = store.objects()[OLD.object_id]
            assert held.read_chunk(chunk) == OLD.chunk(chunk)
            held.mend()
            assert verify_directory(path).ok
        if not died:
            return
    pytest.fail("mending never ended")


LIFE = """
import sys
from pathlib import Path
sys.path.insert(0, {kit!r})
from storekit import make_model, receive
from chappe.hop.store import Store
store = Store.open(Path({path!r}))
held = receive(store, make_model(5, {files!r}), [])
for number, data in make_model(5, {files!r}).chunks():
    held.put_chunks([(number, data)])
    print(number, flush=True)
"""


@pytest.mark.parametrize("after", [0, 17, 100])
def test_kill_minus_nine_loses_at_most_one_batch(tmp_path: Path, after: int) -> None:
    files = {"model": 8 * MIB}
    model = make_model(5, files)
    code = LIFE.format(kit=str(Path(__file__).parent), path=str(tmp_path), files=files)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= after:
                os.kill(process.pid, signal.SIGKILL)
                break
        told = after + 1 + sum(1 for _ in process.stdout)
    with Store.open(tmp_path) as store:
        held = store.objects()[model.object_id]
        held.recover()
        assert len(held.ledger.held) * 64 * KIB >= told * 64 * KIB - MIB
        held.put_chunks(model.chunks())
        assert store.land(model.object_id, 1, model.root).root == model.root


def test_models_of_the_sweep_differ_where_they_should() -> None:
    assert len({m.root for m in (OLD, NEW, PARTIAL, LAST)}) == 4
    assert isinstance(TWIN, Model)
    assert TWIN.root == NEW.root
    assert TWIN.object_id != NEW.object_id
