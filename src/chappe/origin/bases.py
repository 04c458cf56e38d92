"""Keeps the bytes that were published last, so that the next version can be sent as a delta from them.

    published ──root known──▶ tensors: the copy that is there anyway is kept    in the spool, until the publisher closes
                         ├──▶ files: copied, hashed, kept under their root      in a folder, also for the next process
                         └──▶ the delta that led there: one more step           for who is behind, and for a way back

One snapshot is kept; while the next one is copied, two. Beside it the last deltas (`chappe.origin.steps`), so many and
of so many bytes at most: who is further behind gets the full object. No room, a folder that another publisher uses, or
files that changed are no error: then there is no base, `why` says so, and full objects are sent. The bytes of a base
are hashed again before a delta of them is offered, those of a step before it is folded, so nothing depends on what this
folder looks like.

    DIRECTORY/<run>/base.json {root, versions, folder, steps}   <folder>/files...   (`chappe.origin.basefolder`)
                    step-.../delta, header, dropped
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from chappe.core.digest import ALGORITHMS
from chappe.errors import SnapshotError
from chappe.origin.basefolder import RECORD, home_of, kept_in, lock_home, prune, used
from chappe.origin.copying import copy_proven, scan_again
from chappe.origin.deltas import DeltaFile
from chappe.origin.scan import Snapshot, scan
from chappe.origin.spool import (
    SpooledSnapshot,
    choose_directory,
    make_directory,
    remove_leftovers,
)
from chappe.origin.steps import Base, Step, keep_step, leading_to

log = logging.getLogger(__name__)

DELTAS_KEPT = 16
TAIL_SHARE = 0.25
"""Of the snapshot's bytes: more than this the kept deltas do not take together."""


@dataclass(frozen=True, slots=True)
class Making:
    """The delta from the base to what is published now. `whole` says whether it has come to be, and never raises."""

    file: DeltaFile
    whole: asyncio.Future[bool]


@dataclass(frozen=True, slots=True)
class _Next:
    """What takes the base's place. `step` is the delta to it."""

    run: str
    snapshot: Snapshot
    root: str
    version: int
    spool: SpooledSnapshot | None


class Bases:
    """Of one publisher. `directory` None: a temporary one for copies of files, gone with `close`."""

    def __init__(
        self,
        directory: Path | None,
        *,
        enabled: bool = True,
        deltas_kept: int = DELTAS_KEPT,
        now: Callable[[], float] = time.time,  # as files are stamped
    ) -> None:
        self.why = "nothing was published from here yet" if enabled else "no base is kept here (base_cache is off)"
        self._enabled, self._now = enabled, now
        self._persistent = directory is not None
        self._deltas_kept = deltas_kept
        self._directory = directory
        self._home: Path | None = None  # of this run
        self._lock = -1
        self._base: Base | None = None
        self._folder: Path | None = None
        self._spool: SpooledSnapshot | None = None
        self._copying: asyncio.Task[None] | None = None
        self._making: Making | None = None
        self._stopped = threading.Event()

    # ---- for the publisher -----------------------------------------------------------------------------------------

    async def get(self, run: str) -> Base | None:
        """The base, once what is being copied is whole."""
        if self._copying is not None:
            await asyncio.wait((self._copying,))
        if self._enabled and self._persistent and self._home is None:
            await asyncio.get_running_loop().run_in_executor(None, self._open, run)
        return self._base

    def published(
        self,
        run: str,
        snapshot: Snapshot,
        root: str,
        version: int,
        spool: SpooledSnapshot | None,
        making: Making | None = None,
    ) -> None:
        """From now on this is what the next delta begins at. Returns at once; the rest is done meanwhile: the delta is
        waited for, because it reads the old base, and files are copied."""
        if not self._enabled:
            return
        if spool is not None:
            spool.keep()
        if making is not None:
            making.file.hold()
        self._making = making
        after = _Next(run, snapshot, root, version, spool)
        self._copying = asyncio.create_task(self._copy_next(self._copying, after, making))

    async def _copy_next(self, before: asyncio.Task[None] | None, after: _Next, making: Making | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        loop = asyncio.get_running_loop()
        try:
            step = making.file if making is not None and await making.whole else None
            await loop.run_in_executor(None, self._replace, after, step)
        except (SnapshotError, OSError) as error:
            self.why = f"version {after.version} could not be kept as a base: {error}"
            log.warning("%s", self.why)
        finally:
            if making is not None:
                making.file.discard()
            if after.spool is not None and after.spool is not self._spool:
                after.spool.let_go()

    async def settled(self) -> None:
        """Return when nothing is being copied any more."""
        while self._copying is not None and not self._copying.done():
            await asyncio.wait((self._copying,))

    def stop(self) -> None:
        """Nobody waits for what is being copied, nor for the delta that is kept with it."""
        self._stopped.set()
        if self._making is not None and not self._making.whole.done():
            self._making.file.give_up()

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
        home = home_of(self._directory, run)
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = lock_home(home)
            used(lock, self._now())
        except BlockingIOError:
            self._off(f"another publisher uses {home}")
            return
        except OSError as error:
            self._off(f"{home} cannot keep a base: {error.strerror}")
            return
        self._home, self._lock = home, lock
        self._base = self._load(home)
        kept = {self._folder, *(step.folder for step in (self._base.steps if self._base is not None else ()))}
        for path in home.iterdir():  # what a killed process was copying
            if path.is_dir() and path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _off(self, why: str) -> None:
        self._enabled, self.why = False, why
        log.warning("%s: no deltas are made", why)

    def _load(self, home: Path) -> Base | None:
        try:
            record = json.loads((home / RECORD).read_bytes())
            folder, root = kept_in(home, record["folder"]), str(record["root"])
            versions = tuple(int(version) for version in record["versions"])
            steps = [Step.from_json(home, step) for step in record["steps"]]
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
        return Base(root, versions or (0,), snapshot, leading_to(root, steps))

    def _replace(self, after: _Next, delta: DeltaFile | None) -> None:
        in_place = after.spool is not None and not self._persistent
        if delta is not None or not in_place:
            self._open(after.run, after.snapshot.snapshot_bytes)
        old = self._base
        if old is not None and old.root == after.root:
            self._base = replace(old, versions=(*old.versions, after.version))
            self._record(self._base)
            return
        if self._home is None and not in_place:
            return
        steps = self._longer(old, delta, after) if old is not None and delta is not None else ()
        folder = None if in_place else self._copy(after)
        snapshot = after.snapshot if folder is None else scan_again(folder, after.snapshot)
        base = Base(after.root, (after.version,), snapshot, steps)
        self._record(base, folder)
        self._let_go(keep=steps)
        self._base, self._folder, self._spool = base, folder, after.spool if in_place else None

    def _longer(self, old: Base, delta: DeltaFile, after: _Next) -> tuple[Step, ...]:
        """The steps to what is published now: as many as may be kept, none where the last one is missing."""
        if self._home is None or delta.base_root != old.root or not self._deltas_kept:
            return ()
        folder = self._home / f"step-{uuid4().hex}"
        try:
            step = keep_step(folder, delta.path, delta.plan, old, after.root)
        except (SnapshotError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            log.warning("the delta to version %d is not kept: %s", after.version, error)
            return ()
        kept: list[Step] = []
        size = 0
        for one in (step, *reversed(old.steps)):
            size += one.size_bytes
            if len(kept) == self._deltas_kept or size > TAIL_SHARE * after.snapshot.snapshot_bytes:
                break
            kept.insert(0, one)
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        return tuple(kept)

    def _copy(self, after: _Next) -> Path:
        assert self._home is not None
        if self._directory is not None:
            prune(self._directory, self._home, self._now())
        return copy_proven(self._home, after.snapshot, after.root, self._stopped)

    def _record(self, base: Base, folder: Path | None = None) -> None:
        """For the next process; what is kept is what is written here."""
        folder = folder or self._folder
        if not self._persistent or self._home is None or folder is None:
            return
        record = {
            "root": base.root,
            "versions": list(base.versions),
            "folder": folder.name,
            "steps": [step.to_json() for step in base.steps],
        }
        temporary = self._home / (RECORD + ".tmp")
        temporary.write_text(json.dumps(record))
        temporary.replace(self._home / RECORD)

    def _let_go(self, keep: Collection[Step] = ()) -> None:
        for step in () if self._base is None else self._base.steps:
            if step not in keep:
                shutil.rmtree(step.folder, ignore_errors=True)
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
            if self._persistent:
                with contextlib.suppress(OSError):  # it then counts as unused since it was opened
                    used(self._lock, self._now())
            os.close(self._lock)
            self._lock = -1
