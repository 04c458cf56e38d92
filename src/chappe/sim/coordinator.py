"""A simulated coordinator: the real fleet machine, its database as rows, its sessions, and its clock.

    event ──▶ Fleet.handle ──▶ rows written ──▶ messages down the sessions ──▶ timer

What is not written when it dies is lost. A restart may be on a rebooted host: its clock goes on as `RunClock` says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from chappe.coordinator.assignments import encode_assignment, encode_probe
from chappe.coordinator.runclock import RunClock
from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.effects import Effect
from chappe.core.fleet import Fleet
from chappe.core.publication import Publication
from chappe.core.relay_events import Assigned, Released
from chappe.core.rows import Json, RowKey, Rows, assemble
from chappe.core.state import FleetConfig, FleetState
from chappe.sim.clock import Entry, HostClock
from chappe.sim.links import COORDINATOR, HANDSHAKES
from chappe.sim.session import CLOSE, HEARTBEAT, Session
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken
from chappe.wire.relay_messages import Refusal, Welcomed, decode_assignment, decode_probe_order

if TYPE_CHECKING:
    from chappe.sim.world import World

K = TypeVar("K")

DIAL_BACK_S = 3.0
DIAL_AGAIN_S = 15.0  # twice as long each time, as `chappe.coordinator.dialback` has it
DIAL_AGAIN_MAX_S = 600.0
"""As the coordinator waits for an address that does not answer."""


def unsigned(claims: EdgeClaims) -> EdgeToken:
    """What `SimGuard` reads."""
    return EdgeToken(claims=claims.SerializeToString(deterministic=True))


def _put(table: dict[K, str], key: K, row: Json | None) -> None:
    if row is None:
        table.pop(key, None)
    else:
        table[key] = json.dumps(row)


class Coordinator:
    def __init__(self, world: World, config: FleetConfig, clock: HostClock) -> None:
        self.world = world
        self.config = config
        self.clock = clock
        self.running = False
        self.since_s = 0.0  # on the agenda: when this process began
        self.sessions: dict[int, Session] = {}
        self._mark: dict[str, Any] | None = None
        self._workers: dict[str, str] = {}
        self._publications: dict[str, dict[RowKey, str]] = {}
        self._written: dict[str, Rows] = {}
        self._reserved = 0
        self._wake: Entry | None = None
        self.fleet = Fleet(config)
        self._run_clock = RunClock.resume(None, clock.boot_id, clock.boot, clock.wall)

    # ---- the process -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._run_clock = RunClock.resume(self._mark, self.clock.boot_id, self.clock.boot, self.clock.wall)
        workers = [json.loads(row) for row in self._workers.values()]
        publications = [
            assemble({key: json.loads(row) for key, row in rows.items()}) for rows in self._publications.values()
        ]
        state = FleetState.from_rows(workers, publications, self._reserved, self._run_clock.saved_s)
        self._written = {key: Rows() for key in state.publications}
        for key, publication in state.publications.items():
            self._written[key].changes(publication)
        self.fleet = Fleet(self.config, state)
        self.running = True
        self.since_s = self.world.agenda.now
        self.world.note("coordinator", "starts", "")
        self.handle(ev.Tick())

    def kill(self) -> None:
        self.running = False
        self.world.note("coordinator", "killed", "")
        if self._wake is not None:
            self._wake.cancel()
        for session in self.sessions.values():
            session.drop_by_coordinator()
        self.sessions = {}

    def now(self) -> float:
        return self._run_clock.now()

    # ---- events ----------------------------------------------------------------------------------------------------

    def receive(self, session: Session, message: object) -> None:
        if not self.running or session.since_s != self.since_s:
            session.drop_by_coordinator()  # of a connection that its kernel knows nothing of
            return
        if isinstance(message, ev.Hello):
            self.sessions[session.number] = session
        elif session.number not in self.sessions:
            return
        if message is CLOSE:
            del self.sessions[session.number]
            session.drop_by_coordinator()
            self.handle(ev.SessionLost(session.worker_id, session.number))
            return
        if not isinstance(message, ev.Hello):
            self.handle(ev.Heard(session.worker_id, session.number))
        if message is not HEARTBEAT:
            self.handle(message)  # type: ignore[arg-type]
        if isinstance(message, ev.Hello) and session.number in self.sessions and not message.no_dial_in:
            self._dial_back(session, message, DIAL_AGAIN_S)

    def _dial_back(self, session: Session, hello: ev.Hello, pause_s: float) -> None:
        """Try the address that it advertises; one that is silent is given up after a while, and tried again later."""
        node, network = session.node, self.world.network
        heard = network.both(COORDINATOR, node.worker_id) and not node.natted
        there = node.running and node.address == hello.address
        latency_s = network.latency_s(COORDINATOR, node.worker_id)
        delay_s = (1 + HANDSHAKES) * latency_s if heard else DIAL_BACK_S
        self.world.agenda.after(delay_s, self._dialled_back, session, hello, self.since_s, heard and there, pause_s)

    def _dialled_back(self, session: Session, hello: ev.Hello, since_s: float, reachable: bool, pause_s: float) -> None:
        if not self.running or self.since_s != since_s or session.number not in self.sessions:
            return
        self.handle(ev.DialedBack(session.worker_id, session.number, reachable))
        if not reachable:
            self.world.agenda.after(pause_s, self._dial_again, session, hello, since_s, pause_s)

    def _dial_again(self, session: Session, hello: ev.Hello, since_s: float, pause_s: float) -> None:
        if self.running and self.since_s == since_s and session.number in self.sessions:
            self._dial_back(session, hello, min(2 * pause_s, DIAL_AGAIN_MAX_S))

    def handle(self, event: ev.Event) -> None:
        effects = self.fleet.handle(event, self._run_clock.now())
        if not effects and isinstance(event, ev.Heard | ev.Tick):
            return
        if not isinstance(event, ev.Heard | ev.Tick):
            self.world.note("coordinator", "hears", event)
        for effect in effects:
            if isinstance(effect, fx.Log):
                self.world.note("coordinator", f"{effect.event} {effect.reason}", effect.fields)
                self.world.checks.slowness.decided(effect)
                self.world.checks.lanes.decided(effect)
                self.world.checks.stripes.decided(effect)
                self.world.checks.streamed.decided(effect)
            elif isinstance(effect, fx.PublishFinished):
                self.world.checks.streamed.finished(effect)
        if self.world.config.persist:
            self._write(effects)
        self.world.checks.fleet_moved(event, effects)
        for effect in effects:
            self._carry_out(effect)

    def _write(self, effects: list[Effect]) -> None:
        state = self.fleet.state
        for effect in effects:
            match effect:
                case fx.PersistWorker(key) | fx.ForgetWorker(key):
                    worker = state.workers.get(key)
                    _put(self._workers, key, None if worker is None else worker.to_json())
                case fx.PersistPublication(key):
                    self._write_publication(key, state.publications.get(key))
                case fx.PersistEpoch(reserved):
                    self._reserved = reserved
                case _:
                    continue
            self._mark = self._run_clock.mark()

    def _write_publication(self, object_id: str, publication: Publication | None) -> None:
        if publication is None:
            self._publications.pop(object_id, None)
            self._written.pop(object_id, None)
            return
        rows = self._publications.setdefault(object_id, {})
        for key, row in self._written.setdefault(object_id, Rows()).changes(publication).items():
            _put(rows, key, row)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case fx.Assign(session=number):
                if number in self.sessions:
                    message = encode_assignment(effect, self.config.run, unsigned)
                    self.sessions[number].down.send(Assigned(decode_assignment(message.assignment)))
            case fx.Welcome(session=number):
                if number in self.sessions:
                    welcome = Welcomed(self.config.run, b"", self.config.lease_s, self.world.config.heartbeat_s)
                    self.sessions[number].down.send(welcome)
            case fx.StartProbe(session=number):
                self.world.checks.hops.probe_ordered(effect)
                if number in self.sessions:
                    message = encode_probe(effect, self.config.run, unsigned)
                    self.sessions[number].down.send(decode_probe_order(message.probe))
            case fx.Release(session=number):
                if number in self.sessions:
                    self.sessions[number].down.send(Released())
            case fx.Refuse(session=number, reason=reason):
                self._close(number, Refusal(reason))
            case fx.Replace(session=number):
                self._close(number, None)
            case fx.WakeAt(time_s):
                if self._wake is not None:
                    self._wake.cancel()
                delay_s = max(0.0, time_s - self._run_clock.now())
                self._wake = self.world.agenda.after(delay_s + 1e-6, self._tick)
            case fx.PublishAccepted() | fx.PublishAlready() | fx.RequestRefused() | fx.RequestDone():
                self.world.answer(effect.request, effect)
            case fx.PublishFinished(_, requests):
                for request in requests:
                    self.world.answer(request, effect)
            case _:
                pass

    def _close(self, number: int, last_word: object) -> None:
        session = self.sessions.pop(number, None)
        if session is not None:
            if last_word is not None:
                session.down.send(last_word)
            session.drop_by_coordinator()

    def _tick(self) -> None:
        if self.running:
            self.handle(ev.Tick())
