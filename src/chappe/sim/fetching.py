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
from chappe.sim.node import Node, Request
from chappe.sim.process import KEEPALIVE_S, Line
from chappe.sim.tracks import View

if TYPE_CHECKING:
    from chappe.sim.world import World


class Fetcher(Node):
    def __init__(self, world: World, worker_id: str, name: str, line: Line, clock: HostClock) -> None:
        super().__init__(world, worker_id, name, line, clock)
        self.opening: dict[int, Request] = {}
        self.streams: dict[int, Stream] = {}
        self.patience = StallRule()
        self.disk_full = False

    def handle(self, event: RelayEvent) -> None:
        raise NotImplementedError

    def hang_up_all(self) -> None:
        """The process has ended."""
        for request in self.opening.values():
            self._hang_up(request)
        for stream in list(self.streams.values()):
            stream.stop()
            self._tell_parent(stream)
        self.opening, self.streams = {}, {}

    def fetching(self) -> int:
        return sum(stream.blocked_s is None for stream in self.streams.values())

    def open_fetch(self, order: OpenFetch) -> None:
        copy = self.copies.get(order.object_id) or self.add_copy(self.world.objects[order.object_id])
        request = Request(self, self.life, order.fetch, copy, order.stripe, order.source.token, order.rejected)
        self.opening[order.fetch] = request
        parent = self.world.nodes.get(order.source.peer.worker_id)
        if self.disk_full:
            self.later(0.001, self._fail, request, LocalFault.DISK_FULL)
            return
        self.later(2 * STALL_FLOOR_S, self._fail, request, ParentLossReason.UNREACHABLE)
        if parent is None or not self.network.both(self.worker_id, parent.worker_id):
            return
        latency_s = self.network.latency_s(self.worker_id, parent.worker_id)
        if not parent.running or order.source.peer.address != parent.address:
            self.later(2 * latency_s, self._fail, request, ParentLossReason.UNREACHABLE)
        else:
            self.agenda.after((1 + HANDSHAKES) * latency_s, self._arrive, request, parent, parent.life)

    def _arrive(self, request: Request, parent: Node, life: int) -> None:
        """At the parent. A child that has hung up meanwhile is not served."""
        if self.opening.get(request.fetch) is request:
            parent.run(life, parent.admit, request)

    def _fail(self, request: Request, reason: ParentLossReason | LocalFault) -> None:
        if self.opening.get(request.fetch) is request:
            del self.opening[request.fetch]
            self._hang_up(request)
            self.handle(FetchEnded(request.fetch, reason))

    def refused(self, request: Request, reason: ParentLossReason) -> None:
        self._fail(request, reason)

    def connected(self, request: Request, stream: Stream, view: View) -> None:
        if self.opening.pop(request.fetch, None) is not request:
            return  # it was closed meanwhile
        self.streams[stream.fetch] = stream
        stream.before = (len(stream.copy.held), stream.copy.header)
        self.world.share_downlink(self)
        self.handle(FetchConnected(stream.fetch))
        if self.streams.get(stream.fetch) is not stream:
            return
        self.world.check_stream(stream)
        stream.begin(view)
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
            total = copy.object.chunks_total if copy.header else None
            self.handle(Progress(copy.object.object_id, tuple(iter(copy.held)), total))

    def _hang_up(self, request: Request) -> None:
        """It may have been admitted a moment ago."""
        if request.stream is not None:
            self._tell_parent(request.stream)

    def close_fetch(self, fetch: int) -> None:
        request = self.opening.pop(fetch, None)
        if request is not None:
            self._hang_up(request)
        stream = self.streams.pop(fetch, None)
        if stream is not None:
            stream.stop()
            self._tell_parent(stream)
            self.world.share_downlink(self)

    def _tell_parent(self, stream: Stream) -> None:
        """This end is gone; the parent's kernel learns it if it can."""
        parent = stream.parent
        heard = self.network.both(self.worker_id, parent.worker_id)
        if stream.blocked_s is None:
            stream.blocked_s = self.agenda.now
        self.agenda.after(stream.latency_s if heard else KEEPALIVE_S, parent.run, parent.life, parent.release, stream)

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
        progressed = (len(stream.copy.held), stream.copy.header) != stream.before
        stalled = reason is ParentLossReason.STALLED
        self.patience.ended(stream.parent.worker_id, stalled=stalled, progressed=progressed)
        self.handle(FetchEnded(stream.fetch, reason, "", rejected, progressed))

    def stalled(self, stream: Stream, since_s: float) -> None:
        if stream.blocked_s == since_s and not stream.ended:
            self.stream_over(stream, ParentLossReason.STALLED, ())

    def stored(self, stream: Stream, ranges: list[tuple[int, int]]) -> None:
        self.world.checks.stored(self, stream, ranges)
