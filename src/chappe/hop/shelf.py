"""What is in a store: its objects, the versions that some of them have landed as, and who reads these.

It keeps the books and makes no decision: objects land by `hop/lander`, retention is asked by `Store`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from chappe.errors import StoreError
from chappe.hop import landing
from chappe.hop.disk import HELPS, Disk, store_error
from chappe.hop.layout import StoreLayout
from chappe.hop.objects import StoredObject
from chappe.hop.opening import set_aside
from chappe.hop.records import LandedSnapshot, LandingRecord
from chappe.hop.writeback import WriteBehind


class Shelf:
    def __init__(self, disk: Disk, layout: StoreLayout, write_behind: WriteBehind) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.claim = threading.Lock()
        """Between retention and whoever begins or ends a landing."""
        self._disk = disk
        self._layout = layout
        self._write_behind = write_behind
        self._readers: Counter[int] = Counter()

    # ---- objects ----

    def new(self, object_id: str) -> StoredObject:
        """Not yet in the books: its directory is there, or will be. Raises StoreError for an id that is not one."""
        return StoredObject(self._disk, self._layout, object_id, self._write_behind)

    def create(self, object_id: str) -> StoredObject:
        """The object of this id, a new one when it is not here. Raises StoreError for an id that is not one."""
        held = self.objects.get(object_id)
        if held is None:
            try:
                self._disk.mkdir(self._layout.object(object_id).root)
            except OSError as error:
                raise store_error(error, f"object {object_id}") from error
            held = self.objects[object_id] = self.new(object_id)
        return held

    def drop(self, object_id: str) -> None:
        """Its children are told. Raises StoreError."""
        self.objects.pop(object_id).drop()
        try:
            set_aside(self._disk, self._layout, object_id)
        except OSError as error:
            raise store_error(error, f"removing object {object_id}") from error

    def give_up(self, object_id: str) -> None:
        """One that nobody has heard of. Raises OSError."""
        self.objects.pop(object_id).close()
        set_aside(self._disk, self._layout, object_id)

    # ---- versions ----

    def records(self) -> dict[str, LandingRecord]:
        """Of the objects that have landed."""
        return {object_id: held.landed for object_id, held in list(self.objects.items()) if held.landed is not None}

    def snapshot(self, held: StoredObject, record: LandingRecord) -> LandedSnapshot:
        path = self._layout.snapshot(record.version)
        return LandedSnapshot(record.version, record.root, path, held.object_id, held.installed)

    def versions(self) -> list[LandedSnapshot]:
        """All that have landed, oldest first."""
        found = {record.version: (object_id, record) for object_id, record in self.records().items()}
        return [self.snapshot(self.objects[object_id], record) for _, (object_id, record) in sorted(found.items())]

    def landed(self, version: int) -> LandedSnapshot | None:
        return next((snapshot for snapshot in self.versions() if snapshot.version == version), None)

    def current(self) -> LandedSnapshot | None:
        """What readers follow."""
        version = landing.current_version(self._layout)
        return None if version is None else self.landed(version)

    def objects_of(self, version: int) -> list[StoredObject]:
        return [self.objects[object_id] for object_id, record in self.records().items() if record.version == version]

    def share_installed(self, version: int) -> None:
        """Installed is the version, whichever of its objects was the one to bring it."""
        objects = self.objects_of(version)
        if any(held.installed for held in objects):
            for held in objects:
                held.installed = True

    def mark_installed(self, version: int) -> None:
        """Remember, over restarts too, that the install hook confirmed this version. Raises StoreError."""
        objects = self.objects_of(version)
        if not objects:
            raise StoreError(f"version {version} is not in the store")
        for held in objects:
            try:
                self._disk.write_json(self._layout.object(held.object_id).installed, {"version": version})
            except OSError as error:
                raise store_error(error, f"version {version}") from error
            held.installed = True

    # ---- readers ----

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

    def versions_read(self) -> list[int]:
        return [version for version, readers in self._readers.items() if readers]

    def makes_room(self) -> str:
        """What a person can do: what retention would take by itself has gone already."""
        read = sorted(set(self.versions_read()) - {landing.current_version(self._layout)})
        if not read:
            return HELPS
        return f"{HELPS}, or end what still reads version {', '.join(map(str, read))}"
