"""What a node serves from, and what it receives into: the seam between the wire and the bytes.

An origin serves a snapshot's own files (`chappe.origin`), a relay its store (`chappe.hop.store`). Both are a
`ChunkSource`; only a relay's object is a `ChunkSink` as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from chappe.core.ledger import Ledger
from chappe.core.manifest import Manifest

Data = bytes | memoryview
"""The bytes of a chunk; a view keeps the message alive in which they came, and spares a copy."""


class Signal:
    """Wakes every waiter when something changed. Nothing is lost between looking and waiting: compare `count`."""

    __slots__ = ("_waiters", "count")

    def __init__(self) -> None:
        self.count = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        """Call from the event loop's thread only."""
        self.count += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seen: int) -> int:
        """Return the count as soon as it is not `seen`."""
        while self.count == seen:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return self.count


class SourceState(StrEnum):
    OPEN = "open"
    DROPPED = "dropped"  # cancelled, superseded, or failed at its source: children are told so


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Where a chunk's bytes begin in an open file."""

    descriptor: int
    offset: int


OpenChunk = AbstractContextManager[ChunkSpan]


@runtime_checkable
class ChunkFiles(Protocol):
    """A ChunkSource whose chunks lie in files, so that they can be sent without passing through this process."""

    def open_chunk(self, chunk: int) -> OpenChunk | None:
        """Of a chunk in the ledger; None for one that has to be read with `read_chunk`.

        To be entered and left in any thread: raises what `read_chunk` raises, on leaving for a file that has changed.
        """


class ChunkSource(Protocol):
    """One object, as far as it is here. Attributes are read on the event loop's thread."""

    object_id: str
    ledger: Ledger
    signal: Signal  # fires when a header, page, chunk or state arrives
    state: SourceState

    @property
    def manifest(self) -> Manifest | None: ...

    @property
    def header_bytes(self) -> bytes | None:
        """The serialized Header message, or None while it is not here."""

    @property
    def pages_held(self) -> int:
        """Pages [0, pages_held) are here: pages come in order."""

    def page_bytes(self, index: int) -> bytes:
        """The serialized Page message of a page that is here."""

    def read_chunk(self, chunk: int) -> Data:
        """The bytes of a chunk in the ledger; blocking, from the page cache nearly always.

        Raises OSError, or SnapshotChangedError at an origin whose files are not what they were.
        """

    def recheck(self, chunks: Sequence[int]) -> list[int]:
        """A child found these chunks wrong: verify this node's own copy and drop from the ledger what is rotten.

        Returns what was dropped. A relay then fetches it again; at an origin it fails the publication.
        """


class ChunkSink(Protocol):
    """Where a fetch puts what it receives. Called on the event loop's thread, in the order of arrival."""

    object_id: str
    ledger: Ledger

    @property
    def manifest(self) -> Manifest | None: ...

    @property
    def pages_held(self) -> int: ...

    def put_header(self, data: bytes) -> None:
        """Raises ManifestError or UnsafePathError for one that cannot be true, DiskFullError without room."""

    def put_page(self, data: bytes) -> None:
        """Raises ManifestError."""

    def put_chunks(self, chunks: Sequence[tuple[int, Data]], digests: Sequence[bytes] | None = None) -> None:
        """Verify, then store, then record. Raises ChunkMismatchError (what came before it is stored), DiskFullError.

        With `digests`, the chunks have been hashed already, and their bytes are good only until this returns.
        """
