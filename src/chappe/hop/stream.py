"""The parent's half of one hop: everything that one child asked for, in the order in which this node holds it.

Fetch and Push share it. Decides only what goes next, and never waits for anything but the child and the source:

    child gone or ticket ended ──▶ stop
    source dropped ──────────────▶ End(DROPPED)
    header wanted and here ──────▶ HeaderPart ...
    a data connection is coming ─▶ wait for it, half a second at most
    a wanted chunk is here ──────▶ its pages if wanted, then Chunks   (as many as are here and fit)
    all that was asked for sent ─▶ End(COMPLETE)
    nothing to send ─────────────▶ wait for the source, Watermark at least twice a second

A child that stops reading blocks its own `put` only: it costs a cursor, one message and the HTTP/2 window (or a thread
and a socket's buffer). Chunks go as they arrive; a message takes several only when several are here and the link
has shown that it carries them within the chunk time: the child cannot forward before a message is whole, and must not
wait for a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

from chappe.clock import boot_now
from chappe.core.ledger import Cursor
from chappe.core.manifest import CHUNK_TIME_S, Manifest
from chappe.core.ranges import RangeSet
from chappe.errors import PeerError, StoreError, UsageError
from chappe.hop.guard import Ticket
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import HopMeter, HopMeters
from chappe.hop.outlet import Outlet
from chappe.hop.source import ChunkSource, Signal, SourceState
from chappe.hop.stall import stall_timeout_s
from chappe.hop.tcp_listen import Offer
from chappe.hop.tcp_send import Piece, TcpLostError
from chappe.v1.relay_pb2 import EndReason, FetchRequest, Range
from chappe.wire.frames import encode_header_part, encode_page, encode_watermark
from chappe.wire.manifest import split_header
from chappe.wire.stripes import decode_stripes

WATERMARK_S = 0.5
"""The protocol promises one a second."""
_DRY_WATERMARK_S = 0.1  # and sooner when the source runs dry, so that the child does not count the pause as its link's
_END_GRACE_S = 1.0  # how long a stream that was ended may take to say so before it is cut
_RECHECK_AT_ONCE = 4  # chunks hashed between two turns of the event loop


def _ranges(ranges: Iterable[Range], what: str) -> RangeSet:
    wanted = RangeSet()
    for r in ranges:
        try:
            wanted.add(r.start, r.stop)
        except ValueError as error:
            raise UsageError(f"{what}: {error}") from error
    return wanted


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
        offer: Offer | None = None,
    ) -> None:
        """`write` sends a reply on gRPC; `offer` is that of a data connection, which this closes."""
        self.source = source
        self.ticket = ticket
        self.meter = HopMeter()
        self._request = request
        if not 0 <= request.expected_bytes_per_s < math.inf:
            raise UsageError(f"a hop that is expected to carry {request.expected_bytes_per_s} bytes per second")
        self._outlet = Outlet(write, offer, lambda: ticket.progress(boot_now()), request.expected_bytes_per_s)
        self._uplink = uplink
        self._wants_header = request.lacks_header
        self._wanted_pages = _ranges(request.lacks_pages, "lacks_pages")
        self._wanted = _ranges(request.lacks_chunks, "lacks_chunks")
        try:
            self._stripes = decode_stripes(request.stripes if request.HasField("stripes") else None, request.stripe)
        except PeerError as error:
            raise UsageError(str(error)) from error
        self._restricted = self._stripes.plain
        self._taken = 0  # chunks, of a stripe
        self._cursor = Cursor()
        self._next_page = 0
        self._marked_s = float("-inf")

    def backlog_bytes(self) -> int:
        """What is held here, wanted by the child, and not sent yet."""
        manifest = self.source.manifest
        if manifest is None:
            return 0
        if not self._restricted:
            self._restrict(manifest)
        held = self.source.ledger.held
        chunks = sum(b - a for start, stop in self._wanted for a, b in held.within(start, stop))
        return chunks * manifest.chunk_bytes

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
                reason, detail = await self._serve_or_end()
                await self._outlet.end(reason, detail)
        except TimeoutError:
            if self.ticket.ended_by is None:
                raise
            reason = self.ticket.ended_by
        finally:
            self.ticket.on_end = None
            self._outlet.close()
        return reason

    async def _serve_or_end(self) -> tuple[EndReason, str]:
        """`_serve`, also when the data connection was cut to end it."""
        try:
            return await self._serve()
        except TcpLostError as error:
            if error.doubted is not None:
                self.source.recheck([error.doubted])
            if self.ticket.ended_by is not None:
                return self.ticket.ended_by, ""
            if self.source.state is SourceState.DROPPED:
                return EndReason.END_REASON_DROPPED, ""
            raise

    async def _recheck(self) -> None:
        """The child found these wrong. What is rotten here leaves the ledger before anything is sent."""
        held = self.source.ledger.held
        doubted = [c for c in dict.fromkeys(self._request.rejected_chunks) if c in held]
        for start in range(0, len(doubted), _RECHECK_AT_ONCE):
            self.source.recheck(doubted[start : start + _RECHECK_AT_ONCE])
            await asyncio.sleep(0)

    async def _serve(self) -> tuple[EndReason, str]:
        source, ticket = self.source, self.ticket
        while True:
            if ticket.ended_by is not None:
                return ticket.ended_by, ""
            if source.state is SourceState.DROPPED:
                return EndReason.END_REASON_DROPPED, ""
            seen = source.signal.count
            now = boot_now()
            if now - self._marked_s >= WATERMARK_S:
                await self._mark(now)
                continue
            manifest = source.manifest
            if manifest is not None:
                if not self._restricted:
                    self._restrict(manifest)
                if self._wants_header:
                    await self._send_header()
                    continue
                if await self._outlet.switch(manifest):
                    self.meter.switched_to_tcp()
                    continue  # the manifest may be another by now: its end is known
                if hold_s := self._outlet.held_back_s(now):
                    await self._news(seen, min(hold_s, self._marked_s + WATERMARK_S - now))
                    continue
                chunks = source.ledger.take(self._cursor, self._wanted, self._batch_chunks(manifest))
                if chunks:
                    self._taken += len(chunks)
                    await self._send_chunks(manifest, chunks)
                    continue
                if self._all_chunks_sent(manifest):
                    await self._send_pages_below(min(source.pages_held, manifest.pages_total))
                    if self._next_page >= manifest.pages_total:
                        return EndReason.END_REASON_COMPLETE, ""
            await self._wait(seen, now)

    async def _wait(self, seen: int, now: float) -> None:
        self.ticket.progress(now)  # it has all that there is
        self.meter.idle(now)
        due_s = self._marked_s + WATERMARK_S - now
        if due_s < WATERMARK_S - _DRY_WATERMARK_S:
            await self._mark(now)
            due_s = WATERMARK_S
        await self._news(seen, due_s)  # or a watermark is due

    async def _news(self, seen: int, seconds: float) -> None:
        """Until the source, the data connection or the ticket says something, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.source.signal.wait(seen)

    def _restrict(self, manifest: Manifest) -> None:
        """Only chunks of the stripe are meant: which those are can be said now."""
        self._wanted = self._stripes.restrict(self._request.stripe, self._wanted, manifest.chunks_total)
        self._restricted = True

    async def _mark(self, now: float) -> None:
        self._marked_s = now
        ledger = self.source.ledger
        held = len(ledger.held)
        if not self._stripes.plain:  # what is here of other stripes says nothing of this hop
            held = self._taken + (self._restricted and ledger.ready(self._cursor, self._wanted))
        mark = encode_watermark(held, ledger.total, ledger.complete)
        await self._outlet.put([self._outlet.message(mark)])

    async def _mark_now(self) -> None:
        await self._mark(boot_now())

    async def _send_header(self) -> None:
        data = self.source.header_bytes
        if data is None:
            raise UsageError(f"object {self.source.object_id} has a manifest without its bytes")
        for part in split_header(data):
            await self._send_message(encode_header_part(part))
        self._wants_header = False

    async def _send_pages_below(self, stop: int) -> None:
        """Pages go in their order, and before the first chunk that needs them."""
        while self._next_page < stop:
            page, self._next_page = self._next_page, self._next_page + 1
            if page in self._wanted_pages:
                await self._send_message(encode_page(self.source.page_bytes(page)))

    def _batch_chunks(self, manifest: Manifest) -> int:
        """How many chunks the link carries within the chunk time, by what it has shown so far: at first, one."""
        return self._outlet.batch_chunks(manifest, self.meter.paced_bytes_per_s() * CHUNK_TIME_S)

    async def _send_chunks(self, manifest: Manifest, chunks: list[int]) -> None:
        packed = self._outlet.pack(self.source, manifest, chunks)
        self._unreadable(packed.unreadable)
        if not packed.chunks:
            return
        await self._send_pages_below(max(map(manifest.page_of, packed.chunks)) + 1)
        self._unreadable(await self._send(packed.pieces, packed.size_bytes))

    def _unreadable(self, chunks: Sequence[int]) -> None:
        """A relay drops what it cannot read, fetches it again, and sends it then. An origin's object has failed."""
        for chunk in chunks:
            self.source.recheck([chunk])
            if chunk in self.source.ledger.held:
                raise StoreError(f"chunk {chunk} of object {self.source.object_id} cannot be read to be sent")
            self._wanted.add(chunk, chunk + 1)
            self._taken -= 1

    def _all_chunks_sent(self, manifest: Manifest) -> bool:
        return not self._wanted.within(0, manifest.chunks_total)

    async def _send_message(self, reply: bytes) -> None:
        await self._send([self._outlet.message(reply)], len(reply))

    async def _send(self, pieces: Sequence[Piece], size_bytes: int) -> list[int]:
        self.meter.start(boot_now())
        if self._uplink is not None:
            await self._uplink.take(size_bytes, self._mark_now)  # many children on a thin uplink wait for long
        unreadable = await self._outlet.put(pieces)
        now = boot_now()
        self.meter.record(size_bytes, now)
        self.ticket.progress(now)
        pace = self.meter.linked_bytes_per_s()
        if pace:  # a child that takes long over a message because its link is slow is not one that has stalled
            self.ticket.patience_s = stall_timeout_s(0.0, size_bytes, pace)
        return unreadable


class StreamBook:
    """The running streams of a node, of both directions of dialling: for its metrics and its link reports."""

    def __init__(self, signal: Signal | None = None) -> None:
        """`signal` fires when a stream begins and when one ends."""
        self.meters = HopMeters(sending=True, signal=signal)
        self._streams: set[ChildStream] = set()

    async def run(self, stream: ChildStream) -> EndReason:
        """`ChildStream.run`, counted."""
        self._streams.add(stream)
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
