"""Writing behind: when a round begins, and that whoever brings chunks never waits for the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chappe.hop.disk import Disk
from chappe.hop.filecache import FileCache
from chappe.hop.writeback import EVERY_BYTES, EVERY_BYTES_MIN, EVERY_S_MIN, Pacing, WriteBehind, start_writeback

NAMES = ["a", "b"]


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Device:
    """Takes a round when it is let; says how many files were asked for."""

    def __init__(self) -> None:
        self.rounds = threading.Semaphore(0)
        self.free = threading.Event()
        self.free.set()
        self.asked = 0

    def __call__(self, fd: int) -> None:
        assert fd >= 0
        self.asked += 1
        self.rounds.release()
        self.free.wait()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileCache]:
    for name in NAMES:
        (tmp_path / name).write_bytes(bytes(1))
    cache = FileCache(Disk(), tmp_path, NAMES, writable=True)
    yield cache
    cache.close()


def test_a_slow_link_s_bytes_are_written_by_the_megabyte_and_not_too_often() -> None:
    clock = Clock()
    pacing = Pacing(clock)
    assert not pacing.wrote(EVERY_BYTES_MIN - 1)
    assert pacing.wrote(1)
    pacing.begin()
    assert not pacing.wrote(EVERY_BYTES_MIN)  # there has just been one
    clock.now_s += 2 * EVERY_S_MIN
    assert pacing.wrote(1)
    pacing.begin()
    assert not pacing.wrote(EVERY_BYTES - 1)
    assert pacing.wrote(1)


def test_while_the_device_is_busy_what_comes_is_left_for_one_more_round(files: FileCache) -> None:
    device = Device()
    device.free.clear()
    behind = WriteBehind(Clock(), device)
    behind.wrote(files, 0, EVERY_BYTES)
    device.rounds.acquire()  # it is at work
    job = behind._job
    assert job is not None
    for _ in range(3):
        behind.wrote(files, 0, EVERY_BYTES)  # returns although the device does not
        behind.wrote(files, 1, EVERY_BYTES)
    assert device.asked == 1
    device.free.set()
    job.result()
    behind.wrote(files, 1, 1)
    behind.close()
    assert device.asked == 3  # both files, once each


def test_an_object_that_was_dropped_is_no_trouble(files: FileCache) -> None:
    device = Device()
    behind = WriteBehind(Clock(), device)
    files.close()
    behind.wrote(files, 0, EVERY_BYTES)
    assert behind._job is not None
    behind._job.result()
    behind.close()
    assert device.asked == 0


def test_the_kernel_takes_the_request(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.write(bytes(EVERY_BYTES_MIN))
        start_writeback(file.fileno())
    assert (tmp_path / "file").read_bytes() == bytes(EVERY_BYTES_MIN)
