"""What a relay and an origin have in common: a process that lives, stops and dies, links, a guard, children, a session.

                 start            kill / exit
     (nothing) ────────▶ running ────────────▶ (nothing); its store stays
                          │   ▲
                    pause ▼   │ resume: what was due meanwhile happens now
                         paused

Work of a process is scheduled with `later`: it is dropped when the process has died, and waits while it is paused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chappe.core.ranges import RangeSet
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import Assignment
from chappe.hop.guard import AssignedChild, EdgeGuard, Refusal
from chappe.hop.stall import STALL_FLOOR_S
from chappe.sim.clock import Action, Entry, HostClock
from chappe.sim.copies import Copy, SimObject
from chappe.sim.flow import Stream, View
from chappe.sim.links import COORDINATOR, HANDSHAKES
from chappe.sim.session import CLOSE, HEARTBEAT, Session
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken, EndReason

if TYPE_CHECKING:
    from chappe.sim.world import World

KEEPALIVE_S = 15.0  # as gRPC is told: 10 s without data, then 5 s without an answer
DIAL_TIMEOUT_S = 5.0
RETRY_S_MIN, RETRY_S_MAX = 0.1, 2.0
SHARED_EXACTLY_MAX = 64
"""With more children than this an uplink is shared equally, without giving away what a slow child leaves."""


class SimGuard(EdgeGuard):
    """The real guard without the mathematics of signatures: nobody forges tokens here, and 10,000 relays hold many."""

    def read(self, token: EdgeToken) -> EdgeClaims:
        return EdgeClaims.FromString(token.claims)


@dataclass(slots=True, eq=False)
class Request:
    """A fetch that a child has opened, until it is a stream."""

    child: Node
    life: int
    fetch: int
    copy: Copy
    stripe: int
    token: bytes
    rejected: tuple[int, ...]
    stream: Stream | None = None  # as soon as the parent has taken the child in


@dataclass(frozen=True, slots=True)
class Line:
    """A host's own link."""

    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    latency_s: float


class Node:
    def __init__(self, world: World, worker_id: str, name: str, line: Line, clock: HostClock) -> None:
        self.world = world
        self.agenda = world.agenda
        self.network = world.network
        self.worker_id, self.name = worker_id, name
        self.line = line
        self.uplink_bytes_per_s, self.downlink_bytes_per_s = line.uplink_bytes_per_s, line.downlink_bytes_per_s
        self.clock = clock
        self.life = 0  # of the process: counts its starts
        self.running = False
        self.paused = False
        self.leaving = False
        self.corrupting = False
        self.guard = SimGuard(worker_id, stall_timeout_s=STALL_FLOOR_S)
        self.copies: dict[str, Copy] = {}
        self.serving: list[Stream] = []
        self.session: Session | None = None
        self.joined = False
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
        self.running, self.paused, self.leaving = True, False, False
        self.guard = SimGuard(self.worker_id, stall_timeout_s=STALL_FLOOR_S)
        self.guard.set_run(self.world.run, bytes(32))
        self.failures = 0
        self.dial()

    def kill(self) -> None:
        """The process ends here and now: its kernel resets every connection."""
        if not self.running:
            return
        for copy in self.copies.values():
            copy.settle(self.agenda.now)
        self.running, self.paused, self.joined = False, False, False
        self._postponed.clear()
        if self.session is not None:
            self.session.drop_by_node()
            self.session = None
        for stream in list(self.serving):
            self.release(stream)
            self.tell_child(stream, ParentLossReason.BROKEN)

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
        self.joined = True
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

    # ---- children --------------------------------------------------------------------------------------------------

    def admit_children(self, assignment: Assignment) -> None:
        self.assign_children(
            AssignedChild(e.object_id, e.stripe, s.slot, s.child.worker_id, s.child.name, s.generation, s.epoch)
            for e in assignment.edges
            for s in e.children
        )

    def assign_children(self, children: Iterable[AssignedChild]) -> None:
        children = list(children)
        self.guard.assign(children)
        self.world.checks.children_assigned(self, children)

    def admit(self, request: Request) -> None:
        """A child's request has arrived."""
        child, now = request.child, self.agenda.now
        if self.leaving:
            self._refuse(request, ParentLossReason.LEAVING)
            return
        for stream in self.serving:
            stream.ticket.progress(now if stream.blocked_s is None else stream.blocked_s)
        before = {ticket.slot: ticket for ticket in self.guard.children()}
        object_id = request.copy.object.object_id
        token = EdgeToken.FromString(request.token)
        ticket = self.guard.admit(token, object_id, request.stripe, now)
        if isinstance(ticket, Refusal):
            self._refuse(request, loss_of(ticket.reason))
            return
        copy = self.copies.get(object_id)
        if copy is None:
            self.guard.release(ticket)
            self._refuse(request, ParentLossReason.UNKNOWN_OBJECT)
            return
        self.world.checks.admitted(self, self.guard.read(token), before.get(ticket.slot), now)
        copy.settle(now)
        if request.rejected:
            self.recheck(copy, request.rejected)
        latency_s = self.network.latency_s(self.worker_id, child.worker_id)
        verify = self.world.config.verify
        stream = Stream(self.agenda, request.fetch, child, self, (request.copy, copy), ticket, latency_s, verify)
        ticket.on_end = lambda: self._evict(stream)
        copy.children.append(stream)
        self.serving.append(stream)
        self.world.checks.serving(self, stream)
        self.world.share(self)
        stream.delay_s = latency_s + (1 / stream.capacity if stream.capacity > 0 else 0.0)
        view = View(copy.header, copy.held.copy(), copy.track, now)
        request.stream = stream
        self.agenda.after(latency_s, self._reply, request, stream, view)

    def _reply(self, request: Request, stream: Stream, view: View) -> None:
        """The first message, at the child. Lost when nothing passes: the child gives up, and says so."""
        child = request.child
        if self.network.passes(self.worker_id, child.worker_id):
            child.run(request.life, child.connected, request, stream, view)

    def _refuse(self, request: Request, reason: ParentLossReason) -> None:
        latency_s = self.network.latency_s(self.worker_id, request.child.worker_id)
        self.agenda.after(latency_s, request.child.run, request.life, request.child.refused, request, reason)

    def recheck(self, copy: Copy, chunks: tuple[int, ...]) -> None:
        raise NotImplementedError

    def _evict(self, stream: Stream) -> None:
        reason = stream.ticket.ended_by
        assert reason is not None
        self.end_stream(stream, loss_of(reason))

    def end_stream(self, stream: Stream, reason: ParentLossReason) -> None:
        """This side ends it, and says so."""
        if stream in self.serving:
            self.release(stream)
            self.tell_child(stream, reason)

    def tell_child(self, stream: Stream, reason: ParentLossReason) -> None:
        if self.network.passes(self.worker_id, stream.child.worker_id):
            child = stream.child
            self.agenda.after(stream.latency_s, child.run, stream.child_life, child.stream_over, stream, reason, ())
        else:
            stream.orphaned = True  # the child will find out by the silence
            self.world.check_stream(stream)

    def release(self, stream: Stream) -> None:
        """The slot is free; nothing more is sent."""
        if stream not in self.serving:
            return
        self.serving.remove(stream)
        if stream in stream.source.children:
            stream.source.children.remove(stream)
        self.guard.release(stream.ticket)
        self.world.share(self)

    # ---- as a child: only relays are -------------------------------------------------------------------------------

    def connected(self, request: Request, stream: Stream, view: View) -> None:
        raise NotImplementedError

    def refused(self, request: Request, reason: ParentLossReason) -> None:
        raise NotImplementedError

    def stream_over(self, stream: Stream, reason: ParentLossReason | None, rejected: tuple[int, ...]) -> None:
        raise NotImplementedError

    def progress(self, copy: Copy) -> None:
        raise NotImplementedError

    def stored(self, stream: Stream, ranges: list[tuple[int, int]]) -> None:
        raise NotImplementedError

    def fetching(self) -> int:
        """How many streams this node's downlink is shared by."""
        return 0

    def drop_copy(self, copy: Copy) -> None:
        """It is gone from here: its children are told."""
        for stream in list(copy.children):
            self.end_stream(stream, ParentLossReason.DROPPED)

    def add_copy(self, obj: SimObject, held: RangeSet | None = None) -> Copy:
        copy = self.copies[obj.object_id] = Copy(obj, held if held is not None else RangeSet())
        return copy


def loss_of(reason: EndReason) -> ParentLossReason:
    return ParentLossReason(EndReason.Name(reason).removeprefix("END_REASON_").lower())
