"""Starts writing to the device while chunks still arrive, so that the fsync before a landing finds little left to do.

Only asks the kernel to begin (sync_file_range): nothing is waited for, no error is consumed, nothing becomes durable.
Where the call does not exist, the landing takes longer and that is all.

A round begins with 8 MiB that are not on their way yet, on slow links with less, so that little is left at the end:
1 MiB, but fifty times a second at most. While one round is stuck in the device's queue, what comes waits for the next.
What must be on the device (`chappe.hop.seals`) is synced by other threads, so that it never stands behind a round.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from chappe.clock import boot_now
from chappe.hop.filecache import FileCache

EVERY_BYTES = 8 << 20
"""So much is always worth a round."""
EVERY_BYTES_MIN = 1 << 20
EVERY_S_MIN = 0.02
"""What less than `EVERY_BYTES` has to be, and to wait after the round before."""
SYNC_THREADS = 4
_SYNC_FILE_RANGE_WRITE = 2


def start_writeback(fd: int) -> None:
    """Begin to write all dirty pages of a file. May block for as long as the device's queue is full."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call(ctypes.c_int(fd), ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


class Pacing:
    """When the next round is due."""

    def __init__(self, clock: Callable[[], float] = boot_now) -> None:
        self._clock = clock
        self._bytes = 0
        self._begun_s = float("-inf")

    def wrote(self, size_bytes: int) -> bool:
        """So much more is dirty: whether a round is due."""
        self._bytes += size_bytes
        if self._bytes < EVERY_BYTES_MIN:
            return False
        return self._bytes >= EVERY_BYTES or self._clock() - self._begun_s >= EVERY_S_MIN

    def begin(self) -> None:
        self._bytes, self._begun_s = 0, self._clock()


class WriteBehind:
    """Threads of a store that may block, because whoever receives must not. All methods are for any thread."""

    def __init__(self, clock: Callable[[], float] = boot_now, start: Callable[[int], None] = start_writeback) -> None:
        self._start = start
        self._pool: ThreadPoolExecutor | None = None
        self._syncing: ThreadPoolExecutor | None = None
        self._job: Future[None] | None = None
        self._dirty: dict[tuple[FileCache, int], None] = {}
        self._pacing = Pacing(clock)
        self._lock = threading.Lock()
        self._closed = False

    def wrote(self, files: FileCache, file: int, size_bytes: int) -> None:
        """Never blocks: while the device is busy, what comes is left for the next round."""
        with self._lock:
            self._dirty[files, file] = None
            busy = self._job is not None and not self._job.done()
            if not self._pacing.wrote(size_bytes) or busy or self._closed:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "chappe-writeback")
            dirty, self._dirty = self._dirty, {}
            self._pacing.begin()
            self._job = self._pool.submit(self._run, list(dirty))

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Begin it, in the order of the calls. Its errors are for whoever asks the future."""
        with self._lock:
            if self._closed:
                refused: Future[None] = Future()
                refused.set_exception(OSError(errno.EBADF, "the store is closed"))
                return refused
            if self._syncing is None:
                self._syncing = ThreadPoolExecutor(SYNC_THREADS, "chappe-sync")
            return self._syncing.submit(work)

    def close(self) -> None:
        """Waits for the round that is under way, and for what was submitted."""
        with self._lock:
            self._dirty = {}
            self._closed = True
        for pool in (self._pool, self._syncing):
            if pool is not None:
                pool.shutdown()

    def _run(self, dirty: list[tuple[FileCache, int]]) -> None:
        for files, file in dirty:
            with contextlib.suppress(OSError), files.fd(file) as fd:  # an object that was dropped meanwhile
                self._start(fd)
