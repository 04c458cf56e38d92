"""A hop whose payload goes over a data connection: real gRPC, real sockets; what its tests share."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes import MemoryOrigin, Node, start_node, token, until

from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.hop.client import build_request
from chappe.hop.meter import TCP, HopMeter
from chappe.hop.net import Tls, open_channel, parse_address
from chappe.hop.source import ChunkSpan
from chappe.hop.tcp_listen import TcpListener
from chappe.hop.tcp_receive import TcpRoute
from chappe.hop.tcp_sockets import shut_down
from chappe.v1.relay_pb2 import End, FetchRequest, TcpMore, TcpOffer, TcpSwitch
from chappe.wire.frames import decode_reply
from chappe.wire.tcp_frames import FrameKind, decode_head, encode_hello

LOOPBACK = parse_address("127.0.0.1:0")
CHUNK = CHUNK_BYTES_PLAIN


class FileOrigin(MemoryOrigin):
    """Its chunks lie in a file as well. `broken`: cannot be opened."""

    def __init__(self, payload: bytes, path: Path, **options: Any) -> None:
        super().__init__(payload, **options)
        path.write_bytes(payload)
        self.path = path
        self.opened: list[int] = []
        self.broken: set[int] = set()

    @contextlib.contextmanager
    def open_chunk(self, chunk: int) -> Iterator[ChunkSpan]:
        self.opened.append(chunk)
        if chunk in self.broken:
            raise OSError("the disk says no")
        with self.path.open("rb") as file:
            yield ChunkSpan(file.fileno(), chunk * CHUNK)


async def become(condition: Callable[[], bool]) -> None:
    """Wait for what a thread or a socket does, which fires no signal."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def payload_of(chunks: int) -> bytes:
    return b"".join(bytes([i % 251]) * CHUNK for i in range(chunks))


async def serve(stack: AsyncExitStack, source: MemoryOrigin, tls: Tls | None = None, **options: Any) -> Node:
    node = await start_node(stack, "parent", source, tls=tls, **options)
    node.service.tcp = listener = await TcpListener.open(LOOPBACK, tls)
    stack.push_async_callback(listener.close)
    return node


def listener_of(node: Node) -> TcpListener:
    assert node.service.tcp is not None
    return node.service.tcp


def route_to(node: Node, tls: Tls | None = None, name: str = "parent", port: int = 0) -> TcpRoute:
    return TcpRoute.to(node.server.address, tls, name, port)


class Held:
    """An origin that gives its first chunks, and the rest when the child has gone over to TCP (or has given it up)."""

    def __init__(self, source: MemoryOrigin, parent: Node, child: Node, **options: Any) -> None:
        self.source, self.parent, self.child = source, parent, child
        self.meter = HopMeter()
        self.fallbacks: list[str] = []
        self.fell_back = asyncio.Event()
        self.options = options

    def _fell_back(self, reason: str) -> None:
        self.fallbacks.append(reason)
        self.fell_back.set()

    def start(self, tls: Tls | None = None) -> asyncio.Task[Any]:
        options = {"tcp": route_to(self.parent, tls), "meter": self.meter, "on_fallback": self._fell_back}
        self.task = asyncio.ensure_future(self.child.fetch_from(self.parent, **(options | self.options)))
        return self.task

    async def on_tcp(self) -> None:
        await until(self.child.object.signal, lambda: self.child.object.manifest is not None)
        await become(lambda: self.meter.transport == TCP)


async def started(stack: AsyncExitStack, source: MemoryOrigin, **options: Any) -> Held:
    parent = await serve(stack, source)
    child = await start_node(stack, "child")
    held = Held(source, parent, child, **options)
    source.release(2)
    held.start()
    return held


class MuteChild:
    """Fetches, takes the data connection, and never reads it."""

    def __init__(self, parent: Node, streams: int = 0) -> None:
        self.streams = streams
        self.channel = open_channel(parent.server.address, None, "parent")
        method = self.channel.unary_stream("/chappe.v1.Relay/Fetch", request_serializer=FetchRequest.SerializeToString)
        child_object = MemoryOrigin(b"")
        child_object.manifest, child_object.ledger.total = None, None
        request = build_request(child_object, 0, token("parent", "child"))
        request.accepts_tcp = True
        request.streams = streams
        self.call = method(request)
        self.connections: list[socket.socket] = []
        self.heard: list[object] = []

    async def connect(self) -> None:
        while True:
            reply = decode_reply(await self.call.read())
            self.heard.append(reply)
            if isinstance(reply, TcpOffer):
                self._dial(reply.port, reply.secret)
            if isinstance(reply, TcpMore):
                for secret in reply.secrets:
                    self._dial(reply.port, secret)
            if isinstance(reply, TcpMore if self.streams > 1 else TcpSwitch):
                return

    def _dial(self, port: int, secret: bytes) -> None:
        self.connections.append(connection := socket.create_connection(("127.0.0.1", port)))
        connection.sendall(encode_hello(secret))

    async def end(self) -> End:
        async with asyncio.timeout(30):
            reply = decode_reply(await self.call.read())
        assert isinstance(reply, End)
        return reply

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()
        for connection in self.connections:
            connection.close()


def stream_of(node: Node) -> Any:
    (stream,) = node.service.streams._streams
    return stream


def outlets_of(node: Node) -> list[Any]:
    outlet = stream_of(node)._outlet
    return [outlet._tcp, *outlet._beside]


def no_threads_left() -> bool:
    return not any(thread.name.startswith("chappe-tcp") for thread in threading.enumerate())


class Stuck:
    """A connection whose next chunk is under way until the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outlet: Any) -> None:
        self.go, self.stuck = threading.Event(), threading.Event()
        self.outlet, self._write = outlet, outlet.write
        monkeypatch.setattr(outlet, "write", self.write)

    def write(self, data: bytes) -> None:
        if decode_head(data[:16]).kind is FrameKind.CHUNK:
            self.stuck.set()
            assert self.go.wait(30)
        self._write(data)

    def breaks(self) -> None:
        shut_down(self.outlet._connection)
        self.go.set()
