"""A transfer machine with a clock, a rule book that is checked after every event, and names short enough to read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from chappe.core.effects import Log, PeerRef, Target, WakeAt
from chappe.core.events import ObjectState
from chappe.core.installing import InstallMode
from chappe.core.reasons import ParentLossReason as Loss
from chappe.core.relay_events import (
    Assigned,
    Assignment,
    CloseFetch,
    Connected,
    DrainFetch,
    DropObject,
    EdgeOrder,
    FetchConnected,
    FetchEnded,
    Install,
    InstallEnded,
    Land,
    Landed,
    LandFailed,
    LocalFault,
    OpenFetch,
    Progress,
    RelayEffect,
    RelayEvent,
    ReportHolding,
    Restored,
    Source,
    Stop,
    Tick,
)
from chappe.core.transfer import Transfer, TransferConfig

A, B = "a" * 32, "b" * 32
ROOT_A, ROOT_B = "xxh3_128:" + "1" * 32, "xxh3_128:" + "2" * 32
T = TypeVar("T")


def source(name: str, token: bytes = b"token", port: int = 1) -> Source:
    return Source(PeerRef(f"id-{name}", name, f"{name}:{port}"), token)


def target(object_id: str = A, version: int = 1, root: str = "") -> Target:
    return Target(object_id, version, root, "full", 1000, 1000)


def order(
    object_id: str = A, epoch: int = 1, parent: Source | None = None, fallbacks: Iterable[Source] = ()
) -> EdgeOrder:
    return EdgeOrder(object_id, 0, epoch, parent, tuple(fallbacks))


class Rig:
    """`do` handles an event and checks the rules; `of` picks effects by type."""

    def __init__(
        self, install: InstallMode = InstallMode.NONE, restored: Iterable[Restored] = (), jitter: float = 0.5
    ) -> None:
        self.machine = Transfer(TransferConfig(install), restored, lambda: jitter)
        self.now = 100.0
        self.wake: float | None = None
        self.epoch = 0
        self.open: dict[int, OpenFetch] = {}
        self.draining: dict[int, OpenFetch] = {}
        self.landing: set[str] = set()
        self.landed: dict[str, int] = {r.object_id: r.version for r in restored if r.version}
        self.hook: int | None = None
        self.hooked: list[int] = []
        self.stopped = False

    def do(self, event: RelayEvent, after: float = 0.0) -> list[RelayEffect]:
        self.now += after
        match event:
            case FetchEnded(fetch=fetch):
                self.open.pop(fetch, None)
                self.draining.pop(fetch, None)
            case Landed(object_id) | LandFailed(object_id):
                self.landing.discard(object_id)
            case InstallEnded(version) if version == self.hook:
                self.hook = None
            case _:
                pass
        effects = self.machine.handle(event, self.now)
        for effect in effects:
            self._check(effect)
        if isinstance(event, Landed):  # what a delta led to is what has landed, and stays
            landed = event.object_id if event.full is None else event.full.object_id
            self.landed[landed] = next(h.version for h in self.machine.holdings() if h.object_id == landed)
        return effects

    def _check(self, effect: RelayEffect) -> None:
        assert not self.stopped, "an effect after Stop"
        match effect:
            case OpenFetch():
                key = (effect.object_id, effect.stripe)
                assert key not in {(f.object_id, f.stripe) for f in self._fetches()}, "two parents in one stripe"
                self.open[effect.fetch] = effect
            case CloseFetch(fetch):
                del (self.draining if fetch in self.draining else self.open)[fetch]  # never one that is not open
            case DrainFetch(fetch):
                self.draining[fetch] = self.open.pop(fetch)
            case Land(object_id):
                assert object_id not in self.landing, "landed twice at once"
                self.landing.add(object_id)
            case DropObject(object_id):
                assert object_id not in self.landing, "pulled from under the landing"
                assert object_id not in self.landed, "a landed version is left to retention"
            case Install(version):
                assert self.hook is None, "two hooks at once"
                assert version not in self.hooked, "started twice for one version"
                assert all(version > v for v in self.hooked), "an install that goes back"
                self.hook = version
                self.hooked.append(version)
            case Stop():
                self.stopped = True
            case WakeAt(time_s):
                assert time_s > self.now, "a wake in the past would spin"
                self.wake = time_s
            case Log(event=event):
                assert event
            case _:
                pass

    def assign(
        self, *parts: Target | EdgeOrder, epoch: int | None = None, keep: tuple[int, ...] = ()
    ) -> list[RelayEffect]:
        self.epoch = self.epoch + 1 if epoch is None else epoch
        targets = tuple(p for p in parts if isinstance(p, Target))
        edges = tuple(p for p in parts if isinstance(p, EdgeOrder))
        return self.do(Assigned(Assignment(self.epoch, targets, edges, keep)))

    def wait(self) -> list[RelayEffect]:
        """Let the time come that the machine asked for."""
        assert self.wake is not None, "nothing was asked for"
        wake, self.wake = self.wake, None
        self.now = max(self.now, wake)
        return self.do(Tick())

    def _fetches(self) -> list[OpenFetch]:
        return [*self.open.values(), *self.draining.values()]

    def fetch(self) -> OpenFetch:
        """The one fetch that is open."""
        (fetch,) = self.open.values()
        return fetch


def of(effects: Iterable[RelayEffect], kind: type[T]) -> list[T]:
    return [e for e in effects if isinstance(e, kind)]


P, F1, F2 = source("p"), source("f1"), source("f2")
ALL = ((0, 8),)


def states(effects: list[RelayEffect]) -> list[ObjectState]:
    return [r.holding.state for r in of(effects, ReportHolding)]


def fetching(install: InstallMode = InstallMode.NONE) -> Rig:
    """A relay that is receiving A from p, with two fallbacks."""
    rig = Rig(install)
    rig.do(Connected())
    rig.assign(target(), order(parent=P, fallbacks=(F1, F2)))
    rig.do(FetchConnected(rig.fetch().fetch))
    rig.do(Progress(A, ((0, 3),), 8))
    return rig


def lose(
    rig: Rig, reason: Loss | LocalFault | None, progressed: bool = False, rejected: tuple[int, ...] = ()
) -> list[RelayEffect]:
    return rig.do(FetchEnded(rig.fetch().fetch, reason, "it said so", rejected, progressed))


def landed(rig: Rig, object_id: str = A, version: int = 1, root: str = ROOT_A) -> list[RelayEffect]:
    """Bring an object that is a target all the way to its landing."""
    rig.do(Progress(object_id, ALL, 8))
    rig.assign(target(object_id, version, root))
    return rig.do(Landed(object_id))
