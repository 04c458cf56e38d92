"""Starts writing to the device while chunks still arrive, so that the fsync before a landing finds little left to do.

Only asks the kernel to begin (sync_file_range): nothing is waited for, no error is consumed, nothing becomes durable.
Where the call does not exist, the landing takes longer and that is all.
"""

from __future__ import annotations

import contextlib
import ctypes
from concurrent.futures import Future, ThreadPoolExecutor

from chappe.hop.filecache import FileCache

EVERY_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2


def start_writeback(fd: int) -> None:
    """Begin to write all dirty pages of a file. May block for as long as the device's queue is full."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call(ctypes.c_int(fd), ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


class WriteBehind:
    """One thread for a store: it may block, the event loop must not."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._dirty: dict[tuple[FileCache, int], None] = {}
        self._dirty_bytes = 0

    def wrote(self, files: FileCache, file: int, size_bytes: int) -> None:
        """Never blocks: while the device is busy, what comes is left for the next round."""
        self._dirty[files, file] = None
        self._dirty_bytes += size_bytes
        if self._dirty_bytes < EVERY_BYTES or (self._job is not None and not self._job.done()):
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "chappe-writeback")
        dirty, self._dirty, self._dirty_bytes = self._dirty, {}, 0
        self._job = self._pool.submit(_run, list(dirty))

    def close(self) -> None:
        """Waits for the round that is under way."""
        self._dirty = {}
        if self._pool is not None:
            self._pool.shutdown()


def _run(dirty: list[tuple[FileCache, int]]) -> None:
    for files, file in dirty:
        with contextlib.suppress(OSError), files.fd(file) as fd:  # an object that was dropped meanwhile
            start_writeback(fd)
