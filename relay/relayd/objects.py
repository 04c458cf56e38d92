"""The objects that a relay has: opened, served, dropped, and what retention takes away."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from chappe.core.relay_events import RelayEvent, Removed
from chappe.errors import StoreError
from chappe.hop.ahead import follow
from chappe.hop.objects import StoredObject
from chappe.hop.peering import Peering
from chappe.hop.store import Store
from relayd.edges import watch
from relayd.tasks import Tasks

log = structlog.get_logger()


class Objects:
    """In the store, and to peers in the catalog. `on_event` hears what comes in, and what has gone."""

    def __init__(self, store: Store, peering: Peering, tasks: Tasks, on_event: Callable[[RelayEvent], None]) -> None:
        self._store = store
        self._catalog, self._guard = peering.catalog, peering.guard
        self._tasks = tasks
        self._on_event = on_event
        self._untidy = self._tidying = False

    def attempt(self, work: Callable[[], object], what: str) -> None:
        """What fails here shows again, with a consequence, when the object is next used."""
        try:
            work()
        except StoreError as error:
            log.warning("store_trouble", doing=what, problem=str(error))

    def open(self, object_id: str) -> StoredObject:
        held = self._store.create(object_id)
        if self._catalog.get(object_id) is not held:
            self.serve(held)
        return held

    def serve(self, held: StoredObject) -> None:
        self._catalog.add(held)
        self._tasks.spawn(f"watch {held.object_id}", watch(held, self._on_event))
        self._tasks.spawn(f"apply {held.object_id}", follow(self._store, held, _log_unapplied))

    def reset(self, object_id: str) -> None:
        self._catalog.remove(object_id)
        self._store.discard(object_id)
        self._tidy()
        self.open(object_id)

    def drop(self, object_id: str) -> None:
        self._catalog.remove(object_id)
        self._guard.forget(object_id)
        self._store.discard(object_id)
        self._tidy()

    def retain(self, objects: tuple[str, ...], versions: tuple[int, ...]) -> None:
        gone = self._store.retain(objects, versions)
        for object_id in gone.objects:
            self._catalog.remove(object_id)
            self._guard.forget(object_id)
        if gone.objects or gone.versions:
            log.info("retention", removed_versions=list(gone.versions))
            self._on_event(Removed(gone.objects))
            self._tidy()

    def _tidy(self) -> None:
        """What has gone makes room at once: the next version may need it. One thread at a time is at it."""
        self._untidy = True
        if not self._tidying:
            self._tidying = True
            self._tasks.spawn("emptying the trash", self._empty_trash())

    async def _empty_trash(self) -> None:
        while self._untidy:
            self._untidy = False
            try:
                await self._tasks.in_thread(self._store.empty_trash)
            except OSError as error:
                log.warning("store_trouble", doing="emptying the trash", problem=str(error))
        self._tidying = False


def _log_unapplied(reason: str) -> None:
    log.info("not_applied_ahead", reason=reason)
