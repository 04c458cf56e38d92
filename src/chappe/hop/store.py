"""A worker's store: its identity, the objects it receives, and the versions that have landed (see `layout`).

One event loop owns it. Landing, recovering and emptying the trash block and are for an executor; everything else is
quick. Decides nothing about which object or version is wanted: that is told to it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from chappe.core.events import Holding
from chappe.errors import DeltaError, RootMismatchError, StoreError, VersionConflictError
from chappe.hop import identity, landing, retention
from chappe.hop.ahead import NOTHING, Appliers, Base
from chappe.hop.becoming import become_full
from chappe.hop.disk import HELPS, Disk, store_error
from chappe.hop.layout import StoreLayout
from chappe.hop.objects import StoredObject
from chappe.hop.opening import set_aside, take_up
from chappe.hop.records import LandedSnapshot, LandingRecord
from chappe.hop.retention import Retained
from chappe.hop.salvage import Salvage
from chappe.hop.source import SourceState
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
        self._objects: dict[str, StoredObject] = {}
        self._write_behind = WriteBehind()
        self._readers: Counter[int] = Counter()
        self._landing = threading.Lock()  # one landing at a time
        self._claim = threading.Lock()  # between retention and the start of a landing
        self._landing_version: int | None = None
        self._appliers = Appliers(disk)

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
            store._objects, store.notes = taken.objects, taken.notes
            for snapshot in store.versions():
                store._share_installed(snapshot.version)
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
        for held in list(self._objects.values()):
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
        return dict(self._objects)

    def get(self, object_id: str) -> StoredObject | None:
        return self._objects.get(object_id)

    def create(self, object_id: str) -> StoredObject:
        """The object of this id, a new one when it is not here. Raises StoreError for an id that is not one."""
        held = self._objects.get(object_id)
        if held is None:
            try:
                self._disk.mkdir(self.layout.object(object_id).root)
            except OSError as error:
                raise store_error(error, f"object {object_id}") from error
            held = self._objects[object_id] = StoredObject(self._disk, self.layout, object_id, self._write_behind)
        return held

    def discard(self, object_id: str) -> None:
        """Forget a partial object, to receive it from scratch. Raises StoreError for one that landed or is landing."""
        held = self._objects.get(object_id)
        if held is None:
            return
        with self._claim:
            if held.landed is not None or held.busy:
                raise StoreError(f"object {object_id} has landed: retention decides on it")
            self._drop(object_id)

    def _drop(self, object_id: str) -> None:
        self._appliers.stop(object_id)
        self._objects.pop(object_id).drop()
        try:
            set_aside(self._disk, self.layout, object_id)
        except OSError as error:
            raise store_error(error, f"removing object {object_id}") from error

    def holdings(self) -> list[Holding]:
        return [held.holding() for held in list(self._objects.values())]

    # ---- versions ----

    def land(self, object_id: str, version: int, root: str) -> LandedSnapshot:
        """Blocking: check the root, make the object `snapshots/<version>`, point `current` at it unless that is newer.

        A delta is applied to the version that it begins at, and what lands is the full object that comes out: it is the
        one that is named in the answer. Doing it again changes nothing. Raises RootMismatchError, VersionConflictError,
        DeltaError (the version must come as another object), DiskFullError, and StoreError, after which an object that
        is `damaged` must be received again (`discard`).
        """
        if version < 1:
            raise ValueError(f"version {version} is not a positive number")
        record = LandingRecord(version, root)
        with self._landing:
            held = self._begin_landing(object_id, version)
            try:
                held = self._land(held, record)
                self._share_installed(version)
            except OSError as error:
                raise store_error(error, f"landing version {version}", self._makes_room()) from error
            finally:
                self._end_landing()
        return self._snapshot(held, record)

    def _begin_landing(self, object_id: str, version: int) -> StoredObject:
        with self._claim:
            held = self._objects.get(object_id)
            if held is None or held.state is SourceState.DROPPED:
                raise StoreError(f"object {object_id} is not in the store")
            held.busy = True
            self._landing_version = version
        return held

    def _end_landing(self) -> None:
        with self._claim:
            for held in list(self._objects.values()):
                held.busy = False
            self._landing_version = None

    def _land(self, held: StoredObject, record: LandingRecord) -> StoredObject:
        """What has landed: the object itself, or the full one that a delta led to."""
        if held.landed is not None:
            if held.landed != record:
                raise VersionConflictError(
                    f"object {held.object_id} landed as version {held.landed.version} with root {held.landed.root}, "
                    f"not as version {record.version} with root {record.root}"
                )
            landing.settle(self._disk, self.layout, held.object_id, record.version)
            return held
        if held.damaged:
            raise StoreError(f"the device lost a write of object {held.object_id}: it must be received again")
        if held.delta:
            return self._land_delta(held, record)
        found = held.computed_root()
        if found != record.root:
            raise RootMismatchError(
                f"object {held.object_id} has root {found}, version {record.version} was announced with {record.root}"
            )
        adopt = self._is_here(record)
        landing.land(self._disk, self.layout, held, record, adopt=adopt, helps=self._makes_room())
        return held

    def _is_here(self, record: LandingRecord) -> bool:
        """The version has landed, as whichever object. Raises VersionConflictError when with another root."""
        roots = {other.root for other in self._records().values() if other.version == record.version}
        if roots - {record.root}:
            raise VersionConflictError(
                f"version {record.version} has landed with root {roots.pop()}, not {record.root}"
            )
        return bool(roots)

    def _land_delta(self, held: StoredObject, record: LandingRecord) -> StoredObject:
        if self._is_here(record):
            return self._objects_of(record.version)[0]
        if not held.ledger.complete:
            raise StoreError(f"object {held.object_id} is not complete")
        ahead = self._appliers.get(held.object_id)
        if ahead is not None:
            ahead.advance()
        if ahead is None or not ahead.succeeds():  # no room then, or a chunk that has been mended since: once more
            with self._claim:
                ahead = self._appliers.begin(held, self._base_of(held))
        try:
            return become_full(self, self._disk, held, ahead, record)
        finally:
            self._appliers.forget(held.object_id)

    def _base_of(self, delta: StoredObject) -> Base:
        if not delta.base_root:
            return NOTHING
        begins = [snapshot for snapshot in self.versions() if snapshot.root == delta.base_root]
        if not begins:
            raise DeltaError(f"the version with root {delta.base_root}, at which the delta begins, is not here")
        manifest = self._objects[begins[-1].object_id].manifest
        assert manifest is not None  # it has landed
        return Base(begins[-1].version, manifest, begins[-1].path)

    def apply_ahead(self, held: StoredObject) -> bool:
        """Go on with applying a delta, as far as it is here. False when that has ended, or has to wait for `land`.

        On the event loop. Raises DeltaError when the base is not here. What fails is told by `land`, which tries again.
        """
        with self._claim:
            ahead = self._appliers.get(held.object_id)
            if ahead is None:
                if held.busy or held.state is SourceState.DROPPED or not held.ledger.held:
                    return not held.busy and held.state is SourceState.OPEN
                ahead = self._appliers.begin(held, self._base_of(held))
        ahead.advance()
        return not ahead.failed

    def take_in(self, made: Path, object_id: str, record: LandingRecord) -> StoredObject:
        """From a landing: a directory with header, pages and all files, of this root, becomes a landed object."""
        with self._claim:
            known = self._objects.get(object_id)
            if known is not None and (known.landed is not None or known.ledger.held):
                raise DeltaError(
                    f"object {object_id}, to which the delta leads, is in the store already, and not as this"
                )
            if known is not None:  # a crash came between this rename and the landing
                self._give_up(object_id)
            self._disk.rename(made, self.layout.object(object_id).root)
            full = StoredObject(self._disk, self.layout, object_id, self._write_behind)
            full.load(None, None)
            full.busy = True
            full.ledger.add(0, full.ledger.total or 0)
            self._objects[object_id] = full
        try:
            landing.land(self._disk, self.layout, full, record, adopt=False, helps=self._makes_room())
        except BaseException:
            with self._claim:
                self._give_up(object_id)
            raise
        return full

    def take_in_part(self, made: Path, object_id: str, salvage: Salvage) -> bool:
        """From a landing: a directory made by `chappe.hop.salvage` becomes an object on its way, until retention sees
        that nobody asks for it. False when there is one already."""
        with self._claim:
            if object_id in self._objects:
                return False
            self._disk.rename(made, self.layout.object(object_id).root)
            part = StoredObject(self._disk, self.layout, object_id, self._write_behind)
            part.load(None, None)
            part.expect(dict(enumerate(salvage.chunks)), salvage.leaves)
            self._objects[object_id] = part
        return True

    def _give_up(self, object_id: str) -> None:
        self._objects.pop(object_id).close()
        set_aside(self._disk, self.layout, object_id)

    def _records(self) -> dict[str, LandingRecord]:
        return {object_id: held.landed for object_id, held in list(self._objects.items()) if held.landed is not None}

    def _snapshot(self, held: StoredObject, record: LandingRecord) -> LandedSnapshot:
        path = self.layout.snapshot(record.version)
        return LandedSnapshot(record.version, record.root, path, held.object_id, held.installed)

    def versions(self) -> list[LandedSnapshot]:
        """All that have landed, oldest first."""
        found = {record.version: (object_id, record) for object_id, record in self._records().items()}
        return [self._snapshot(self._objects[object_id], record) for _, (object_id, record) in sorted(found.items())]

    def landed(self, version: int) -> LandedSnapshot | None:
        return next((snapshot for snapshot in self.versions() if snapshot.version == version), None)

    def current(self) -> LandedSnapshot | None:
        version = landing.current_version(self.layout)
        return None if version is None else self.landed(version)

    def _objects_of(self, version: int) -> list[StoredObject]:
        return [self._objects[object_id] for object_id, record in self._records().items() if record.version == version]

    def _share_installed(self, version: int) -> None:
        """Installed is the version, whichever of its objects was the one to bring it."""
        objects = self._objects_of(version)
        if any(held.installed for held in objects):
            for held in objects:
                held.installed = True

    def mark_installed(self, version: int) -> None:
        """Remember, over restarts too, that the install hook confirmed this version. Raises StoreError."""
        objects = self._objects_of(version)
        if not objects:
            raise StoreError(f"version {version} is not in the store")
        for held in objects:
            try:
                self._disk.write_json(self.layout.object(held.object_id).installed, {"version": version})
            except OSError as error:
                raise store_error(error, f"version {version}") from error
            held.installed = True

    # ---- retention ----

    @contextmanager
    def hold(self, version: int) -> Iterator[LandedSnapshot]:
        """Keep a version while somebody reads it. Raises StoreError when it is not here (any more)."""
        snapshot = self.landed(version)
        if snapshot is None:
            raise StoreError(f"version {version} is not in the store")
        self._readers[version] += 1
        try:
            yield snapshot
        finally:
            self._readers[version] -= 1

    def retain(self, keep_objects: Collection[str], keep_versions: Collection[int]) -> Retained:
        """Put everything else in the trash (renames only); see `chappe.hop.retention` for what is always kept.

        Children of a dropped object are told at once. Call `empty_trash` in an executor afterwards.
        """
        with self._claim:
            busy = {object_id for object_id, held in self._objects.items() if held.busy}
            landing_now = [] if self._landing_version is None else [self._landing_version]
            gone = retention.choose(
                {object_id: held.landed.version if held.landed else None for object_id, held in self._objects.items()},
                keep_objects=busy | set(keep_objects),
                keep_versions=[*keep_versions, *landing_now],
                held_versions=self._held_versions(),
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

    def _makes_room(self) -> str:
        """What a person can do: what retention would take by itself has gone already."""
        read = sorted({v for v, readers in self._readers.items() if readers} - {landing.current_version(self.layout)})
        if not read:
            return HELPS
        return f"{HELPS}, or end what still reads version {', '.join(map(str, read))}"

    def _held_versions(self) -> list[int]:
        return self._appliers.bases() + [version for version, readers in self._readers.items() if readers]

    def empty_trash(self) -> None:
        """Blocking: delete what retention has put there. Raises OSError."""
        for path in list(self.layout.trash.iterdir()):
            self._disk.remove_tree(path)

    # ---- the end ----

    def close(self) -> None:
        """Write the last claims, close everything, give up the lock. Waits for a block that is being applied."""
        self._appliers.close()
        for held in self._objects.values():
            held.finish()
        self._write_behind.close()
        self._lock.release()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
