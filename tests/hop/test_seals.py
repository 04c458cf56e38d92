"""What is on the device before a landing, and what a landing still has to do then.

| happens                                                    | then |
|------------------------------------------------------------|------|
| all is known and here                                      | the landing syncs nothing but the names |
| a chunk is written again after its file was synced         | the file is synced again |
| the device loses a write that only a thread hears of       | the object is received again, even if written since |
| no room in a thread                                        | the landing says so; the next one syncs everything anew |
| a thread brings the last chunk                             | the loop hears of it once that is being synced |
| another version or root was foreseen than lands            | the record is that of what lands |
| it is announced while it lands, or after                   | nobody writes a record any more |
| the process dies with a record, and does not land          | the record is removed, the chunks stay |
| the store is closed                                        | nothing is begun, and it is an error |
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from storekit import KIB, FaultyDisk, abandon, make_model, receive, synced_ahead, tree

from chappe.core.ranges import RangeSet
from chappe.errors import DiskFullError, StoreError
from chappe.hop.disk import Disk
from chappe.hop.layout import StoreLayout
from chappe.hop.records import LandingRecord, read_landing
from chappe.hop.seals import Seals
from chappe.hop.store import Store

ONE = make_model(1, {"config.json": 20, "d/model": 300 * KIB, "empty": 0, "more": 70 * KIB})
RECORD = LandingRecord(3, ONE.root)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk(ordered=True)


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk) -> Iterator[Store]:
    with Store.open(tmp_path / "store", disk) as opened:
        yield opened
        disk.heal()


def synced(disk: FaultyDisk) -> list[Path]:
    return [path for what, path in disk.moments if what == "fsync"]


def test_what_was_synced_ahead_is_not_synced_again(store: Store, disk: FaultyDisk) -> None:
    held = receive(store, ONE)
    held.seals.foresee(RECORD)
    assert synced_ahead(held) == []
    own = store.layout.object(ONE.object_id)
    assert set(synced(disk)) >= {own.files / path for path in ONE.files} | {own.header, own.pages, own.landing}
    disk.moments.clear()
    store.land(ONE.object_id, 3, ONE.root)
    assert synced(disk) == [store.layout.root]
    assert tree(store.layout.current.resolve()) == ONE.files


def test_files_are_synced_while_others_still_come(store: Store, disk: FaultyDisk) -> None:
    first, last = ONE.manifest.chunks_of_file(1)
    held = receive(store, ONE, range(first, last))
    assert synced_ahead(held) == []
    files = store.layout.object(ONE.object_id).files
    assert files / "d/model" in synced(disk)
    assert files / "more" not in synced(disk)
    assert files / "config.json" not in synced(disk)


def test_a_thread_wakes_the_loop_once_its_last_chunk_is_being_synced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    *before, last = range(ONE.manifest.chunks_total)
    held = receive(store, ONE, [])
    fired: list[int] = []
    monkeypatch.setattr(held.seals, "begin", lambda: fired.append(held.signal.count))
    held.put_chunks(ONE.chunks(before), lent=True)
    assert fired == []
    count = held.signal.count
    held.put_chunks(ONE.chunks([last]), lent=True)
    assert fired == [count]
    assert held.signal.count == count + 1


def test_the_loop_itself_waits_for_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Seals, "begin")
    assert receive(store, ONE).ledger.complete


def test_what_is_due_begins_before_begin_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chappe.hop.seals.BEGIN_S", 60.0)
    submitted: list[Callable[[], None]] = []

    def submit(work: Callable[[], None]) -> Future[None]:
        submitted.append(work)
        return Future()

    own = StoreLayout(tmp_path).object(ONE.object_id)
    (own.files / "d").mkdir(parents=True)
    (own.files / "d/model").touch()
    seals = Seals(Disk(), own, submit)
    seals.begin()  # nothing is due
    seals.wrote(ONE.manifest, 1, RangeSet([ONE.manifest.chunks_of_file(1)]))
    waiting = threading.Thread(target=seals.begin)
    waiting.start()
    assert waiting.is_alive()
    submitted[0]()
    waiting.join()


def test_a_file_that_is_written_to_again_is_synced_again(store: Store, disk: FaultyDisk) -> None:
    held = receive(store, ONE)
    held.seals.foresee(RECORD)
    assert synced_ahead(held) == []
    file = store.layout.object(ONE.object_id).files / "d/model"
    chunk = ONE.manifest.chunks_of_file(1)[0]
    with file.open("r+b") as rotting:
        rotting.write(b"rotten")
    assert held.recheck([chunk]) == [chunk]
    disk.moments.clear()
    held.put_chunks(ONE.chunks([chunk]))
    store.land(ONE.object_id, 3, ONE.root)
    assert sorted(synced(disk)) == sorted([file, store.layout.root])
    assert tree(store.layout.current.resolve()) == ONE.files


@pytest.mark.parametrize("written_since", [False, True])
def test_a_write_that_is_lost_while_others_come_is_not_forgotten(
    store: Store, disk: FaultyDisk, written_since: bool
) -> None:
    disk.fail(["fsync"], errno.EIO)
    held = receive(store, ONE)
    held.seals.foresee(RECORD)
    assert synced_ahead(held) != []
    disk.heal()
    if written_since:
        with (store.layout.object(ONE.object_id).files / "more").open("r+b") as rotting:
            rotting.write(b"rotten")
        chunk = ONE.manifest.chunks_of_file(3)[0]
        assert held.recheck([chunk]) == [chunk]
        held.put_chunks(ONE.chunks([chunk]))
    with pytest.raises(StoreError, match="lost a write: the object must be received again"):
        store.land(ONE.object_id, 3, ONE.root)
    assert held.damaged
    assert store.current() is None
    store.discard(ONE.object_id)
    receive(store, ONE)
    assert store.land(ONE.object_id, 3, ONE.root).version == 3


def test_no_room_ahead_is_said_by_the_landing_and_the_next_one_syncs_everything(store: Store, disk: FaultyDisk) -> None:
    disk.fail(["fsync"], errno.ENOSPC)
    held = receive(store, ONE)
    held.seals.foresee(RECORD)
    assert synced_ahead(held) != []
    disk.heal()
    with pytest.raises(DiskFullError):
        store.land(ONE.object_id, 3, ONE.root)
    disk.moments.clear()
    store.land(ONE.object_id, 3, ONE.root)
    own = store.layout.object(ONE.object_id)
    moved = disk.moments.index(("rename", store.layout.snapshot(3)))
    before = {path for what, path in disk.moments[:moved] if what == "fsync"}
    assert before >= {own.files / path for path in ONE.files} | {own.header, own.pages, own.landing, own.root}


@pytest.mark.parametrize("foreseen", [LandingRecord(2, ONE.root), LandingRecord(3, "another root")])
def test_what_lands_is_what_the_record_says(store: Store, foreseen: LandingRecord) -> None:
    held = receive(store, ONE, [])
    held.seals.foresee(LandingRecord(1, "at first"))
    held.seals.foresee(foreseen)
    held.put_chunks(ONE.chunks())
    store.land(ONE.object_id, 3, ONE.root)
    held.seals.foresee(LandingRecord(9, "too late"))
    assert synced_ahead(held) == []
    assert read_landing(store.layout.object(ONE.object_id).landing) == RECORD


def test_the_last_announcement_counts_whoever_writes_first(store: Store) -> None:
    held = receive(store, ONE, [])
    for version in range(1, 20):
        held.seals.foresee(LandingRecord(version, ONE.root))
    assert synced_ahead(held) == []
    assert read_landing(store.layout.object(ONE.object_id).landing) == LandingRecord(19, ONE.root)


def test_a_root_that_is_known_before_the_header_is_written_after_it(store: Store) -> None:
    held = store.create(ONE.object_id)
    held.seals.foresee(RECORD)
    own = store.layout.object(ONE.object_id)
    assert not own.landing.exists()
    held.put_header(ONE.header)
    assert synced_ahead(held) == []
    assert read_landing(own.landing) == RECORD


def test_a_record_that_did_not_get_to_its_landing_says_nothing(store: Store) -> None:
    held = receive(store, ONE)
    held.seals.foresee(RECORD)
    assert synced_ahead(held) == []
    held.flush()
    abandon(store)
    with Store.open(store.layout.root) as again:
        assert again.versions() == []
        assert again.notes == []
        held = again.objects()[ONE.object_id]
        held.recover(threads=1)
        assert held.ledger.complete
        assert not again.layout.object(ONE.object_id).landing.exists()
        again.land(ONE.object_id, 3, ONE.root)
        assert tree(again.layout.current.resolve()) == ONE.files


def test_a_closed_store_begins_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.close()
    assert isinstance(store._write_behind.submit(lambda: None).exception(), OSError)
