"""What a child takes from a parent that lies on its data connection: nothing, and it says why. A scripted parent."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest

from chappe.errors import ChunkMismatchError, DiskFullError, PeerError
from chappe.hop.inlet import Inlet
from chappe.hop.tcp_receive import TCP_LOST, TcpRoute
from chappe.hop.tcp_send import TcpLostError
from chappe.v1.relay_pb2 import End, EndReason, Watermark
from chappe.wire.frames import (
    Reply,
    encode_chunks,
    encode_end,
    encode_tcp_offer,
    encode_tcp_switch,
    encode_watermark,
)
from chappe.wire.tcp_frames import BODY_BYTES_MAX, HELLO_BYTES, encode_chunk_head, encode_hello, encode_message

SECRET = bytes(range(32))


class Taker:
    """Keeps what it gets. `held_up`: takes no chunk before `go`; `watermarks` are its own, or the event loop's."""

    def __init__(self) -> None:
        self.chunks: list[tuple[int, bytes]] = []
        self.marks: list[int] = []
        self.go = threading.Event()
        self.go.set()
        self.taking = threading.Event()
        self.raises: Exception | None = None
        self.pause_s = 0.0
        self.watermarks = True

    def take_chunk(self, chunk: int, data: memoryview, pause: Callable[[float], None]) -> None:
        self.taking.set()
        assert self.go.wait(30)
        if self.raises is not None:
            raise self.raises
        if self.pause_s:
            pause(self.pause_s)
        self.chunks.append((chunk, bytes(data)))

    def take_message(self, reply: Reply) -> bool:
        if not self.watermarks or not isinstance(reply, Watermark):
            return False
        self.marks.append(reply.chunks_held)
        return True


class Call:
    """The gRPC side."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[object] = asyncio.Queue()

    async def read(self) -> object:
        message = await self.messages.get()
        if isinstance(message, BaseException):
            raise message
        return message


def rpc_error(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "over")


class Parent:
    """Says what the test says, on gRPC and on the data connection."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.call = Call()
        self.fallbacks: list[str] = []
        self.taker = Taker()
        self.switched = asyncio.Event()
        self._server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._server.settimeout(30)
        self.port = self._server.getsockname()[1]
        self.inlet = Inlet(
            self.call,
            TcpRoute("127.0.0.1", None, "parent"),
            self.taker,
            on_switch=self.switched.set,
            on_fallback=self.fallbacks.append,
        )
        stack.callback(self.inlet.close)
        self._stack = stack

    def say(self, *messages: object) -> None:
        for message in messages:
            self.call.messages.put_nowait(message)

    async def connected(self) -> socket.socket:
        """Offer, accept, switch."""
        self.say(encode_tcp_offer(self.port, SECRET), encode_watermark(0, 0, False))
        assert isinstance(await self.reply(), Watermark)
        connection, _ = await asyncio.to_thread(self._server.accept)
        self._stack.enter_context(connection)
        connection.settimeout(30)
        assert await asyncio.to_thread(connection.recv, HELLO_BYTES, socket.MSG_WAITALL) == encode_hello(SECRET)
        self.say(encode_tcp_switch())
        reading = asyncio.ensure_future(self.inlet.read())  # may be cancelled and called again
        await asyncio.wait_for(self.switched.wait(), 30)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return connection

    async def reply(self) -> object:
        async with asyncio.timeout(30):
            found = await self.inlet.read()
        return None if found is None else found[0]


@pytest.fixture
async def parent() -> AsyncIterator[Parent]:
    async with AsyncExitStack() as stack:
        yield Parent(stack)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<IIQ", 1, BODY_BYTES_MAX + 1, 0),
        struct.pack("<IIQ", 1, 0xFFFFFFFF, 0),
        struct.pack("<IIQ", 2, 0, 0),
        struct.pack("<IIQ", 2, 8, 1),
        struct.pack("<IIQ", 3, 8, 0),
        struct.pack("<IIQ", 0x101, 8, 0),
    ],
)
async def test_a_frame_that_cannot_be_is_not_waited_for(parent: Parent, head: bytes) -> None:
    connection = await parent.connected()
    connection.sendall(encode_chunk_head(3, 4) + b"good" + head)
    with pytest.raises(PeerError):
        await parent.reply()
    assert parent.taker.chunks == [(3, b"good")]


@pytest.mark.parametrize(
    "message",
    [b"\xff\xff\xff", encode_chunks([(0, b"x")]), encode_tcp_switch(), encode_tcp_offer(1, SECRET)],
)
async def test_a_message_that_has_no_place_there(parent: Parent, message: bytes) -> None:
    connection = await parent.connected()
    connection.sendall(encode_message(message))
    with pytest.raises(PeerError):
        await parent.reply()


@pytest.mark.parametrize(
    "offer", [encode_tcp_offer(0, SECRET), encode_tcp_offer(65536, SECRET), encode_tcp_offer(7, b"short")]
)
async def test_an_offer_that_cannot_be_meant(parent: Parent, offer: bytes) -> None:
    parent.say(offer)
    with pytest.raises(PeerError):
        await parent.reply()


async def test_a_second_offer_and_a_switch_to_nothing(parent: Parent) -> None:
    parent.say(encode_tcp_switch())
    with pytest.raises(PeerError):
        await parent.reply()
    parent.say(encode_tcp_offer(parent.port, SECRET), encode_tcp_offer(parent.port, SECRET))
    with pytest.raises(PeerError):
        await parent.reply()


async def test_an_offer_that_was_not_asked_for(parent: Parent) -> None:
    inlet = Inlet(parent.call, None, Taker(), on_switch=lambda: None, on_fallback=parent.fallbacks.append)
    parent.say(encode_tcp_offer(parent.port, SECRET))
    with pytest.raises(PeerError):
        await inlet.read()


async def test_payload_on_grpc_after_the_switch(parent: Parent) -> None:
    await parent.connected()
    parent.say(encode_watermark(1, 2, False))
    with pytest.raises(PeerError):
        await parent.reply()


async def test_an_end_on_grpc_goes_past_what_does_not_come(parent: Parent) -> None:
    connection = await parent.connected()
    connection.sendall(encode_chunk_head(3, 1000) + b"the rest never comes")
    parent.say(encode_end(EndReason.END_REASON_EVICTED))
    end = await parent.reply()
    assert isinstance(end, End)
    assert end.reason == EndReason.END_REASON_EVICTED


async def test_a_good_end_on_grpc_waits_for_what_is_on_tcp(parent: Parent) -> None:
    connection = await parent.connected()
    parent.say(grpc.aio.EOF)
    reading = asyncio.ensure_future(parent.reply())
    await asyncio.sleep(0)
    connection.sendall(encode_chunk_head(3, 4) + b"good" + encode_message(encode_end(EndReason.END_REASON_COMPLETE)))
    end = await reading
    assert parent.taker.chunks == [(3, b"good")]
    assert isinstance(end, End)
    assert end.reason == EndReason.END_REASON_COMPLETE


async def test_a_break_of_grpc_is_the_parents(parent: Parent) -> None:
    connection = await parent.connected()
    connection.close()
    parent.say(rpc_error(grpc.StatusCode.UNAVAILABLE))
    with pytest.raises(grpc.aio.AioRpcError):
        await parent.reply()
    assert not parent.fallbacks


@pytest.mark.parametrize("said", [True, False])
async def test_a_break_of_tcp_alone_is_the_connections(parent: Parent, said: bool) -> None:
    connection = await parent.connected()
    connection.sendall(encode_chunk_head(3, 1000) + b"half")
    connection.close()
    if said:
        parent.say(rpc_error(TCP_LOST))
    with pytest.raises(TcpLostError):
        await parent.reply()
    assert parent.fallbacks


async def test_who_takes_slowly_stops_the_parent(parent: Parent) -> None:
    """Nothing is read while a chunk is taken: TCP stops the parent. Then nothing is lost or mixed up."""
    connection = await parent.connected()
    chunks = [bytes([i]) * (300_000 + 7 * i) for i in range(60)]
    frames = b"".join(encode_chunk_head(i, len(data)) + data for i, data in enumerate(chunks))
    parent.taker.go.clear()
    connection.settimeout(None)
    sending = asyncio.ensure_future(asyncio.to_thread(connection.sendall, frames))
    reading = asyncio.ensure_future(parent.reply())
    assert await asyncio.to_thread(parent.taker.taking.wait, 30)
    assert not parent.taker.chunks
    parent.taker.go.set()
    await sending
    connection.sendall(encode_message(encode_end(EndReason.END_REASON_COMPLETE)))
    assert isinstance(await reading, End)
    assert parent.taker.chunks == list(enumerate(chunks))


async def test_nothing_is_taken_before_the_loop_has_dealt_with_a_message(parent: Parent) -> None:
    """A page that is the loop's stands before the chunks that need it."""
    parent.taker.watermarks = False
    connection = await parent.connected()
    mark = encode_message(encode_watermark(1, 2, False))
    connection.sendall(
        mark + encode_chunk_head(3, 4) + b"good" + encode_message(encode_end(EndReason.END_REASON_LEAVING))
    )
    assert isinstance(await parent.reply(), Watermark)
    assert not parent.taker.taking.is_set()  # nor will it be, before the loop asks for the next one
    assert isinstance(await parent.reply(), End)
    assert parent.taker.chunks == [(3, b"good")]


async def test_watermarks_need_no_event_loop(parent: Parent) -> None:
    connection = await parent.connected()
    marks = b"".join(encode_message(encode_watermark(i, 9, False)) for i in range(5))
    connection.sendall(marks + encode_message(encode_end(EndReason.END_REASON_LEAVING)))
    assert isinstance(await parent.reply(), End)
    assert parent.taker.marks == list(range(5))


@pytest.mark.parametrize("error", [ChunkMismatchError(3), DiskFullError("no room"), RuntimeError("a mistake")])
async def test_what_the_taker_raises_is_not_the_connections_fault(
    parent: Parent, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()  # by the mistake, which ends the thread, too
    monkeypatch.setattr(threading, "excepthook", lambda _: ended.set())
    parent.taker.raises = error
    connection = await parent.connected()
    connection.sendall(encode_chunk_head(3, 4) + b"good")
    with pytest.raises(type(error)) as raised:
        await parent.reply()
    assert raised.value is error
    assert not parent.fallbacks
    assert not isinstance(error, RuntimeError) or await asyncio.to_thread(ended.wait, 30)


async def test_a_pause_ends_with_the_fetch(parent: Parent) -> None:
    parent.taker.pause_s = 600.0
    connection = await parent.connected()
    connection.sendall(encode_chunk_head(3, 4) + b"good")
    reading = asyncio.ensure_future(parent.reply())
    assert await asyncio.to_thread(parent.taker.taking.wait, 30)
    reading.cancel()
    parent.inlet.close()
    assert await asyncio.to_thread(connection.recv, 1) == b""  # closed by the thread
    assert not parent.taker.chunks


@pytest.mark.parametrize("there", [False, True])
async def test_a_switch_to_a_connection_that_came_to_nothing(there: bool) -> None:
    """The child has dialled beside its Fetch; the parent says that it has taken that, and has not."""
    async with AsyncExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(30)
            call, fallbacks = Call(), list[str]()
            inlet = Inlet(
                call,
                TcpRoute("127.0.0.1", None, "parent", server.getsockname()[1] if there else _closed_port()),
                Taker(),
                secret=SECRET,
                on_switch=lambda: None,
                on_fallback=fallbacks.append,
            )
            stack.callback(inlet.close)
            if there:
                connection, _ = await asyncio.to_thread(server.accept)
                connection.close()
            call.messages.put_nowait(encode_tcp_switch())
            with pytest.raises(TcpLostError):
                await asyncio.wait_for(inlet.read(), 30)
            assert len(fallbacks) == 1


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def test_a_parent_may_be_done_before_the_event_loop_hears_of_it() -> None:
    """All went into the socket's buffer, and the connection is closed, when gRPC says that it is offered."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(30)
        call, taker, port = Call(), Taker(), server.getsockname()[1]
        fallbacks: list[str] = []
        route = TcpRoute("127.0.0.1", None, "parent", port)
        inlet = Inlet(call, route, taker, secret=SECRET, on_switch=lambda: None, on_fallback=fallbacks.append)
        stack.callback(inlet.close)
        connection, _ = await asyncio.to_thread(server.accept)
        assert await asyncio.to_thread(connection.recv, HELLO_BYTES, socket.MSG_WAITALL) == encode_hello(SECRET)
        connection.sendall(
            encode_chunk_head(0, 4) + b"good" + encode_message(encode_end(EndReason.END_REASON_COMPLETE))
        )
        connection.close()
        for message in (encode_tcp_offer(port, SECRET), encode_tcp_switch(), grpc.aio.EOF):
            call.messages.put_nowait(message)
        async with asyncio.timeout(30):
            found = await inlet.read()
        assert found is not None
        assert isinstance(found[0], End)
        assert (taker.chunks, fallbacks) == ([(0, b"good")], [])


async def test_one_that_was_let_go_without_a_word_is_dialled_once_more() -> None:
    """Also when that is seen only after the offer of the same."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        server.settimeout(30)
        call, port = Call(), server.getsockname()[1]
        told = asyncio.Event()
        fallbacks: list[str] = []

        def fell_back(reason: str) -> None:
            fallbacks.append(reason)
            told.set()

        route = TcpRoute("127.0.0.1", None, "parent", port)
        inlet = Inlet(call, route, Taker(), secret=SECRET, on_switch=lambda: None, on_fallback=fell_back)
        stack.callback(inlet.close)
        first, _ = await asyncio.to_thread(server.accept)
        call.messages.put_nowait(encode_tcp_offer(port, SECRET))
        call.messages.put_nowait(encode_watermark(0, 0, False))
        assert await inlet.read() is not None
        first.close()
        second, _ = await asyncio.to_thread(server.accept)
        assert await asyncio.to_thread(second.recv, HELLO_BYTES, socket.MSG_WAITALL) == encode_hello(SECRET)
        assert fallbacks == []
        second.close()
        async with asyncio.timeout(30):
            await told.wait()
        assert len(fallbacks) == 1
