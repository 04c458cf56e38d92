"""The child's half of one hop: what comes from one parent goes into the sink, checked against what was asked for.

Fetch and Push share it. The sink verifies and stores; this decides what is a violation, what is a stall, and when it is
over. Memory is one message and, while it comes, the header.

Once a data connection carries the payload, its thread takes chunks and watermarks (`take_chunk`, `take_message`), and
the event loop the rest; while a message of it is at the loop the thread waits for it. Of several connections each has a
thread: what is asked for is looked at by one at a time, and chunks are verified and stored side by side. A page comes
on each of them, and a chunk once more where a connection broke: what has come is passed over then.

    reading ──▶ End(COMPLETE), and all is here ─────────────────────▶ None, the one good end
       │  └───▶ End(any other) ─────────────────────────────────────▶ the reason it names
       ├── a chunk does not match its page ─────────────────────────▶ CORRUPT, with the chunk to reject
       ├── something that was not asked for, or cannot be true ─────▶ PROTOCOL
       ├── parent ahead (watermark), nothing comes for too long ────▶ STALLED     the same if it says nothing at all;
       │                                                              a chunk of which bytes still come has more time
       └── the stream breaks ───────────────────────────────────────▶ BROKEN, or UNREACHABLE before its first word

Trouble with this node's own store (DiskFullError, StoreError) is nobody else's and goes to the caller as it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from chappe.clock import boot_now
from chappe.core.manifest import LEAF_BYTES, Manifest
from chappe.core.reasons import ParentLossReason
from chappe.errors import ChunkMismatchError, PeerError, UnsafePathError
from chappe.hop.asked import Asked
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import HopMeter
from chappe.hop.source import ChunkSink
from chappe.hop.stall import STALL_FLOOR_S, stall_timeout_s
from chappe.v1.relay_pb2 import End, EndReason, FetchRequest, HeaderPart, Page, Watermark
from chappe.wire.frames import ChunkBatch, Data, PageFrame, Reply
from chappe.wire.manifest import HeaderAssembler
from chappe.wire.tcp_frames import HEAD_BYTES

_LOSS = {
    EndReason.END_REASON_BUSY: ParentLossReason.BUSY,
    EndReason.END_REASON_EVICTED: ParentLossReason.EVICTED,
    EndReason.END_REASON_STALE: ParentLossReason.STALE,
    EndReason.END_REASON_BAD_TOKEN: ParentLossReason.BAD_TOKEN,
    EndReason.END_REASON_UNKNOWN_OBJECT: ParentLossReason.UNKNOWN_OBJECT,
    EndReason.END_REASON_DROPPED: ParentLossReason.DROPPED,
    EndReason.END_REASON_LEAVING: ParentLossReason.LEAVING,
}


CRAWL_TIMES = 4.0
"""So many times the patience may pass without a whole message, where bytes of it still come: a congestion control that
thinks little of its link takes seconds for a chunk, and is no dead parent."""
PAUSE_S = 0.5
"""Whoever is woken so much later than it asked for has not listened: this process was stopped, or its host was."""


@dataclass(frozen=True, slots=True)
class FetchEnd:
    """How a fetch ended: `reason` None when everything asked for is here. `rejected` goes into the next request.
    Without a reason, too, when the child has gone elsewhere: see `chappe.hop.client.Departure`."""

    reason: ParentLossReason | None
    rejected: tuple[int, ...] = ()
    detail: str = ""


class Receiver:
    """Takes the replies to one FetchRequest. `read` returns the next one, or None at the end of the stream."""

    def __init__(
        self,
        request: FetchRequest,
        sink: ChunkSink,
        *,
        downlink: TokenBucket | None = None,
        meter: HopMeter | None = None,
        on_connected: Callable[[], None] | None = None,
        on_watermark: Callable[[Watermark], None] | None = None,
        stall_floor_s: float = STALL_FLOOR_S,
        expected_bytes_per_s: float | None = None,
    ) -> None:
        self.connected = False
        self._sink = sink
        self._downlink = downlink
        self._meter = meter if meter is not None else HopMeter()
        self._on_connected = on_connected
        self._on_watermark = on_watermark
        self._stall_floor_s = stall_floor_s
        self._expected_bytes_per_s = expected_bytes_per_s
        self._asked = Asked(request)
        self._header = HeaderAssembler()
        self._data_s = boot_now()
        self._heard_s = self._data_s

    def switched(self) -> None:
        """The parent has gone over to a data connection."""
        self._connect()
        self._meter.switched_to_tcp()

    def more(self, connections: int) -> bool:
        """The parent offers so many data connections beside the first. False: they were not asked for."""
        return self._asked.more(connections)

    def whole(self) -> bool:
        """All that was asked for is stored."""
        manifest = self._sink.manifest
        if manifest is None or manifest.open_end or self._asked.lacks(manifest):
            return False
        return not self._asked.storing  # looked at last: what a thread has in hand has come

    async def run(
        self, read: Callable[[], Awaitable[tuple[Reply, int] | None]], silent_s: Callable[[], float] = lambda: math.inf
    ) -> FetchEnd:
        """Read (reply, its size in bytes) until the fetch has ended. `silent_s`: since bytes came, of whatever.

        Raises what `read` raises, and StoreError.
        """
        self._data_s = self._heard_s = boot_now()
        quiet_s = math.inf
        while True:
            asked_s = boot_now()
            due_s = asked_s + self._left_s(asked_s, quiet_s)
            try:
                async with asyncio.timeout(due_s - asked_s):
                    frame = await read()
            except TimeoutError:
                now, quiet_s = boot_now(), silent_s()
                if self._asked.storing or now > due_s + PAUSE_S:
                    self._heard_s = now
                if self._left_s(now, quiet_s) > 0:
                    continue  # what came meanwhile was taken by a thread, or is coming
                what = ParentLossReason.STALLED if self.connected else ParentLossReason.UNREACHABLE
                return FetchEnd(what, detail=f"the parent said nothing for {now - self._heard_s:.1f} s")
            except ChunkMismatchError as error:
                return FetchEnd(ParentLossReason.CORRUPT, (error.chunk,), str(error))
            except PeerError as error:
                return FetchEnd(ParentLossReason.PROTOCOL, detail=str(error))
            if frame is None:
                return FetchEnd(ParentLossReason.BROKEN, detail="the stream ended without a reason")
            reply, size_bytes = frame
            try:
                end = await self._take(reply, size_bytes)
            except ChunkMismatchError as error:
                return FetchEnd(ParentLossReason.CORRUPT, (error.chunk,), str(error))
            except (PeerError, UnsafePathError) as error:
                return FetchEnd(ParentLossReason.PROTOCOL, detail=str(error))
            if end is not None:
                return end
            self._heard_s, quiet_s = boot_now(), math.inf

    def _left_s(self, now: float, quiet_s: float) -> float:
        """How long the parent may be silent yet, when bytes came last so long ago."""
        patience_s, unheard_s = self._patience_s(), now - self._heard_s
        return min(patience_s - min(unheard_s, quiet_s), CRAWL_TIMES * patience_s - unheard_s)

    def _patience_s(self) -> float:
        """How long the parent may be silent now. Dialling it takes a few round trips on top."""
        if not self.connected:
            return 2 * self._stall_floor_s
        rates = (self._expected_bytes_per_s, self._meter.goodput_bytes_per_s())
        manifest = self._sink.manifest
        chunk_bytes = LEAF_BYTES if manifest is None else manifest.chunk_bytes
        return stall_timeout_s(
            self._stall_floor_s,
            self._asked.connections * chunk_bytes,  # each has one under way
            min((rate for rate in rates if rate), default=None),
        )

    async def _take(self, reply: Reply, size_bytes: int) -> FetchEnd | None:
        if isinstance(reply, End):
            return self._end(reply)
        self._connect()
        if isinstance(reply, Watermark):
            return self._mark(reply)
        for part, part_bytes in _paced(reply, size_bytes) if self._downlink is not None else ((reply, size_bytes),):
            if self._downlink is not None:
                await self._downlink.take(part_bytes)
            self._take_data(part)
            now = boot_now()
            self._data_s = now
            self._meter.record(part_bytes, now)
        return None

    def _connect(self) -> None:
        if not self.connected:
            self.connected = True
            self._data_s = boot_now()  # dialling it may have taken long: it owes chunks from now on
            if self._on_connected is not None:
                self._on_connected()

    # ---- in the thread of a data connection: see `FrameTaker` --------------------------------------------------------

    def take_chunk(self, chunk: int, data: memoryview, pause: Callable[[float], None]) -> None:
        """Raises PeerError, ChunkMismatchError, StoreError, and what `pause` raises."""
        self._asked.begin_storing()
        try:
            size_bytes = HEAD_BYTES + len(data)
            if self._downlink is not None:
                self._wait_for_downlink(self._downlink, size_bytes, pause)
            self._take_chunks(ChunkBatch([(chunk, data)]), lent=True)
            self._data_s = self._heard_s = now = boot_now()
            self._meter.record(size_bytes, now)
        finally:
            self._asked.end_storing()

    def take_message(self, reply: Reply) -> bool:
        """Watermarks that lead to nothing: there are many of them where a hop catches up with its source."""
        if not isinstance(reply, Watermark) or self._on_watermark is not None or self._mark(reply) is not None:
            return False
        self._heard_s = boot_now()
        return True

    @staticmethod
    def _wait_for_downlink(downlink: TokenBucket, size_bytes: int, pause: Callable[[float], None]) -> None:
        booking = downlink.book(size_bytes)
        if booking.wait_s > 0:
            try:
                pause(booking.wait_s)
            except OSError:
                downlink.give_back(booking)
                raise

    # ---- one reply ---------------------------------------------------------------------------------------------------

    def _take_data(self, reply: Reply) -> None:
        if isinstance(reply, ChunkBatch):
            self._take_chunks(reply)
        elif isinstance(reply, PageFrame):
            self._take_page(reply.data)
        elif isinstance(reply, HeaderPart):
            self._take_header(reply)
        else:
            raise PeerError(f"a {type(reply).__name__} that was not asked for")

    def _take_header(self, part: HeaderPart) -> None:
        if not self._asked.header:
            raise PeerError("a header that was not asked for")
        data = self._header.add(part)
        if data is None:
            return
        self._asked.header = False
        if self._sink.manifest is None:  # else another parent was faster
            self._sink.put_header(data)

    def _take_page(self, data: bytes) -> None:
        try:
            index = Page.FromString(data).index
        except DecodeError as error:
            raise PeerError("a page that cannot be read") from error
        self._require_manifest()
        if not self._asked.take_page(index, self._sink.pages_held):
            return
        if index == self._sink.pages_held:
            self._sink.put_page(data)

    def _take_chunks(self, batch: ChunkBatch, *, lent: bool = False) -> None:
        manifest, sink = self._require_manifest(), self._sink
        held = sink.ledger.held
        new: list[tuple[int, Data]] = []
        for chunk, data in batch.chunks:
            if not self._asked.take_chunk(chunk, len(data), manifest, sink.pages_held) or chunk in held:
                continue  # another parent was faster, or another connection
            # A copy on purpose: the store keeps recent chunks, and one kept view keeps its whole message alive.
            new.append((chunk, data if lent else bytes(data)))
        if new:
            sink.put_chunks(new, lent=lent)

    def _require_manifest(self) -> Manifest:
        manifest = self._sink.manifest
        if manifest is None:
            raise PeerError("pages or chunks before the header")
        return manifest

    def _mark(self, mark: Watermark) -> FetchEnd | None:
        if self._on_watermark is not None:
            self._on_watermark(mark)
        now = boot_now()
        if not self._asked.behind(mark.chunks_held, len(self._sink.ledger.held)):
            self._meter.idle(now)  # starved: the parent has no more either
            self._data_s = now
            return None
        self._meter.start(now)
        patience_s = self._patience_s()
        if now - self._heard_s >= patience_s:  # this node has not listened: what it finds now is not from now
            self._data_s = now
        if now - self._data_s < patience_s:
            return None
        return FetchEnd(
            ParentLossReason.STALLED,
            detail=f"the parent holds {mark.chunks_held} chunks and has sent none for {now - self._data_s:.1f} s",
        )

    def _end(self, end: End) -> FetchEnd:
        if end.reason != EndReason.END_REASON_COMPLETE:
            reason = _LOSS.get(end.reason, ParentLossReason.PROTOCOL)
            return FetchEnd(reason, detail=end.detail or f"the parent said {_name_of(end.reason)}")
        manifest = self._sink.manifest
        if manifest is None or manifest.open_end or self._asked.lacks(manifest):
            return FetchEnd(ParentLossReason.PROTOCOL, detail="the parent says that all has been sent, and it has not")
        return FetchEnd(None)


def _name_of(reason: EndReason) -> str:
    """For a person; the number of one that this release does not know."""
    known = reason in EndReason.values()
    return EndReason.Name(reason).removeprefix("END_REASON_").lower() if known else f"reason {reason}"


def _paced(reply: Reply, size_bytes: int) -> Iterator[tuple[Reply, int]]:
    """Chunk by chunk: what a limit lets pass at once is stored and forwarded at once, however much came together."""
    if not isinstance(reply, ChunkBatch):
        yield reply, size_bytes
        return
    beside_bytes = size_bytes - sum(len(data) for _, data in reply.chunks)
    for i, (chunk, data) in enumerate(reply.chunks):
        yield ChunkBatch([(chunk, data)]), len(data) + (beside_bytes if i == 0 else 0)
