"""What a disk must do for a landing, by a plain program: the references of `python -m bench publish`.

    last byte ──▶ fsync of the file            whoever keeps a byte safe does this
              ──▶ rename, fsync of directory   and whoever must not leave half a version under its name, this

What is dirty in memory (cachestat) is only shown: some of it is on its way, and a device has a cache of its own to
flush. What counts is what the same disk then needs to make a copy durable that was written as the relay wrote.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

from chappe.hop.disk import Disk
from chappe.hop.filecache import FileCache
from chappe.hop.writeback import WriteBehind

_SYS_CACHESTAT = 451  # on all architectures; Linux 6.5 and newer
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PIECE_BYTES = 128 << 10


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently"))


def unwritten_bytes(directory: Path) -> int:
    """What of the files below a directory is in memory only. Raises OSError where the kernel cannot say."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    pages = 0
    # A version may be landing meanwhile: folders get other names, a journal goes. `walk` passes over what is gone.
    for path in (Path(folder, name) for folder, _, names in os.walk(directory) for name in names):
        if not path.is_file():  # a relay's socket
            continue
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            found, whole = _CacheStat(), _Range(0, 0)
            if call(_SYS_CACHESTAT, file.fileno(), ctypes.byref(whole), ctypes.byref(found), 0) != 0:
                raise OSError(ctypes.get_errno(), "cachestat: needs Linux 6.5 or newer")
            pages += found.dirty + found.writeback
    return pages * _PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds from the last byte of a copy to its being durable, and to its being durable under its name."""

    synced_s: float
    named_s: float


def disk_alone(directory: Path, source: Path, bytes_per_s: float) -> Alone:
    """As little as a program can do for a copy whose pieces come at this rate, into reserved room.

    The kernel is asked to begin as often as a relay asks it.
    """
    part, whole = directory / "disk-probe.part", directory / "disk-probe"
    disk, behind = Disk(), WriteBehind()
    disk.create(part, source.stat().st_size)
    files = FileCache(disk, directory, [part.name], writable=True)
    with source.open("rb", buffering=0) as read, files.fd(0) as fd:
        started_s, written = time.perf_counter(), 0
        while piece := read.read(_PIECE_BYTES):
            time.sleep(max(0.0, started_s + (written + len(piece)) / bytes_per_s - time.perf_counter()))
            os.pwrite(fd, piece, written)
            written += len(piece)
            behind.wrote(files, 0, len(piece))
        complete_s = time.perf_counter()
        os.fsync(fd)
        synced_s = time.perf_counter() - complete_s
    part.rename(whole)
    disk.fsync(directory)
    named_s = time.perf_counter() - complete_s
    behind.close()
    files.close()
    whole.unlink()
    return Alone(synced_s, named_s)
