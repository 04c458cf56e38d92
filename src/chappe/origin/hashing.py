"""Hashes a snapshot's files with threads, in payload order, in one pass that yields chunk and leaf digests alike.

    files ──▶ spans (up to 8 MiB of one file) ──▶ threads: pread into a reused buffer, hash ──▶ results in order

A span is read in steps of a leaf or a chunk, whichever is larger, so that each step is hashed while it is in the CPU's
cache; where chunk and leaf are equal they share the digest. Memory is one step a thread, whatever the payload. At most
two spans a thread are in flight: what is not asked for is not read. Knows nothing of ledgers, pages and event loops.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from chappe.core.digest import XXH3_128, Algorithm
from chappe.core.manifest import CHUNK_BYTES_MAX, LEAF_BYTES, file_digest, snapshot_root
from chappe.errors import SnapshotChangedError, SnapshotError
from chappe.hop.source import ChunkSpan
from chappe.origin.scan import Snapshot, SourceFile

SPAN_BYTES = 8 << 20  # large against the cost of handing it to a thread, small against a page's payload
THREADS_MAX = 32  # no memory bus feeds more
OPEN_FILES_MAX = 64


class OpenFile:
    """A descriptor that is closed when nobody uses it any more, so that a cache may forget it while a thread reads."""

    __slots__ = ("descriptor",)

    def __init__(self, file: SourceFile) -> None:
        self.descriptor = -1
        self.descriptor = file.open()

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class OpenFiles:
    """The files of a snapshot, opened when needed; the least recently used are closed. Safe from any thread."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._open: dict[int, OpenFile] = {}
        self._closed = False
        self._lock = threading.Lock()

    def get(self, file: int) -> OpenFile:
        """Hold on to the result while using its descriptor. Raises SnapshotChangedError, SnapshotError."""
        with self._lock:
            if self._closed:
                raise SnapshotError(f"{self._files[file].location} is not read any more: its publication has ended")
            opened = self._open.pop(file, None)
            if opened is None:
                opened = OpenFile(self._files[file])
            self._open[file] = opened
            if len(self._open) > OPEN_FILES_MAX:
                del self._open[next(iter(self._open))]
            return opened

    @contextmanager
    def span(self, file: int, offset: int) -> Iterator[ChunkSpan]:
        """To send from. Looks at the file before and after: what changes while it is sent is not gone on with."""
        opened = self.get(file)
        self._files[file].check(os.fstat(opened.descriptor))
        yield ChunkSpan(opened.descriptor, offset)
        self._files[file].check(os.fstat(opened.descriptor))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._open.clear()


@dataclass(frozen=True, slots=True)
class Span:
    file: int
    offset: int
    length: int
    last: bool  # of its file


@dataclass(frozen=True, slots=True)
class SpanDigests:
    span: Span
    leaves: list[bytes]
    chunks: list[bytes]


def spans_of(files: Sequence[SourceFile]) -> Iterator[Span]:
    """The work, in payload order. An empty file has one empty span, so that its end is seen."""
    for number, file in enumerate(files):
        for offset in range(0, max(file.size_bytes, 1), SPAN_BYTES):
            length = min(SPAN_BYTES, file.size_bytes - offset)
            yield Span(number, offset, length, offset + length == file.size_bytes)


class SnapshotHasher:
    """Digests of all spans, in order. `chunk_bytes` None: leaves only. Use as a context manager."""

    def __init__(
        self,
        snapshot: Snapshot,
        algorithm: Algorithm = XXH3_128,
        *,
        chunk_bytes: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._algorithm = algorithm
        self._chunk_bytes = chunk_bytes or LEAF_BYTES
        self._threads = threads or min(os.cpu_count() or 1, THREADS_MAX)
        self._files = OpenFiles(snapshot.files)
        self._pool = ThreadPoolExecutor(self._threads, "chappe-hash")
        self._local = threading.local()
        self._leaves: list[bytes] = []
        self._digests: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Forgets what was not begun. Does not wait for the few milliseconds that a thread may still need."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._files.close()

    def results(self) -> Iterator[Future[SpanDigests]]:
        """One future per span, in payload order. Wait for each before asking for the next."""
        ahead: deque[Future[SpanDigests]] = deque()
        for span in spans_of(self._snapshot.files):
            ahead.append(self._pool.submit(self._hash, span))
            if len(ahead) > 2 * self._threads:
                yield ahead.popleft()
        while ahead:
            yield ahead.popleft()

    def take(self, result: SpanDigests) -> None:
        """Add a span to the root. In order."""
        self._leaves += result.leaves
        if result.span.last:
            size_bytes = self._snapshot.files[result.span.file].size_bytes
            self._digests.append(file_digest(self._algorithm, size_bytes, self._leaves))
            self._leaves = []

    def root(self) -> Future[str]:
        """After the last span: looks at all files once more, and gives the root or a SnapshotChangedError."""
        return self._pool.submit(self._root)

    def _root(self) -> str:
        self._snapshot.unchanged()
        return snapshot_root(self._algorithm, self._snapshot.entries, self._digests)

    def _buffer(self) -> memoryview:
        view: memoryview | None = getattr(self._local, "view", None)
        if view is None:
            view = memoryview(bytearray(max(LEAF_BYTES, self._chunk_bytes)))
            self._local.view = view
        return view

    def _hash(self, span: Span) -> SpanDigests:
        source = self._snapshot.files[span.file]
        opened = self._files.get(span.file)
        buffer = self._buffer()
        leaves: list[bytes] = []
        chunks: list[bytes] = []
        try:
            if span.length:
                os.posix_fadvise(opened.descriptor, span.offset, span.length, os.POSIX_FADV_WILLNEED)
            for offset in range(span.offset, span.offset + span.length, len(buffer)):
                data = buffer[: min(len(buffer), span.offset + span.length - offset)]
                read_into(source, opened.descriptor, data, offset)
                step = self._digests_of(data, LEAF_BYTES)
                leaves += step
                chunks += step if self._chunk_bytes == LEAF_BYTES else self._digests_of(data, self._chunk_bytes)
            source.check(os.fstat(opened.descriptor))
        except OSError as error:
            raise SnapshotError(f"{source.location} cannot be read: {error.strerror}") from error
        return SpanDigests(span, leaves, chunks)

    def _digests_of(self, data: memoryview, piece_bytes: int) -> list[bytes]:
        once = self._algorithm.once
        return [once(data[start : start + piece_bytes]) for start in range(0, len(data), piece_bytes)]


def read_into(source: SourceFile, descriptor: int, data: memoryview, offset: int) -> None:
    """Fill `data` from an open file. Raises SnapshotChangedError when the file ends before, OSError."""
    done = 0
    while done < len(data):
        count = os.preadv(descriptor, [data[done:]], offset + done)
        if count == 0:
            raise SnapshotChangedError(f"{source.location} was truncated while it was being published")
        done += count


def hash_snapshot(snapshot: Snapshot, algorithm: Algorithm = XXH3_128, *, threads: int | None = None) -> str:
    """The root of a snapshot. Blocking. Raises SnapshotChangedError when the files change meanwhile, SnapshotError."""
    with SnapshotHasher(snapshot, algorithm, threads=threads) as hasher:
        for future in hasher.results():
            hasher.take(future.result())
        return hasher.root().result()


assert SPAN_BYTES % CHUNK_BYTES_MAX == 0  # so that a span is whole leaves and whole chunks, but for a file's end
