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
from typing import Any

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
    DrainFetch,
    DropObject,
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
    ReportConnected,
    ReportHolding,
    ReportLost,
    ResetObject,
    Retain,
    Stop,
    Tick,
)
from chappe.core.transfer import Transfer, TransferConfig
from chappe.hop.peering import Peering
from chappe.hop.pushes import PushEdge
from chappe.hop.source import Signal
from chappe.hop.stall import STALL_FLOOR_S
from chappe.hop.store import Store
from chappe.hop.tcp_routes import TcpRoutes
from chappe.v1 import coordinator_pb2 as pb
from chappe.wire.frames import PROTOCOL_VERSION
from chappe.wire.relay_messages import LinkReport, Node, Welcomed, encode_hello
from relayd.children import assigned_children, log_push
from relayd.config import InstallHook
from relayd.control import Control
from relayd.edges import Fetches
from relayd.engine import DutyView, Engine
from relayd.landings import Landings, restored
from relayd.local import LandedView
from relayd.metrics import Reading, RelaydMetrics
from relayd.objects import Objects
from relayd.tasks import Tasks

log = structlog.get_logger()


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
        self._tasks = Tasks(self.stopped)
        self._store = store
        self._options = options
        self._describe = describe
        self._peering = peering = Peering(
            store.worker_id,
            open_channel=dial_peer,
            spawn=self._tasks.watch,
            on_push_end=log_push,
            limit_uplink_bytes_per_s=options.limit_uplink_bytes_per_s,
            limit_downlink_bytes_per_s=options.limit_downlink_bytes_per_s,
            stall_floor_s=options.stall_timeout_s,
            tcp=tcp,
        )
        self._guard, self.service = peering.guard, peering.service
        self._objects = Objects(store, peering, self._tasks, self.handle)
        config = TransferConfig(options.hook.mode, options.install_timeout_s)
        self.machine = Transfer(config, (restored(held) for held in store.objects().values()), random.random)
        self._fetches = Fetches(
            open_object=self._objects.open,
            open_channel=dial_peer,
            on_event=self.handle,
            on_mismatch=self.metrics.verify_failures.inc,
            spawn=self._tasks.watch,
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
            in_thread=self._tasks.in_thread,
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
            on_probe=lambda order: self._tasks.spawn(f"probe {order.order}", self._probe(order)),
        )
        self.engine = Engine(self._control.report)
        self._inbox: deque[RelayEvent] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for held in self._store.objects().values():
            self._objects.serve(held)
        self._tasks.spawn("control", self._control.run())
        self._tasks.spawn("link reports", self._peering.report_links(lambda s: self._control.report(LinkReport(s))))

    @property
    def tasks(self) -> frozenset[asyncio.Task[None]]:
        """What runs now, by name: fetches, landings, the hook, the stream to the coordinator."""
        return self._tasks.running

    async def close(self, grace_s: float) -> bool:
        """Stop all work. False when a thread is still at it after the grace: the store must then not be closed."""
        if self._timer is not None:
            self._timer.cancel()
        self.service.leave()
        ended = await self._tasks.close(grace_s)
        self._landings.close()
        return ended

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
                        self._landings.foresee(assignment.targets)
                        self.engine.assigned(assignment)
                    case Connected():
                        self.engine.joined()
        finally:
            self._handling = False

    def _carry_out(self, effect: RelayEffect) -> None:
        match effect:
            case OpenFetch():
                self._fetches.open(effect)
            case CloseFetch(fetch):
                self._fetches.close(fetch)
            case DrainFetch(fetch):
                self._fetches.drain(fetch)
            case ReportHolding() | ReportConnected() | ReportLost() | Acknowledge() | AskToLeave():
                self._control.report(effect)
            case OpenObject(object_id):
                self._objects.attempt(lambda: self._objects.open(object_id), f"opening object {object_id}")
            case ResetObject(object_id):
                self._objects.attempt(lambda: self._objects.reset(object_id), f"resetting object {object_id}")
            case DropObject(object_id):
                self._objects.attempt(lambda: self._objects.drop(object_id), f"dropping object {object_id}")
            case AdmitChildren(edges):
                pushes = (PushEdge(e.object_id, e.stripe, push) for e in edges for push in e.pushes)
                self._peering.assign(assigned_children(edges), pushes)
            case Land():
                self._tasks.spawn(f"landing {effect.version}", self._landings.land(effect))
            case Mend(object_id):
                self._tasks.spawn(f"mending {object_id}", self._landings.mend(object_id))
            case Install(version, previous):
                self._tasks.spawn(f"install {version}", self._landings.install(version, previous))
            case Retain(objects, versions):
                self._objects.attempt(lambda: self._objects.retain(objects, versions), "retention")
            case WakeAt(time_s):
                self._wake_at(time_s)
            case Log(event, reason, fields, warning):
                (log.warning if warning else log.info)(event.replace(" ", "_"), reason=reason, **fields)
            case Count(name, labels):
                self.metrics.count(name, labels)
            case Stop():
                if not self.stopped.done():
                    self.stopped.set_result(None)

    # ---- time -----------------------------------------------------------------------------------------------------

    def _wake_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, time_s - boot_now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, lambda: self._tasks.spawn("tick", self._tick()))

    async def _tick(self) -> None:
        self.handle(Tick())

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
