"""Copies files of a snapshot for the publisher to keep. Blocking."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from pathlib import Path
from uuid import uuid4

from chappe.core.digest import ALGORITHMS
from chappe.errors import SnapshotError
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import Snapshot, source_file
from chappe.origin.spool import MARGIN_BYTES, free_bytes
from chappe.units import format_size

_COPY_BYTES = 64 << 20


def scan_again(folder: Path, like: Snapshot) -> Snapshot:
    """The copy of a snapshot: the same table, other files."""
    return Snapshot(tuple(source_file(file.path, folder / file.path) for file in like.files), like.tensors)


def copy_proven(home: Path, snapshot: Snapshot, root: str, stopped: threading.Event) -> Path:
    """A new folder in `home` with what has this root. Raises SnapshotError, OSError; nothing is left of it then."""
    free, size = free_bytes(home), snapshot.snapshot_bytes
    if free < size + MARGIN_BYTES:
        needed = f"{format_size(size)} and a margin of {format_size(MARGIN_BYTES)}"
        raise SnapshotError(f"{home} has {format_size(free)} free, a copy needs {needed}")
    folder = home / uuid4().hex
    try:
        _copy_into(folder, snapshot, root, stopped)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _copy_into(folder: Path, snapshot: Snapshot, root: str, stopped: threading.Event) -> None:
    for file in snapshot.files:
        copy_file(file.open(), folder / file.path, stopped)
    snapshot.unchanged()
    if hash_snapshot(scan_again(folder, snapshot), ALGORITHMS[root.partition(":")[0]]) != root:
        raise SnapshotError("the files changed while they were copied")


def copy_file(source: int, target: Path, stopped: threading.Event) -> None:
    """A reflink where the file system knows them. Closes `source`. Raises SnapshotError, also when `stopped`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(source).st_size
            done = 0
            while done < size:
                count = _copy_some(source, copy, done, min(_COPY_BYTES, size - done))
                if count == 0 or stopped.is_set():
                    raise SnapshotError(f"{target} was cut short while it was copied, or the publisher was stopped")
                done += count
        finally:
            os.close(copy)
    finally:
        os.close(source)


def _copy_some(source: int, target: int, offset: int, count: int) -> int:
    with contextlib.suppress(OSError):  # between some file systems there is no such call
        return os.copy_file_range(source, target, count, offset, offset)
    data = os.pread(source, count, offset)
    os.pwrite(target, data, offset)
    return len(data)
