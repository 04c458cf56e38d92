"""A relay as a child: its requests on their way, its streams, and how each of them ends. Others say what to fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import (
    FetchConnected,
    FetchEnded,
    LocalFault,
    OpenFetch,
    Progress,
    RelayEvent,
)
from chappe.hop.stall import STALL_FLOOR_S, StallRule
from chappe.sim.clock import HostClock
from chappe.sim.copies import Copy
from chappe.sim.flow import Stream
from chappe.sim.links import HANDSHAKES
from chappe.sim.node import Answer, Node, Request
from chappe.sim.probing import BUSY
from chappe.sim.process import KEEPALIVE_S, Line
from chappe.sim.pushing import PARK_S
from chappe.sim.tracks import View
from chappe.v1.relay_pb2 import EdgeClaims

if TYPE_CHECKING:
    from chappe.sim.world import World

RESEND_S = 1.0  # what was lost on a path that was cut is sent again so often
PUSH_WAIT_S = 6.0
"""As relayd waits for a parent that dials."""


class Fetcher(Node):
    def __init__(self, world: World, worker_id: str, name: str, line: Line, clock: HostClock) -> None:
        super().__init__(world, worker_id, name, line, clock)
        self.opening: dict[int, Request] = {}
        self.streams: dict[int, Stream] = {}
        self.patience = StallRule()
        self.disk_full = False
        self.generation = 0
        self._awaited: dict[tuple[str, int], tuple[Request, str, int]] = {}  # waits for this parent, of this epoch
        self._parked: dict[tuple[str, int, str], tuple[EdgeClaims, Answer]] = {}  # calls of parents

    def handle(self, event: RelayEvent) -> None:
        raise NotImplementedError

    def hang_up_all(self) -> None:
        """The process has ended."""
        for request in self.opening.values():
            self._hang_up(request)
        for stream in list(self.streams.values()):
            stream.stop()
            self.hang_up(stream)
        for _, answer in self._parked.values():
            answer(None)
        self.opening, self.streams, self._awaited, self._parked = {}, {}, {}, {}

    @property
    def flowing(self) -> bool:
        return bool(self.serving or self.streams or self.opening)

    def relink(self) -> None:
        super().relink()
        self.world.share_downlink(self)

    def fetching(self) -> float:
        return sum(stream.weight for stream in self.streams.values() if stream.blocked_s is None)

    def open_fetch(self, order: OpenFetch) -> None:
        copy = self.copies.get(order.object_id) or self.add_copy(self.world.objects[order.object_id])
        request = Request(
            self, self.life, order.fetch, copy, order.stripe, order.source.token, order.rejected, order.stripes
        )
        self.opening[order.fetch] = request
        self.desk.give_up(BUSY)
        parent = self.world.nodes.get(order.source.peer.worker_id)
        if self.disk_full:
            self.later(0.001, self._fail, request, LocalFault.DISK_FULL)
            return
        if order.source.dials:
            self._await_call(request, order)
            return
        self.later(2 * STALL_FLOOR_S, self._fail, request, ParentLossReason.UNREACHABLE)
        if parent is None or not self.network.both(self.worker_id, parent.worker_id):
            return
        self.world.checks.hops.dials(self, parent)
        if parent.natted:
            return
        latency_s = self.network.latency_s(self.worker_id, parent.worker_id)
        if not parent.running or order.source.peer.address != parent.address:
            self.later(2 * latency_s, self._fail, request, ParentLossReason.UNREACHABLE)
        else:
            self.agenda.after((1 + HANDSHAKES) * latency_s, self._arrive, request, parent, parent.life)

    def _await_call(self, request: Request, order: OpenFetch) -> None:
        key = (order.object_id, order.stripe)
        older = self._awaited.get(key)
        self._awaited[key] = (request, order.source.peer.worker_id, order.epoch)
        if older is not None:
            self._fail(older[0], ParentLossReason.EVICTED)
        self.later(PUSH_WAIT_S, self._fail, request, ParentLossReason.UNREACHABLE)
        for parked in [k for k in self._parked if k[:2] == key]:
            self._take_call(*self._parked.pop(parked))

    def called(self, claims: EdgeClaims, answer: Answer) -> None:
        key = (claims.object_id, claims.stripe, claims.parent)
        older = self._parked.pop(key, None)
        if older is not None:
            older[1](None, unwanted=True)
        if key[:2] in self._awaited:
            self._take_call(claims, answer)
        else:
            self._parked[key] = claims, answer
            self.later(PARK_S, self._unpark, key, answer)

    def _unpark(self, key: tuple[str, int, str], answer: Answer) -> None:
        if self._parked.get(key, (None, None))[1] is answer:
            del self._parked[key]
            answer(None, unwanted=True)

    def _take_call(self, claims: EdgeClaims, answer: Answer) -> None:
        request, parent_id, epoch = self._awaited[claims.object_id, claims.stripe]
        mine = (claims.child, claims.child_generation) == (self.worker_id, self.generation)
        if not mine or claims.parent != parent_id or claims.epoch < epoch:
            answer(None)
            return
        if answer(request) and (stream := self.streams.pop(request.fetch, None)) is not None:
            self._stop(stream)  # the same parent calls again: its old stream is dead
            self.opening[request.fetch] = request

    def _arrive(self, request: Request, parent: Node, life: int) -> None:
        """At the parent. A child that has hung up meanwhile is not served."""
        if self.opening.get(request.fetch) is request:
            parent.run(life, parent.admit, request)

    def _fail(self, request: Request, reason: ParentLossReason | LocalFault) -> None:
        if self.opening.get(request.fetch) is request:
            del self.opening[request.fetch]
            self._wait_no_more(request.fetch)
            self._hang_up(request)
            self.handle(FetchEnded(request.fetch, reason))

    def refused(self, request: Request, reason: ParentLossReason) -> None:
        self._fail(request, reason)

    def asks(self, request: Request) -> bool:
        return request.life == self.life and self.opening.get(request.fetch) is request

    def connected(self, request: Request, stream: Stream, view: View) -> None:
        if self.opening.pop(request.fetch, None) is not request:
            self.hang_up(stream)  # it was closed meanwhile
            return
        self.streams[stream.fetch] = stream
        self.hops.begin(stream, sending=False)
        stream.before = (len(stream.copy.held), stream.copy.header)
        self.world.share_downlink(self)
        self.handle(FetchConnected(stream.fetch))
        if self.streams.get(stream.fetch) is not stream:
            return
        self.world.check_stream(stream)
        stream.begin(view)
        self.world.checks.stripes.begins(self, stream)
        self._watch(stream)

    def _watch(self, stream: Stream) -> None:
        """Report about once in the interval, if anything came."""
        interval_s = self.world.config.progress_s
        if interval_s is not None and self.streams.get(stream.fetch) is stream:
            self.progress(stream.copy)
            self.later(interval_s, self._watch, stream)

    def progress(self, copy: Copy) -> None:
        copy.settle(self.agenda.now)
        if copy.told != (told := (len(copy.held), copy.header)):
            copy.told = told
            self.handle(Progress(copy.object.object_id, tuple(iter(copy.held)), copy.total))

    def _hang_up(self, request: Request) -> None:
        """It may have been admitted a moment ago."""
        if request.stream is not None:
            self.hang_up(request.stream)

    def close_fetch(self, fetch: int) -> None:
        self._wait_no_more(fetch)
        request = self.opening.pop(fetch, None)
        if request is not None:
            self._hang_up(request)
        stream = self.streams.pop(fetch, None)
        if stream is not None:
            self._stop(stream)

    def drain_fetch(self, fetch: int) -> None:
        """A fluid has nothing on its way that would be lost; that the parent stops is heard a round trip later."""
        stream = self.streams.get(fetch)
        self.close_fetch(fetch)
        self.later(0.0 if stream is None else 2 * stream.latency_s, self.handle, FetchEnded(fetch, None))

    def _wait_no_more(self, fetch: int) -> None:
        self._awaited = {key: waiting for key, waiting in self._awaited.items() if waiting[0].fetch != fetch}

    def _stop(self, stream: Stream) -> None:
        stream.stop()
        self.hops.end(stream, sending=False)
        self.hang_up(stream)
        self.world.share_downlink(self)

    def hang_up(self, stream: Stream, silent_s: float = 0.0) -> None:
        """This end is gone, or never was; the parent's kernel learns it as soon as it can, at the latest by pings."""
        parent = stream.parent
        if stream.blocked_s is None:
            stream.blocked_s = self.agenda.now
        if self.network.both(self.worker_id, parent.worker_id):
            self.agenda.after(stream.latency_s, parent.run, parent.life, parent.release, stream)
        elif silent_s >= KEEPALIVE_S:
            parent.run(parent.life, parent.release, stream)
        elif stream in parent.serving:
            self.agenda.after(RESEND_S, self.hang_up, stream, silent_s + RESEND_S)

    def stream_over(
        self, stream: Stream, reason: ParentLossReason | LocalFault | None, rejected: tuple[int, ...]
    ) -> None:
        if self.streams.get(stream.fetch) is not stream:
            request = self.opening.get(stream.fetch)
            if request is not None and request.copy is stream.copy and isinstance(reason, ParentLossReason):
                self._fail(request, reason)  # ended before its first message came
            return
        self.close_fetch(stream.fetch)
        self.progress(stream.copy)
        if stream.stripes.plain:
            progressed = (len(stream.copy.held), stream.copy.header) != stream.before
        else:  # others fill the same copy
            progressed = bool(stream.took) or stream.copy.header != stream.before[1]
        stalled = reason is ParentLossReason.STALLED
        self.patience.ended(stream.parent.worker_id, stalled=stalled, progressed=progressed)
        self.handle(FetchEnded(stream.fetch, reason, "", rejected, progressed))

    def stalled(self, stream: Stream, since_s: float) -> None:
        if stream.blocked_s == since_s and not stream.ended:
            self.stream_over(stream, ParentLossReason.STALLED, ())

    def stored(self, stream: Stream, ranges: list[tuple[int, int]], new: int) -> None:
        self.world.checks.bytes.stored(self, stream, ranges)
        self.world.checks.stripes.stored(self, stream, ranges, new)
        self.world.checks.streamed.stored(self, stream, ranges)
