"""What an origin serves: the files of a snapshot as a ChunkSource, announced page by page while they are hashed.

    OPEN ──hash() reads on──▶ OPEN, root known        pages and chunks arrive in payload order
      │                          │
      └────── a file changed, could not be read, was found wrong by a child, or close() ──────▶ DROPPED

Hashing and serving read with `pread`: a file truncated under a mapping would kill the process. The root is known only
after all files still had their size, mtime and inode: torn bytes are never announced as a version. The header needs no
byte of data and is there from the start. Decides nothing about versions, children or rates.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from chappe.core.digest import XXH3_128, Algorithm
from chappe.core.manifest import Manifest, check_page
from chappe.errors import PublicationCancelledError, SnapshotChangedError, SnapshotError
from chappe.hop.shared import SharedLedger
from chappe.hop.source import OpenChunk, Signal, SourceState
from chappe.origin.hashing import OpenFiles, SnapshotHasher
from chappe.origin.scan import Snapshot, read_at
from chappe.payload.layout import chunks_per_page_for
from chappe.wire.manifest import encode_header, encode_page


class Gate(Protocol):
    """Holds an origin back: tests and demonstrations decide how much of the payload children may see, and when."""

    async def wait(self, chunks: int) -> None:
        """Return when chunks [0, chunks) may be announced. Asked page by page."""


class OriginObject:
    """A full object over the files of a snapshot; satisfies `chappe.hop.source.ChunkSource`.

    Create it on the event loop's thread and call `hash` once. `on_failed` is called there too, at most once, with what
    happened: the publication of this object cannot go on. Raises SnapshotError for a table that is too large to travel.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        object_id: str,
        chunk_bytes: int,
        algorithm: Algorithm = XXH3_128,
        *,
        threads: int | None = None,
        gate: Gate | None = None,
        on_failed: Callable[[str], None] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.object_id = object_id
        self.manifest: Manifest = Manifest(
            object_id,
            algorithm,
            chunk_bytes,
            snapshot.entries,
            snapshot.tensors,
            chunks_per_page_for(chunk_bytes),
        )
        self.header_bytes: bytes = encode_header(self.manifest)
        self.ledger = SharedLedger(self.manifest.chunks_total)
        self.signal = Signal()
        self.state = SourceState.OPEN
        self.failure: str | None = None
        self.root: str | None = None
        self._threads = threads
        self._gate = gate
        self._on_failed = on_failed
        self._pages: list[bytes] = []  # concatenated digests: a page's message is made when it is asked for
        self._files = OpenFiles(snapshot.files)

    @property
    def pages_held(self) -> int:
        return len(self._pages)

    def page_bytes(self, index: int) -> bytes:
        return encode_page(index, [self._pages[index]])

    def read_chunk(self, chunk: int) -> bytes:
        """Raises SnapshotChangedError when the file is not what it was, SnapshotError, OSError. From any thread."""
        place = self.manifest.place(chunk)
        source = self.snapshot.files[place.file]
        opened = self._files.get(place.file)
        data = read_at(source, opened.descriptor, place.offset, place.length)
        source.check(os.fstat(opened.descriptor))
        return data

    def open_chunk(self, chunk: int) -> OpenChunk:
        """See `ChunkFiles`."""
        place = self.manifest.place(chunk)
        return self._files.span(place.file, place.offset)

    def recheck(self, chunks: Sequence[int]) -> list[int]:
        """An origin has nowhere to fetch again: a chunk that is wrong here ends the object. On the loop's thread."""
        wrong = [chunk for chunk in chunks if chunk in self.ledger.held and not self._sound(chunk)]
        for chunk in wrong:
            self.ledger.drop(chunk, chunk + 1)
        if wrong:
            source = self.snapshot.files[self.manifest.place(wrong[0]).file]
            self._fail(f"{source.location} changed after it was hashed: publish a copy that nobody writes to")
        return wrong

    async def hash(self) -> str:
        """Hash everything, announcing page by page, and return the root once the files are known to be unchanged.

        Raises SnapshotChangedError or SnapshotError, and the object is dropped, as when this coroutine is cancelled;
        PublicationCancelledError when the object is closed meanwhile.
        """
        try:
            root = await self._hash()
        except SnapshotError as error:
            self._fail(str(error))
            raise
        except asyncio.CancelledError:
            self.close()
            raise
        self.root = root
        self.signal.fire()
        return root

    async def _hash(self) -> str:
        manifest = self.manifest
        pending: list[bytes] = []
        with SnapshotHasher(
            self.snapshot, manifest.algorithm, chunk_bytes=manifest.chunk_bytes, threads=self._threads
        ) as hasher:
            for future in hasher.results():
                result = await asyncio.wrap_future(future)
                hasher.take(result)
                pending += result.chunks
                while len(pending) >= manifest.chunks_per_page:
                    await self._announce(pending[: manifest.chunks_per_page])
                    del pending[: manifest.chunks_per_page]
            if pending:
                await self._announce(pending)
            root = await asyncio.wrap_future(hasher.root())
            self._check_open()
            return root

    async def _announce(self, digests: list[bytes]) -> None:
        start, stop = self.manifest.chunks_of_page(len(self._pages))
        if self._gate is not None:
            await self._gate.wait(stop)
        self._check_open()
        self._pages.append(b"".join(digests))
        self.ledger.add(start, stop)
        self.signal.fire()

    def _check_open(self) -> None:
        if self.failure is not None:  # a child found a chunk wrong
            raise SnapshotChangedError(self.failure)
        if self.state is SourceState.DROPPED:
            raise PublicationCancelledError(f"object {self.object_id} was closed while it was being hashed")

    def _sound(self, chunk: int) -> bool:
        page = self.manifest.page_of(chunk)
        digests = check_page(self.manifest, page, self._pages[page])
        try:
            data = self.read_chunk(chunk)
        except (SnapshotError, OSError):
            return False
        return self.manifest.algorithm.once(data) == digests[chunk - self.manifest.chunks_of_page(page)[0]]

    def _fail(self, reason: str) -> None:
        if self.state is SourceState.DROPPED:
            return
        self.failure = reason
        self.close()
        if self._on_failed is not None:
            self._on_failed(reason)

    def close(self) -> None:
        """Stop serving: children are told, files are closed. A `hash` that runs ends with an error. Idempotent."""
        self._files.close()
        if self.state is not SourceState.DROPPED:
            self.state = SourceState.DROPPED
            self.signal.fire()
