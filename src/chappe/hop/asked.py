"""What one FetchRequest asked for, and what of it has come: for every thread that takes it.

With one connection a chunk or a page that comes twice was not asked for. With several each carries its pages, and a
chunk comes once more where a connection broke after it had brought it: so many bytes for each connection, and no more.
"""

from __future__ import annotations

import threading

from chappe.core.manifest import Manifest
from chappe.core.ranges import RangeSet
from chappe.errors import PeerError
from chappe.hop.shared import SharedRanges
from chappe.hop.tcp_sockets import UNACKNOWLEDGED_BYTES_MAX
from chappe.v1.relay_pb2 import FetchRequest
from chappe.wire.stripes import decode_stripes
from chappe.wire.tcp_frames import STREAMS_MAX

_AGAIN_BYTES_MAX = 4 * UNACKNOWLEDGED_BYTES_MAX
"""What a connection that breaks may have had under way: the kernel counts its overhead as well."""


class Asked:
    def __init__(self, request: FetchRequest) -> None:
        """Raises PeerError for stripes that make no sense."""
        self.header = request.lacks_header
        self._pages = RangeSet((r.start, r.stop) for r in request.lacks_pages)
        self._wanted = SharedRanges((r.start, r.stop) for r in request.lacks_chunks)
        self._stripe = request.stripe
        self._stripes = decode_stripes(request.stripes if request.HasField("stripes") else None, request.stripe)
        self._restricted = self._stripes.plain
        self._taken = 0  # chunks
        self._came = RangeSet()
        self._several = bool(request.streams)  # may be offered
        self._more = 0  # data connections beside the first
        self._twice = 0  # chunks that came again
        self._storing = 0  # threads that have a chunk in hand
        self._lock = threading.RLock()

    @property
    def storing(self) -> bool:
        """A thread has a chunk in hand: the parent is not the one to be waited for."""
        return self._storing > 0

    @property
    def connections(self) -> int:
        """For all of it together; those that never came count."""
        return 1 + self._more

    def begin_storing(self) -> None:
        with self._lock:
            self._storing += 1

    def end_storing(self) -> None:
        with self._lock:
            self._storing -= 1

    def more(self, connections: int) -> bool:
        """The parent offers so many beside the first. False: nobody asked."""
        self._more += connections
        return self._several and connections > 0 and self._more < STREAMS_MAX

    def take_page(self, index: int, pages_held: int) -> bool:
        """Whether it is to be stored, if it is new. On the event loop. Raises PeerError."""
        if index not in self._pages:
            if self._more and index < pages_held:
                return False  # another connection was faster
            raise PeerError(f"page {index} was not asked for, or came twice")
        if index > pages_held:
            raise PeerError(f"page {index} before page {pages_held}")
        self._pages.discard(index, index + 1)
        return True

    def take_chunk(self, chunk: int, size_bytes: int, manifest: Manifest, pages_held: int) -> bool:
        """Whether it is to be stored, if it is new; from now on it has come. Raises PeerError."""
        with self._lock:
            self.restrict(manifest)
            if chunk not in self._wanted or chunk >= manifest.chunks_total:
                self._twice += 1
                if chunk not in self._came or self._twice > self._more * (_AGAIN_BYTES_MAX // manifest.chunk_bytes):
                    raise PeerError(f"chunk {chunk} was not asked for, or came twice")
                return False
            if size_bytes != (length := manifest.place(chunk).length):
                raise PeerError(f"chunk {chunk} has {size_bytes} bytes, not {length}")
            if manifest.page_of(chunk) >= pages_held:
                raise PeerError(f"chunk {chunk} before its page")
            self._wanted.discard(chunk, chunk + 1)
            self._came.add(chunk, chunk + 1)
            self._taken += 1
            return True

    def behind(self, chunks_held: int, held: int) -> bool:
        """The parent says `chunks_held`; `held` are here. Whether it has something that has not come."""
        return chunks_held > (held if self._stripes.plain else self._taken)

    def lacks(self, manifest: Manifest) -> bool:
        """Something has not come."""
        with self._lock:
            self.restrict(manifest)
            return bool(self._wanted.within(0, manifest.chunks_total))

    def restrict(self, manifest: Manifest) -> None:
        """Only chunks of the stripe were asked for: which those are can be said now."""
        with self._lock:
            if not self._restricted:
                wanted = self._stripes.restrict(self._stripe, self._wanted, manifest.chunks_total)
                self._wanted, self._restricted = SharedRanges(wanted), True
