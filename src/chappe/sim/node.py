"""What a relay and an origin have in common beside their process: copies of objects, a guard, and children to serve.

request ──▶ guard ──▶ refused, or admitted ──▶ stream, until it is complete, ended from either side, or cut off

Children that cannot dial are dialled (`pushing`), what hops carry is measured (`hops`), idle links are (`probing`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

from chappe.core.ranges import RangeSet
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import Assignment
from chappe.core.stripemap import PLAIN, StripeMap
from chappe.hop.guard import AssignedChild, EdgeGuard, Refusal, Ticket
from chappe.hop.stall import STALL_FLOOR_S
from chappe.sim.clock import HostClock
from chappe.sim.copies import Copy, SimObject
from chappe.sim.flow import Stream
from chappe.sim.hops import Hops
from chappe.sim.probing import BUSY, ProbeDesk
from chappe.sim.process import Line, Process
from chappe.sim.pushing import Pushes
from chappe.sim.stripes import view_of
from chappe.sim.tracks import View
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken, EndReason

if TYPE_CHECKING:
    from chappe.sim.world import World

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
    stripes: StripeMap = PLAIN
    stream: Stream | None = None  # as soon as the parent has taken the child in


class Answer(Protocol):
    """To a parent's call. False: nobody hears it."""

    def __call__(self, request: Request | None, unwanted: bool = ...) -> bool: ...


class Node(Process):
    def __init__(self, world: World, worker_id: str, name: str, line: Line, clock: HostClock) -> None:
        super().__init__(world, worker_id, name, line, clock)
        self.uplink_bytes_per_s, self.downlink_bytes_per_s = line.uplink_bytes_per_s, line.downlink_bytes_per_s
        self.slowed: list[tuple[float, float]] = []  # by faults: the share that is left of its uplink and its downlink
        self.ever_slowed = False
        self.guard = SimGuard(worker_id, stall_timeout_s=STALL_FLOOR_S)
        self.copies: dict[str, Copy] = {}
        self.serving: list[Stream] = []
        self.hops, self.desk, self.pushes = Hops(self), ProbeDesk(self), Pushes(self)

    def relink(self) -> None:
        """`slowed` has changed."""
        self.ever_slowed = self.world.ever_slowed = True
        self.uplink_bytes_per_s = self.line.uplink_bytes_per_s * prod(up for up, _ in self.slowed)
        self.downlink_bytes_per_s = self.line.downlink_bytes_per_s * prod(down for _, down in self.slowed)
        self.world.share(self)

    @property
    def flowing(self) -> bool:
        """An object is being received or sent, or is about to be."""
        return bool(self.serving)

    def begin(self) -> None:
        self.hops, self.desk, self.pushes = Hops(self), ProbeDesk(self), Pushes(self)
        self.guard = SimGuard(self.worker_id, stall_timeout_s=STALL_FLOOR_S)
        self.guard.set_run(self.world.run, bytes(32))
        super().begin()

    def kill(self) -> None:
        if not self.running:
            return
        for copy in self.copies.values():
            copy.settle(self.agenda.now)
        self.desk.give_up("its process has ended")
        super().kill()
        for stream in list(self.serving):
            self.release(stream)
            self.tell_child(stream, ParentLossReason.BROKEN)

    # ---- children --------------------------------------------------------------------------------------------------

    def admit_children(self, assignment: Assignment) -> None:
        self.assign_children(
            AssignedChild(e.object_id, e.stripe, s.slot, s.child.worker_id, s.child.name, s.generation, s.epoch)
            for e in assignment.edges
            for s in e.children
        )
        self.pushes.assign(assignment.edges)

    def assign_children(self, children: Iterable[AssignedChild]) -> None:
        children = list(children)
        self.guard.assign(children)
        self.world.checks.children_assigned(self, children)

    def admit(self, request: Request) -> None:
        """A child's request has arrived."""
        if self.leaving:
            self.refuse(request, ParentLossReason.LEAVING)
            return
        object_id = request.copy.object.object_id
        copy = self.copies.get(object_id)
        if copy is None:
            self.refuse(request, ParentLossReason.UNKNOWN_OBJECT)
            return
        ticket = self.ticket(request.token, object_id, request.stripe)
        if isinstance(ticket, ParentLossReason):
            self.refuse(request, ticket)
            return
        self.serve(request, copy, ticket)

    def ticket(self, serialized: bytes, object_id: str, stripe: int) -> Ticket | ParentLossReason:
        """May this child be served now? What it replaces is evicted."""
        now = self.agenda.now
        for stream in self.serving:
            stream.ticket.progress(now if stream.blocked_s is None else stream.blocked_s)
        before = {ticket.slot: ticket for ticket in self.guard.children()}
        token = EdgeToken.FromString(serialized)
        ticket = self.guard.admit(token, object_id, stripe, now)
        if isinstance(ticket, Refusal):
            return loss_of(ticket.reason)
        self.world.checks.admitted(self, self.guard.read(token), before.get(ticket.slot), now)
        return ticket

    def serve(self, request: Request, copy: Copy, ticket: Ticket) -> None:
        """A child that has its ticket."""
        child, now = request.child, self.agenda.now
        self.desk.give_up(BUSY)
        copy.settle(now)
        if request.rejected:
            self.recheck(copy, request.rejected)
        latency_s = self.network.latency_s(self.worker_id, child.worker_id)
        verify = self.world.config.verify
        ends = (request.copy, copy)
        stream = Stream(self.agenda, request.fetch, child, self, ends, ticket, latency_s, verify, request.stripes)
        ticket.on_end = lambda: self._evict(stream)
        copy.children.append(stream)
        self.serving.append(stream)
        self.hops.begin(stream, sending=True)
        self.world.checks.serving(self, stream, wanted=child.asks(request))
        self.world.share(self)
        stream.delay_s = latency_s + (1 / stream.capacity if stream.capacity > 0 else 0.0)
        view = view_of(copy, stream.stripe, now)
        request.stream = stream
        self.agenda.after(latency_s, self._reply, request, stream, view)

    def _reply(self, request: Request, stream: Stream, view: View) -> None:
        """The first message, at the child. Lost when nothing passes: the child gives up, and says so. One that gave up
        before it was admitted (this process was paused) has nobody there any more: its kernel answers."""
        child = request.child
        if not child.asks(request):
            child.hang_up(stream)
        elif self.network.passes(self.worker_id, child.worker_id):
            child.run(request.life, child.connected, request, stream, view)

    def refuse(self, request: Request, reason: ParentLossReason) -> None:
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
        self.hops.end(stream, sending=True)
        self.serving.remove(stream)
        if stream in stream.source.children:
            stream.source.children.remove(stream)
        self.guard.release(stream.ticket)
        self.pushes.ended(stream.ticket, complete=stream.copy.complete)
        self.world.share(self)

    # ---- as a child: only relays are -------------------------------------------------------------------------------

    def called(self, claims: EdgeClaims, answer: Answer) -> None:
        """A parent dials: it is answered when something is wanted of it, or not wanted for long."""
        raise NotImplementedError

    def asks(self, request: Request) -> bool:
        """It still waits for an answer to this request."""
        raise NotImplementedError

    def hang_up(self, stream: Stream) -> None:
        """Nothing is wanted of this stream at the child's end any more."""
        raise NotImplementedError

    def connected(self, request: Request, stream: Stream, view: View) -> None:
        raise NotImplementedError

    def refused(self, request: Request, reason: ParentLossReason) -> None:
        raise NotImplementedError

    def stream_over(self, stream: Stream, reason: ParentLossReason | None, rejected: tuple[int, ...]) -> None:
        raise NotImplementedError

    def progress(self, copy: Copy) -> None:
        raise NotImplementedError

    def stored(self, stream: Stream, ranges: list[tuple[int, int]], new: int) -> None:
        raise NotImplementedError

    def fetching(self) -> float:
        """The weights of the streams by which this node's downlink is shared."""
        return 0.0

    def drop_copy(self, copy: Copy) -> None:
        """It is gone from here: its children are told."""
        for stream in list(copy.children):
            self.end_stream(stream, ParentLossReason.DROPPED)

    def add_copy(self, obj: SimObject, held: RangeSet | None = None) -> Copy:
        copy = self.copies[obj.object_id] = Copy(obj, held if held is not None else RangeSet())
        return copy


def loss_of(reason: EndReason) -> ParentLossReason:
    return ParentLossReason(EndReason.Name(reason).removeprefix("END_REASON_").lower())
