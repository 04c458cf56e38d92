"""What a relay has and is to have: its objects, which of them become versions, and the version that readers follow.

It decides when an object lands, which version the hook is started for, what is dropped, and what retention must leave.
It must not know where chunks come from, nor why they do not: `Transfer` tells it how far each object (`core/holding`)
is, and what became of what it asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chappe.core.effects import Log, Target
from chappe.core.events import Holding, ObjectState
from chappe.core.holding import Held
from chappe.core.installing import InstallMode, Installs
from chappe.core.relay_events import (
    Assignment,
    DropObject,
    Land,
    OpenObject,
    RelayEffect,
    ReportHolding,
    Restored,
    Retain,
)


class Inventory:
    """`restored` is what the store has from a former process."""

    def __init__(self, install: InstallMode, install_timeout_s: float, restored: Iterable[Restored]) -> None:
        self._objects: dict[str, Held] = {r.object_id: Held.restored(r) for r in restored}
        self._assignment = Assignment(0)
        self._installs = Installs(install, install_timeout_s)
        for held in self._objects.values():
            if held.landed:
                held.installed = held.installed or install is InstallMode.NONE or None
                self._installs.restore(held.version, bool(held.installed))

    # ---- what is so now --------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> Assignment:
        """The last one carried out, of epoch 0 before the first."""
        return self._assignment

    def __iter__(self) -> Iterator[Held]:
        return iter(self._objects.values())

    def __getitem__(self, object_id: str) -> Held:
        return self._objects[object_id]

    def get(self, object_id: str) -> Held | None:
        return self._objects.get(object_id)

    def target(self, object_id: str) -> Target | None:
        """What the coordinator wants of this object, None when it does not name it (any more)."""
        return next((t for t in self._assignment.targets if t.object_id == object_id), None)

    def holdings(self) -> tuple[Holding, ...]:
        return tuple(held.holding() for held in self._objects.values())

    def versions(self) -> dict[ObjectState, int]:
        """The newest version of which all chunks are here, that has landed, that is installed; 0 for none."""
        named = {t.object_id: t.version for t in self._assignment.targets}
        received = [h.version or named.get(h.object_id, 0) for h in self._objects.values() if h.complete or h.landed]
        return {
            ObjectState.RECEIVED: max(received, default=0),
            ObjectState.VERIFIED: self._installs.current,
            ObjectState.INSTALLED: self._installs.installed,
        }

    def ready(self) -> tuple[bool, str]:
        """Whether the version that readers follow is installed, and a line that says so."""
        current, installed = self._installs.current, self._installs.installed
        if current == 0:
            return False, "no version has landed yet"
        if current != installed:
            return False, f"version {current} has landed and is not installed"
        return True, f"version {current} is installed"

    # ---- what is to be here ----------------------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> list[RelayEffect]:
        """Take up its targets. What it does not name stays until `drop_unwanted`."""
        self._assignment = assignment
        effects: list[RelayEffect] = []
        for object_id, target in {t.object_id: t for t in assignment.targets}.items():
            held = self._objects.setdefault(object_id, Held(object_id))
            if not held.landed:
                effects.append(OpenObject(object_id))
            elif target.root and target.root != held.root:
                effects.append(Log("root contradicted", "what has landed stays", {"version": held.version}))
        return effects

    def drop_unwanted(self) -> list[RelayEffect]:
        return [effect for held in list(self._objects.values()) for effect in self.drop_if_unwanted(held)]

    def drop_if_unwanted(self, held: Held) -> list[RelayEffect]:
        stays = held.landed and not held.delta
        if stays or held.landing or self.target(held.object_id) is not None:
            return []
        del self._objects[held.object_id]
        return [DropObject(held.object_id), ReportHolding(Holding.gone(held.object_id))]

    def retain(self) -> Retain:
        """What the store must keep, beside what it always keeps."""
        objects = {t.object_id for t in self._assignment.targets} | {o.object_id for o in self._assignment.edges}
        objects |= {held.part for held in self._objects.values() if held.part}
        served = {self._installs.installed} - {0, self._installs.current}  # while hooks for newer ones run, or fail
        return Retain(tuple(sorted(objects)), tuple(sorted({*self._assignment.keep_versions, *served})))

    def on_removed(self, object_ids: Iterable[str]) -> list[RelayEffect]:
        """By retention. The coordinator hears of it: no delta is to begin at what is not here any more."""
        effects: list[RelayEffect] = []
        for object_id in object_ids:
            held = self._objects.get(object_id)
            if held is not None and held.landed and self.target(object_id) is None:
                del self._objects[object_id]
                effects.append(ReportHolding(Holding.gone(object_id)))
        return effects

    # ---- landing ---------------------------------------------------------------------------------------------------

    def begin_landings(self, now: float) -> list[RelayEffect]:
        effects: list[RelayEffect] = []
        for held in self._objects.values():
            target = self.target(held.object_id)
            if target is not None and held.may_land(target, now):
                held.on_landing(target)
                effects.append(Land(held.object_id, target.version, target.root))
        return effects

    def on_landed(self, object_id: str, full: Restored | None) -> list[RelayEffect]:
        held = self._objects[object_id]
        held.on_landed()
        landed = [held]
        effects: list[RelayEffect] = []
        if full is not None:
            held.delta = True
            landed.append(Held.restored(full))
            self._objects[full.object_id] = landed[1]
            effects.append(OpenObject(full.object_id))
        news = self._installs.on_landed(held.version)
        for one in landed:
            if news or (full is not None and full.installed):
                one.on_installed(True, "")
            elif one.version < self._installs.current:
                one.reason = f"version {self._installs.current} landed before it"
            effects.append(ReportHolding(one.holding()))
        effects.append(Log("landed", held.state.value, {"version": held.version, "root": held.root}))
        return [*effects, *self.drop_if_unwanted(held), self.retain()]

    # ---- installing ------------------------------------------------------------------------------------------------

    def begin_install(self, now: float) -> list[RelayEffect]:
        install = self._installs.due(now)
        return [] if install is None else [install]

    def on_install_ended(self, version: int, ok: bool, reason: str) -> list[RelayEffect]:
        of = [h for h in self._objects.values() if h.landed and h.version == version]
        if not self._installs.on_ended(version, ok) or not of:
            return []
        for held in of:
            held.on_installed(ok, reason)
        outcome = Log("installed" if ok else "install failed", reason or "ok", {"version": version})
        return [*(ReportHolding(held.holding()) for held in of), outcome]

    def end_overdue_install(self, now: float) -> list[RelayEffect]:
        """A confirmation that did not come is a no."""
        version = self._installs.overdue(now)
        if version is None:
            return []
        return self.on_install_ended(version, False, f"nobody confirmed within {self._installs.timeout_s:g} s")

    # ---- time ------------------------------------------------------------------------------------------------------

    def next_wake(self, now: float) -> float | None:
        """When an object that the store is in the way of is tried again, or a confirmation is overdue."""
        times = [h.waiting.until_s for h in self._objects.values() if h.waiting is not None and h.waiting.until_s > now]
        return min((t for t in [*times, self._installs.deadline] if t is not None), default=None)
