"""A delta is applied while it arrives; whatever ends that in the middle, the version lands exactly, or not at all.

| happens in the middle                        | then |
|----------------------------------------------|------|
| chunks are late                              | what is here is applied, the rest waits |
| the process stops, or the next one finds torn blocks | the next one goes on: only what is not right is written |
| a half-made file has got another name        | that one is not written to |
| no room                                      | all chunks are served on; tried again when it lands |
| the delta is dropped, the store is closed    | the thread ends, nothing is left / it is gone on with |
| the base is not here, or gives other bytes   | all chunks are served on; DeltaError when it lands |
| retention                                    | the base stays |
| the file system clones, or does not link     | the same files |
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chappe.core.manifest import DELTA_FILE
from chappe.errors import DeltaError, StoreError
from chappe.hop import ahead
from chappe.hop.ahead import Arriving, follow
from chappe.hop.background import STEP
from chappe.hop.objects import StoredObject
from chappe.hop.store import Store
from chappe.hop.verify import verify_directory
from tests.hop.deltamodels import delta_model, files_of, full_model, with_bytes
from tests.hop.storekit import FaultyDisk, Model, receive, tree

BASE = full_model(files_of(1), f"{1:032x}")
TARGET = full_model(files_of(1, step=30), f"{2:032x}")
DELTA = delta_model(BASE, TARGET, f"{4:032x}").delta
LAST = DELTA.manifest.chunks_total - 1
SHARD = "model-00001-of-00002.safetensors"
WAIT_S = 60.0


class Watched(FaultyDisk):
    """Knows where blocks were written, and lets a test wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []
        self.niceness: set[int] = set()
        self._news = threading.Condition()

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        super().pwrite(fd, data, offset)
        if "/applied/files/" in os.readlink(f"/proc/self/fd/{fd}") and len(data) > 1 << 12:
            with self._news:
                self.written.append(offset)
                self.niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
                self._news.notify_all()

    def wait(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.written) >= count, WAIT_S)


@pytest.fixture
def disk() -> Watched:
    return Watched()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="chappe-test-") as directory:
        yield Path(directory)


@pytest.fixture
def store(home: Path, disk: Watched) -> Iterator[Store]:
    with Store.open(home / "store", disk) as opened:
        receive(opened, BASE)
        opened.land(BASE.object_id, 1, BASE.root)
        yield opened
        disk.heal()


def begin(store: Store, delta: Model = DELTA, chunks: int = LAST) -> StoredObject:
    """Receive the first chunks, each applied as it comes."""
    held = receive(store, delta, [])
    for chunk in delta.chunks(range(chunks)):
        held.put_chunks([chunk])
        store.apply_ahead(held)
    return held


def finish(store: Store, held: StoredObject, delta: Model = DELTA) -> None:
    held.put_chunks(delta.chunks())
    assert tree(store.land(delta.object_id, 2, TARGET.root).path) == TARGET.files
    assert tree(store.layout.snapshot(1)) == BASE.files
    assert verify_directory(store.layout.root).ok


def served_whole(held: StoredObject, delta: Model = DELTA) -> bool:
    return held.ledger.complete and [(c, held.read_chunk(c)) for c in range(LAST + 1)] == delta.chunks()


def stopped_half_way(store: Store, disk: Watched) -> Path:
    """The work of a process that was stopped when some blocks had been written."""
    begin(store).flush()
    disk.wait(1)
    store.close()
    (work,) = store.layout.objects.glob("*/applied/files")
    return work


def test_what_is_here_is_applied_and_the_rest_waits(store: Store, disk: Watched) -> None:
    assert LAST >= 4
    held = begin(store)
    disk.wait(1)
    assert not held.work.header.exists()
    finish(store, held)
    assert len(disk.written) == 3
    assert not held.work.root.exists()


def test_applying_steps_back_while_chunks_arrive(store: Store, disk: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    monkeypatch.setattr(ahead, "FORWARD_S", 0.0)
    held = begin(store)
    disk.wait(1)
    assert disk.niceness == {min(19, mine + STEP)}
    finish(store, held)
    assert disk.niceness == {mine, min(19, mine + STEP)}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == mine


@pytest.mark.parametrize("end", ["urgent", "stopped"])
def test_a_rest_ends_when_it_is_urgent_or_not_wanted_any_more(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when more of it has come."""
    now = [0.0]
    monkeypatch.setattr(ahead, "boot_now", lambda: now[0])
    arriving = Arriving(100)
    arriving.rest(0.0)
    resting, rested = threading.Event(), threading.Event()

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            assert timeout > 0
            resting.set()
            return super().wait(60.0)

    arriving._changed = Watched()
    thread = threading.Thread(target=lambda: (arriving.rest(50.0), rested.set()))
    thread.start()
    resting.wait()
    resting.clear()
    arriving.advance(50, 100)
    resting.wait()  # once more
    assert not rested.is_set()
    if end == "urgent":
        now[0] = 1.0
        arriving.advance(100, 100)  # whole from now on, urgent a moment later
        now[0] += ahead.FORWARD_S
        arriving.advance(100, 100)
    else:
        arriving.stop()
    thread.join()


def test_it_is_urgent_when_what_came_last_could_be_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr(ahead, "boot_now", lambda: now)
    arriving = Arriving(100)
    arriving.advance(100, 100)
    assert not arriving.urgent()
    now += ahead.FORWARD_S
    assert arriving.urgent()
    arriving.advance(90, 100)  # a chunk has rotted
    assert not arriving.urgent()
    arriving.advance(100, 100)
    assert not arriving.urgent()


def test_a_restart_goes_on(home: Path, store: Store, disk: Watched) -> None:
    stopped_half_way(store, disk)
    again = Watched()
    with Store.open(home / "store", again) as reopened:
        held = reopened.get(DELTA.object_id)
        assert held is not None
        held.recover()
        finish(reopened, held)
    assert sorted(disk.written + again.written) == sorted({*disk.written, *again.written})  # none was written twice
    assert len(disk.written + again.written) == 3


@pytest.mark.parametrize("damage", ["torn", "longer", "another name", "a link to the base", "sealed", "strangers"])
def test_whatever_a_crash_left_is_put_right(home: Path, store: Store, disk: Watched, damage: str) -> None:
    work = stopped_half_way(store, disk)
    path, other = work / SHARD, home / "other"
    data = path.read_bytes()
    if damage == "torn":
        path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    elif damage == "longer":
        path.write_bytes(data + b"x")
    elif damage == "another name":
        other.hardlink_to(path)
    elif damage == "a link to the base":
        path.unlink()
        path.hardlink_to(store.layout.snapshot(1) / SHARD)
    elif damage == "sealed":
        path.chmod(0o444)
        other.hardlink_to(path)
    else:
        (work / "sub").mkdir(exist_ok=True)
        (work / "sub/stranger.txt").write_bytes(b"not of this snapshot")
        (work / "empty.txt").unlink(missing_ok=True)
        (work / "empty.txt").write_bytes(b"not empty")
    with Store.open(home / "store") as reopened:
        held = reopened.get(DELTA.object_id)
        assert held is not None
        held.recover()
        finish(reopened, held)
    if other.exists():
        assert other.read_bytes() == data


def test_no_room_in_the_middle(store: Store, disk: Watched) -> None:
    held = begin(store, chunks=1)
    disk.fail(["create"])
    held.put_chunks(DELTA.chunks(range(LAST)))
    store.apply_ahead(held)
    ahead = store._appliers.get(DELTA.object_id)
    assert ahead is not None
    with pytest.raises(OSError, match="No space"):
        ahead.wait()
    assert not held.work.root.exists()
    assert not store.apply_ahead(held)
    disk.heal()
    held.put_chunks(DELTA.chunks())
    assert served_whole(held)
    finish(store, held)


def test_a_delta_that_is_dropped_leaves_nothing(store: Store, disk: Watched) -> None:
    held = begin(store)
    disk.wait(1)
    ahead = store._appliers.get(DELTA.object_id)
    assert ahead is not None
    store.discard(DELTA.object_id)
    with pytest.raises(StoreError, match="not wanted any more"):
        ahead.wait()
    assert not store.layout.object(DELTA.object_id).root.exists()
    assert not store.apply_ahead(held)
    store.empty_trash()
    finish(store, begin(store))  # received again from scratch


def test_a_lie_in_the_middle_does_not_hold_up_the_children(store: Store) -> None:
    """Every chunk is what its publisher's pages say."""
    data = bytearray(DELTA.files[DELTA_FILE])
    data[len(data) // 2] ^= 0x5A
    wrong = with_bytes(DELTA, bytes(data))
    held = begin(store, wrong)
    held.put_chunks(wrong.chunks())
    assert served_whole(held, wrong)
    with pytest.raises(DeltaError):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert served_whole(held, wrong)
    assert not held.work.root.exists()
    assert tree(store.layout.current) == BASE.files


def test_a_base_that_rots_in_the_middle(store: Store, disk: Watched) -> None:
    held = begin(store, chunks=1)
    path = store.layout.snapshot(1) / SHARD
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"\xff\xfe\xfd")
    held.put_chunks(DELTA.chunks())
    with pytest.raises(DeltaError, match="not come out as the publisher's"):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert served_whole(held)


def test_a_chunk_that_rots_before_it_was_read_costs_one_more_attempt(store: Store) -> None:
    held = begin(store, chunks=1)
    path = store.layout.object(DELTA.object_id).files / DELTA_FILE
    with path.open("r+b") as file:
        file.seek(1 << 16)
        file.write(bytes(1 << 15))
    held.ledger.add(1, 2)  # as if it had been right when it came
    held.put_chunks(DELTA.chunks())
    store.apply_ahead(held)
    ahead = store._appliers.get(DELTA.object_id)
    assert ahead is not None
    with pytest.raises(DeltaError):
        ahead.wait()
    assert held.recheck([1]) == [1]
    finish(store, held)


def test_the_base_stays_while_it_is_read(store: Store, disk: Watched) -> None:
    other = full_model(files_of(2), f"{3:032x}")
    for version in (2, 3):
        made = full_model(other.files, f"{10 + version:032x}")
        receive(store, made)
        store.land(made.object_id, version, made.root)
    held = begin(store)
    disk.wait(1)
    assert store.retain([DELTA.object_id], [3]).versions == ()
    held.put_chunks(DELTA.chunks())
    store.land(DELTA.object_id, 4, TARGET.root)
    assert tree(store.layout.snapshot(4)) == TARGET.files
    assert store.retain([], [4]).versions == (1, 2)


def test_what_was_applied_and_may_not_land_is_not_applied_again(store: Store, disk: Watched) -> None:
    held = begin(store)
    held.put_chunks(DELTA.chunks())
    with pytest.raises(DeltaError, match="announced is"):
        store.land(DELTA.object_id, 2, BASE.root)
    assert len(disk.written) == 3
    assert not held.work.root.exists()
    finish(store, held)


def test_closing_the_store_ends_what_waits(home: Path, store: Store) -> None:
    begin(store, chunks=1)
    store.close()
    assert not [t for t in threading.enumerate() if t.name.startswith(("chappe-ahead", "chappe-apply"))]


def test_where_nothing_can_be_linked_it_is_written(store: Store, disk: Watched) -> None:
    disk.fail(["link"], errno.EPERM)
    finish(store, begin(store))
    for path in TARGET.files:
        assert not (store.layout.snapshot(1) / path).samefile(store.layout.snapshot(2) / path)


def test_where_files_can_be_cloned_what_is_the_same_is_not_written(
    store: Store, disk: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clone(source: Path, target: Path) -> bool:
        shutil.copyfile(source, target)
        return True

    monkeypatch.setattr(disk, "clone", clone)
    monkeypatch.setattr("chappe.hop.targetfiles.CLONE_BYTES_MIN", 1)
    files = dict(BASE.files)
    shard = bytearray(files[SHARD])
    shard[-3] ^= 1  # in the last of three blocks
    files[SHARD] = bytes(shard)
    target = full_model(files, TARGET.object_id)
    made = delta_model(BASE, target, DELTA.object_id).delta
    receive(store, made)
    before = len(disk.written)
    assert tree(store.land(made.object_id, 2, target.root).path) == files
    assert len(disk.written) == before + 1
    assert tree(store.layout.snapshot(1)) == BASE.files


def test_clone_says_whether_the_file_system_can(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    if FaultyDisk().clone(tmp_path / "a", tmp_path / "b"):
        assert (tmp_path / "b").read_bytes() == b"x" * 5000
    else:
        assert not (tmp_path / "b").exists()


async def test_follow_begins_with_the_first_chunk_and_ends_with_the_last(store: Store, disk: Watched) -> None:
    told: list[str] = []
    held = store.create(DELTA.object_id)
    task = asyncio.create_task(follow(store, held, told.append))
    held.put_header(DELTA.header)
    for page in DELTA.pages:
        held.put_page(page)
    for chunk in DELTA.chunks(range(LAST)):
        held.put_chunks([chunk])
        await asyncio.sleep(0)
    await asyncio.to_thread(disk.wait, 1)
    assert not task.done()
    held.put_chunks(DELTA.chunks())
    await asyncio.wait_for(task, WAIT_S)
    assert told == []
    await asyncio.to_thread(finish, store, held)


async def test_follow_gives_up_without_the_base_and_when_the_delta_is_dropped(store: Store) -> None:
    told: list[str] = []
    stranger = delta_model(full_model(files_of(2), f"{6:032x}"), TARGET, f"{7:032x}").delta
    await asyncio.wait_for(follow(store, receive(store, stranger), told.append), WAIT_S)
    assert len(told) == 1
    assert "is not here" in told[0]
    task = asyncio.create_task(follow(store, begin(store), told.append))
    await asyncio.sleep(0)
    store.discard(DELTA.object_id)
    await asyncio.wait_for(task, WAIT_S)
    full = full_model(files_of(3), f"{8:032x}")
    await asyncio.wait_for(follow(store, receive(store, full), told.append), WAIT_S)
    assert len(told) == 1
