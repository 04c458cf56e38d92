"""What of an object is on the device before it lands: the end of a transfer then waits for its last bytes only.

    header and all pages are here ──▶ they, empty files, directories   │ synced by the store's threads while chunks
    the announced root is known ────▶ the landing record               │ still arrive
    a file's last chunk is stored ──▶ that file                        ▼
    landing: what is under way is waited for, whatever is not is synced now

A record says nothing while the object still has its files, so it may be there early, and be replaced. A file that is
written to again (a chunk had rotted) is synced again. The kernel reports a lost write once, to whoever syncs: what a
thread was told is kept for the landing, also when the file was written to since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from chappe.core.manifest import Manifest
from chappe.core.ranges import RangeSet
from chappe.hop.disk import Disk, files_below
from chappe.hop.layout import ObjectLayout
from chappe.hop.records import LandingRecord, write_landing

BEGIN_S = 0.001
"""So long a thread waits at most until what it brought last is being synced: see `Seals.begin`."""

Submit = Callable[[Callable[[], None]], "Future[None]"]


class Seals:
    """Of one object that is not a delta. `writes` and `wrote` are called with the object's lock, the rest from any
    thread."""

    def __init__(self, disk: Disk, own: ObjectLayout, submit: Submit) -> None:
        self._disk = disk
        self._own = own
        self._submit = submit
        self._lock = threading.Lock()  # of the record
        self._began = False
        self._ending = False
        self._record: LandingRecord | None = None
        self._named: Future[None] | None = None
        self._kept: Future[None] | None = None
        self._files: dict[int, Future[None]] = {}
        self._due: list[Path] = []
        self._none_due = threading.Event()  # all that is due is being synced
        self._none_due.set()
        self._earlier: list[Future[None]] = []

    # ---- while it is received --------------------------------------------------------------------------------------

    def began(self) -> None:
        """Header and files are there."""
        with self._lock:
            self._began = True
            self._name(self._record)

    def foresee(self, record: LandingRecord) -> None:
        """So it will land, if that turns out to be its root. Once it does, this says nothing."""
        with self._lock:
            if not self._ending and record != self._record:
                self._record = record
                self._name(record)

    def _name(self, record: LandingRecord | None) -> None:
        before = self._named
        if not self._began or record is None:
            return

        def write() -> None:
            if before is not None:
                before.exception()  # both write the same file; the one before was submitted first, so it runs
            write_landing(self._disk, self._own.landing, record)
            self._disk.fsync_all([self._own.landing, self._own.root])

        self._named = self._submit(write)

    def pages_are_here(self, manifest: Manifest) -> None:
        """All of them: nothing but chunks is to come."""
        empty = [self._own.files / entry.path for entry in manifest.files if not entry.size_bytes]
        self._kept = self._submit(lambda: self._disk.fsync_all([*empty, *self._directories(), *self._frame()]))

    def _directories(self) -> list[Path]:
        return [self._own.files, *files_below(self._own.files)[1]]

    def _frame(self) -> list[Path]:
        own = self._own
        return [*(path for path in (own.pages, own.header) if path.exists()), own.root, own.root.parent]

    def writes(self, file: int) -> None:
        """Before a chunk is written to it."""
        synced = self._files.pop(file, None)
        if synced is not None:
            self._earlier.append(synced)

    def wrote(self, manifest: Manifest, file: int, held: RangeSet) -> None:
        """A chunk of it is stored. If that was the last one, the file is synced."""
        if held.covers(*manifest.chunks_of_file(file)):
            with self._lock:
                self._due.append(self._own.files / manifest.files[file].path)
                self._none_due.clear()
            self._files[file] = self._submit(self._sync_due)

    def _sync_due(self) -> None:
        """All files that are complete by now: many small ones in one commit, by whichever call is the first."""
        with self._lock:
            due, self._due = self._due, []
            self._none_due.set()
        self._disk.fsync_all(due)

    def begin(self) -> None:
        """Blocking, but not for long: until all that is due is being synced.

        For a thread that is about to wake the event loop. The loop and whoever syncs ask for Python's lock, and a loop
        that gets it first is busy for milliseconds, with the end of the fetch, while the device is idle.
        """
        self._none_due.wait(BEGIN_S)

    # ---- landing ---------------------------------------------------------------------------------------------------

    def finish(self, record: LandingRecord, manifest: Manifest, *, files: bool) -> None:
        """Blocking: the record, all that it speaks of and, unless they are not to land, the files are on the device.

        Raises the first OSError when nothing is under way any more. The next call syncs everything anew.
        """
        # A file's future may be that of a call which found nothing left to do: all of them are waited for.
        with self._lock:
            self._ending = True
            named, foreseen = self._named, self._named is not None and self._record == record
            self._record, self._named = record, None
        kept, synced, earlier = self._kept, self._files, self._earlier
        self._kept, self._files, self._earlier = None, {}, []
        now: list[Path] = []
        if files:
            own = [e.path for n, e in enumerate(manifest.files) if n not in synced and (e.size_bytes or kept is None)]
            now += [self._own.files / path for path in own]  # the longest first
        if kept is None:
            now += [*(self._directories() if files else ()), *self._frame()]
        if not foreseen:
            if named is not None:
                named.exception()  # or it may be written after this one
            write_landing(self._disk, self._own.landing, record)
            now += [self._own.landing] if kept is None else [self._own.landing, self._own.root]
        try:
            self._disk.fsync_all(now)
        finally:
            waited = [*(one for one in (named, kept) if one is not None), *earlier, *(synced.values() if files else ())]
            errors = [error for one in waited if (error := one.exception()) is not None]
        if errors:
            raise errors[0]
