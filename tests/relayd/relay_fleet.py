"""A coordinator that does as the test says, a real origin, and relays in this process, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc.aio
from relayd.config import RelaydSettings
from relayd.daemon import Daemon, Endpoints, open_daemon

from chappe.core.digest import XXH3_128
from chappe.hop.catalog import Catalog
from chappe.hop.disk import Disk
from chappe.hop.guard import EdgeGuard
from chappe.hop.limits import TokenBucket
from chappe.hop.net import RunningServer, Tls, load_tls, open_server, parse_address
from chappe.hop.server import RELAY_SERVICE, RelayService
from chappe.hop.source import Signal
from chappe.hop.store import Store
from chappe.keys import init_fleet, issue
from chappe.origin.scan import scan
from chappe.origin.source import OriginObject
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc, relay_pb2
from chappe.wire.token import TokenKey

RUN = "run-1"
KEY = TokenKey.generate()
LOOPBACK = parse_address("127.0.0.1:0")


@dataclass(eq=False)
class Session:
    """One Join of one node."""

    hello: pb.Hello
    replies: asyncio.Queue[pb.JoinReply | None] = field(default_factory=asyncio.Queue)
    heard: list[pb.JoinRequest] = field(default_factory=list)

    def say(self, reply: pb.JoinReply) -> None:
        self.replies.put_nowait(reply)

    def end(self) -> None:
        self.replies.put_nowait(None)


class FakeCoordinator(coordinator_pb2_grpc.CoordinatorServicer):
    """Welcomes whoever comes (unless `refusal` is set) and remembers everything it was told."""

    def __init__(self) -> None:
        self.signal = Signal()
        self.sessions: dict[str, Session] = {}  # the newest of each name
        self.joins: list[pb.Hello] = []
        self.refusal = ""
        self.run = RUN
        self._server: RunningServer | None = None

    async def start(self, listen: str = "127.0.0.1:0", tls: Tls | None = None) -> str:
        add = coordinator_pb2_grpc.add_CoordinatorServicer_to_server
        services: dict[str, Callable[[grpc.aio.Server], None]] = {
            "chappe.v1.Coordinator": lambda server: add(self, server)  # type: ignore[no-untyped-call]
        }
        self._server = await open_server(parse_address(listen), tls, services)
        return str(self._server.address)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def Join(self, requests: AsyncIterator[pb.JoinRequest], context: Any) -> None:
        first = await anext(aiter(requests))
        session = Session(first.hello)
        self.joins.append(first.hello)
        self.signal.fire()
        if self.refusal:
            await context.write(pb.JoinReply(refused=pb.Refused(reason=self.refusal)))
            return
        welcome = pb.Welcome(run=self.run, token_key=KEY.public_bytes(), lease_s=5, heartbeat_s=0.1)
        self.sessions[first.hello.name] = session  # before its welcome is there: whoever has seen that looks for it
        self.signal.fire()
        await context.write(pb.JoinReply(welcome=welcome))
        reader = asyncio.create_task(self._read(requests, session))
        try:
            while (reply := await session.replies.get()) is not None:
                await context.write(reply)
        finally:
            reader.cancel()

    async def _read(self, requests: AsyncIterator[pb.JoinRequest], session: Session) -> None:
        async for message in requests:
            session.heard.append(message)
            self.signal.fire()

    async def until(self, condition: Callable[[], Any]) -> Any:
        """The first truthy value of a condition over what was heard."""
        async with asyncio.timeout(30):
            while not (value := condition()):
                await self.signal.wait(self.signal.count)
        return value

    async def joined(self, name: str, generation: int = 1) -> Session:
        await self.until(lambda: name in self.sessions and self.sessions[name].hello.generation >= generation)
        return self.sessions[name]

    async def told(self, name: str, kind: str, condition: Callable[[Any], bool] = lambda _: True) -> Any:
        """The first message of this kind from the node's newest session for which the condition holds."""

        def find() -> Any:
            found = (getattr(m, kind) for m in self.sessions[name].heard if m.WhichOneof("message") == kind)
            return next((message for message in found if condition(message)), None)

        return await self.until(find)

    async def state(self, name: str, state: int, object_id: str | None = None) -> pb.Holding:
        changed = await self.told(
            name,
            "holding",
            lambda m: m.holding.state == state and object_id in (None, m.holding.object_id),
        )
        return changed.holding  # type: ignore[no-any-return]


def token(
    parent: str, child: str, object_id: str, epoch: int, generation: int = 1, *, fallback: bool = False
) -> relay_pb2.EdgeToken:
    claims = relay_pb2.EdgeClaims(
        run=RUN,
        object_id=object_id,
        parent=parent,
        child=child,
        child_generation=generation,
        epoch=epoch,
        fallback=fallback,
    )
    return KEY.sign(claims)


@dataclass(frozen=True)
class PeerAt:
    worker_id: str
    name: str
    address: str

    def message(self) -> pb.Peer:
        return pb.Peer(worker_id=self.worker_id, name=self.name, address=self.address)


def peer_of(session: Session) -> PeerAt:
    return PeerAt(session.hello.worker_id, session.hello.name, session.hello.address)


def target(object_id: str, version: int, root: str = "") -> pb.Target:
    return pb.Target(object_id=object_id, version=version, root=root, kind=relay_pb2.OBJECT_KIND_FULL)


def edge(
    child: Session, parent: PeerAt | None, object_id: str, epoch: int, fallbacks: tuple[PeerAt, ...] = ()
) -> pb.Edge:
    me, generation = child.hello.worker_id, child.hello.generation
    made = pb.Edge(object_id=object_id, epoch=epoch, dialer=pb.DIALER_CHILD)
    if parent is not None:
        made.parent.CopyFrom(parent.message())
        made.token.CopyFrom(token(parent.worker_id, me, object_id, epoch, generation))
    for other in fallbacks:
        made.fallbacks.add(
            parent=other.message(), token=token(other.worker_id, me, object_id, epoch, generation, fallback=True)
        )
    return made


def assignment(epoch: int, targets: list[pb.Target], edges: list[pb.Edge], keep: tuple[int, ...] = ()) -> pb.JoinReply:
    return pb.JoinReply(assignment=pb.Assignment(epoch=epoch, targets=targets, edges=edges, keep_versions=keep))


class Gate:
    """Holds an origin at so many chunks until it is opened."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def wait(self, chunks: int) -> None:
        if chunks > self._chunks:
            await self._open.wait()


class Origin:
    """A real origin's serving side, without its session."""

    def __init__(self, uplink: TokenBucket | None = None) -> None:
        self.worker_id = "origin-id"
        self.catalog = Catalog()
        self.guard = EdgeGuard(self.worker_id)
        self.guard.set_run(RUN, KEY.public_bytes())
        self.service = RelayService(self.catalog, self.guard, uplink=uplink)
        self.objects: list[OriginObject] = []
        self._server: RunningServer | None = None
        self._hashing: set[asyncio.Task[str]] = set()

    async def start(self, tls: Tls | None = None) -> PeerAt:
        self._server = await open_server(LOOPBACK, tls, {RELAY_SERVICE: self.service.add_to})
        return self.peer

    @property
    def peer(self) -> PeerAt:
        assert self._server is not None
        return PeerAt(self.worker_id, "origin", str(self._server.address))

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
        for task in self._hashing:
            task.cancel()
        await asyncio.gather(*self._hashing, return_exceptions=True)
        for held in self.objects:
            held.close()

    def offer(self, path: Path, object_id: str, gate: Gate | None = None) -> asyncio.Task[str]:
        """Serve the files; the task gives the root."""
        held = OriginObject(scan(path), object_id, 1 << 16, XXH3_128, gate=gate)
        self.objects.append(held)
        self.catalog.add(held)
        task = asyncio.create_task(held.hash())
        self._hashing.add(task)
        return task


class Fleet:
    """Everything of one test; leaving the block takes it all down."""

    def __init__(self, directory: Path, uplink_bytes_per_s: float = 0, *, tls: bool = False) -> None:
        """`uplink_bytes_per_s` limits the origin; with `tls` everybody has a certificate of one CA."""
        self.directory = directory
        self.keys = directory / "keys" if tls else None
        self.coordinator = FakeCoordinator()
        self.origin = Origin(TokenBucket(uplink_bytes_per_s) if uplink_bytes_per_s else None)
        self.address = ""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Fleet:
        if self.keys is not None:
            init_fleet(self.keys)
        self.address = await self.coordinator.start(tls=self._tls("coordinator"))
        self._stack.push_async_callback(self.coordinator.stop)
        await self.origin.start(self._tls("origin"))
        self._stack.push_async_callback(self.origin.stop)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _tls(self, name: str) -> Tls | None:
        if self.keys is None:
            return None
        files = issue(self.keys, name)
        return load_tls(files.cert, files.key, files.ca)

    def settings(self, name: str, **changes: Any) -> RelaydSettings:
        fields: dict[str, Any] = {
            "coordinator": self.address,
            "store": self.directory / name,
            "name": name,
            "listen": "127.0.0.1:0",
        }
        if self.keys is not None:
            files = issue(self.keys, name)
            fields |= {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca}
        return RelaydSettings(**(fields | changes))

    async def relay(
        self, name: str, stack: AsyncExitStack | None = None, disk: Disk | None = None, **changes: Any
    ) -> Daemon:
        """A relay in this process, as `run_relayd` makes it. On a stack of one's own it can be taken down earlier."""
        settings = self.settings(name, **changes)
        where = stack or self._stack
        store = Store.open(settings.store, disk)
        where.callback(store.close)
        await store.recover()
        return await where.enter_async_context(open_daemon(settings, store, Endpoints.of(settings)))


def make_snapshot(directory: Path, size_bytes: int, seed: int = 1) -> Path:
    """A directory with one safetensors file of about this size, and a sidecar."""
    import json
    import random

    directory.mkdir(parents=True)
    body = random.Random(seed).randbytes(size_bytes)
    header = json.dumps({"w": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}).encode()
    header += b" " * (-len(header) % 8)
    (directory / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    (directory / "config.json").write_text(json.dumps({"seed": seed}))
    return directory


def same_files(one: Path, other: Path) -> bool:
    names = sorted(p.relative_to(one) for p in one.rglob("*") if p.is_file())
    return names == sorted(p.relative_to(other) for p in other.rglob("*") if p.is_file()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )
