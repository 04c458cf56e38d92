from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storekit import FaultyDisk

from chappe.core.ranges import RangeSet
from chappe.hop.disk import Disk
from chappe.hop.journal import BATCH_BYTES, Journal, PageLog, frame, unframe


def journal_of(path: Path, chunks: list[int]) -> Journal:
    journal = Journal(Disk(), path)
    for chunk in chunks:
        journal.add(chunk, 1)
    journal.flush()
    return journal


@given(chunks=st.lists(st.integers(0, 200)), cut=st.integers(0, 400), more=st.lists(st.integers(0, 200)))
def test_a_torn_journal_claims_no_more_than_was_written(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[int], cut: int, more: list[int]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    path.write_bytes(b"")
    journal_of(path, chunks).close()
    path.write_bytes(path.read_bytes()[:cut])
    journal = Journal(Disk(), path)
    claims = journal.read()
    assert {c for a, b in claims for c in range(a, b)} <= set(chunks)
    for chunk in more:
        journal.add(chunk, 1)
    journal.flush()
    journal.close()
    again = Journal(Disk(), path).read()
    expected = claims.copy()
    for chunk in more:
        expected.add(chunk, chunk + 1)
    assert again == expected


def test_a_zeroed_tail_claims_nothing(tmp_path: Path) -> None:
    journal_of(tmp_path / "j", [1, 2, 3]).close()
    with (tmp_path / "j").open("ab") as file:
        file.write(bytes(200))
    assert Journal(Disk(), tmp_path / "j").read() == RangeSet([(1, 4)])


def test_a_flipped_bit_ends_the_reading(tmp_path: Path) -> None:
    journal_of(tmp_path / "j", [1, 5, 9]).close()
    data = bytearray((tmp_path / "j").read_bytes())
    data[25] ^= 4  # in the second record
    (tmp_path / "j").write_bytes(data)
    assert Journal(Disk(), tmp_path / "j").read() == RangeSet([(1, 2)])


def test_claims_are_written_in_batches(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = Journal(disk, tmp_path / "j")
    for chunk in range(64):
        journal.add(chunk, BATCH_BYTES // 16)
    assert disk.operations.count("pwrite") == 4
    assert Journal(Disk(), tmp_path / "j").read() == RangeSet([(0, 64)])
    journal.close()


def test_a_claim_that_found_no_room_is_written_later(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = Journal(disk, tmp_path / "j")
    disk.fail(["pwrite"])
    with pytest.raises(OSError) as caught:
        journal.add(0, BATCH_BYTES)
    assert caught.value.errno == errno.ENOSPC
    disk.heal()
    journal.add(1, BATCH_BYTES)
    journal.close()
    assert Journal(Disk(), tmp_path / "j").read() == RangeSet([(0, 2)])


@given(records=st.lists(st.binary(min_size=1, max_size=60), max_size=6), cut=st.integers(0, 500))
def test_a_torn_page_log_gives_a_prefix_and_goes_on_from_there(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], cut: int
) -> None:
    path = tmp_path_factory.mktemp("pages") / "pages"
    path.write_bytes(b"".join(frame(record) for record in records)[:cut])
    log = PageLog(Disk(), path)
    loaded = log.load()
    assert loaded == records[: len(loaded)]
    assert len(log) == len(loaded)
    for record in records[len(loaded) :]:
        log.append(record)
    assert [log.get(i) for i in range(len(log))] == records
    log.close()
    assert PageLog(Disk(), path).load() == records


def test_a_page_log_that_found_no_room_is_as_before(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = PageLog(disk, tmp_path / "p")
    log.append(b"one")
    disk.fail(["pwrite"])
    with pytest.raises(OSError):
        log.append(b"two")
    disk.heal()
    log.append(b"three")
    assert [log.get(0), log.get(1)] == [b"one", b"three"]
    with pytest.raises(IndexError):
        log.get(2)
    log.close()


def test_a_page_log_is_read_and_then_gone_on_with(tmp_path: Path) -> None:
    """A relay that has started again serves a child before more comes to itself."""
    log = PageLog(Disk(), tmp_path / "p")
    log.append(b"one")
    log.close()
    again = PageLog(Disk(), tmp_path / "p")
    assert again.load() == [b"one"]
    assert again.get(0) == b"one"
    again.append(b"two")
    assert [again.get(i) for i in range(2)] == [b"one", b"two"]
    again.close()
    (tmp_path / "p").chmod(0o444)
    assert PageLog(Disk(), tmp_path / "p").load() == [b"one", b"two"]


def test_no_empty_record_is_sound() -> None:
    assert unframe(bytes(64)) is None
    assert unframe(frame(b"x")) == b"x"
    assert unframe(frame(b"x")[:-1]) is None


def test_a_page_can_be_read_before_the_next_one_is_appended_by_a_new_process(tmp_path: Path) -> None:
    first = PageLog(Disk(), tmp_path / "pages")
    first.append(b"one")
    first.close()
    again = PageLog(Disk(), tmp_path / "pages")
    assert again.load() == [b"one"]
    assert again.get(0) == b"one"  # a child asks for it
    again.append(b"two")
    assert again.get(1) == b"two"
    again.close()
    with pytest.raises(OSError, match="was dropped"):
        again.get(0)
