"""What a node serves from, and what it receives into: the seam between the wire and the bytes.

An origin serves a snapshot's own files (`chappe.origin`), a relay its store (`chappe.hop.store`). Both are a
`ChunkSource`; only a relay's object is a `ChunkSink` as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from chappe.core.manifest import Manifest
from chappe.hop.shared import SharedLedger
from chappe.hop.signal import Signal as Signal

Data = bytes | memoryview
"""The bytes of a chunk; a view keeps the message alive in which they came, and spares a copy."""


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
    """One object, as far as it is here. To be read from any thread, `recheck` excepted: that is the event loop's."""

    object_id: str
    ledger: SharedLedger
    signal: Signal  # fires when a header, page, chunk or state arrives; soon, when it is only more of the same
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
    """Where a fetch puts what it receives, in the order of arrival.

    Headers and pages come on the event loop's thread, chunks from there or from the thread of a data connection.
    """

    object_id: str
    ledger: SharedLedger

    @property
    def manifest(self) -> Manifest | None: ...

    @property
    def pages_held(self) -> int: ...

    def put_header(self, data: bytes) -> None:
        """Raises ManifestError or UnsafePathError for one that cannot be true, DiskFullError without room."""

    def put_page(self, data: bytes) -> None:
        """Raises ManifestError."""

    def put_chunks(self, chunks: Sequence[tuple[int, Data]], *, lent: bool = False) -> None:
        """Verify, then store, then record. Raises ChunkMismatchError (what came before it is stored), DiskFullError.

        Bytes that are `lent` are good only until this returns.
        """
