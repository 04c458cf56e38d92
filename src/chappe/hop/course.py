"""What goes next to one child: everything that it asked for, in the order in which this node holds it.

    source dropped ──────────────▶ Ended(DROPPED)
    header wanted and here ──────▶ Say
    a wanted chunk is here ──────▶ Carry: its pages if wanted, then chunks   (as many as are here and fit)
    all that was asked for sent ─▶ Ended(COMPLETE)
    nothing to send ─────────────▶ Dry: wait for the source
    every half a second ─────────▶ Mark, and sooner when the source runs dry

Decides only this. Whoever writes asks again and again, from any thread; how things are written is `chappe.hop.stream`
on gRPC and `chappe.hop.tcp_feed` on a data connection. Of several connections each has a `Track`: a chunk goes on one
of them, behind the pages that it needs, which each connection carries for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from chappe.core.ledger import Cursor
from chappe.core.manifest import Manifest
from chappe.core.ranges import RangeSet
from chappe.errors import PeerError, UsageError
from chappe.hop.shared import SharedRanges
from chappe.hop.source import ChunkSource, SourceState
from chappe.v1.relay_pb2 import EndReason, FetchRequest, Range
from chappe.wire.frames import encode_header_part, encode_page, encode_watermark
from chappe.wire.manifest import split_header
from chappe.wire.stripes import decode_stripes

WATERMARK_S = 0.5
"""The protocol promises one a second."""
DRY_WATERMARK_S = 0.1
"""And sooner when the source runs dry, so that the child does not count the pause as its link's."""


class Ended(NamedTuple):
    reason: EndReason


class Mark(NamedTuple):
    """A watermark. Costs the link nothing that counts."""

    reply: bytes


class Say(NamedTuple):
    """Serialized replies: parts of the header, or pages. Made as they are asked for."""

    replies: Iterator[bytes]


class Carry(NamedTuple):
    """Chunks, behind the pages that they need."""

    pages: Iterator[bytes]
    chunks: list[int]


class Dry(NamedTuple):
    """Until the source has more, or this time."""

    until_s: float


Step = Ended | Mark | Say | Carry | Dry


@dataclass(eq=False, slots=True)
class Track:
    """What has gone on one connection."""

    next_page: int = 0
    marked_s: float = float("-inf")


class Course:
    """Of one FetchRequest. Raises UsageError for one whose ranges make no sense."""

    def __init__(self, source: ChunkSource, request: FetchRequest) -> None:
        self._source = source
        self._wants_header = request.lacks_header
        self._wanted_pages = _ranges(request.lacks_pages, "lacks_pages")
        self._wanted = SharedRanges(_ranges(request.lacks_chunks, "lacks_chunks"))
        self._stripe = request.stripe
        try:
            self._stripes = decode_stripes(request.stripes if request.HasField("stripes") else None, request.stripe)
        except PeerError as error:
            raise UsageError(str(error)) from error
        self._restricted = self._stripes.plain
        self._taken = 0  # chunks, of a stripe
        self._cursor = Cursor()
        self._returned: list[int] = []  # chunks that were taken, and did not get there: they go first
        self._track = Track()  # gRPC's
        self._lock = threading.RLock()

    @property
    def begun(self) -> bool:
        """The header has gone, or was not asked for: chunks are next."""
        return not self._wants_header and self._source.manifest is not None

    def stripe(self) -> tuple[float, int] | None:
        """The stripe's part of the payload, and how many chunks of it the child held; None where all are meant."""
        manifest = self._source.manifest
        if self._stripes.plain or manifest is None:
            return None
        with self._lock:
            if not self._restricted:
                self._restrict(manifest)
        total = manifest.chunks_total
        whole = sum(b - a for a, b in self._stripes.within(self._stripe, [(0, total)], total))
        weights = self._stripes.weights
        return weights[self._stripe] / sum(weights), max(0, whole - len(self._wanted) - self._taken)

    def backlog_bytes(self) -> int:
        """What is held here, wanted by the child, and not sent yet. From the event loop at any time."""
        manifest = self._source.manifest
        if manifest is None:
            return 0
        with self._lock:
            if not self._restricted:
                self._restrict(manifest)
        held = self._source.ledger.held
        return sum(b - a for start, stop in self._wanted for a, b in held.within(start, stop)) * manifest.chunk_bytes

    def track(self) -> Track:
        """Of a data connection: what has gone on gRPC before is there when the child begins to read it."""
        with self._lock:
            return Track(self._track.next_page)

    def next(self, now: float, chunks_max: Callable[[Manifest], int], track: Track | None = None) -> Step:
        """Moves on: what it returns is to be written, on this track. `chunks_max`: how many chunks may go at once."""
        with self._lock:
            return self._next(now, chunks_max, self._track if track is None else track)

    def _next(self, now: float, chunks_max: Callable[[Manifest], int], track: Track) -> Step:
        source = self._source
        if source.state is SourceState.DROPPED:
            return Ended(EndReason.END_REASON_DROPPED)
        if now - track.marked_s >= WATERMARK_S:
            return self.mark(now, track)
        manifest = source.manifest
        if manifest is None:
            return self._dry(now, track)
        if not self._restricted:
            self._restrict(manifest)
        if self._wants_header:
            self._wants_header = False
            return Say(self._header())
        chunks = self._take(chunks_max(manifest))
        if chunks:
            self._taken += len(chunks)
            return Carry(self._pages_below(max(map(manifest.page_of, chunks)) + 1, track), chunks)
        if not self._returned and not self._wanted.within(0, manifest.chunks_total):
            held = min(source.pages_held, manifest.pages_total)
            if track.next_page < held:
                return Say(self._pages_below(held, track))
            if held == manifest.pages_total:
                return Ended(EndReason.END_REASON_COMPLETE)
        return self._dry(now, track)

    def mark(self, now: float, track: Track | None = None, unsent: int = 0) -> Mark:
        """How far this node is. `unsent` chunks of a stripe wait for their turn: until then they are not to be had, and
        the child waits as it does for a parent that has no more. Its patience is for what is on its way."""
        with self._lock:
            (self._track if track is None else track).marked_s = now
            ledger = self._source.ledger
            held = len(ledger.held)
            if not self._stripes.plain:  # what is here of other stripes says nothing of this hop
                ready = self._restricted and (bool(self._returned) or ledger.ready(self._cursor, self._wanted))
                held = self._taken - unsent + (ready and not unsent)
        return Mark(encode_watermark(held, ledger.total, ledger.complete))

    def again(self, chunk: int) -> None:
        """It could not be sent, and is not held any more: it goes when it has come again."""
        with self._lock:
            self._wanted.add(chunk, chunk + 1)
            self._taken -= 1

    def give_back(self, chunks: Iterable[int]) -> None:
        """They were taken, and their connection broke: they go before anything else."""
        with self._lock:
            self._returned = sorted({*self._returned, *chunks})

    def _take(self, most: int) -> list[int]:
        """Chunks to send now, each once."""
        if not most or not self._returned:
            return self._source.ledger.take(self._cursor, self._wanted, most)
        returned, self._returned = self._returned[:most], self._returned[most:]
        self._taken -= len(returned)
        here = [chunk for chunk in returned if chunk in self._source.ledger.held]
        for chunk in set(returned).difference(here):
            self._wanted.add(chunk, chunk + 1)  # it has been found rotten meanwhile
        return here

    def _dry(self, now: float, track: Track) -> Step:
        if now - track.marked_s > DRY_WATERMARK_S:
            return self.mark(now, track)
        return Dry(track.marked_s + WATERMARK_S)

    def _restrict(self, manifest: Manifest) -> None:
        """Only chunks of the stripe are meant: which those are can be said now."""
        self._wanted = SharedRanges(self._stripes.restrict(self._stripe, self._wanted, manifest.chunks_total))
        self._restricted = True

    def _header(self) -> Iterator[bytes]:
        data = self._source.header_bytes
        if data is None:
            raise UsageError(f"object {self._source.object_id} has a manifest without its bytes")
        return map(encode_header_part, split_header(data))

    def _pages_below(self, stop: int, track: Track) -> Iterator[bytes]:
        """Pages go in their order, and before the first chunk that needs them."""
        while track.next_page < stop:
            page, track.next_page = track.next_page, track.next_page + 1
            if page in self._wanted_pages:
                yield encode_page(self._source.page_bytes(page))


def _ranges(ranges: Iterable[Range], what: str) -> RangeSet:
    wanted = RangeSet()
    for r in ranges:
        try:
            wanted.add(r.start, r.stop)
        except ValueError as error:
            raise UsageError(f"{what}: {error}") from error
    return wanted
