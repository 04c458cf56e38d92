"""Reserving a file's room without holding up whoever waits: a relay passes the header on only when this has returned.

On ext4, xfs and btrfs fallocate(2) takes milliseconds at any size. Where it would take as long as writing the file, it
is not called: in memory (tmpfs zeroes every page), and where the file system has no fallocate (glibc's posix_fallocate
then writes the whole file). There a full disk shows when a chunk is written, and is handled there.
"""

from __future__ import annotations

import ctypes
import errno
import os

from chappe.hop import filesystem

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)


def _fallocate(fd: int, size_bytes: int) -> None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    while call(ctypes.c_int(fd), ctypes.c_int(0), ctypes.c_int64(0), ctypes.c_int64(size_bytes)) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def allocate(fd: int, size_bytes: int) -> None:
    """Make an empty file `size_bytes` long, with its room reserved where that is quick. Raises OSError."""
    if filesystem.magic(fd) not in filesystem.IN_MEMORY:
        try:
            return _fallocate(fd, size_bytes)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    return os.ftruncate(fd, size_bytes)
