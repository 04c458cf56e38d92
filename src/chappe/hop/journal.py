"""Append-only records of an object on its way: which chunks were verified, and its pages.

Nothing here is fsynced while chunks arrive. A journal can lose its last claims, and after a power cut it can claim
bytes that never reached the device: so its claims are only where a restart starts to re-hash.

    journal   start u64 | stop u64 | crc32          one record per batch of at most 1 MiB of chunks
    pages     length u32 | crc32 | bytes            one record per page, in order

A torn tail ends the reading and is overwritten by the next record.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import zlib
from array import array
from pathlib import Path

from chappe.core.ranges import Range, RangeSet
from chappe.hop.disk import Disk

BATCH_BYTES = 1 << 20
"""How much a process that dies may have to fetch again: small against any window, large against a write per chunk."""
_CLAIM = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<II")
FRAME_BYTES_MAX = 1 << 30


class Journal:
    """Claims of one object."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._fd = -1
        self._end = 0
        self._pending: list[Range] = []
        self._pending_bytes = 0

    def read(self) -> RangeSet:
        """The claims so far; what follows is appended behind the last sound record."""
        claims = RangeSet()
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return claims
        size = _CLAIM.size + _CRC.size
        self._end = 0
        while self._end + size <= len(data):
            record = data[self._end : self._end + size]
            start, stop = _CLAIM.unpack_from(record)
            if _CRC.unpack_from(record, _CLAIM.size)[0] != zlib.crc32(record[: _CLAIM.size]) or start >= stop:
                break
            claims.add(start, stop)
            self._end += size
        return claims

    def add(self, chunk: int, size_bytes: int) -> None:
        """Record a stored chunk, at once or with the batch. Raises OSError; the claim is then tried again later."""
        if self._pending and self._pending[-1][1] == chunk:
            self._pending[-1] = (self._pending[-1][0], chunk + 1)
        else:
            self._pending.append((chunk, chunk + 1))
        self._pending_bytes += size_bytes
        if self._pending_bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._pending:
            return
        records = bytearray()
        for claim in self._pending:
            packed = _CLAIM.pack(*claim)
            records += packed + _CRC.pack(zlib.crc32(packed))
        if self._fd < 0:
            self._fd = self._disk.open(self._path, write=True, create=True)
        self._disk.pwrite(self._fd, bytes(records), self._end)
        self._end += len(records)
        self._pending.clear()
        self._pending_bytes = 0

    def close(self) -> None:
        """Without a flush: callers that want one say so."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PageLog:
    """The serialized pages of one object, by index. `get` is for any thread, the rest for one."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._fd = -1
        self._read_fd = -1  # of its own: pages are read before the first one is appended, and where nothing may be
        self._lock = threading.Lock()  # a descriptor is not closed while a page is read
        self._closed = False
        self._ends = array("Q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def load(self) -> list[bytes]:
        """All sound records in order; appending goes on behind them. The caller may `cut` to fewer."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        records: list[bytes] = []
        at = 0
        while (record := unframe(data, at)) is not None:
            records.append(record)
            at += _FRAME.size + len(record)
            self._ends.append(at)
        return records

    def cut(self, count: int) -> None:
        """Keep the first `count` records; the next one is written over the others."""
        del self._ends[count + 1 :]

    def append(self, data: bytes) -> None:
        """Raises OSError; the log is then as before."""
        record = frame(data)
        if self._fd < 0:
            self._fd = self._disk.open(self._path, write=True, create=True)
        self._disk.pwrite(self._fd, record, self._ends[-1])
        self._ends.append(self._ends[-1] + len(record))

    def get(self, index: int) -> bytes:
        """Raises IndexError for a page that is not here, OSError for one that cannot be read."""
        if not 0 <= index < len(self):
            raise IndexError(f"page {index} of {len(self)} held")
        start = self._ends[index] + _FRAME.size
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, "the object was dropped", str(self._path))
            if self._read_fd < 0:
                self._read_fd = self._disk.open(self._path)
            return os.pread(self._read_fd, self._ends[index + 1] - start, start)

    def close(self) -> None:
        with self._lock:
            for fd in (self._fd, self._read_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._read_fd = -1
            self._closed = True


def frame(data: bytes) -> bytes:
    """Length and checksum before the data, so that a torn or zeroed record is seen as one."""
    return _FRAME.pack(len(data), zlib.crc32(data)) + data


def unframe(data: bytes, at: int = 0) -> bytes | None:
    """The record at an offset, or None when there is no sound one. A record of no bytes is never sound."""
    if at + _FRAME.size > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, at)
    record = data[at + _FRAME.size : at + _FRAME.size + length]
    if not 0 < length <= FRAME_BYTES_MAX or len(record) != length or zlib.crc32(record) != checksum:
        return None
    return record
