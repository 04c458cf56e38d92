"""A hop that its parent dials, and whose payload goes over a data connection that the parent dials as well."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc.aio
import pytest
from fakes import OBJECT_ID, MemoryOrigin, Node, start_node, token, until
from tcp_rig import LOOPBACK, become, listener_of, payload_of, route_to

from chappe.core.reasons import ParentLossReason
from chappe.hop.client import build_request
from chappe.hop.linkwatch import STEADY, LinkWatch
from chappe.hop.meter import GRPC, TCP, HopMeter
from chappe.hop.net import Tls, open_channel
from chappe.hop.push import ExpectedPush, PushEnd, push
from chappe.hop.receive import FetchEnd, Receiver
from chappe.hop.tcp_listen import TcpListener
from chappe.hop.tcp_send import TcpOutlet
from chappe.hop.tcp_sockets import client_context, shut_down
from chappe.v1.relay_pb2 import EdgeToken, EndReason, PushHello, PushReply, PushRequest
from chappe.wire.frames import encode_pushed, encode_tcp_switch
from chappe.wire.tcp_frames import STREAMS_AUTO, TAKEN, encode_hello


class Pushed:
    """An origin that gives its first chunks, and the rest when it is told to. What both ends say of the connection."""

    def __init__(self, parent: Node, source: MemoryOrigin, child: Node) -> None:
        self.parent, self.source, self.child = parent, source, child
        self.meter = HopMeter()
        self.childs_fallbacks: list[str] = []
        self.parents_fallbacks: list[str] = []
        self.connected: list[int] = []
        self.taken: list[int] = []
        self.stall_floor_s = 5.0

    @classmethod
    async def open(
        cls, stack: AsyncExitStack, tls: dict[str, Tls] | None = None, *, listens: bool = True, chunks: int = 20
    ) -> Pushed:
        source = MemoryOrigin(payload_of(chunks))
        parent = await start_node(stack, "parent", source, tls=tls and tls["parent"])
        child = await start_node(stack, "child", tls=tls and tls["child"])
        if listens:
            child.service.tcp = listener = await TcpListener.open(LOOPBACK, tls and tls["child"])
            stack.push_async_callback(listener.close)
        return cls(parent, source, child)

    def receive(self, *, takes: bool = True) -> asyncio.Task[FetchEnd]:
        edge = ExpectedPush(OBJECT_ID, 0, parent="parent", parent_name="parent", epoch=1, generation=1)
        node = self.child

        def fell_back(reason: str) -> None:
            self.meter.transport = GRPC
            self.childs_fallbacks.append(reason)

        def receiver(request: Any) -> Receiver:
            return Receiver(
                request,
                node.object,
                meter=self.meter,
                on_connected=lambda: self.connected.append(1),
                stall_floor_s=self.stall_floor_s,
            )

        receiving = node.inbox.receive(
            edge, lambda: build_request(node.object, 0, EdgeToken()), receiver, fell_back if takes else None
        )
        self.received = asyncio.ensure_future(receiving)
        return self.received

    def push(self, *, dials: bool = True, connections: int = 1) -> asyncio.Task[PushEnd]:
        async def call() -> PushEnd:
            async with open_channel(self.child.server.address, self.parent.tls, "child") as channel:
                return await push(
                    channel,
                    self.source,
                    0,
                    token("parent", "child"),
                    self.parent.guard,
                    streams=self.parent.service.streams,
                    on_taken=lambda: self.taken.append(1),
                    tcp=route_to(self.child, self.parent.tls, "child") if dials else None,
                    on_fallback=self.parents_fallbacks.append,
                    connections=connections,
                )

        self.pushed = asyncio.ensure_future(call())
        return self.pushed

    async def on_tcp(self) -> None:
        await become(lambda: self.meter.transport == TCP)

    async def comes_to_its_end(self, transport: str) -> None:
        self.source.release()
        assert (await asyncio.wait_for(self.received, 60)).reason is None
        assert (await asyncio.wait_for(self.pushed, 60)).reason == EndReason.END_REASON_COMPLETE
        assert self.child.object.payload() == self.source.payload()
        assert self.meter.transport == transport
        assert self.taken == [1]
        assert self.parent.guard.children() == []


@pytest.mark.parametrize("secured", [False, True])
async def test_the_payload_goes_over_tcp(stack: AsyncExitStack, fleet_tls: dict[str, Tls], secured: bool) -> None:
    hop = await Pushed.open(stack, fleet_tls if secured else None)
    hop.source.release(2)
    hop.receive()
    hop.push()
    await hop.on_tcp()
    await become(lambda: hop.parent.service.streams.meters.transports() == [TCP])
    await hop.comes_to_its_end(TCP)
    assert not hop.childs_fallbacks
    assert not hop.parents_fallbacks
    assert hop.connected == [1]


@pytest.mark.parametrize("has_bbr", [False, True])
async def test_a_link_that_loses_packets_gets_bbr_where_it_can_be_had(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, has_bbr: bool
) -> None:
    """More connections it does not get: the child offers one."""
    chosen = []

    def choose(_: TcpOutlet, name: str) -> bool:
        chosen.append(name)
        return has_bbr

    monkeypatch.setattr(LinkWatch, "one_is_too_few", lambda *_: True)
    monkeypatch.setattr(TcpOutlet, "choose_congestion_control", choose)
    caplog.set_level("INFO", "chappe.hop.tcp_lanes")
    hop = await Pushed.open(stack)
    hop.source.release(2)
    hop.receive()
    hop.push(connections=STREAMS_AUTO)
    await hop.on_tcp()
    await become(lambda: bool(chosen))
    await hop.comes_to_its_end(TCP)
    assert chosen == [STEADY]
    assert ("goes on with bbr" if has_bbr else "bbr cannot be had") in caplog.text
    assert not hop.childs_fallbacks
    assert not hop.parents_fallbacks


@pytest.mark.parametrize("who", ["parent does not dial", "child does not take", "child does not listen"])
async def test_who_does_not_know_it_has_grpc(stack: AsyncExitStack, who: str) -> None:
    """As an older release, on either side."""
    hop = await Pushed.open(stack, listens=who != "child does not listen")
    hop.receive(takes=who != "child does not take")
    hop.push(dials=who != "parent does not dial")
    await hop.comes_to_its_end(GRPC)
    assert not hop.childs_fallbacks
    assert not hop.parents_fallbacks


async def closes(connection: socket.socket) -> None:
    connection.close()


async def answers_wrongly(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("does", [None, closes, answers_wrongly])
async def test_a_port_that_is_not_the_childs(stack: AsyncExitStack, does: Callable[..., Any] | None) -> None:
    """Closed, or somebody else's: nothing is sent there, and gRPC carries it."""
    hop = await Pushed.open(stack)
    listener = listener_of(hop.child)
    other = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.address = listener.address.with_port(other.getsockname()[1])
    if does is None:
        other.close()
    hop.receive()
    hop.source.release(2)
    hop.push()
    if does is not None:
        connection, _ = await asyncio.to_thread(other.accept)
        stack.enter_context(connection)
        await does(connection)
    await become(lambda: len(hop.parents_fallbacks) == 1)
    await hop.comes_to_its_end(GRPC)
    assert not hop.childs_fallbacks


async def test_a_child_that_does_not_say_that_it_has_taken_it(stack: AsyncExitStack) -> None:
    """Filtered, or stalled: the chunks wait for half a second, then come over gRPC."""
    hop = await Pushed.open(stack)
    listener = listener_of(hop.child)
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.address = listener.address.with_port(silent.getsockname()[1])
    hop.receive()
    hop.push()
    await hop.comes_to_its_end(GRPC)


async def test_a_connection_that_breaks_is_done_without_in_the_same_call(stack: AsyncExitStack) -> None:
    hop = await Pushed.open(stack, chunks=40)
    hop.source.release(2)
    received = hop.receive()
    hop.push()
    await hop.on_tcp()
    hop.source.release(20)
    await until(hop.child.object.signal, lambda: len(hop.child.object.ledger.held) == 20)
    (stream,) = hop.parent.service.streams._streams
    outlet: Any = stream._outlet._tcp
    shut_down(outlet._connection)
    await become(lambda: bool(hop.childs_fallbacks and hop.parents_fallbacks))
    assert not received.done()  # nobody hears of a loss
    await hop.comes_to_its_end(GRPC)


async def test_a_parent_that_is_gone_is_a_loss(stack: AsyncExitStack) -> None:
    hop = await Pushed.open(stack)
    hop.source.release(2)
    received = hop.receive()
    pushed = hop.push()
    await hop.on_tcp()
    pushed.cancel()
    assert (await asyncio.wait_for(received, 60)).reason is ParentLossReason.BROKEN


async def test_a_child_that_gives_up_leaves_nothing_behind(stack: AsyncExitStack) -> None:
    hop = await Pushed.open(stack)
    hop.source.release(2)
    received = hop.receive()
    pushed = hop.push()
    await hop.on_tcp()
    received.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await received
    assert (await asyncio.wait_for(pushed, 60)).reason == EndReason.END_REASON_UNSPECIFIED
    await become(lambda: not any(thread.name.startswith("chappe-tcp") for thread in threading.enumerate()))


# ---- a parent that lies ----------------------------------------------------------------------------------------------


class Liar:
    """Introduces itself as the parent that it is, and then does what the test does."""

    def __init__(self, hop: Pushed) -> None:
        self.hop = hop
        self.channel = open_channel(hop.child.server.address, hop.parent.tls, "child")
        method = self.channel.stream_stream("/chappe.v1.Relay/Push", response_deserializer=PushReply.FromString)
        self.call: grpc.aio.StreamStreamCall[bytes, PushReply] = method()

    async def offered(self) -> PushReply:
        hello = PushHello(
            protocol_version=1, object_id=OBJECT_ID, stripe=0, token=token("parent", "child"), dials_tcp=True
        )
        await self.call.write(PushRequest(hello=hello).SerializeToString())
        return await self.answer()

    async def answer(self) -> PushReply:
        async with asyncio.timeout(30):
            reply = await self.call.read()
        assert isinstance(reply, PushReply)
        return reply

    async def switches(self) -> None:
        await self.call.write(encode_pushed(encode_tcp_switch()))

    async def dials(self, reply: PushReply, secret: bytes | None = None) -> socket.socket:
        connection = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", reply.tcp_offer.port), 30)
        connection.sendall(encode_hello(secret or reply.tcp_offer.secret))
        return connection

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()


async def lied_to(stack: AsyncExitStack, tls: dict[str, Tls] | None = None) -> Liar:
    hop = await Pushed.open(stack, tls)
    liar = Liar(hop)
    stack.push_async_callback(liar.close)
    return liar


async def test_a_switch_to_a_connection_that_it_has_not_dialled(stack: AsyncExitStack) -> None:
    liar = await lied_to(stack)
    received = liar.hop.receive()
    assert (await liar.offered()).tcp_offer.port == listener_of(liar.hop.child).address.port
    await liar.switches()
    end = await asyncio.wait_for(received, 30)
    assert end.reason is ParentLossReason.PROTOCOL


async def test_a_second_connection_is_none(stack: AsyncExitStack) -> None:
    liar = await lied_to(stack)
    liar.hop.receive()
    reply = await liar.offered()
    first = stack.enter_context(await liar.dials(reply))
    assert await asyncio.to_thread(first.recv, 1) == TAKEN
    second = stack.enter_context(await liar.dials(reply))
    second.shutdown(socket.SHUT_WR)
    assert await asyncio.to_thread(second.recv, 1) == b""


async def test_it_switches_and_is_silent(stack: AsyncExitStack) -> None:
    """A stall, and the connection is not tried again for a while."""
    liar = await lied_to(stack)
    liar.hop.stall_floor_s = 0.2
    received = liar.hop.receive()
    connection = stack.enter_context(await liar.dials(await liar.offered()))
    assert await asyncio.to_thread(connection.recv, 1) == TAKEN
    await liar.switches()
    end = await asyncio.wait_for(received, 60)
    assert end.reason is ParentLossReason.STALLED
    assert len(liar.hop.childs_fallbacks) == 1


async def test_it_breaks_the_connection_and_does_not_go_on(stack: AsyncExitStack) -> None:
    """The child asks again on the call, without an offer, and hears of its end."""
    liar = await lied_to(stack)
    received = liar.hop.receive()
    with await liar.dials(await liar.offered()) as connection:
        assert await asyncio.to_thread(connection.recv, 1) == TAKEN
        await liar.switches()
        await liar.hop.on_tcp()
    again = await liar.answer()
    assert not again.HasField("tcp_offer")
    assert again.lacks.lacks_header
    liar.call.cancel()
    assert (await asyncio.wait_for(received, 60)).reason is ParentLossReason.BROKEN


async def test_somebody_elses_certificate(stack: AsyncExitStack, fleet_tls: dict[str, Tls]) -> None:
    """Of the fleet, and not the parent's, though it knows the secret."""
    liar = await lied_to(stack, fleet_tls)
    received = liar.hop.receive()
    reply = await liar.offered()

    def dial() -> bytes:
        with (
            socket.create_connection(("127.0.0.1", reply.tcp_offer.port), 30) as plain,
            client_context(fleet_tls["other"]).wrap_socket(plain) as secured,
        ):
            secured.sendall(encode_hello(reply.tcp_offer.secret))
            try:
                return secured.recv(1)
            except (ConnectionResetError, ssl.SSLError):
                return b""

    assert await asyncio.to_thread(dial) == b""
    await liar.switches()
    assert (await asyncio.wait_for(received, 30)).reason is ParentLossReason.PROTOCOL
