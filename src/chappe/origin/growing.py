"""What an origin serves while it is still being made: a delta's file as a ChunkSource with an open end.

    OPEN, the end is open ──announce, page by page──▶ close_end ──▶ OPEN, all of it is here
      └────── its making failed, a child found a chunk wrong, or close() ──▶ DROPPED

The file is the publisher's own, and only ever longer: a chunk that has been announced does not change. How much the
object has at most is in its header, how much it has on its last page. Decides nothing; all on the event loop's thread,
except where it says otherwise.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from chappe.core.manifest import Manifest
from chappe.hop.shared import SharedLedger
from chappe.hop.source import ChunkSpan, OpenChunk, Signal, SourceState
from chappe.wire.manifest import encode_header, encode_page

PAGE_PAYLOAD_BYTES = 256 << 10
PAGE_CHUNKS_MAX = 4
"""A chunk can leave once its page is full: of a delta, 256 KiB stand for some 30 MB that were compared, and of a small
one, whose chunks are small, they would be a third of all."""


def pages_of(chunk_bytes: int) -> int:
    """Chunks of a page."""
    return max(1, min(PAGE_CHUNKS_MAX, PAGE_PAYLOAD_BYTES // chunk_bytes))


class _Descriptor:
    """Closed when nobody uses it any more: a thread may be sending from it."""

    __slots__ = ("number",)

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class GrowingObject:
    """One file with an open end; satisfies `chappe.hop.source.ChunkSource`. `on_failed` is called at most once: the
    object cannot be served any more. Raises OSError when the file is not there."""

    def __init__(self, path: Path, manifest: Manifest, on_failed: Callable[[str], None]) -> None:
        self.object_id = manifest.object_id
        self.manifest: Manifest = manifest
        self.header_bytes: bytes = encode_header(manifest)
        self.ledger = SharedLedger(None)
        self.signal = Signal()
        self.state = SourceState.OPEN
        self._path, self._on_failed = path, on_failed
        self._pages: list[bytes] = []  # concatenated digests
        self._file: _Descriptor | None = _Descriptor(path)

    @property
    def pages_held(self) -> int:
        return len(self._pages)

    def page_bytes(self, index: int) -> bytes:
        ends = not self.manifest.open_end and index == self.manifest.pages_total - 1
        return encode_page(index, [self._pages[index]], self.manifest.payload_bytes if ends else 0)

    def announce(self, digests: Sequence[bytes]) -> None:
        """A full page: its chunks are in the file. Nothing happens once it is closed."""
        if self.state is SourceState.DROPPED:
            return
        start, stop = self.manifest.chunks_of_page(len(self._pages))
        self._pages.append(b"".join(digests))
        self.ledger.add(start, stop)
        self.signal.fire()

    def close_end(self, digests: Sequence[bytes], size_bytes: int) -> None:
        """The last page: so many bytes are all there are."""
        if self.state is SourceState.DROPPED:
            return
        self.manifest = self.manifest.closed(len(self._pages), len(digests), size_bytes)
        self.announce(digests)
        self.ledger.total = self.manifest.chunks_total
        self.signal.fire()

    def read_chunk(self, chunk: int) -> bytes:
        """Raises OSError. From any thread."""
        place = self.manifest.place(chunk)
        data = os.pread(self._opened().number, place.length, place.offset)
        if len(data) != place.length:
            raise OSError(errno.EIO, "the delta's file is cut short", str(self._path))
        return data

    def open_chunk(self, chunk: int) -> OpenChunk:
        """See `ChunkFiles`."""
        return self._span(self.manifest.place(chunk).offset)

    @contextmanager
    def _span(self, offset: int) -> Iterator[ChunkSpan]:
        opened = self._opened()
        yield ChunkSpan(opened.number, offset)

    def _opened(self) -> _Descriptor:
        opened = self._file
        if opened is None:
            raise OSError(errno.EBADF, "the delta is not served any more", str(self._path))
        return opened

    def recheck(self, chunks: Sequence[int]) -> list[int]:
        """There is nowhere to fetch again: a chunk that is wrong here ends the object."""
        wrong = [chunk for chunk in chunks if chunk in self.ledger.held and not self._sound(chunk)]
        for chunk in wrong:
            self.ledger.drop(chunk, chunk + 1)
        if wrong:
            self.fail(f"{self._path} is not what was written to it")
        return wrong

    def _sound(self, chunk: int) -> bool:
        page, size = self.manifest.page_of(chunk), self.manifest.algorithm.digest_bytes
        at = (chunk - self.manifest.chunks_of_page(page)[0]) * size
        try:
            data = self.read_chunk(chunk)
        except OSError:
            return False
        return self.manifest.algorithm.once(data) == self._pages[page][at : at + size]

    def fail(self, reason: str) -> None:
        if self.state is SourceState.DROPPED:
            return
        self.close()
        self._on_failed(reason)

    def close(self) -> None:
        """Stop serving: children are told. Idempotent."""
        self._file = None
        if self.state is not SourceState.DROPPED:
            self.state = SourceState.DROPPED
            self.signal.fire()
