"""What file system a file is on, and what may be counted on there."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

IN_MEMORY = (0x01021994, 0x858458F6)  # tmpfs, ramfs
_EXT, _XFS = 0xEF53, 0x58465342
_STATFS_BYTES = 512  # more than struct statfs has anywhere; f_type is its first word
_JOURNALS = Path("/proc/fs/jbd2")
_DEVICES = Path("/sys/dev/block")


def magic(fd: int) -> int:
    """The magic number of the file system, 0 when it cannot be told."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "fstatfs", None)
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if call is None or call(ctypes.c_int(fd), buffer) != 0:
        return 0
    return ctypes.c_ulong.from_buffer(buffer).value & 0xFFFFFFFF


def keeps_order(path: Path) -> bool:
    """After a power cut the names below `path` are those of some moment: none that came later than one that is lost.

    So it is where all changes of names pass one journal: on XFS, and on ext4 that has its journal on its own device.
    False where that is not known (btrfs syncs one directory without what happened in others before). Raises OSError.
    """
    return _keeps_order(path.stat().st_dev, path)


@cache
def _keeps_order(device: int, path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        kind = magic(fd)
    finally:
        os.close(fd)
    return kind == _XFS or (kind == _EXT and _has_journal(device))


def _has_journal(device: int) -> bool:
    """Ext2, and ext4 made without a journal, have the same number."""
    name = os.path.realpath(_DEVICES / f"{os.major(device)}:{os.minor(device)}").rpartition("/")[2]
    return any(_JOURNALS.glob(f"{name}-*"))
