"""The parent's half of one hop: everything that one child asked for, in the order in which this node holds it.

Fetch and Push share it. Decides only what goes next, and never waits for anything but the child and the source:

    child gone or ticket ended ──▶ stop
    source dropped ──────────────▶ End(DROPPED)
    header wanted and here ──────▶ HeaderPart ...
    a wanted chunk is here ──────▶ its pages if wanted, then Chunks   (as many as are here and fit)
    all that was asked for sent ─▶ End(COMPLETE)
    nothing to send ─────────────▶ wait for the source, Watermark at least twice a second

A child that stops reading blocks its own `write` only: it costs a cursor, one message and the HTTP/2 window. Chunks go
as they arrive; a message takes several of them only when several are here and the link has shown that it carries them
within the chunk time: the child cannot forward before a message is whole, and must not wait for a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from chappe.clock import boot_now
from chappe.core.ledger import Cursor
from chappe.core.manifest import CHUNK_TIME_S, LEAF_BYTES, Manifest
from chappe.core.ranges import RangeSet
from chappe.errors import ChappeError, UsageError
from chappe.hop.guard import Ticket
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import HopMeter, HopMeters
from chappe.hop.source import ChunkSource, Data, Signal, SourceState
from chappe.hop.stall import stall_timeout_s
from chappe.v1.relay_pb2 import EndReason, FetchRequest, Range
from chappe.wire.frames import (
    CHUNKS_PER_MESSAGE_MAX,
    encode_chunks,
    encode_end,
    encode_header_part,
    encode_page,
    encode_watermark,
)
from chappe.wire.manifest import split_header

BATCH_BYTES_MAX = LEAF_BYTES
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
    ) -> None:
        self.source = source
        self.ticket = ticket
        self.meter = HopMeter()
        self._request = request
        self._write = write
        self._uplink = uplink
        self._wants_header = request.lacks_header
        self._wanted_pages = _ranges(request.lacks_pages, "lacks_pages")
        self._wanted = _ranges(request.lacks_chunks, "lacks_chunks")
        self._cursor = Cursor()
        self._next_page = 0
        self._marked_s = float("-inf")

    def backlog_bytes(self) -> int:
        """What is held here, wanted by the child, and not sent yet."""
        manifest = self.source.manifest
        if manifest is None:
            return 0
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
                    cut.reschedule(loop.time() + _END_GRACE_S)  # a write may be waiting for a child that does not read
                    self.source.signal.fire()

                self.ticket.on_end = on_end
                await self._recheck()
                reason, detail = await self._serve()
                await self._write(encode_end(reason, detail))
        except TimeoutError:
            if self.ticket.ended_by is None:
                raise
            reason = self.ticket.ended_by
        finally:
            self.ticket.on_end = None
        return reason

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
                if self._wants_header:
                    await self._send_header()
                    continue
                chunks = source.ledger.take(self._cursor, self._wanted, self._batch_chunks(manifest))
                if chunks:
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
        try:
            async with asyncio.timeout(due_s):
                await self.source.signal.wait(seen)
        except TimeoutError:
            return  # a watermark is due

    async def _mark(self, now: float) -> None:
        self._marked_s = now
        ledger = self.source.ledger
        await self._write(encode_watermark(len(ledger.held), ledger.total, ledger.complete))

    async def _mark_now(self) -> None:
        await self._mark(boot_now())

    async def _send_header(self) -> None:
        data = self.source.header_bytes
        if data is None:
            raise UsageError(f"object {self.source.object_id} has a manifest without its bytes")
        for part in split_header(data):
            await self._send(encode_header_part(part))
        self._wants_header = False

    async def _send_pages_below(self, stop: int) -> None:
        """Pages go in their order, and before the first chunk that needs them."""
        while self._next_page < stop:
            page, self._next_page = self._next_page, self._next_page + 1
            if page in self._wanted_pages:
                await self._send(encode_page(self.source.page_bytes(page)))

    def _batch_chunks(self, manifest: Manifest) -> int:
        """How many chunks the link carries within the chunk time, by what it has shown so far: at first, one."""
        batch_bytes = min(self.meter.paced_bytes_per_s() * CHUNK_TIME_S, BATCH_BYTES_MAX)
        return max(1, min(CHUNKS_PER_MESSAGE_MAX, int(batch_bytes) // manifest.chunk_bytes))

    async def _send_chunks(self, manifest: Manifest, chunks: list[int]) -> None:
        batch: list[tuple[int, Data]] = []
        for chunk in chunks:
            try:
                data = self.source.read_chunk(chunk)
            except (OSError, ChappeError):
                # A relay drops what it cannot read, fetches it again, and sends it then. An origin's object has failed.
                self.source.recheck([chunk])
                if chunk in self.source.ledger.held:
                    raise
                self._wanted.add(chunk, chunk + 1)
                continue
            batch.append((chunk, data))
        if not batch:
            return
        await self._send_pages_below(max(manifest.page_of(chunk) for chunk, _ in batch) + 1)
        await self._send(encode_chunks(batch))

    def _all_chunks_sent(self, manifest: Manifest) -> bool:
        return not self._wanted.within(0, manifest.chunks_total)

    async def _send(self, frame: bytes) -> None:
        self.meter.start(boot_now())
        if self._uplink is not None:
            await self._uplink.take(len(frame), self._mark_now)  # many children on a thin uplink wait for long
        await self._write(frame)
        now = boot_now()
        self.meter.record(len(frame), now)
        self.ticket.progress(now)
        pace = self.meter.linked_bytes_per_s()
        if pace:  # a child that takes long over a message because its link is slow is not one that has stalled
            self.ticket.patience_s = stall_timeout_s(0.0, len(frame), pace)


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
