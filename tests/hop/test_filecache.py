from __future__ import annotations

import os
from pathlib import Path

import pytest

from chappe.hop.disk import Disk
from chappe.hop.filecache import FileCache


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    (tmp_path / "old").mkdir()
    found = [f"f{i}" for i in range(6)]
    for name in found:
        (tmp_path / "old" / name).write_text(name)
    return found


def read(cache: FileCache, file: int) -> str:
    with cache.fd(file) as fd:
        return os.pread(fd, 10, 0).decode()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_few_files_are_open_at_a_time(tmp_path: Path, names: list[str]) -> None:
    before = open_descriptors()
    cache = FileCache(Disk(), tmp_path / "old", names, writable=True, limit=2)
    for file in (0, 1, 2, 3, 0, 5, 4):
        assert read(cache, file) == names[file]
        assert len(cache) <= 2
    assert open_descriptors() == before + 2
    cache.close()
    assert open_descriptors() == before


def test_a_file_in_use_is_not_closed(tmp_path: Path, names: list[str]) -> None:
    before = open_descriptors()
    cache = FileCache(Disk(), tmp_path / "old", names, writable=True, limit=1)
    with cache.fd(0) as fd:
        assert read(cache, 1) == "f1"  # evicts file 0
        cache.close()
        assert os.pread(fd, 10, 0) == b"f0"
    assert open_descriptors() == before
    with pytest.raises(OSError, match="dropped"):
        read(cache, 0)


def test_relocate_moves_and_makes_read_only(tmp_path: Path, names: list[str]) -> None:
    cache = FileCache(Disk(), tmp_path / "old", names, writable=True)
    with cache.fd(0) as fd:
        os.pwrite(fd, b"F", 0)
    cache.relocate(tmp_path / "new", lambda: (tmp_path / "old").rename(tmp_path / "new") and None)
    assert read(cache, 0) == "F0"
    with cache.fd(0) as fd, pytest.raises(OSError):
        os.pwrite(fd, b"x", 0)
    cache.close()


def test_a_move_that_fails_changes_nothing(tmp_path: Path, names: list[str]) -> None:
    cache = FileCache(Disk(), tmp_path / "old", names, writable=True)

    def move() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        cache.relocate(tmp_path / "new", move)
    assert cache.base == tmp_path / "old"
    with cache.fd(3) as fd:
        os.pwrite(fd, b"F", 0)
    cache.close()
