"""One object in memory, as a source and a sink, and a node that serves it over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from chappe.core.digest import XXH3_128
from chappe.core.manifest import CHUNK_BYTES_PLAIN, DELTA_FILE, FileEntry, Manifest, ObjectKind
from chappe.core.stripemap import PLAIN
from chappe.errors import ChunkMismatchError, ManifestError
from chappe.hop.catalog import Catalog
from chappe.hop.client import FetchEnd, build_request, fetch
from chappe.hop.guard import EdgeGuard
from chappe.hop.limits import TokenBucket
from chappe.hop.net import RunningServer, Tls, open_channel, open_server, parse_address
from chappe.hop.push import PushInbox
from chappe.hop.server import RELAY_SERVICE, RelayService
from chappe.hop.shared import SharedLedger
from chappe.hop.source import Data, Signal, SourceState
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken
from chappe.wire.manifest import decode_header, decode_page, encode_header, encode_page
from chappe.wire.token import TokenKey

OBJECT_ID = "0123456789abcdef" * 2
RUN = "test-run"
KEY = TokenKey.generate()


class MemoryObject:
    """A ChunkSource and a ChunkSink whose bytes lie in memory. `rot` spoils a chunk behind the ledger's back."""

    def __init__(self, object_id: str = OBJECT_ID) -> None:
        self.object_id = object_id
        self.ledger = SharedLedger()
        self.signal = Signal()
        self.state = SourceState.OPEN
        self.header_bytes: bytes | None = None
        self.manifest: Manifest | None = None
        self.rechecked: list[int] = []
        self.reads: list[int] = []
        self.put_error: Exception | None = None
        self._pages: list[bytes] = []
        self._digests: list[bytes] = []
        self._data: dict[int, bytes] = {}

    @property
    def pages_held(self) -> int:
        return len(self._pages)

    def page_bytes(self, index: int) -> bytes:
        return self._pages[index]

    def read_chunk(self, chunk: int) -> bytes:
        self.reads.append(chunk)
        return self._data[chunk]

    def rot(self, chunk: int) -> None:
        data = bytearray(self._data[chunk])
        data[0] ^= 1
        self._data[chunk] = bytes(data)

    def mend(self, chunk: int) -> None:
        """The chunk comes again, from wherever."""
        data = bytearray(self._data[chunk])
        data[0] ^= 1
        self.put_chunks([(chunk, bytes(data))])

    def recheck(self, chunks: Sequence[int]) -> list[int]:
        self.rechecked += chunks
        rotten = [c for c in chunks if XXH3_128.once(self._data[c]) != self._digests[c]]
        for c in rotten:
            self.ledger.drop(c, c + 1)
        self.signal.fire()
        return rotten

    def drop(self) -> None:
        self.state = SourceState.DROPPED
        self.signal.fire()

    def put_header(self, data: bytes) -> None:
        self.manifest = decode_header(data, self.object_id)
        self.header_bytes = data
        self.ledger.total = None if self.manifest.open_end else self.manifest.chunks_total
        self.signal.fire()

    def put_page(self, data: bytes) -> None:
        assert self.manifest is not None
        page = decode_page(self.manifest, data)
        if page.index != len(self._pages):
            raise ManifestError("page out of order")
        self._pages.append(data)
        self._digests += page.digests
        if page.closed is not None:
            self.manifest = page.closed
            self.ledger.total = page.closed.chunks_total
        self.signal.fire()

    def put_chunks(self, chunks: Sequence[tuple[int, Data]], *, lent: bool = False) -> None:
        if self.put_error is not None:
            raise self.put_error
        for chunk, data in chunks:
            if XXH3_128.once(data) != self._digests[chunk]:
                raise ChunkMismatchError(chunk)
            self._data[chunk] = bytes(data)
            self.ledger.add(chunk, chunk + 1)
        self.signal.fire()

    def payload(self) -> bytes:
        return b"".join(self._data[i] for i in sorted(self._data))


class MemoryOrigin(MemoryObject):
    """An object whose chunks appear when the test says so."""

    def __init__(
        self,
        payload: bytes,
        *,
        chunk_bytes: int = CHUNK_BYTES_PLAIN,
        chunks_per_page: int = 4,
        files: Sequence[FileEntry] | None = None,
        object_id: str = OBJECT_ID,
        most_bytes: int = 0,
    ) -> None:
        """With `most_bytes` it is an object that is still being made: its end is open until all of it is released."""
        super().__init__(object_id)
        entries = tuple(files) if files is not None else (FileEntry("model.safetensors", len(payload)),)
        self._whole = manifest = Manifest(object_id, XXH3_128, chunk_bytes, entries, chunks_per_page=chunks_per_page)
        if most_bytes:
            entries, most = (FileEntry(DELTA_FILE, len(payload)),), (FileEntry(DELTA_FILE, most_bytes),)
            self._whole = manifest = replace(
                manifest, files=entries, kind=ObjectKind.FULL_COMPRESSED, target_bytes=2 * most_bytes
            )
            self.put_header(encode_header(replace(manifest, files=most, open_end=True)))
        else:
            self.put_header(encode_header(manifest))
        starts = [sum(f.size_bytes for f in entries[:i]) for i in range(len(entries))]
        self._all: list[bytes] = []
        for i in range(manifest.chunks_total):
            place = manifest.place(i)
            start = starts[place.file] + place.offset
            self._all.append(payload[start : start + place.length])

    def release(self, stop: int | None = None) -> None:
        """Chunks [0, stop) are here now, and their pages."""
        assert self.manifest is not None
        whole = self._whole
        total = whole.chunks_total
        stop = total if stop is None else stop
        last_page = whole.pages_total if stop == total else whole.page_of(max(stop - 1, 0)) + 1
        for page in range(self.pages_held, last_page):
            first, end = whole.chunks_of_page(page)
            ends = self.manifest.open_end and page == whole.pages_total - 1
            digests = [XXH3_128.once(self._all[i]) for i in range(first, end)]
            self.put_page(encode_page(page, digests, whole.payload_bytes if ends else 0))
        for start, end in self.ledger.held.missing(0, stop):
            self.put_chunks([(i, self._all[i]) for i in range(start, end)])
        self.signal.fire()


def claims(parent: str, child: str, /, **changes: Any) -> EdgeClaims:
    fields: dict[str, Any] = {
        "run": RUN,
        "object_id": OBJECT_ID,
        "stripe": 0,
        "slot": 0,
        "parent": parent,
        "child": child,
        "child_generation": 1,
        "epoch": 1,
    }
    return EdgeClaims(**(fields | changes))


def token(parent: str, child: str, /, **changes: Any) -> EdgeToken:
    return KEY.sign(claims(parent, child, **changes))


@dataclass
class Node:
    """A relay or an origin: catalog, guard, service and server."""

    worker_id: str
    catalog: Catalog
    guard: EdgeGuard
    inbox: PushInbox
    service: RelayService
    server: RunningServer
    tls: Tls | None = None
    object: MemoryObject = field(default_factory=MemoryObject)

    async def fetch_from(self, parent: Node, *, edge: dict[str, Any] | None = None, **options: Any) -> FetchEnd:
        """One Fetch into this node's object."""
        rejected, stripe, stripes = (options.pop(*o) for o in (("rejected", ()), ("stripe", 0), ("stripes", PLAIN)))
        channel = open_channel(parent.server.address, self.tls, options.pop("expected_name", parent.worker_id))
        edge_token = token(parent.worker_id, self.worker_id, **(edge or {}))
        try:
            request = build_request(self.object, stripe, edge_token, rejected, stripes)
            return await fetch(channel, request, self.object, **options)
        finally:
            await channel.close()


async def start_node(
    stack: AsyncExitStack,
    worker_id: str,
    source: MemoryObject | None = None,
    *,
    tls: Tls | None = None,
    uplink: TokenBucket | None = None,
    stall_timeout_s: float = 5.0,
) -> Node:
    guard = EdgeGuard(worker_id, stall_timeout_s=stall_timeout_s)
    guard.set_run(RUN, KEY.public_bytes())
    catalog, inbox = Catalog(), PushInbox(guard)
    service = RelayService(catalog, guard, uplink=uplink, inbox=inbox)
    server = await open_server(parse_address("127.0.0.1:0"), tls, {RELAY_SERVICE: service.add_to})
    stack.push_async_callback(server.stop, 0)
    node = Node(worker_id, catalog, guard, inbox, service, server, tls, source or MemoryObject())
    catalog.add(node.object)
    return node


async def until(signal: Signal, condition: Callable[[], bool]) -> None:
    """Wait for a condition that changes only when the signal fires."""
    async with asyncio.timeout(30):
        while not condition():
            await signal.wait(signal.count)


def background(stack: AsyncExitStack, coroutine: object) -> asyncio.Task[object]:
    """It runs until the stack is left, at the latest."""
    task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload]

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    return task
