"""A worker's store: its identity, the objects it receives, and the versions that have landed (see `layout`).

One event loop owns it. Landing, recovering and emptying the trash block and are for an executor; everything else is
quick. Decides nothing about which object or version is wanted: that is told to it. Opening, identity, retention and the
end are here; the books are in `hop/shelf`, how an object becomes a version is in `hop/lander`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path

from chappe.core.events import Holding
from chappe.errors import StoreError
from chappe.hop import identity, landing, retention
from chappe.hop.ahead import Appliers
from chappe.hop.disk import Disk, store_error
from chappe.hop.lander import Lander
from chappe.hop.layout import StoreLayout
from chappe.hop.objects import StoredObject
from chappe.hop.opening import take_up
from chappe.hop.records import LandedSnapshot
from chappe.hop.retention import Retained
from chappe.hop.shelf import Shelf
from chappe.hop.spared import held_elsewhere
from chappe.hop.writeback import WriteBehind


class Store:
    """Open with `Store.open`; `close` (or the end of a `with` block) gives up the lock."""

    def __init__(self, disk: Disk, layout: StoreLayout, lock: identity.StoreLock) -> None:
        self.layout = layout
        self.notes: list[str] = []
        """What `open` found damaged and set aside, for the log: it is fetched again."""
        self._disk = disk
        self._lock = lock
        self._identity = identity.Identity("", 0)
        self._write_behind = WriteBehind()
        self._shelf = Shelf(disk, layout, self._write_behind)
        self._appliers = Appliers(disk)
        self._lander = Lander(disk, layout, self._shelf, self._appliers)

    @classmethod
    def open(cls, path: Path, disk: Disk | None = None) -> Store:
        """Take the store at `path` (made when new) and finish or undo what a crash left half done.

        Its mode follows the umask: an engine of another user may follow `current`. Raises StoreLockedError,
        StoreCorruptError, StoreError. Partial objects hold nothing until `recover`.
        """
        disk = disk or Disk()
        layout = StoreLayout(path.absolute())
        try:
            for directory in (layout.root, layout.objects, layout.snapshots, layout.trash):
                disk.mkdir(directory)
            lock = identity.StoreLock(layout.lock)
        except OSError as error:
            raise store_error(error, f"store {layout.root}") from error
        store = cls(disk, layout, lock)
        try:
            disk.keeps_order(layout.root)  # found out once: no landing is to wait for that
            store._identity = identity.begin(disk, layout)
            taken = take_up(disk, layout, store._write_behind)
            store._shelf.objects, store.notes = taken.objects, taken.notes
            for snapshot in store.versions():
                store._shelf.share_installed(snapshot.version)
            store.empty_trash()
        except OSError as error:
            store.close()
            raise store_error(error, f"store {layout.root}") from error
        except BaseException:
            store.close()
            raise
        return store

    async def recover(self, threads: int = 0) -> None:
        """Re-hash what the journals claim, in a thread, and hold what is right. Await before anything is fetched."""
        loop = asyncio.get_running_loop()
        for held in list(self._shelf.objects.values()):
            if held.claimed:
                held.adopt(await loop.run_in_executor(None, held.rehash, threads))

    # ---- identity ----

    @property
    def worker_id(self) -> str:
        return self._identity.worker_id

    @property
    def generation(self) -> int:
        return self._identity.generation

    @property
    def run(self) -> str:
        """Empty until `bind_run`."""
        return self._identity.run

    def bind_run(self, run: str) -> None:
        """Raises WrongRunError when the store belongs to another run."""
        try:
            self._identity = identity.bind(self._disk, self.layout, self._identity, run)
        except OSError as error:
            raise store_error(error, f"store {self.layout.root}") from error

    # ---- objects ----

    def objects(self) -> dict[str, StoredObject]:
        return dict(self._shelf.objects)

    def get(self, object_id: str) -> StoredObject | None:
        return self._shelf.objects.get(object_id)

    def create(self, object_id: str) -> StoredObject:
        """The object of this id, a new one when it is not here. Raises StoreError for an id that is not one."""
        return self._shelf.create(object_id)

    def discard(self, object_id: str) -> None:
        """Forget a partial object, to receive it from scratch. Raises StoreError for one that landed or is landing."""
        held = self._shelf.objects.get(object_id)
        if held is None:
            return
        with self._shelf.claim:
            if held.landed is not None or held.busy:
                raise StoreError(f"object {object_id} has landed: retention decides on it")
            self._drop(object_id)

    def _drop(self, object_id: str) -> None:
        self._appliers.stop(object_id)
        self._shelf.drop(object_id)

    def holdings(self) -> list[Holding]:
        return [held.holding() for held in list(self._shelf.objects.values())]

    # ---- versions ----

    def land(self, object_id: str, version: int, root: str) -> LandedSnapshot:
        """Blocking: check the root, make the object `snapshots/<version>`, point `current` at it unless that is newer.

        A delta is applied to the version that it begins at, and what lands is the full object that comes out: it is the
        one that is named in the answer. Doing it again changes nothing. Raises RootMismatchError, VersionConflictError,
        DeltaError (the version must come as another object), DiskFullError, and StoreError, after which an object that
        is `damaged` must be received again (`discard`).
        """
        return self._lander.land(object_id, version, root)

    def apply_ahead(self, held: StoredObject) -> bool:
        """Go on with applying a delta, as far as it is here. False when that has ended, or has to wait for `land`.

        On the event loop. Raises DeltaError when the base is not here. What fails is told by `land`, which tries again.
        """
        return self._lander.apply_ahead(held)

    def versions(self) -> list[LandedSnapshot]:
        """All that have landed, oldest first."""
        return self._shelf.versions()

    def landed(self, version: int) -> LandedSnapshot | None:
        return self._shelf.landed(version)

    def current(self) -> LandedSnapshot | None:
        """What readers follow."""
        return self._shelf.current()

    def mark_installed(self, version: int) -> None:
        """Remember, over restarts too, that the install hook confirmed this version. Raises StoreError."""
        self._shelf.mark_installed(version)

    # ---- retention ----

    def hold(self, version: int) -> AbstractContextManager[LandedSnapshot]:
        """Keep a version while somebody reads it. Raises StoreError when it is not here (any more)."""
        return self._shelf.hold(version)

    def retain(self, keep_objects: Collection[str], keep_versions: Collection[int]) -> Retained:
        """Put everything else in the trash (renames only); see `chappe.hop.retention` for what is always kept.

        Children of a dropped object are told at once. Call `empty_trash` in an executor afterwards.
        """
        landed = sorted(snapshot.version for snapshot in self.versions())
        with self._shelf.claim, held_elsewhere(self.layout, landed) as needed:
            busy = {object_id for object_id, held in self._shelf.objects.items() if held.busy}
            landing_now = [] if self._lander.version is None else [self._lander.version]
            gone = retention.choose(
                {
                    object_id: held.landed.version if held.landed else None
                    for object_id, held in self._shelf.objects.items()
                },
                keep_objects=busy | set(keep_objects),
                keep_versions=[*keep_versions, *landing_now],
                held_versions=[*self._appliers.bases(), *self._shelf.versions_read(), *needed],
                current=landing.current_version(self.layout),
            )
            for version in gone.versions:
                try:
                    self._disk.move_tree(self.layout.snapshot(version), self.layout.trash_name(str(version)))
                except OSError as error:
                    raise store_error(error, f"removing version {version}") from error
            for object_id in gone.objects:
                self._drop(object_id)
        return gone

    def empty_trash(self) -> None:
        """Blocking: delete what retention has put there. Raises OSError."""
        for path in list(self.layout.trash.iterdir()):
            self._disk.remove_tree(path)

    # ---- the end ----

    def close(self) -> None:
        """Write the last claims, close everything, give up the lock. Waits for a block that is being applied."""
        self._appliers.close()
        for held in self._shelf.objects.values():
            held.finish()
        self._write_behind.close()
        self._lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
