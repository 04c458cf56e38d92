"""A simulated relay: the real `Transfer` machine, and a shell that does to a simulated store what `relayd` does to one.

It decides nothing that `relayd` does not decide. The store outlives the process; what a killed process had not written
down is lost, what rotted is found when its chunk is read again by somebody who checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chappe.core import events as ev
from chappe.core.effects import Count, Log, WakeAt
from chappe.core.events import Role
from chappe.core.installing import InstallMode
from chappe.core.probes import ProbeOrder
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import (
    Acknowledge,
    AdmitChildren,
    AskToLeave,
    Assigned,
    Assignment,
    CloseFetch,
    Connected,
    Disconnected,
    DrainFetch,
    DropObject,
    Install,
    Land,
    Mend,
    OpenFetch,
    OpenObject,
    RelayEffect,
    RelayEvent,
    Released,
    ReportConnected,
    ReportHolding,
    ReportLost,
    ResetObject,
    Retain,
    Stop,
    StopRequested,
    Tick,
)
from chappe.core.transfer import Transfer, TransferConfig
from chappe.sim.clock import Entry, HostClock
from chappe.sim.process import Line
from chappe.sim.storing import Storing
from chappe.wire.relay_messages import Refusal, Welcomed

if TYPE_CHECKING:
    from chappe.sim.world import World


class Relay(Storing):
    def __init__(self, world: World, worker_id: str, name: str, line: Line, clock: HostClock) -> None:
        super().__init__(world, worker_id, name, line, clock)
        self.returns_s: float | None = None  # it starts again so long after an orderly stop
        self.machine = self._machine()
        self._wake: Entry | None = None
        self._inbox: list[RelayEvent] = []
        self._handling = False
        self.assigned: Assignment | None = None  # last, by this process

    def _machine(self) -> Transfer:
        mode = InstallMode.COMMAND if self.world.config.install_s is not None else InstallMode.NONE
        restored = [self.restored(copy) for copy in self.copies.values()]
        return Transfer(TransferConfig(mode), restored, self.world.random.random)

    # ---- the process -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.generation += 1
        for copy in self.copies.values():
            if not copy.version:
                self.recover(copy)
        self.opening, self.streams, self._inbox, self._wake = {}, {}, [], None
        self.assigned = None
        self.machine = self._machine()
        self.world.checks.bytes.versions(self)
        self.world.note(self.name, "starts", self.generation)
        self.begin()

    def kill(self) -> None:
        if not self.running:
            return
        self.world.note(self.name, "killed", "")
        self._end()
        for copy in self.copies.values():
            if not copy.version and copy.held:
                self.lose_journal(copy)

    def _end(self) -> None:
        super().kill()
        self.hang_up_all()

    def terminate(self, returns_s: float | None) -> None:
        """SIGTERM."""
        self.returns_s = returns_s
        self.run(self.life, self.handle, StopRequested())

    def _exit(self) -> None:
        self.leaving = True
        for stream in list(self.serving):
            self.end_stream(stream, ParentLossReason.LEAVING)
        self.world.note(self.name, "exits", "")
        returns_s = self.returns_s
        self._end()
        if returns_s is not None:
            self.returns_s = None
            self.agenda.after(returns_s, self.start)

    # ---- the machine -----------------------------------------------------------------------------------------------

    def handle(self, event: RelayEvent) -> None:
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inbox and self.running:
                event = self._inbox.pop(0)
                if not isinstance(event, Tick):
                    self.world.note(self.name, "", event)
                for effect in self.machine.handle(event, self.clock.boot()):
                    self._carry_out(effect)
        finally:
            self._handling = False

    def _carry_out(self, effect: RelayEffect) -> None:
        match effect:
            case OpenFetch():
                self.open_fetch(effect)
            case CloseFetch(fetch):
                self.close_fetch(fetch)
            case DrainFetch(fetch):
                self.drain_fetch(fetch)
            case ReportHolding(holding):
                self._report(lambda s: ev.HoldingChanged(self.worker_id, s, holding))
            case ReportConnected(edge):
                self._report(lambda s: ev.ParentConnected(self.worker_id, s, edge))
            case ReportLost(edge, reason):
                self._report(lambda s: ev.ParentLost(self.worker_id, s, edge, reason))
            case Acknowledge(epoch):
                self._report(lambda s: ev.Acknowledged(self.worker_id, s, epoch))
            case AskToLeave():
                self._report(lambda s: ev.LeaveRequested(self.worker_id, s))
            case OpenObject(object_id):
                self.copies.get(object_id) or self.add_copy(self.world.objects[object_id])
            case ResetObject(object_id):
                self.drop_object(object_id)
                self.add_copy(self.world.objects[object_id])
            case DropObject(object_id):
                self.drop_object(object_id)
                self.guard.forget(object_id)
            case AdmitChildren(edges):
                self.admit_children(Assignment(0, (), edges))
            case Land():
                self.later(self.world.random.uniform(*self.world.config.land_s), self.land, effect)
            case Mend(object_id):
                self.world.note(self.name, "mends", object_id)
            case Install(version):
                low, high = self.world.config.install_s or (0.0, 0.0)
                self.later(self.world.random.uniform(low, high), self.install, version)
            case Retain(objects, versions):
                self.retain(objects, versions)
            case WakeAt(time_s):
                if self._wake is not None:
                    self._wake.cancel()
                self._wake = self.later(max(0.0, time_s - self.clock.boot()) + 1e-6, self.handle, Tick())
            case Stop():
                self._exit()
            case Log() | Count():
                pass

    def _report(self, make: Callable[[int], ev.Event]) -> None:
        if self.session is not None:
            self.say(make(self.session.number))

    # ---- the coordinator -------------------------------------------------------------------------------------------

    def hello(self, session: int) -> object:
        declared = self.world.config.declared
        return ev.Hello(
            self.worker_id,
            session,
            Role.RELAY,
            self.name,
            self.generation,
            self.address,
            self.line.uplink_bytes_per_s if declared else None,
            self.line.downlink_bytes_per_s if declared else None,
            holdings=self.machine.holdings(),
            edges=self.machine.edges(),
            assignment_epoch=self.machine.assignment_epoch,
            no_dial_in=self.line.no_dial_in,
        )

    @property
    def address(self) -> str:
        port = self.generation if self.world.config.ports_change else 7401
        return f"{self.name}:{port}"

    def on_message(self, message: object) -> None:
        match message:
            case Welcomed():
                self.welcomed()
                self.handle(Connected())
            case Assigned(assignment):
                self.assigned = assignment
                self.handle(message)
            case Released():
                self.handle(message)
            case ProbeOrder():
                self.desk.run(message)
            case Refusal(reason):
                self.world.note(self.name, "refused", reason)

    def on_disconnected(self) -> None:
        self.handle(Disconnected())
