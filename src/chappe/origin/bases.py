"""Keeps the bytes that were published last, so that the next version can be sent as a delta from them.

    published ──root known──▶ tensors: the copy that is there anyway is kept    in the spool, until the publisher closes
                         └──▶ files: copied, hashed, kept under their root      in a folder, also for the next process

One snapshot is kept; while the next one is copied, two. No room, a folder that another publisher uses, or files that
changed are no error: then there is no base, `why` says so, and full objects are sent. The bytes of a base are hashed
again before a delta of them is offered (`chappe.origin.deltas`), so nothing depends on what this folder looks like.

    DIRECTORY/<run>/lock   base.json {root, version, folder}   <folder>/files...
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from chappe.core.digest import ALGORITHMS
from chappe.errors import SnapshotError
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import Snapshot, scan, source_file
from chappe.origin.spool import (
    MARGIN_BYTES,
    SpooledSnapshot,
    choose_directory,
    free_bytes,
    make_directory,
    remove_leftovers,
)
from chappe.units import format_size

log = logging.getLogger(__name__)

RECORD = "base.json"
_COPY_BYTES = 64 << 20
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def default_cache() -> Path:
    """Where `chappe publish` keeps its base: $XDG_CACHE_HOME/chappe/base, by default ~/.cache/chappe/base."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "chappe" / "base"


@dataclass(frozen=True, slots=True)
class Base:
    """What was published under this root; its files are ours alone."""

    root: str
    version: int
    snapshot: Snapshot


class Bases:
    """Of one publisher. `directory` None: a temporary one for copies of files, gone with `close`."""

    def __init__(self, directory: Path | None, *, enabled: bool = True) -> None:
        self.why = "nothing was published from here yet" if enabled else "no base is kept here (base_cache is off)"
        self._enabled = enabled
        self._persistent = directory is not None
        self._directory = directory
        self._home: Path | None = None  # of this run
        self._lock = -1
        self._base: Base | None = None
        self._folder: Path | None = None
        self._spool: SpooledSnapshot | None = None
        self._copying: asyncio.Task[None] | None = None
        self._stopped = threading.Event()

    # ---- for the publisher -----------------------------------------------------------------------------------------

    async def get(self, run: str) -> Base | None:
        """The base, once what is being copied is whole."""
        if self._copying is not None:
            await asyncio.wait((self._copying,))
        if self._enabled and self._persistent and self._home is None:
            await asyncio.get_running_loop().run_in_executor(None, self._open, run)
        return self._base

    def published(self, run: str, snapshot: Snapshot, root: str, version: int, spool: SpooledSnapshot | None) -> None:
        """From now on this is what the next delta begins at. Returns at once; files are copied meanwhile."""
        if not self._enabled or (self._base is not None and self._base.root == root):
            return
        if spool is not None and not self._persistent:
            spool.keep()
            self._let_go()
            self._base, self._spool = Base(root, version, snapshot), spool
            return
        before = self._copying
        self._copying = asyncio.create_task(self._copy_next(before, run, snapshot, root, version))

    async def _copy_next(
        self, before: asyncio.Task[None] | None, run: str, snapshot: Snapshot, root: str, version: int
    ) -> None:
        if before is not None:
            await asyncio.wait((before,))
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._copy, run, snapshot, root, version)
        except (SnapshotError, OSError) as error:
            self.why = f"version {version} could not be kept as a base: {error}"
            log.warning("%s", self.why)

    async def settled(self) -> None:
        """Return when nothing is being copied any more."""
        while self._copying is not None and not self._copying.done():
            await asyncio.wait((self._copying,))

    def stop(self) -> None:
        """Nobody waits for what is being copied."""
        self._stopped.set()

    async def close(self) -> None:
        """Whatever is being copied is finished first: the next process wants it. A temporary base goes."""
        await self.settled()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    # ---- blocking --------------------------------------------------------------------------------------------------

    def _open(self, run: str, size_bytes: int = 0) -> None:
        if self._home is not None:
            return
        if self._directory is None:
            where = choose_directory(size_bytes)
            remove_leftovers(where)
            self._home, self._lock = make_directory(where)
            return
        home = self._directory / (_UNSAFE.sub("_", run) or "run")
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._off(f"{home} cannot keep a base: {error.strerror}")
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            self._off(f"another publisher uses {home}")
            return
        self._home, self._lock = home, lock
        self._base = self._load(home)
        for path in home.iterdir():  # what a killed process was copying
            if path.is_dir() and path != self._folder:
                shutil.rmtree(path, ignore_errors=True)

    def _off(self, why: str) -> None:
        self._enabled, self.why = False, why
        log.warning("%s: no deltas are made", why)

    def _load(self, home: Path) -> Base | None:
        try:
            record = json.loads((home / RECORD).read_bytes())
            folder, root, version = home / Path(record["folder"]).name, str(record["root"]), int(record["version"])
            snapshot = scan(folder)
        except FileNotFoundError:
            self.why = "nothing was published from here yet"
            return None
        except (OSError, ValueError, KeyError, TypeError, SnapshotError) as error:
            self.why = f"the base kept in {home} cannot be read: {error}"
            return None
        if root.partition(":")[0] not in ALGORITHMS:
            self.why = f"the base kept in {home} has a root of an unknown kind"
            return None
        self._folder = folder
        return Base(root, version, snapshot)

    def _copy(self, run: str, snapshot: Snapshot, root: str, version: int) -> None:
        self._open(run, snapshot.snapshot_bytes)
        if self._home is None:
            return
        free = free_bytes(self._home)
        if free < snapshot.snapshot_bytes + MARGIN_BYTES:
            raise SnapshotError(
                f"{self._home} has {format_size(free)} free, not {format_size(snapshot.snapshot_bytes)} and a margin"
            )
        folder = self._home / uuid4().hex
        try:
            kept = self._copy_into(folder, snapshot, root)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if self._persistent:
            self._record(self._home, folder, root, version)
        self._let_go()
        self._base, self._folder = Base(root, version, kept), folder

    def _copy_into(self, folder: Path, snapshot: Snapshot, root: str) -> Snapshot:
        for file in snapshot.files:
            _copy_file(file.open(), folder / file.path, self._stopped)
        snapshot.unchanged()
        kept = scan_again(folder, snapshot)
        if hash_snapshot(kept, ALGORITHMS[root.partition(":")[0]]) != root:
            raise SnapshotError("the files changed while they were copied")
        return kept

    @staticmethod
    def _record(home: Path, folder: Path, root: str, version: int) -> None:
        temporary = home / (RECORD + ".tmp")
        temporary.write_text(json.dumps({"root": root, "version": version, "folder": folder.name}))
        temporary.replace(home / RECORD)

    def _let_go(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._spool is not None:
            self._spool.let_go()
            self._spool = None
        self._base = None

    def _close(self) -> None:
        if not self._persistent:
            self._let_go()
            if self._home is not None:
                shutil.rmtree(self._home, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def scan_again(folder: Path, like: Snapshot) -> Snapshot:
    """The copy of a snapshot: the same table, other files."""
    return Snapshot(tuple(source_file(file.path, folder / file.path) for file in like.files), like.tensors)


def _copy_file(source: int, target: Path, stopped: threading.Event) -> None:
    """A reflink where the file system knows them."""
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
