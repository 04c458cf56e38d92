"""The parent's half of one hop: serves one child until there is a reason to end.

Fetch and Push share it. What goes next is `chappe.hop.course`. On gRPC it is written here, on the event loop; once the
child has a data connection, that one's thread feeds it, or those of several (`chappe.hop.tcp_lanes`), and here the end
is waited for:

    child gone or ticket ended ──▶ stop
    a data connection is coming ─▶ chunks wait for it, half a second at most
    source dropped, or all sent ─▶ End, with the reason
    a chunk that cannot be read ─▶ recheck: what is rotten leaves the ledger, is fetched again, and sent then

A child that stops reading blocks its own stream only: it costs a cursor, one message and the HTTP/2 window (or a thread
and a socket's buffer). Chunks go as they arrive; a message takes several only when several are here and the link
has shown that it carries them within the chunk time: the child cannot forward before a message is whole, and must not
wait for a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence

from chappe.clock import boot_now
from chappe.core.manifest import CHUNK_TIME_S, Manifest
from chappe.errors import StoreError, UsageError
from chappe.hop.course import Carry, Course, Dry, Ended, Mark, Say
from chappe.hop.guard import Ticket
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import HopMeter, HopMeters
from chappe.hop.outlet import Outlet
from chappe.hop.source import ChunkSource, Signal, SourceState
from chappe.hop.stall import stall_timeout_s
from chappe.hop.tcp_dial import Dialled
from chappe.hop.tcp_lanes import Lanes, OfferMore
from chappe.hop.tcp_listen import Offer
from chappe.hop.tcp_send import TcpLostError, TcpOutlet
from chappe.hop.turns import Turns
from chappe.v1.relay_pb2 import EndReason, FetchRequest
from chappe.wire.tcp_frames import STREAMS_AUTO, STREAMS_MAX

_END_GRACE_S = 1.0  # how long a stream that was ended may take to say so before it is cut
_RECHECK_AT_ONCE = 4  # chunks hashed between two turns of the event loop


class ChildStream:
    """Serves one FetchRequest to one child. Raises UsageError for a request whose ranges make no sense."""

    def __init__(
        self,
        source: ChunkSource,
        request: FetchRequest,
        ticket: Ticket,
        write: Callable[[bytes], Awaitable[None]],
        *,
        uplink: TokenBucket | None = None,
        offer: Offer | Dialled | None = None,
        offer_more: OfferMore | None = None,
        streams: int = 1,
    ) -> None:
        """`write` sends a reply on gRPC; `offer` is that of a data connection, which this closes. There may be so many
        `streams`, or as many as the child asks for, if that is more; `STREAMS_AUTO` for as many as the link needs."""
        self.source = source
        self.ticket = ticket
        self.meter = HopMeter()
        self.turns: Turns | None = None
        """Those of the node, for stripes; before `run`."""
        self._course = Course(source, request)
        self._rejected = request.rejected_chunks
        if not 0 <= request.expected_bytes_per_s < math.inf:
            raise UsageError(f"a hop that is expected to carry {request.expected_bytes_per_s} bytes per second")
        self._outlet = Outlet(write, offer, request.expected_bytes_per_s)
        self._uplink = uplink
        self._offer_more = offer_more if request.streams else None
        self._expected_bytes_per_s = request.expected_bytes_per_s
        self._streams = _streams(streams, request.streams)

    def backlog_bytes(self) -> int:
        """What is held here, wanted by the child, and not sent yet."""
        return self._course.backlog_bytes()

    async def run(self) -> EndReason:
        """Serve until there is a reason to end, and say it to the child. Raises what `write` raises."""
        loop = asyncio.get_running_loop()
        reason = EndReason.END_REASON_UNSPECIFIED
        try:
            async with asyncio.timeout(None) as cut:

                def on_end() -> None:
                    self._outlet.cut()
                    cut.reschedule(loop.time() + _END_GRACE_S)  # a write may be waiting for a child that does not read
                    self.source.signal.fire()

                self.ticket.on_end = on_end
                await self._recheck()
                reason = await self._serve_or_end()
                await self._outlet.end(reason)
        except TimeoutError:
            if self.ticket.ended_by is None:
                raise
            reason = self.ticket.ended_by
        finally:
            self.ticket.on_end = None
            self._outlet.close()
        return reason

    async def _serve_or_end(self) -> EndReason:
        """`_serve`, also when the data connection was cut to end it."""
        try:
            return await self._serve()
        except TcpLostError as error:
            if error.doubted is not None:
                self.source.recheck([error.doubted])
            if self.ticket.ended_by is not None:
                return self.ticket.ended_by
            if self.source.state is SourceState.DROPPED:
                return EndReason.END_REASON_DROPPED
            raise

    async def _recheck(self) -> None:
        """The child found these wrong. What is rotten here leaves the ledger before anything is sent."""
        held = self.source.ledger.held
        doubted = [c for c in dict.fromkeys(self._rejected) if c in held]
        for start in range(0, len(doubted), _RECHECK_AT_ONCE):
            self.source.recheck(doubted[start : start + _RECHECK_AT_ONCE])
            await asyncio.sleep(0)

    async def _serve(self) -> EndReason:
        source, ticket, course = self.source, self.ticket, self._course
        while True:
            if ticket.ended_by is not None:
                return ticket.ended_by
            seen = source.signal.count
            manifest = source.manifest
            if manifest is not None and course.begun and source.state is not SourceState.DROPPED:
                tcp = await self._outlet.switch(manifest, in_turns=course.stripe() is not None)
                if tcp is not None:
                    self.meter.switched_to_tcp()
                    return await self._feed(tcp)
            now = boot_now()
            hold_s = self._outlet.held_back_s(now)
            match course.next(now, _no_chunks if hold_s else self._batch_chunks):
                case Ended(reason):
                    return reason
                case Mark(reply):
                    await self._outlet.write(reply)
                case Say(replies):
                    for reply in replies:
                        await self._send(reply, len(reply))
                case Carry(pages, chunks):
                    for reply in pages:
                        await self._send(reply, len(reply))
                    await self._send_chunks(chunks)
                case Dry(until_s):
                    ticket.progress(now)  # it has all that there is
                    self.meter.idle(now)
                    await self._wait(seen, min(until_s - now, hold_s or until_s - now))

    async def _feed(self, tcp: TcpOutlet) -> EndReason:
        lanes = Lanes(
            self.source,
            self._course,
            self.ticket,
            self.meter,
            self._outlet,
            uplink=self._uplink,
            turns=self.turns,
            on_unreadable=self._unreadable,
            offer_more=self._offer_more,
            streams=self._streams,
            expected_bytes_per_s=self._expected_bytes_per_s,
        )
        return await lanes.run(tcp)

    async def _wait(self, seen: int, seconds: float) -> None:
        """Until the source, the data connection or the ticket says something, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.source.signal.wait(seen)

    async def _mark_now(self) -> None:
        await self._outlet.write(self._course.mark(boot_now()).reply)

    def _batch_chunks(self, manifest: Manifest) -> int:
        """How many chunks the link carries within the chunk time, by what it has shown so far: at first, one."""
        return self._outlet.batch_chunks(manifest, self.meter.paced_bytes_per_s() * CHUNK_TIME_S)

    async def _send_chunks(self, chunks: list[int]) -> None:
        packed = self._outlet.pack(self.source, chunks)
        self._unreadable(packed.unreadable)
        if packed.chunks:
            await self._send(packed.message, packed.size_bytes)

    def _unreadable(self, chunks: Sequence[int]) -> None:
        """A relay drops what it cannot read, fetches it again, and sends it then. An origin's object has failed."""
        for chunk in chunks:
            self.source.recheck([chunk])
            if chunk in self.source.ledger.held:
                raise StoreError(f"chunk {chunk} of object {self.source.object_id} cannot be read to be sent")
            self._course.again(chunk)

    async def _send(self, reply: bytes, size_bytes: int) -> None:
        self.meter.start(boot_now())
        if self._uplink is not None:
            await self._uplink.take(size_bytes, self._mark_now)  # many children on a thin uplink wait for long
        await self._outlet.write(reply)
        now = boot_now()
        self.meter.record(size_bytes, now)
        self.ticket.progress(now)
        pace = self.meter.linked_bytes_per_s()
        if pace:  # a child that takes long over a message because its link is slow is not one that has stalled
            self.ticket.patience_s = stall_timeout_s(0.0, size_bytes, pace)


def _streams(own: int, asked: int) -> int:
    """How many data connections one Fetch has; a child that asks for none takes no more than the first, which may be
    helped all the same."""
    if own == STREAMS_AUTO and asked <= 1:
        return STREAMS_AUTO
    if not asked:
        return 1
    return min(max(own, asked), STREAMS_MAX)


def _no_chunks(_: Manifest) -> int:
    return 0


class StreamBook:
    """The running streams of a node, of both directions of dialling: for its metrics and its link reports."""

    def __init__(self, signal: Signal | None = None) -> None:
        """`signal` fires when a stream begins and when one ends."""
        self.meters = HopMeters(sending=True, signal=signal)
        self._turns = Turns()
        self._streams: set[ChildStream] = set()

    async def run(self, stream: ChildStream) -> EndReason:
        """`ChildStream.run`, counted."""
        self._streams.add(stream)
        stream.turns = self._turns
        try:
            with self.meters.measure(stream.ticket.child, stream.meter):
                return await stream.run()
        finally:
            self._streams.discard(stream)

    @property
    def forwarded_bytes_total(self) -> int:
        return self.meters.bytes_total

    def bytes_per_s(self, now: float) -> float:
        """Goodput to all children together while there was something to send; 0 when nothing flows."""
        return self.meters.bytes_per_s(now)

    def backlog_bytes(self) -> int:
        """What is held here and wanted by a child that is there, and not sent yet."""
        return sum(s.backlog_bytes() for s in self._streams)
