"""Carries out landing, mending and installing. What is landed or installed, and when, is decided elsewhere.

Land ────▶ Store.land in a thread ──▶ Landed, or LandFailed with whose fault it is; an adapter only beside its base
Mend ────▶ StoredObject.mend in a thread
Install ─▶ the command ──▶ remembered in the store ──▶ InstallEnded        a confirmation: the same without a command
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from chappe.clock import boot_now
from chappe.core.effects import Target
from chappe.core.relay_events import (
    ChunksDropped,
    InstallEnded,
    Land,
    Landed,
    LandFailed,
    LocalFault,
    RelayEvent,
    Restored,
)
from chappe.errors import DeltaError, RootMismatchError, StoreError, VersionConflictError
from chappe.hop.adapters import BaseHolds, bound_in, refusal
from chappe.hop.objects import StoredObject
from chappe.hop.records import LandedSnapshot, LandingRecord
from chappe.hop.store import Store
from relayd.edges import fault_of
from relayd.install import environment, run_command

log = structlog.get_logger()

T = TypeVar("T")
_RECHECK_AT_ONCE = 4  # chunks hashed between two turns of the event loop


class InThread(Protocol):
    """Begins blocking work at once, and runs it to its end, whatever becomes of the caller."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Landings:
    """All on the event loop's thread."""

    def __init__(
        self,
        *,
        store: Store,
        command: str,
        timeout_s: float,
        in_thread: InThread,
        on_event: Callable[[RelayEvent], None],
        install_seconds: Callable[[float], None],
        base_store: Path | None = None,
    ) -> None:
        self.running: set[int] = set()
        """Versions that are being landed now."""
        self._store = store
        self._command = command
        self._timeout_s = timeout_s
        self._in_thread = in_thread
        self._on_event = on_event
        self._install_seconds = install_seconds
        self._base_store, self._bases = base_store, BaseHolds(base_store)
        self._hold_bases()
        self._landed_s: dict[int, float] = {}

    def foresee(self, targets: Sequence[Target]) -> None:
        """What is to land, as far as it is announced: its record is written while chunks still come."""
        for target in targets:
            held = self._store.get(target.object_id)
            if target.root and held is not None and held.landed is None:
                held.seals.foresee(LandingRecord(target.version, target.root))

    def land(self, order: Land) -> Coroutine[None, None, None]:
        """The thread begins now: tasks that are due at the end of a fetch would keep one that is spawned waiting."""
        self.running.add(order.version)
        landing = self._in_thread(lambda: self._land_or_refuse(order))
        log.info("landing", version=order.version, object_id=order.object_id)  # all chunks are here, the root is known
        return self._tell(order, landing)

    async def _tell(self, order: Land, landing: Awaitable[LandedSnapshot | str]) -> None:
        event = await self._outcome(order, landing)
        self.running.discard(order.version)
        self._on_event(event)

    async def _outcome(self, order: Land, landing: Awaitable[LandedSnapshot | str]) -> RelayEvent:
        object_id = order.object_id
        try:
            landed = await landing
        except RootMismatchError as error:
            return await self._mismatch(object_id, str(error))
        except VersionConflictError as error:
            return LandFailed(object_id, LocalFault.STORE, str(error))
        except DeltaError as error:
            return LandFailed(object_id, LocalFault.DELTA, str(error), error.part)
        except StoreError as error:
            held = self._store.get(object_id)
            if held is not None and held.damaged:
                return LandFailed(object_id, LocalFault.DAMAGED, str(error))
            if held is not None and fault_of(error) is LocalFault.STORE:
                await _recheck(held)  # if it is rot, what is left is told and fetched again
            return LandFailed(object_id, fault_of(error), str(error))
        if isinstance(landed, str):
            return LandFailed(object_id, LocalFault.STORE, landed)  # looked at again: the base may land, too
        self._landed_s = {order.version: boot_now()}
        full = None if landed.object_id == object_id else self._store.get(landed.object_id)
        return Landed(object_id, None if full is None else restored(full))

    async def _mismatch(self, object_id: str, detail: str) -> RelayEvent:
        """Is it this disk, or what came?"""
        held = self._store.get(object_id)
        rotten = 0 if held is None else await _recheck(held)
        if held is None or not rotten:
            return LandFailed(object_id, LocalFault.ROOT_MISMATCH, detail)
        self._on_event(ChunksDropped(object_id, held.ledger.held.ranges()))  # before it could be landed again
        return LandFailed(object_id, LocalFault.ROTTEN, f"{detail}: {rotten} chunks have rotted")

    def _land_or_refuse(self, order: Land) -> LandedSnapshot | str:
        """Blocking. Why not, when it is an adapter whose base is not here."""
        received = self._store.get(order.object_id)
        if received is not None and received.landed is None:
            why = refusal(received, self._bases, self._base_store)
            if why:
                return why
        landed = self._store.land(order.object_id, order.version, order.root)
        self._hold_bases()
        return landed

    def _hold_bases(self) -> None:
        """Of the adapters that are here, however many times their store has got a newer base. Blocking."""
        roots = {root for landed in self._store.versions() if (root := bound_in(landed.path)) is not None}
        for root in roots:
            if not self._bases.take(root):
                log.warning("base_gone", root=root, store=str(self._base_store))
        self._bases.keep_only(roots)

    def close(self) -> None:
        self._bases.keep_only(())

    async def mend(self, object_id: str) -> None:
        held = self._store.get(object_id)
        if held is None:
            return
        try:
            files = await self._in_thread(held.mend)
            log.info("mended", object_id=object_id, files=files)
        except StoreError as error:
            log.warning("store_trouble", doing=f"mending object {object_id}", problem=str(error))

    async def install(self, version: int, previous: int) -> None:
        new, old = self._store.landed(version), self._store.landed(previous)
        if new is None:
            self._on_event(InstallEnded(version, ok=False, reason="the version is gone"))
            return
        started_s = boot_now()
        names = environment(version, new.path, previous, None if old is None else old.path)
        log.info("install_started", version=version, previous=previous)
        outcome = await run_command(self._command, names, self._timeout_s)
        self._install_seconds(boot_now() - started_s)
        self._ended(version, outcome.ok, outcome.reason)

    def confirmed(self, version: int, ok: bool, reason: str) -> bool:
        """The engine's answer. False when the version is not here."""
        if self._store.landed(version) is None:
            return False
        landed_s = self._landed_s.pop(version, None)
        if landed_s is not None:
            self._install_seconds(boot_now() - landed_s)
        self._ended(version, ok, reason or ("" if ok else "the engine said no"))
        return True

    def _ended(self, version: int, ok: bool, reason: str) -> None:
        if ok:
            try:
                self._store.mark_installed(version)
            except StoreError as error:  # a restart will ask again
                log.warning("store_trouble", doing=f"remembering that {version} is installed", problem=str(error))
        self._on_event(InstallEnded(version, ok, reason))


def restored(held: StoredObject) -> Restored:
    """An object of the store as the transfer machine takes it up."""
    landed = held.landed
    version, root = (0, "") if landed is None else (landed.version, landed.root)
    return Restored(held.object_id, version, root, tuple(held.ledger.held), held.ledger.total, held.installed)


async def _recheck(held: StoredObject) -> int:
    """Every chunk against its page, a few between two turns of the event loop. Returns how many are not."""
    rotten = 0
    chunks = [chunk for start, stop in held.ledger.held for chunk in range(start, stop)]
    for at in range(0, len(chunks), _RECHECK_AT_ONCE):
        rotten += len(held.recheck(chunks[at : at + _RECHECK_AT_ONCE]))
        await asyncio.sleep(0)
    return rotten
