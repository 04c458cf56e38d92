"""A data connection that does not come about, or to the wrong one; addresses and what parents are remembered for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from contextlib import AsyncExitStack

import pytest
from fakes import MemoryOrigin, start_node
from tcp_rig import LOOPBACK, Held, become, listener_of, payload_of, serve

from chappe.core.effects import PeerRef
from chappe.hop import tcp_early, tcp_listen
from chappe.hop.meter import GRPC
from chappe.hop.net import Tls, parse_address
from chappe.hop.tcp_listen import TcpListener, data_address, host_of
from chappe.hop.tcp_receive import TcpRoute
from chappe.hop.tcp_routes import LEAVE_ALONE_S, TcpRoutes
from chappe.hop.tcp_sockets import client_context
from chappe.wire.tcp_frames import encode_hello


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


async def test_who_does_not_know_the_secret_gets_nothing(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_early, "EARLY_S", 0.05)
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


async def test_the_secret_is_good_from_its_host_only_and_not_after_its_fetch(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_early, "EARLY_S", 0.05)
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
    parent = PeerRef("id", "w1", "127.0.0.1:7401", 7402)
    assert routes.to(parent) == TcpRoute("127.0.0.1", None, "w1", 7402)
    routes.failed(parent, "refused")
    routes.failed(parent, "refused")
    assert len(caplog.records) == 1
    assert routes.to(parent) is None
    now[0] += LEAVE_ALONE_S
    assert routes.to(parent) is not None
    assert TcpRoutes(None, on=False).to(parent) is None
