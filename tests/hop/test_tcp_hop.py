"""A hop whose payload goes over a data connection: real gRPC, real sockets, and all that can go wrong with one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes import MemoryObject, MemoryOrigin, Node, start_node, token, until

from chappe.core.effects import PeerRef
from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.core.reasons import ParentLossReason
from chappe.errors import DiskFullError
from chappe.hop import outlet as outlets
from chappe.hop import tcp_listen, tcp_send
from chappe.hop.client import build_request
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import GRPC, TCP, HopMeter
from chappe.hop.net import Tls, load_tls, open_channel, parse_address
from chappe.hop.source import ChunkSpan, Data
from chappe.hop.tcp_listen import TcpListener, data_address, host_of
from chappe.hop.tcp_receive import TcpRoute
from chappe.hop.tcp_routes import LEAVE_ALONE_S, TcpRoutes
from chappe.hop.tcp_sockets import client_context, shut_down
from chappe.keys import init_fleet, issue
from chappe.v1.relay_pb2 import End, EndReason, FetchRequest, HeaderPart, TcpOffer, TcpSwitch
from chappe.wire.frames import ChunkBatch, decode_reply
from chappe.wire.tcp_frames import encode_chunk_head, encode_hello

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


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


@pytest.fixture(scope="module")
def fleet_tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tls]:
    directory = tmp_path_factory.mktemp("keys")
    init_fleet(directory)
    found = {}
    for name in ("parent", "child", "other"):
        files = issue(directory, name)
        tls = load_tls(files.cert, files.key, files.ca)
        assert tls is not None
        found[name] = tls
    return found


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


def route_to(node: Node, tls: Tls | None = None, name: str = "parent") -> TcpRoute:
    return TcpRoute.to(node.server.address, tls, name)


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


# ---- it works ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("in_files", [False, True])
async def test_the_payload_goes_over_tcp(
    stack: AsyncExitStack, tmp_path: Path, fleet_tls: dict[str, Tls], secured: bool, in_files: bool
) -> None:
    payload = payload_of(60)[:-777]
    source = FileOrigin(payload, tmp_path / "payload") if in_files else MemoryOrigin(payload)
    parent_tls, child_tls = (fleet_tls["parent"], fleet_tls["child"]) if secured else (None, None)
    parent = await serve(stack, source, parent_tls)
    child = await start_node(stack, "child", tls=child_tls)
    held = Held(source, parent, child)
    source.release(2)
    held.start(child_tls)
    await held.on_tcp()
    await become(lambda: parent.service.streams.meters.transports() == [TCP])
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is None
    assert child.object.payload() == payload
    assert not held.fallbacks
    if isinstance(source, FileOrigin):
        assert len(source.opened) >= 58


async def test_without_a_listener_or_an_accepting_child_it_is_grpc(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    source.release()
    parent = await start_node(stack, "parent", source)
    for options in ({"tcp": route_to(parent)}, {}):
        child = await start_node(stack, "child")
        meter = HopMeter()
        assert (await child.fetch_from(parent, meter=meter, **options)).reason is None
        assert meter.transport == GRPC
        assert child.object.payload() == source.payload()
        parent.service.tcp = listener = await TcpListener.open(LOOPBACK, None)  # and now the child does not accept
        stack.push_async_callback(listener.close)


async def test_bytes_that_are_wrong_are_not_stored(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source)
    await held.on_tcp()
    source.release(12)
    read = source.read_chunk
    source.read_chunk = lambda chunk: bytes(CHUNK) if chunk == 18 else read(chunk)  # type: ignore[method-assign]
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is ParentLossReason.CORRUPT
    assert end.rejected == (18,)
    assert 18 not in held.child.object.ledger.held
    assert held.child.object.read_chunk(15) == source._all[15]


async def test_chunks_wait_for_a_connection_that_is_on_its_way(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would go out on gRPC meanwhile is in the way of the data connection's first packets."""
    monkeypatch.setattr(outlets, "HOLD_S", 30.0)
    source = MemoryOrigin(payload_of(40))
    source.release()
    child = MuteChild(await serve(stack, source))
    stack.push_async_callback(child.close)
    async with asyncio.timeout(30):
        await child.connect()
    assert any(isinstance(reply, HeaderPart) for reply in child.heard)
    assert not any(isinstance(reply, ChunkBatch) for reply in child.heard)


async def test_it_begins_at_the_pace_that_the_hop_should_carry(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces: list[float | None] = []
    set_pace = tcp_send.limit_pace

    def limit_pace(connection: socket.socket, bytes_per_s: float | None) -> None:
        set_pace(connection, bytes_per_s)
        paces.append(bytes_per_s)
        source.signal.fire()

    monkeypatch.setattr(tcp_send, "limit_pace", limit_pace)
    monkeypatch.setattr(tcp_send, "BEGIN_S", 0.01)
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source, expected_bytes_per_s=4e6)
    await held.on_tcp()
    await until(source.signal, lambda: len(paces) == 2)
    assert paces == [5e6, None]  # a quarter above it, then as fast as may be
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None


@pytest.mark.parametrize("expected_bytes_per_s", [None, 1.25e9])
async def test_without_a_figure_or_on_a_fast_link_nothing_is_paced(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, expected_bytes_per_s: float | None
) -> None:
    paces: list[float | None] = []
    monkeypatch.setattr(tcp_send, "limit_pace", lambda connection, pace: paces.append(pace))
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source, expected_bytes_per_s=expected_bytes_per_s)
    await held.on_tcp()
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert not paces


async def test_limits_hold_on_tcp_too(stack: AsyncExitStack) -> None:
    """The threads of both ends book what they carry, and nothing of the time that they waited is a silence."""
    source = MemoryOrigin(payload_of(20))
    up, down = TokenBucket(4e6), TokenBucket(8e6)
    parent = await serve(stack, source, uplink=up)
    child = await start_node(stack, "child")
    held = Held(source, parent, child, downlink=down)
    source.release(2)
    held.start()
    await held.on_tcp()
    booked = up._booked_until, down._booked_until
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == source.payload()
    assert up._booked_until - booked[0] >= 17 * CHUNK / 4e6
    assert down._booked_until - booked[1] >= 17 * CHUNK / 8e6


class SlowSink(MemoryObject):
    """A disk that is stuck while a thread writes to it: once, when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.stick = False
        self.stuck, self.go = threading.Event(), threading.Event()

    def put_chunks(self, chunks: Sequence[tuple[int, Data]], *, lent: bool = False) -> None:
        if lent and self.stick:
            self.stick = False
            self.stuck.set()
            assert self.go.wait(30)
        super().put_chunks(chunks, lent=lent)


async def stuck_in_the_disk(stack: AsyncExitStack, source: MemoryOrigin) -> tuple[Held, SlowSink]:
    parent = await serve(stack, source)
    sink = SlowSink()
    child = await start_node(stack, "child", sink)
    held = Held(source, parent, child, stall_floor_s=0.3)
    source.release(2)
    held.start()
    await held.on_tcp()
    sink.stick = True
    source.release()
    assert await asyncio.to_thread(sink.stuck.wait, 30)
    return held, sink


async def test_a_disk_that_is_slow_is_not_a_parent_that_has_stalled(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    held, sink = await stuck_in_the_disk(stack, source)
    done, _ = await asyncio.wait({held.task}, timeout=1.0)  # three times what a parent may be silent
    assert not done
    sink.go.set()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert sink.payload() == source.payload()


async def test_a_fetch_that_is_cancelled_while_its_thread_writes_does_not_wait_for_it(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    held, sink = await stuck_in_the_disk(stack, source)
    before = len(sink.ledger.held)
    held.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(held.task, 30)
    sink.go.set()
    await become(lambda: not any(thread.name == "chappe-tcp-receive" for thread in threading.enumerate()))
    assert len(sink.ledger.held) == before + 1  # the one that it had in hand is whole, and no other came
    end = await asyncio.wait_for(held.child.fetch_from(held.parent, tcp=route_to(held.parent)), 60)
    assert end.reason is None
    assert sink.payload() == source.payload()


async def test_trouble_with_the_own_store_is_nobody_elses(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source)
    await held.on_tcp()
    held.child.object.put_error = DiskFullError("no room")
    source.release()
    with pytest.raises(DiskFullError):
        await asyncio.wait_for(held.task, 60)
    assert not held.fallbacks


async def test_chunks_that_were_not_asked_for_on_tcp(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source)
    await held.on_tcp()
    monkeypatch.setattr("chappe.hop.tcp_feed.encode_chunk_head", lambda chunk, length: encode_chunk_head(0, length))
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is ParentLossReason.PROTOCOL
    assert "chunk 0" in end.detail


async def test_a_chunk_that_rots_at_the_parent_is_sent_when_it_has_come_again(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """It cannot be read: the thread says so, the loop drops it, and the thread goes on without it."""
    source = FileOrigin(payload_of(20), tmp_path / "payload")
    held = await started(stack, source)
    await held.on_tcp()
    source.broken.add(7)
    recheck = source.recheck

    def lose(chunks: Sequence[int]) -> list[int]:
        source.rechecked += chunks
        for chunk in chunks:
            source.ledger.drop(chunk, chunk + 1)
        return list(chunks)

    source.recheck = lose  # type: ignore[method-assign]
    source.release()
    await become(lambda: len(held.child.object.ledger.held) == 19)
    assert source.rechecked == [7]
    source.recheck = recheck  # type: ignore[method-assign]
    source.broken.clear()
    source.put_chunks([(7, source._all[7])])
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(20)


# ---- the connection does not come about ----------------------------------------------------------------------------


async def test_a_closed_port_costs_nothing(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    listener = listener_of(parent)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        free_port = unused.getsockname()[1]
    listener.address = listener.address.with_port(free_port)
    held = Held(source, parent, await start_node(stack, "child"))
    source.release(2)
    held.start()
    await asyncio.wait_for(held.fell_back.wait(), 30)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.meter.transport == GRPC
    assert len(held.fallbacks) == 1


async def test_a_filtered_port_is_not_waited_for(stack: AsyncExitStack) -> None:
    """SYNs are dropped (the backlog is full): the chunks wait for half a second, then come over gRPC."""
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    listener = listener_of(parent)
    with socket.socket() as deaf, contextlib.ExitStack() as fillers:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(8):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        listener.address = listener.address.with_port(deaf.getsockname()[1])
        child = await start_node(stack, "child")
        held = Held(source, parent, child)
        source.release()
        held.start()
        assert (await asyncio.wait_for(held.task, 60)).reason is None
        assert child.object.payload() == source.payload()
        assert held.meter.transport == GRPC


async def closed_without_a_word(connection: socket.socket) -> bool:
    connection.settimeout(30)
    try:
        return await asyncio.to_thread(connection.recv, 1) == b""
    except (ConnectionResetError, ssl.SSLError):
        return True


async def test_who_does_not_know_the_secret_gets_nothing(stack: AsyncExitStack) -> None:
    listener = await TcpListener.open(LOOPBACK, None)
    stack.push_async_callback(listener.close)
    taken = asyncio.Event()
    offer = listener.offer("ipv4:127.0.0.1:5", None, taken.set)
    at = ("127.0.0.1", listener.address.port)
    for word in (encode_hello(bytes(32)), b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: x\r\n\r\n", b"chappe1\n"):
        with socket.create_connection(at) as intruder:
            intruder.sendall(word)
            intruder.shutdown(socket.SHUT_WR)
            assert await closed_without_a_word(intruder)
    assert offer.take() is None
    with socket.create_connection(at) as child, socket.create_connection(at) as again:
        child.sendall(encode_hello(offer.secret))
        await asyncio.wait_for(taken.wait(), 30)
        outlet = offer.take()
        assert outlet is not None
        again.sendall(encode_hello(offer.secret))  # once is all
        assert await closed_without_a_word(again)
        assert offer.take() is None
        outlet.close()
        assert await closed_without_a_word(child)


async def test_the_secret_is_good_from_its_host_only_and_not_after_its_fetch(stack: AsyncExitStack) -> None:
    listener = await TcpListener.open(LOOPBACK, None)
    stack.push_async_callback(listener.close)
    at = ("127.0.0.1", listener.address.port)
    elsewhere = listener.offer("ipv4:10.9.8.7:5", None, lambda: None)
    over = listener.offer("ipv4:127.0.0.1:5", None, lambda: None)
    over.close()
    for offer in (elsewhere, over):
        with socket.create_connection(at) as caller:
            caller.sendall(encode_hello(offer.secret))
            assert await closed_without_a_word(caller)
        assert offer.take() is None


async def test_who_says_nothing_is_closed_and_only_so_many_may(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_listen, "GREETING_MAX", 1)
    monkeypatch.setattr(tcp_listen, "HELLO_S", 2.0)
    listener = await TcpListener.open(LOOPBACK, None)
    stack.push_async_callback(listener.close)
    at = ("127.0.0.1", listener.address.port)
    with socket.create_connection(at) as one:
        one.sendall(b"c")
        await become(lambda: len(listener._greetings) == 1)
        with socket.create_connection(at) as two:
            assert await closed_without_a_word(two)
        assert await closed_without_a_word(one)  # HELLO_S later


async def test_certificates_count(stack: AsyncExitStack, fleet_tls: dict[str, Tls]) -> None:
    listener = await TcpListener.open(LOOPBACK, fleet_tls["parent"])
    stack.push_async_callback(listener.close)
    at = ("127.0.0.1", listener.address.port)

    def dial(offer: tcp_listen.Offer, tls: Tls) -> bool:
        """Whether it was closed without a word."""
        with socket.create_connection(at, 30) as plain, client_context(tls).wrap_socket(plain) as secured:
            secured.sendall(encode_hello(offer.secret))
            try:
                return secured.recv(1) == b""
            except (ConnectionResetError, ssl.SSLError):
                return True

    offer = listener.offer("ipv4:127.0.0.1:5", "child", lambda: None)
    assert await asyncio.to_thread(dial, offer, fleet_tls["other"])  # of the fleet, and not who fetches
    assert offer.take() is None
    offer = listener.offer("ipv4:127.0.0.1:5", "child", lambda: None)
    with socket.create_connection(at) as plain:  # no TLS at all
        plain.sendall(encode_hello(offer.secret))
        plain.shutdown(socket.SHUT_WR)
        plain.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            while await asyncio.to_thread(plain.recv, 4096):
                pass  # an alert, and no more
    assert offer.take() is None


@pytest.mark.parametrize("trouble", ["plaintext port", "other name"])
async def test_a_child_takes_no_payload_from_a_port_that_is_not_its_parents(
    stack: AsyncExitStack, fleet_tls: dict[str, Tls], trouble: str
) -> None:
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source, fleet_tls["parent"])
    wrong = await TcpListener.open(LOOPBACK, None if trouble == "plaintext port" else fleet_tls["other"])
    stack.push_async_callback(wrong.close)
    listener_of(parent).address = wrong.address
    held = Held(source, parent, await start_node(stack, "child", tls=fleet_tls["child"]))
    source.release(2)
    held.start(fleet_tls["child"])
    await asyncio.wait_for(held.fell_back.wait(), 30)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.meter.transport == GRPC


# ---- it breaks -----------------------------------------------------------------------------------------------------


def outlet_of(node: Node) -> Any:
    (stream,) = node.service.streams._streams
    return stream._outlet._tcp


async def test_a_connection_that_breaks_is_done_without(stack: AsyncExitStack) -> None:
    """The same fetch goes on over gRPC: no loss is reported to anybody."""
    source = MemoryOrigin(payload_of(40))
    connected: list[int] = []
    held = await started(stack, source, on_connected=lambda: connected.append(1))
    await held.on_tcp()
    source.release(20)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 20)
    shut_down(outlet_of(held.parent)._connection)
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is None
    assert held.child.object.payload() == payload_of(40)
    assert held.fallbacks
    assert held.meter.transport == GRPC
    assert connected == [1]


async def test_a_parent_that_is_gone_is_a_loss(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(40))
    held = await started(stack, source)
    await held.on_tcp()
    await held.parent.server.stop(0)
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is ParentLossReason.BROKEN


async def test_a_chunk_that_cannot_be_opened_is_left_out_and_sent_later(stack: AsyncExitStack, tmp_path: Path) -> None:
    source = FileOrigin(payload_of(40), tmp_path / "payload")
    held = await started(stack, source)
    await held.on_tcp()
    source.broken = {25}
    original = source._all[25]
    source.release(25)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 25)
    source.release()
    source.rot(25)  # so that looking again finds it rotten
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 39)
    source.broken = set()
    source.put_chunks([(25, original)])
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(40)
    assert not held.fallbacks


async def test_a_file_that_is_cut_short_ends_the_connection_and_the_chunk_is_looked_at(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    source = FileOrigin(payload_of(40), tmp_path / "payload")
    held = await started(stack, source)
    await held.on_tcp()
    source.release(20)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 20)
    with source.path.open("r+b") as file:
        file.truncate(30 * CHUNK + 100)
    source.release()
    await asyncio.wait_for(held.fell_back.wait(), 30)
    assert (await asyncio.wait_for(held.task, 60)).reason is None  # over gRPC: what it has in memory is sound
    assert 30 in source.rechecked


class MuteChild:
    """Fetches, takes the data connection, and never reads it."""

    def __init__(self, parent: Node) -> None:
        self.channel = open_channel(parent.server.address, None, "parent")
        method = self.channel.unary_stream("/chappe.v1.Relay/Fetch", request_serializer=FetchRequest.SerializeToString)
        child_object = MemoryOrigin(b"")
        child_object.manifest, child_object.ledger.total = None, None
        request = build_request(child_object, 0, token("parent", "child"))
        request.accepts_tcp = True
        self.call = method(request)
        self.connection: socket.socket | None = None
        self.heard: list[object] = []

    async def connect(self) -> None:
        while True:
            reply = decode_reply(await self.call.read())
            self.heard.append(reply)
            if isinstance(reply, TcpOffer):
                self.connection = socket.create_connection(("127.0.0.1", reply.port))
                self.connection.sendall(encode_hello(reply.secret))
            if isinstance(reply, TcpSwitch):
                return

    async def end(self) -> End:
        async with asyncio.timeout(30):
            reply = decode_reply(await self.call.read())
        assert isinstance(reply, End)
        return reply

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()
        if self.connection is not None:
            self.connection.close()


@pytest.mark.parametrize("how", ["leave", "evict"])
async def test_a_child_that_does_not_read_is_not_waited_for(stack: AsyncExitStack, tmp_path: Path, how: str) -> None:
    source = FileOrigin(payload_of(400), tmp_path / "payload")
    parent = await serve(stack, source)
    mute = MuteChild(parent)
    stack.push_async_callback(mute.close)
    source.release(2)
    async with asyncio.timeout(30):
        await mute.connect()
    source.release()
    outlet = outlet_of(parent)
    await become(lambda: outlet._pending is not None)
    if how == "leave":
        parent.service.leave()
        assert (await mute.end()).reason == EndReason.END_REASON_LEAVING
    else:
        child = await start_node(stack, "child")
        end = await asyncio.wait_for(child.fetch_from(parent, edge={"epoch": 2}), 60)
        assert end.reason is None
        assert (await mute.end()).reason == EndReason.END_REASON_EVICTED
    await asyncio.to_thread(outlet._thread.join, 30)
    assert not outlet._thread.is_alive()


async def test_silence_on_tcp_is_a_stall_and_the_connection_is_blamed(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when something between the hosts forgets the connection: gRPC stays, nothing comes."""
    source = MemoryOrigin(payload_of(40))
    held = await started(stack, source, stall_floor_s=3.0)
    await held.on_tcp()
    outlet = outlet_of(held.parent)
    stuck = threading.Event()
    monkeypatch.setattr(outlet, "write", lambda data: stuck.wait())  # no watermark, and so nothing behind it
    try:
        end = await asyncio.wait_for(held.task, 60)
    finally:
        stuck.set()
    assert end.reason is ParentLossReason.STALLED
    assert held.fallbacks


async def test_a_fetch_that_is_cancelled_leaves_no_thread(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(40))
    held = await started(stack, source)
    await held.on_tcp()
    held.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await held.task
    await become(lambda: not any(thread.name.startswith("chappe-tcp") for thread in threading.enumerate()))


# ---- small ---------------------------------------------------------------------------------------------------------


def test_addresses_of_peers() -> None:
    assert host_of("ipv4:10.0.0.1:5000") == "10.0.0.1"
    assert host_of("ipv6:%5B::1%5D:5000") == "::1"
    assert host_of("ipv6:[::ffff:10.0.0.1]:5000") == "10.0.0.1"
    assert host_of("ipv6:%5Bfe80::1%25eth0%5D:5000") == "fe80::1"
    assert host_of("unix:/tmp/x") is None


def test_what_data_listen_says() -> None:
    listen = parse_address("10.0.0.1:7401")
    assert str(data_address(None, listen)) == "10.0.0.1:0"
    assert data_address("off", listen) is None
    assert str(data_address(":7402", listen)) == "10.0.0.1:7402"
    with pytest.raises(Exception, match="--data-listen"):
        data_address("nonsense", listen)


def test_a_parent_whose_connection_failed_is_left_alone_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    routes = TcpRoutes(None, now=lambda: now[0])
    parent = PeerRef("id", "w1", "127.0.0.1:7401")
    assert routes.to(parent) == TcpRoute("127.0.0.1", None, "w1")
    routes.failed(parent, "refused")
    routes.failed(parent, "refused")
    assert len(caplog.records) == 1
    assert routes.to(parent) is None
    now[0] += LEAVE_ALONE_S
    assert routes.to(parent) is not None
    assert TcpRoutes(None, on=False).to(parent) is None
