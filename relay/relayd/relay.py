"""One relay: what comes in becomes an event, `Transfer.handle` decides, and what it wants is carried out. No decisions.

coordinator ──▶ Control ─┐                      ┌─▶ Fetches ──▶ Store ◀── RelayService ◀── children
fetches, store, hook ────┼──▶ handle(event) ────┼─▶ Store.land / retain, install hook
timer, signals ──────────┘                      └─▶ Control.report, metrics, log
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio
import structlog

from chappe.clock import boot_now
from chappe.core.effects import Count, Log, PeerRef, WakeAt
from chappe.core.events import ObjectState
from chappe.core.installing import InstallMode
from chappe.core.probes import ProbeOrder
from chappe.core.relay_events import (
    Acknowledge,
    AdmitChildren,
    AskToLeave,
    Assigned,
    CloseFetch,
    Connected,
    DropObject,
    EdgeOrder,
    Install,
    InstallEnded,
    Land,
    Landed,
    LandFailed,
    Mend,
    OpenFetch,
    OpenObject,
    RelayEffect,
    RelayEvent,
    Removed,
    ReportConnected,
    ReportHolding,
    ReportLost,
    ResetObject,
    Retain,
    Stop,
    Tick,
)
from chappe.core.transfer import Transfer, TransferConfig
from chappe.errors import StoreError
from chappe.hop.ahead import follow
from chappe.hop.guard import AssignedChild
from chappe.hop.objects import StoredObject
from chappe.hop.peering import Peering
from chappe.hop.push import PushEnd
from chappe.hop.pushes import PushEdge
from chappe.hop.source import Signal
from chappe.hop.stall import STALL_FLOOR_S
from chappe.hop.store import Store
from chappe.hop.tcp_routes import TcpRoutes
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1.relay_pb2 import EndReason
from chappe.wire.frames import PROTOCOL_VERSION
from chappe.wire.relay_messages import LinkReport, Node, Welcomed, encode_hello
from relayd.config import InstallHook
from relayd.control import Control
from relayd.edges import Fetches, watch
from relayd.engine import DutyView, Engine
from relayd.landings import Landings, restored
from relayd.local import LandedView
from relayd.metrics import Reading, RelaydMetrics

log = structlog.get_logger()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RelayOptions:
    """Rates are bytes per second, None for no limit."""

    hook: InstallHook
    install_timeout_s: float
    limit_downlink_bytes_per_s: float | None = None
    limit_uplink_bytes_per_s: float | None = None
    stall_timeout_s: float = STALL_FLOOR_S
    base_store: Path | None = None


class Relay:
    """Make it with an open, recovered store; `start` it; `stopped` is done when it is over: then `close`.

    `describe` says who this node is, at which address now. All on one event loop.
    """

    def __init__(
        self,
        store: Store,
        options: RelayOptions,
        *,
        coordinator: str,
        describe: Callable[[], Coroutine[Any, Any, Node]],
        dial_coordinator: Callable[[], grpc.aio.Channel],
        dial_peer: Callable[[PeerRef], grpc.aio.Channel],
        tcp: TcpRoutes,
    ) -> None:
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.landed = Signal()
        self.metrics = RelaydMetrics(self._read)
        self._store = store
        self._options = options
        self._describe = describe
        self._peering = peering = Peering(
            store.worker_id,
            open_channel=dial_peer,
            spawn=self._watch_task,
            on_push_end=_log_push,
            limit_uplink_bytes_per_s=options.limit_uplink_bytes_per_s,
            limit_downlink_bytes_per_s=options.limit_downlink_bytes_per_s,
            stall_floor_s=options.stall_timeout_s,
        )
        self._guard, self._catalog, self.service = peering.guard, peering.catalog, peering.service
        config = TransferConfig(options.hook.mode, options.install_timeout_s)
        self.machine = Transfer(config, (restored(held) for held in store.objects().values()), random.random)
        self._fetches = Fetches(
            open_object=self._open_object,
            open_channel=dial_peer,
            on_event=self.handle,
            on_mismatch=self.metrics.verify_failures.inc,
            spawn=self._watch_task,
            downlink=peering.downlink,
            meters=peering.received,
            inbox=peering.inbox,
            tcp=tcp,
            generation=store.generation,
            stall_floor_s=options.stall_timeout_s,
        )
        self._landings = Landings(
            store=store,
            command=options.hook.command,
            timeout_s=options.install_timeout_s,
            in_thread=self._in_thread,
            on_event=self.handle,
            install_seconds=self.metrics.install_seconds.observe,
            base_store=options.base_store,
        )
        self._control = Control(
            coordinator=coordinator,
            open_channel=dial_coordinator,
            hello=self._hello,
            on_welcome=self._on_welcome,
            on_event=self.handle,
            on_probe=lambda order: self._spawn(f"probe {order.order}", self._probe(order)),
        )
        self.engine = Engine(self._control.report)
        self._inbox: deque[RelayEvent] = deque()
        self._handling = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: set[asyncio.Future[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for held in self._store.objects().values():
            self._serve(held)
        self._spawn("control", self._control.run())
        self._spawn("link reports", self._peering.report_links(lambda s: self._control.report(LinkReport(s))))

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """What runs now, by name: fetches, landings, the hook, the stream to the coordinator."""
        return frozenset(self._tasks)

    async def close(self, grace_s: float) -> bool:
        """Stop all work. False when a thread is still at it after the grace: the store must then not be closed."""
        if self._timer is not None:
            self._timer.cancel()
        self.service.leave()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._threads:
            await asyncio.wait(self._threads, timeout=grace_s)
        return not self._threads

    def handle(self, event: RelayEvent) -> None:
        """The one door. An event that comes while effects are carried out waits for its turn."""
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inbox:
                event = self._inbox.popleft()
                for effect in self.machine.handle(event, boot_now()):
                    self._carry_out(effect)
                match event:
                    case Landed() | LandFailed() | InstallEnded():
                        self.landed.fire()
                    case Assigned(assignment):
                        self.engine.assigned(assignment)
                    case Connected():
                        self.engine.joined()
                    case _:
                        pass
        finally:
            self._handling = False

    def _carry_out(self, effect: RelayEffect) -> None:
        match effect:
            case OpenFetch():
                self._fetches.open(effect)
            case CloseFetch(fetch):
                self._fetches.close(fetch)
            case ReportHolding() | ReportConnected() | ReportLost() | Acknowledge() | AskToLeave():
                self._control.report(effect)
            case OpenObject(object_id):
                self._try(lambda: self._open_object(object_id), f"opening object {object_id}")
            case ResetObject(object_id):
                self._try(lambda: self._reset_object(object_id), f"resetting object {object_id}")
            case DropObject(object_id):
                self._try(lambda: self._drop_object(object_id), f"dropping object {object_id}")
            case AdmitChildren(edges):
                pushes = (PushEdge(e.object_id, e.stripe, push) for e in edges for push in e.pushes)
                self._peering.assign(_children(edges), pushes)
            case Land():
                self._spawn(f"landing {effect.version}", self._landings.land(effect))
            case Mend(object_id):
                self._spawn(f"mending {object_id}", self._landings.mend(object_id))
            case Install(version, previous):
                self._spawn(f"install {version}", self._landings.install(version, previous))
            case Retain(objects, versions):
                self._try(lambda: self._retain(objects, versions), "retention")
            case WakeAt(time_s):
                self._wake_at(time_s)
            case Log(event, reason, fields):
                log.info(event.replace(" ", "_"), reason=reason, **fields)
            case Count(name, labels):
                self.metrics.count(name, labels)
            case Stop():
                if not self.stopped.done():
                    self.stopped.set_result(None)

    # ---- tasks, threads and time -----------------------------------------------------------------------------------

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._watch_task(name, asyncio.create_task(work))

    def _watch_task(self, name: str, task: asyncio.Task[None]) -> None:
        """A task that fails ends the daemon: nothing here fails in a way that it could go on from."""
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.stopped.done():
            self.stopped.set_exception(error)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run it to its end, even when the caller is cancelled: `close` waits for it."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        self._threads.add(future)
        future.add_done_callback(self._threads.discard)
        return await asyncio.shield(future)

    def _wake_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, time_s - boot_now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, lambda: self._spawn("tick", self._tick()))

    async def _tick(self) -> None:
        self.handle(Tick())

    def _try(self, work: Callable[[], object], what: str) -> None:
        """What fails here shows again, with a consequence, when the object is next used."""
        try:
            work()
        except StoreError as error:
            log.warning("store_trouble", doing=what, problem=str(error))

    # ---- objects ---------------------------------------------------------------------------------------------------

    def _open_object(self, object_id: str) -> StoredObject:
        held = self._store.create(object_id)
        if self._catalog.get(object_id) is not held:
            self._serve(held)
        return held

    def _serve(self, held: StoredObject) -> None:
        self._catalog.add(held)
        self._spawn(f"watch {held.object_id}", watch(held, self.handle))
        self._spawn(f"apply {held.object_id}", follow(self._store, held, _log_unapplied))

    def _reset_object(self, object_id: str) -> None:
        self._catalog.remove(object_id)
        self._store.discard(object_id)
        self._open_object(object_id)

    def _drop_object(self, object_id: str) -> None:
        self._catalog.remove(object_id)
        self._guard.forget(object_id)
        self._store.discard(object_id)

    def _retain(self, objects: tuple[str, ...], versions: tuple[int, ...]) -> None:
        gone = self._store.retain(objects, versions)
        for object_id in gone.objects:
            self._catalog.remove(object_id)
            self._guard.forget(object_id)
        if gone.objects or gone.versions:
            log.info("retention", removed_versions=list(gone.versions))
            self.handle(Removed(gone.objects))
            self._spawn("emptying the trash", self._empty_trash())

    async def _empty_trash(self) -> None:
        try:
            await self._in_thread(self._store.empty_trash)
        except OSError as error:
            log.warning("store_trouble", doing="emptying the trash", problem=str(error))

    # ---- the coordinator -------------------------------------------------------------------------------------------

    async def _hello(self) -> pb.JoinRequest:
        node = await self._describe()
        machine = self.machine
        return encode_hello(node, PROTOCOL_VERSION, machine.holdings(), machine.edges(), machine.assignment_epoch)

    def _on_welcome(self, welcome: Welcomed) -> None:
        """Raises WrongRunError, BadTokenError."""
        self._store.bind_run(welcome.run)
        self._guard.set_run(welcome.run, welcome.token_key)

    async def _probe(self, order: ProbeOrder) -> None:
        outcome = await self._peering.probe(order)
        log.info(
            "probe_ended",
            peer=order.peer.name,
            reason=outcome.error or "measured",
            up_bytes_per_s=round(outcome.up_bytes_per_s),
            down_bytes_per_s=round(outcome.down_bytes_per_s),
            bytes=outcome.bytes,
            seconds=round(outcome.seconds, 3),
        )
        self._control.report(outcome)

    # ---- what the local service and the metrics see ----------------------------------------------------------------

    def newest(self) -> LandedView:
        versions = self.machine.versions()
        snapshot = self._store.landed(versions[ObjectState.VERIFIED])
        if snapshot is None:
            return LandedView(self._store.run)
        installed = snapshot.version == versions[ObjectState.INSTALLED]
        return LandedView(self._store.run, snapshot.version, snapshot.root, snapshot.path, installed)

    def duty(self) -> DutyView:
        return self.engine.duty

    def generates(self, rollouts_per_s: float) -> None:
        self.engine.generates(rollouts_per_s)

    @property
    def duty_changed(self) -> Signal:
        return self.engine.changed

    def confirms(self) -> bool:
        return self._options.hook.mode is InstallMode.CONFIRM

    def landing(self, version: int) -> bool:
        return version in self._landings.running

    def confirm(self, version: int, ok: bool, reason: str) -> bool:
        versions = self.machine.versions()
        if version <= versions[ObjectState.INSTALLED]:
            return True  # said before
        return version <= versions[ObjectState.VERIFIED] and self._landings.confirmed(version, ok, reason)

    def _read(self) -> Reading:
        now, streams, received = boot_now(), self.service.streams, self._peering.received
        return Reading(
            received_bytes=received.bytes_total,
            forwarded_bytes=streams.forwarded_bytes_total,
            downlink_bytes_per_s=received.bytes_per_s(now),
            uplink_bytes_per_s=streams.bytes_per_s(now),
            backlog_bytes=streams.backlog_bytes(),
            versions=self.machine.versions(),
            standby=self.engine.duty.duty == "standby",
            hops={"downlink": received.transports(), "uplink": streams.meters.transports()},
        )


def _log_unapplied(reason: str) -> None:
    log.info("not_applied_ahead", reason=reason)


def _log_push(edge: PushEdge, end: PushEnd) -> None:
    log.info(
        "push_ended",
        object_id=edge.object_id,
        child=edge.order.child.name,
        address=edge.order.child.address,
        reason=EndReason.Name(end.reason).removeprefix("END_REASON_").lower(),
        detail=end.detail,
    )


def _children(edges: tuple[EdgeOrder, ...]) -> list[AssignedChild]:
    return [
        AssignedChild(
            edge.object_id, edge.stripe, slot.slot, slot.child.worker_id, slot.child.name, slot.generation, slot.epoch
        )
        for edge in edges
        for slot in edge.children
    ]
