"""A simulated process and its stream to the coordinator: it lives, is paused, dies, dials for ever, beats its heart.

                 begin            kill / exit
     (nothing) ────────▶ running ────────────▶ (nothing); what is on its disk stays
                          │   ▲
                    pause ▼   │ resume: what was due meanwhile happens now
                         paused

Work of a process is scheduled with `later`: it is dropped when the process has died, and waits while it is paused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chappe.sim.clock import Action, Entry, HostClock
from chappe.sim.links import COORDINATOR, HANDSHAKES
from chappe.sim.session import CLOSE, HEARTBEAT, Session

if TYPE_CHECKING:
    from chappe.sim.world import World

KEEPALIVE_S = 15.0  # as gRPC is told: 10 s without data, then 5 s without an answer
DIAL_TIMEOUT_S = 5.0
RETRY_S_MIN, RETRY_S_MAX = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """A host's own link. Behind NAT nobody can dial it; it may say so when it joins (`no_dial_in`), or not know."""

    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    latency_s: float
    natted: bool = False
    no_dial_in: bool = False


class Process:
    def __init__(self, world: World, worker_id: str, name: str, line: Line, clock: HostClock) -> None:
        self.world = world
        self.agenda = world.agenda
        self.network = world.network
        self.worker_id, self.name = worker_id, name
        self.line = line
        self.natted = line.natted  # nobody can dial it
        self.clock = clock
        self.life = 0  # counts its starts
        self.running = False
        self.paused = False
        self.leaving = False
        self.session: Session | None = None
        self.joined = False
        self.joined_s = 0.0
        self.failures = 0
        self._postponed: list[tuple[int, Action, tuple[Any, ...]]] = []
        world.network.add(worker_id, line.latency_s)

    @property
    def address(self) -> str:
        return f"{self.name}:7401"

    # ---- the process -----------------------------------------------------------------------------------------------

    def later(self, delay_s: float, action: Action, *arguments: Any) -> Entry:
        return self.agenda.after(delay_s, self.run, self.life, action, *arguments)

    def run(self, life: int, action: Action, *arguments: Any) -> None:
        """As this process, if it is still that one."""
        if life != self.life or not self.running:
            return
        if self.paused:
            self._postponed.append((life, action, arguments))
        else:
            action(*arguments)

    def begin(self) -> None:
        self.life += 1
        self.world.disturbed()
        self.running, self.paused, self.leaving = True, False, False
        self.failures = 0
        self.dial()

    def kill(self) -> None:
        """The process ends here and now: its kernel resets every connection."""
        if not self.running:
            return
        self.running, self.paused, self.joined = False, False, False
        self._postponed.clear()
        if self.session is not None:
            self.session.drop_by_node()
            self.session = None

    def pause(self) -> None:
        self.paused = True
        self.world.network_changed()

    def resume(self) -> None:
        self.paused = False
        self.world.network_changed()
        postponed, self._postponed = self._postponed, []
        for life, action, arguments in postponed:
            self.run(life, action, *arguments)

    # ---- the coordinator -------------------------------------------------------------------------------------------

    def dial(self) -> None:
        if self.session is not None:
            return
        if not self.network.both(self.worker_id, COORDINATOR):
            self.later(DIAL_TIMEOUT_S, self._dial_failed)
        elif not self.world.coordinator.running:
            self.later(2 * self.network.latency_s(self.worker_id, COORDINATOR), self._dial_failed)
        else:
            self.session = Session(self.world, self)
            handshake_s = HANDSHAKES * self.network.latency_s(self.worker_id, COORDINATOR)
            self.session.up.send(self.hello(self.session.number), handshake_s)

    def _dial_failed(self) -> None:
        self.failures += 1
        self._redial()

    def _redial(self) -> None:
        base_s = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(self.failures, 8))
        self.later(base_s * (0.5 + self.world.random.random()), self.dial)

    def hello(self, session: int) -> object:
        raise NotImplementedError

    def receive(self, session: Session, message: object) -> None:
        """From the coordinator's stream."""
        self.run(self.life, self._receive, session, message)

    def _receive(self, session: Session, message: object) -> None:
        if session is not self.session:
            return
        if message is CLOSE:
            self.session_over()
        else:
            self.on_message(message)

    def on_message(self, message: object) -> None:
        raise NotImplementedError

    def session_over(self) -> None:
        if self.session is None:
            return
        self.session.drop_by_node()
        self.session = None
        was_joined, self.joined = self.joined, False
        if was_joined:
            self.failures = 0
            self.on_disconnected()
        else:
            self.failures += 1
        self._redial()

    def on_disconnected(self) -> None:
        pass

    def welcomed(self) -> None:
        self.joined, self.joined_s = True, self.agenda.now
        assert self.session is not None
        self._beat(self.session)

    def _beat(self, session: Session) -> None:
        if session is self.session:
            session.up.send(HEARTBEAT)
            self.later(self.world.config.heartbeat_s, self._beat, session)

    def say(self, event: object) -> None:
        """To the coordinator: behind this stream's Hello, or, without a stream, in the next one's."""
        if self.session is not None:
            self.session.up.send(event)

    def watch_session(self) -> None:
        """Who hears whom has changed: a dead path is noticed by the keepalive."""
        session = self.session
        if session is None or session.watched or self.network.both(self.worker_id, COORDINATOR):
            return
        session.watched = True
        self.later(KEEPALIVE_S, self._keepalive, session, self.network.changes)

    def _keepalive(self, session: Session, seen: int) -> None:
        session.watched = False
        if session is not self.session:
            return
        if not self.network.both(self.worker_id, COORDINATOR) and seen == self.network.changes:
            self.session_over()
        else:
            self.watch_session()
