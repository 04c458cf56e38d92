from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from chappe.hop import allocate as module
from chappe.hop import filesystem
from chappe.hop.allocate import allocate


def allocated(fd: int, size_bytes: int) -> tuple[int, int]:
    """(length, bytes that are really reserved) of an empty file after the call."""
    allocate(fd, size_bytes)
    at = os.fstat(fd)
    return at.st_size, at.st_blocks * 512


def test_room_is_reserved_on_a_disk(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        if filesystem.magic(file.fileno()) in filesystem.IN_MEMORY:
            assert allocated(file.fileno(), 1 << 20) == (1 << 20, 0)
        else:
            length, reserved = allocated(file.fileno(), 1 << 20)
            assert length == 1 << 20
            assert reserved >= 1 << 20


def test_in_memory_nothing_is_touched() -> None:
    """A terabyte: zeroing it would not end."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        assert allocated(file.fileno(), 1 << 40) == (1 << 40, 0)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_fallocate_the_file_still_has_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_fd: int, _size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "_fallocate", refuse)
    with (tmp_path / "file").open("wb") as file:
        assert allocated(file.fileno(), 1 << 20)[0] == 1 << 20


def test_no_room_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        if filesystem.magic(file.fileno()) in filesystem.IN_MEMORY:
            pytest.skip("the temporary directory is in memory: nothing is reserved there")
        with pytest.raises(OSError) as caught:
            allocate(file.fileno(), 1 << 60)
        assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
