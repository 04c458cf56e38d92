"""An object of a store lands as a version: what must be so before, one at a time, and what comes of a delta.

complete, root as announced ──▶ busy ──▶ a full object: its files become snapshots/<version> (`hop/landing`)
                                 │       a delta: applied to its base, ahead of time where possible (`hop/ahead`);
                                 │       the full object that comes out lands (`hop/becoming`)
                                 └─▶ retention leaves it alone until it is over
"""

from __future__ import annotations

import threading
from pathlib import Path

from chappe.errors import DeltaError, RootMismatchError, StoreError, VersionConflictError
from chappe.hop import landing
from chappe.hop.ahead import NOTHING, Appliers, Base
from chappe.hop.becoming import become_full
from chappe.hop.disk import Disk, store_error
from chappe.hop.layout import StoreLayout
from chappe.hop.objects import StoredObject
from chappe.hop.records import LandedSnapshot, LandingRecord
from chappe.hop.salvage import Salvage
from chappe.hop.shelf import Shelf
from chappe.hop.source import SourceState


class Lander:
    """`land` is called from any thread, `apply_ahead` on the event loop."""

    def __init__(self, disk: Disk, layout: StoreLayout, shelf: Shelf, appliers: Appliers) -> None:
        self.version: int | None = None
        """What is being landed now. Read and written with the shelf's claim."""
        self._disk = disk
        self._layout = layout
        self._shelf = shelf
        self._appliers = appliers
        self._landing = threading.Lock()  # one landing at a time

    def land(self, object_id: str, version: int, root: str) -> LandedSnapshot:
        """Blocking: see `Store.land`."""
        if version < 1:
            raise ValueError(f"version {version} is not a positive number")
        record = LandingRecord(version, root)
        with self._landing:
            held = self._begin_landing(object_id, version)
            try:
                held = self._land(held, record)
                self._shelf.share_installed(version)
            except OSError as error:
                raise store_error(error, f"landing version {version}", self._shelf.makes_room()) from error
            finally:
                self._end_landing()
        return self._shelf.snapshot(held, record)

    def _begin_landing(self, object_id: str, version: int) -> StoredObject:
        with self._shelf.claim:
            held = self._shelf.objects.get(object_id)
            if held is None or held.state is SourceState.DROPPED:
                raise StoreError(f"object {object_id} is not in the store")
            held.busy = True
            self.version = version
        return held

    def _end_landing(self) -> None:
        with self._shelf.claim:
            for held in list(self._shelf.objects.values()):
                held.busy = False
            self.version = None

    def _land(self, held: StoredObject, record: LandingRecord) -> StoredObject:
        """What has landed: the object itself, or the full one that a delta led to."""
        if held.landed is not None:
            if held.landed != record:
                raise VersionConflictError(
                    f"object {held.object_id} landed as version {held.landed.version} with root {held.landed.root}, "
                    f"not as version {record.version} with root {record.root}"
                )
            landing.settle(self._disk, self._layout, held.object_id, record.version)
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
        landing.land(self._disk, self._layout, held, record, adopt=adopt, helps=self._shelf.makes_room())
        return held

    def _is_here(self, record: LandingRecord) -> bool:
        """The version has landed, as whichever object. Raises VersionConflictError when with another root."""
        roots = {other.root for other in self._shelf.records().values() if other.version == record.version}
        if roots - {record.root}:
            raise VersionConflictError(
                f"version {record.version} has landed with root {roots.pop()}, not {record.root}"
            )
        return bool(roots)

    def _land_delta(self, held: StoredObject, record: LandingRecord) -> StoredObject:
        if self._is_here(record):
            return self._shelf.objects_of(record.version)[0]
        if not held.ledger.complete:
            raise StoreError(f"object {held.object_id} is not complete")
        ahead = self._appliers.get(held.object_id)
        if ahead is not None:
            ahead.advance()
        if ahead is None or not ahead.succeeds():  # no room then, or a chunk that has been mended since: once more
            with self._shelf.claim:
                ahead = self._appliers.begin(held, self._base_of(held))
        try:
            return become_full(self, self._disk, held, ahead, record)
        finally:
            self._appliers.forget(held.object_id)

    def _base_of(self, delta: StoredObject) -> Base:
        if not delta.base_root:
            return NOTHING
        begins = [snapshot for snapshot in self._shelf.versions() if snapshot.root == delta.base_root]
        if not begins:
            raise DeltaError(f"the version with root {delta.base_root}, at which the delta begins, is not here")
        manifest = self._shelf.objects[begins[-1].object_id].manifest
        assert manifest is not None  # it has landed
        return Base(begins[-1].version, manifest, begins[-1].path)

    def apply_ahead(self, held: StoredObject) -> bool:
        """See `Store.apply_ahead`."""
        with self._shelf.claim:
            ahead = self._appliers.get(held.object_id)
            if ahead is None:
                if held.busy or held.state is SourceState.DROPPED or not held.ledger.held:
                    return not held.busy and held.state is SourceState.OPEN
                ahead = self._appliers.begin(held, self._base_of(held))
        ahead.advance()
        return not ahead.failed

    def take_in(self, made: Path, object_id: str, record: LandingRecord) -> StoredObject:
        """From a landing: a directory with header, pages and all files, of this root, becomes a landed object."""
        with self._shelf.claim:
            known = self._shelf.objects.get(object_id)
            if known is not None and (known.landed is not None or known.ledger.held):
                raise DeltaError(
                    f"object {object_id}, to which the delta leads, is in the store already, and not as this"
                )
            if known is not None:  # a crash came between this rename and the landing
                self._shelf.give_up(object_id)
            self._disk.rename(made, self._layout.object(object_id).root)
            full = self._shelf.new(object_id)
            full.load(None, None)
            full.busy = True
            full.ledger.add(0, full.ledger.total or 0)
            self._shelf.objects[object_id] = full
        try:
            landing.land(self._disk, self._layout, full, record, adopt=False, helps=self._shelf.makes_room())
        except BaseException:
            with self._shelf.claim:
                self._shelf.give_up(object_id)
            raise
        return full

    def take_in_part(self, made: Path, object_id: str, salvage: Salvage) -> bool:
        """From a landing: a directory made by `chappe.hop.salvage` becomes an object on its way, until retention sees
        that nobody asks for it. False when there is one already."""
        with self._shelf.claim:
            if object_id in self._shelf.objects:
                return False
            self._disk.rename(made, self._layout.object(object_id).root)
            part = self._shelf.new(object_id)
            part.load(None, None)
            part.expect(dict(enumerate(salvage.chunks)), salvage.leaves)
            self._shelf.objects[object_id] = part
        return True
