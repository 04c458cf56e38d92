"""A relay in memory, to test the publisher: joins for real, fetches, verifies, forwards; only disk and policy are left
out. It reports what a relayd reports, and can be held back before its install or stopped from fetching.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import grpc.aio

from chappe.core.manifest import LEAF_BYTES, Manifest, check_page, file_digest, snapshot_root
from chappe.errors import ChunkMismatchError
from chappe.hop.catalog import Catalog
from chappe.hop.client import build_request, fetch
from chappe.hop.guard import AssignedChild, EdgeGuard
from chappe.hop.net import RunningServer, open_channel, open_server, parse_address
from chappe.hop.server import RELAY_SERVICE, RelayService
from chappe.hop.shared import SharedLedger
from chappe.hop.source import Data, Signal, SourceState
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc, relay_pb2
from chappe.wire.manifest import decode_header, decode_page


class MemoryObject:
    """A ChunkSource and ChunkSink whose payload is a dict of chunks."""

    def __init__(self, object_id: str) -> None:
        self.object_id = object_id
        self.ledger = SharedLedger()
        self.signal = Signal()
        self.state = SourceState.OPEN
        self.manifest: Manifest | None = None
        self.header_bytes: bytes | None = None
        self.chunks: dict[int, bytes] = {}
        self._pages: list[bytes] = []
        self._digests: list[bytes] = []

    @property
    def pages_held(self) -> int:
        return len(self._pages)

    def page_bytes(self, index: int) -> bytes:
        return self._pages[index]

    def read_chunk(self, chunk: int) -> bytes:
        return self.chunks[chunk]

    def recheck(self, chunks: Sequence[int]) -> list[int]:
        return []

    def put_header(self, data: bytes) -> None:
        self.manifest, self.header_bytes = decode_header(data, self.object_id), data
        self.ledger.total = self.manifest.chunks_total
        self.signal.fire()

    def put_page(self, data: bytes) -> None:
        assert self.manifest is not None
        page = decode_page(self.manifest, data)
        index, digests = page.index, page.digests
        assert index == len(self._pages)
        self._pages.append(data)
        self._digests += check_page(self.manifest, index, b"".join(digests))
        self.signal.fire()

    def put_chunks(self, chunks: Sequence[tuple[int, Data]], *, lent: bool = False) -> None:
        assert self.manifest is not None
        for chunk, data in chunks:
            if self.manifest.algorithm.once(data) != self._digests[chunk]:
                raise ChunkMismatchError(chunk)
            self.chunks[chunk] = bytes(data)
            self.ledger.add(chunk, chunk + 1)
        self.signal.fire()

    def file_bytes(self, file: int) -> bytes:
        assert self.manifest is not None
        return b"".join(self.chunks[chunk] for chunk in range(*self.manifest.chunks_of_file(file)))

    def files(self) -> dict[str, bytes]:
        assert self.manifest is not None
        return {entry.path: self.file_bytes(i) for i, entry in enumerate(self.manifest.files)}

    def root(self) -> str:
        """Computed from the bytes alone."""
        assert self.manifest is not None
        algorithm = self.manifest.algorithm
        digests = []
        for data in self.files().values():
            leaves = [algorithm.once(data[i : i + LEAF_BYTES]) for i in range(0, len(data), LEAF_BYTES)]
            digests.append(file_digest(algorithm, len(data), leaves))
        return snapshot_root(algorithm, self.manifest.files, digests)


@dataclass(eq=False)
class FakeRelay:
    """`async with FakeRelay(name, coordinator)`: joined when the block is entered."""

    name: str
    coordinator: str
    downlink_bytes_per_s: float = 0.0
    may_fetch: asyncio.Event = field(default_factory=asyncio.Event)
    may_install: asyncio.Event = field(default_factory=asyncio.Event)
    changed: Signal = field(default_factory=Signal)
    installed: dict[int, str] = field(default_factory=dict)  # version -> object id

    def __post_init__(self) -> None:
        self.worker_id = uuid4().hex
        self.objects: dict[str, MemoryObject] = {}
        self.parents: dict[str, str] = {}
        self.targets: dict[str, pb.Target] = {}
        self._reported: dict[str, pb.ObjectState] = {}
        self._edges: dict[str, pb.Edge] = {}
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._outbox: asyncio.Queue[pb.JoinRequest] = asyncio.Queue()
        self._catalog, self._guard = Catalog(), EdgeGuard(self.worker_id)
        self._service = RelayService(self._catalog, self._guard)
        self._joined = asyncio.Event()
        self._server: RunningServer | None = None
        self._task: asyncio.Task[None] | None = None
        self.may_fetch.set()
        self.may_install.set()

    async def __aenter__(self) -> FakeRelay:
        self._server = await open_server(parse_address("127.0.0.1:0"), None, {RELAY_SERVICE: self._service.add_to})
        self._task = asyncio.create_task(self._stay_joined())
        await self._joined.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._task is not None
        self._service.leave()
        tasks = [self._task, *self._fetches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.stop(0)

    async def until_installed(self, version: int) -> MemoryObject:
        while version not in self.installed:
            await self.changed.wait(self.changed.count)
        return self.objects[self.installed[version]]

    async def _stay_joined(self) -> None:
        while True:
            self._outbox = asyncio.Queue()
            try:
                async with open_channel(parse_address(self.coordinator), None, "coordinator") as channel:
                    async for reply in coordinator_pb2_grpc.CoordinatorStub(channel).Join(self._requests()):
                        self._take(reply)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            await asyncio.sleep(0.05)

    async def _requests(self) -> AsyncIterator[pb.JoinRequest]:
        assert self._server is not None
        holdings = [self._holding(object_id, state) for object_id, state in self._reported.items()]
        yield pb.JoinRequest(
            hello=pb.Hello(
                protocol_version=1,
                role=pb.ROLE_RELAY,
                worker_id=self.worker_id,
                name=self.name,
                generation=1,
                address=str(self._server.address),
                downlink_bytes_per_s=self.downlink_bytes_per_s,
                holdings=holdings,
                edges=[
                    pb.HeldEdge(object_id=e.object_id, stripe=e.stripe, parent=e.parent.worker_id, epoch=e.epoch)
                    for e in self._edges.values()
                    if not self._fetches[e.object_id].done()
                ],
            )
        )
        while True:
            try:
                yield await asyncio.wait_for(self._outbox.get(), 0.5)
            except TimeoutError:
                yield pb.JoinRequest(heartbeat=pb.Heartbeat())

    def _take(self, reply: pb.JoinReply) -> None:
        match reply.WhichOneof("message"):
            case "welcome":
                self._guard.set_run(reply.welcome.run, reply.welcome.token_key)
                self._joined.set()
            case "assignment":
                self._assigned(reply.assignment)
            case "probe":
                refused = pb.ProbeResult(order=reply.probe.order, error="this relay is made up")
                self._outbox.put_nowait(pb.JoinRequest(probe_result=refused))
            case other:
                raise AssertionError(f"unexpected {other}: {reply}")

    def _assigned(self, assignment: pb.Assignment) -> None:
        self._guard.assign(
            AssignedChild(e.object_id, e.stripe, c.slot, c.child.worker_id, c.child.name, c.generation, c.epoch)
            for e in assignment.edges
            for c in e.children
        )
        self.targets = {target.object_id: target for target in assignment.targets}
        for edge in assignment.edges:
            known = self._edges.get(edge.object_id)
            if edge.HasField("parent") and (known is None or known.epoch != edge.epoch):
                self._edges[edge.object_id] = edge
                if edge.object_id in self._fetches:
                    self._fetches[edge.object_id].cancel()
                self._fetches[edge.object_id] = asyncio.create_task(self._fetch(edge))
        for object_id in self.targets:
            self._settle(object_id)
        self._outbox.put_nowait(pb.JoinRequest(acknowledge=pb.Acknowledge(epoch=assignment.epoch)))
        self.changed.fire()

    async def _fetch(self, edge: pb.Edge) -> None:
        sink = self.objects.setdefault(edge.object_id, MemoryObject(edge.object_id))
        self._catalog.add(sink)
        self.parents[edge.object_id] = edge.parent.name
        await self.may_fetch.wait()
        async with open_channel(parse_address(edge.parent.address), None, edge.parent.name) as channel:
            while not sink.ledger.complete:
                request = build_request(sink, edge.stripe, edge.token)
                await fetch(channel, request, sink, on_connected=lambda: self._connected(edge))
                await asyncio.sleep(0.02)
        self._report(edge.object_id, pb.OBJECT_STATE_RECEIVED)
        await self.may_install.wait()
        self._settle(edge.object_id)

    def _connected(self, edge: pb.Edge) -> None:
        self._outbox.put_nowait(
            pb.JoinRequest(
                parent_connected=pb.ParentConnected(
                    object_id=edge.object_id, stripe=edge.stripe, parent=edge.parent.worker_id, epoch=edge.epoch
                )
            )
        )

    def _settle(self, object_id: str) -> None:
        """Verify and install once all chunks and the root are here."""
        target, held = self.targets[object_id], self.objects.get(object_id)
        if held is None or not held.ledger.complete or not target.root or not self.may_install.is_set():
            return
        if target.version in self.installed:
            return
        assert held.root() == target.root
        self.installed[target.version] = object_id
        self._report(object_id, pb.OBJECT_STATE_VERIFIED)
        self._report(object_id, pb.OBJECT_STATE_INSTALLED)
        self.changed.fire()

    def _report(self, object_id: str, state: pb.ObjectState) -> None:
        self._reported[object_id] = state
        self._outbox.put_nowait(pb.JoinRequest(holding=pb.HoldingChanged(holding=self._holding(object_id, state))))

    def _holding(self, object_id: str, state: pb.ObjectState) -> pb.Holding:
        held, target = self.objects[object_id], self.targets[object_id]
        landed = state in (pb.OBJECT_STATE_VERIFIED, pb.OBJECT_STATE_INSTALLED)
        return pb.Holding(
            object_id=object_id,
            version=target.version if landed else 0,
            root=target.root if landed else "",
            state=state,
            chunks=[relay_pb2.Range(start=start, stop=stop) for start, stop in held.ledger.held],
            chunks_total=held.ledger.total or 0,
        )
