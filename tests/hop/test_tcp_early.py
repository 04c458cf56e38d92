"""A data connection that is opened beside its Fetch: it waits for that, for nobody else's, not for long, and not too
many do."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fakes import MemoryOrigin, Node, start_node
from tcp_rig import LOOPBACK, Held, become, listener_of, payload_of, route_to, serve

from chappe.core.reasons import ParentLossReason
from chappe.errors import UsageError
from chappe.hop import client, tcp_early
from chappe.hop.meter import GRPC, TCP
from chappe.hop.net import Tls
from chappe.hop.tcp_listen import Offer, TcpListener
from chappe.hop.tcp_sockets import client_context
from chappe.wire.frames import encode_tcp_offer
from chappe.wire.tcp_frames import SECRET_BYTES, encode_hello

HERE = "ipv4:127.0.0.1:5"


async def listening(stack: AsyncExitStack, tls: Tls | None = None) -> TcpListener:
    listener = await TcpListener.open(LOOPBACK, tls)
    stack.push_async_callback(listener.close)
    return listener


def offer(listener: TcpListener, secret: bytes, peer: str = HERE, name: str | None = None) -> Offer:
    found = listener.offer(peer, name, lambda: None, secret)
    assert found is not None
    return found


class Caller:
    """Connects, and says its hello."""

    def __init__(self, stack: AsyncExitStack, listener: TcpListener, secret: bytes | None = None) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES) if secret is None else secret
        self.socket = stack.enter_context(socket.create_connection(("127.0.0.1", listener.address.port), 30))
        self.socket.sendall(encode_hello(self.secret))

    async def closed(self) -> bool:
        try:
            return await asyncio.to_thread(self.socket.recv, 1) == b""
        except ConnectionResetError:
            return True

    async def is_served_by(self, offered: Offer) -> bool:
        outlet = offered.take()
        assert outlet is not None
        await outlet.run(lambda: outlet.write(b"x"))
        got = await asyncio.to_thread(self.socket.recv, 1)
        outlet.close()
        return got == b"x"


async def waiting(listener: TcpListener, number: int) -> None:
    await become(lambda: len(listener._early) == number)


def after(parent: Node, condition: Callable[[], bool]) -> None:
    """The parent looks at a Fetch only when this has come true."""
    serve_now: Callable[..., Awaitable[None]] = parent.service._serve

    async def serve_later(*arguments: Any) -> None:
        await become(condition)
        await serve_now(*arguments)

    parent.service._serve = serve_later  # type: ignore[method-assign]


def count_offers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ports that children are told on gRPC."""
    told: list[int] = []

    def encode(port: int, secret: bytes) -> bytes:
        told.append(port)
        return encode_tcp_offer(port, secret)

    monkeypatch.setattr("chappe.hop.server.encode_tcp_offer", encode)
    return told


# ---- whole hops ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("first", ["connection", "fetch"])
async def test_one_connection_is_dialled_and_taken_whichever_comes_first(
    stack: AsyncExitStack, fleet_tls: dict[str, Tls], monkeypatch: pytest.MonkeyPatch, secured: bool, first: str
) -> None:
    parent_tls, child_tls = (fleet_tls["parent"], fleet_tls["child"]) if secured else (None, None)
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source, parent_tls)
    listener = listener_of(parent)
    told = count_offers(monkeypatch)
    accepted: list[object] = []
    greet = listener._greet

    async def greet_when_told(connection: socket.socket, host: str) -> None:
        accepted.append(host)
        if first == "fetch":
            await become(lambda: bool(told))
        await greet(connection, host)

    monkeypatch.setattr(listener, "_greet", greet_when_told)
    if first == "connection":
        after(parent, lambda: len(listener._early) == 1)
    held = Held(source, parent, await start_node(stack, "child", tls=child_tls))
    held.options["tcp"] = route_to(parent, child_tls, port=listener.address.port)
    source.release(2)
    held.start(child_tls)
    await held.on_tcp()
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == source.payload()
    assert not held.fallbacks
    assert len(accepted) == 1
    assert len(told) == (0 if first == "connection" else 1)
    assert len(listener._early) == 0


async def early_hop(stack: AsyncExitStack, parent: Node, source: MemoryOrigin, port: int) -> Held:
    held = Held(source, parent, await start_node(stack, "child"))
    held.options["tcp"] = route_to(parent, port=port)
    source.release(2)
    held.start()
    return held


async def ends_on(held: Held, transport: str) -> None:
    if transport == TCP:
        await held.on_tcp()
    held.source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == held.source.payload()
    assert held.meter.transport == transport
    assert not held.fallbacks


async def test_a_port_that_is_old_news_is_nobodys_trouble(stack: AsyncExitStack) -> None:
    """The parent was started again: its offer says where it listens now."""
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    await ends_on(await early_hop(stack, parent, source, port), TCP)


async def test_somebody_else_at_the_old_port_is_let_go(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    somebody = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    held = await early_hop(stack, parent, source, somebody.getsockname()[1])
    await ends_on(held, TCP)
    connection, _ = await asyncio.to_thread(somebody.accept)
    with connection, connection.makefile("rb") as said:
        heard = len(await asyncio.to_thread(said.read))  # to its end: perhaps the offer came first
        assert heard in (0, len(encode_hello(bytes(SECRET_BYTES))))


async def test_a_parent_that_takes_none_any_more(stack: AsyncExitStack) -> None:
    """Started again with --data-listen off: no offer, no connection, and nothing to be said about it."""
    source = MemoryOrigin(payload_of(20))
    parent = await start_node(stack, "parent", source)
    elsewhere = await listening(stack)
    await ends_on(await early_hop(stack, parent, source, elsewhere.address.port), GRPC)
    await waiting(elsewhere, 0)  # the child has closed it


async def test_an_older_parent_chooses_its_own_secret(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    listener = listener_of(parent)
    make = listener.offer
    monkeypatch.setattr(listener, "offer", lambda peer, name, on_connected, _: make(peer, name, on_connected))
    await ends_on(await early_hop(stack, parent, source, listener.address.port), TCP)
    await waiting(listener, 0)


async def test_who_finds_the_room_full_dials_again(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_early, "EARLY_OF_A_HOST_MAX", 1)
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    listener = listener_of(parent)
    Caller(stack, listener)
    await waiting(listener, 1)
    greeted: list[str] = []
    greet = listener._greet

    async def note(connection: socket.socket, host: str) -> None:
        await greet(connection, host)
        greeted.append(host)

    monkeypatch.setattr(listener, "_greet", note)
    after(parent, lambda: len(greeted) == 1)  # it has been turned away by then
    await ends_on(await early_hop(stack, parent, source, listener.address.port), TCP)
    assert len(greeted) == 2
    assert len(listener._early) == 1


async def test_a_child_that_gives_up_leaves_nothing_behind(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    listener = listener_of(parent)
    after(parent, lambda: False)
    held = await early_hop(stack, parent, source, listener.address.port)
    await waiting(listener, 1)
    held.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await held.task
    await waiting(listener, 0)


async def test_a_secret_that_is_none_ends_the_fetch(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    monkeypatch.setattr(client, "SECRET_BYTES", 5)
    held = await early_hop(stack, parent, source, 0)
    end = await asyncio.wait_for(held.task, 30)
    assert end.reason is ParentLossReason.PROTOCOL
    assert "5 bytes" in end.detail


# ---- who waits, and for whom ---------------------------------------------------------------------------------------


async def test_it_waits_for_its_own_fetch_only(stack: AsyncExitStack) -> None:
    listener = await listening(stack)
    one, two = Caller(stack, listener), Caller(stack, listener)
    await waiting(listener, 2)
    stranger = offer(listener, secrets.token_bytes(SECRET_BYTES))
    older = listener.offer(HERE, None, lambda: None)  # by a child that chooses none
    assert older is not None
    assert not stranger.here
    assert not older.here
    second = offer(listener, two.secret)
    assert second.here
    assert await two.is_served_by(second)
    first = offer(listener, one.secret)
    assert await one.is_served_by(first)
    assert stranger.take() is None
    assert older.take() is None


async def test_from_another_host_it_is_closed_and_the_fetch_may_still_have_one(stack: AsyncExitStack) -> None:
    listener = await listening(stack)
    caller = Caller(stack, listener)
    await waiting(listener, 1)
    elsewhere = offer(listener, caller.secret, peer="ipv4:10.9.8.7:5")
    assert not elsewhere.here
    assert await caller.closed()
    again = Caller(stack, listener, caller.secret)  # it would have to come from there
    assert await again.closed()
    assert elsewhere.take() is None


@pytest.mark.parametrize("peer", ["ipv6:%5B::1%5D:5", "ipv4:127.0.0.9:5", "ipv6:%5B::ffff:127.0.0.1%5D:5"])
async def test_all_of_loopback_is_one_host(stack: AsyncExitStack, peer: str) -> None:
    """As where a parent listens on `localhost`: gRPC dials ::1 there, and the data connection 127.0.0.1."""
    listener = await listening(stack)
    caller = Caller(stack, listener)
    await waiting(listener, 1)
    assert await caller.is_served_by(offer(listener, caller.secret, peer=peer))


@pytest.mark.parametrize(
    ("fetch", "data", "taken"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.2.3", "2001:db8::1", True),  # each has dialled another address of the same name
        ("2001:db8::1", "10.1.2.3", True),
        ("2001:db8::1", "2001:db8::2", False),
        ("127.0.0.1", "2001:db8::1", False),
        ("10.1.2.3", "::1", False),
        ("127.0.0.1", "::1", True),
        (None, "10.1.2.3", True),
        ("10.1.2.3", "somewhere", False),
    ],
)
def test_without_certificates_an_address_of_the_other_kind_may_be_the_same_host(
    fetch: str | None, data: str, taken: bool
) -> None:
    with socket.socket() as connection:
        assert (tcp_early.Caller(connection, data).problem(fetch, None) == "") is taken


@pytest.mark.parametrize("peer", [HERE, "ipv6:%5B2001:db8::1%5D:5"])
@pytest.mark.parametrize(("who", "taken"), [("child", True), ("other", False)])
async def test_its_certificate_is_that_of_its_fetch(
    stack: AsyncExitStack, fleet_tls: dict[str, Tls], who: str, taken: bool, peer: str
) -> None:
    """At any of its node's addresses: of a name with two, each connection may have taken another."""
    listener = await listening(stack, fleet_tls["parent"])
    secret = secrets.token_bytes(SECRET_BYTES)

    def dial() -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", listener.address.port), 30)
        secured = client_context(fleet_tls[who]).wrap_socket(plain)
        secured.sendall(encode_hello(secret))
        return secured

    with await asyncio.to_thread(dial) as secured:
        await waiting(listener, 1)
        offered = offer(listener, secret, peer, name="child")
        assert offered.here is taken
        if not taken:
            with contextlib.suppress(ConnectionResetError, ssl.SSLError):
                assert await asyncio.to_thread(secured.recv, 1) == b""
        offered.close()


async def test_a_secret_is_said_once(stack: AsyncExitStack) -> None:
    """By a connection, and by a Fetch: the first one keeps it."""
    listener = await listening(stack)
    first = Caller(stack, listener)
    await waiting(listener, 1)
    second = Caller(stack, listener, first.secret)
    assert await second.closed()
    assert await first.is_served_by(offer(listener, first.secret))
    secret = secrets.token_bytes(SECRET_BYTES)
    mine = offer(listener, secret)
    assert listener.offer(HERE, None, lambda: None, secret) is None
    child = Caller(stack, listener, secret)
    await become(lambda: mine.here)
    assert await child.is_served_by(mine)


@pytest.mark.parametrize("length", [1, SECRET_BYTES - 1, SECRET_BYTES + 1])
async def test_a_secret_has_its_length(stack: AsyncExitStack, length: int) -> None:
    with pytest.raises(UsageError, match=f"{length} bytes"):
        (await listening(stack)).offer(HERE, None, lambda: None, bytes(length))


async def test_nobody_asks_for_it(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_early, "EARLY_S", 0.05)
    listener = await listening(stack)
    caller = Caller(stack, listener)
    assert await caller.closed()
    assert len(listener._early) == 0
    assert not offer(listener, caller.secret).here


@pytest.mark.parametrize("what", ["talks", "goes away"])
async def test_who_waits_is_silent(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(tcp_early, "EARLY_S", 600.0)
    listener = await listening(stack)
    caller = Caller(stack, listener)
    await waiting(listener, 1)
    if what == "talks":
        caller.socket.sendall(b"GET / HTTP/1.1")
        assert await caller.closed()
    else:
        caller.socket.close()
    await waiting(listener, 0)
    assert not offer(listener, caller.secret).here


@pytest.mark.parametrize("limit", ["EARLY_MAX", "EARLY_OF_A_HOST_MAX"])
async def test_only_so_many_wait(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(tcp_early, limit, 2)
    listener = await listening(stack)
    callers = [Caller(stack, listener) for _ in range(2)]
    await waiting(listener, 2)
    third = Caller(stack, listener)
    assert await third.closed()
    assert await callers[0].is_served_by(offer(listener, callers[0].secret))
    fourth = Caller(stack, listener)  # there is room again
    await waiting(listener, 2)
    assert await fourth.is_served_by(offer(listener, fourth.secret))


async def test_they_end_with_the_listener(stack: AsyncExitStack) -> None:
    listener = await TcpListener.open(LOOPBACK, None)
    caller = Caller(stack, listener)
    await waiting(listener, 1)
    await listener.close()
    assert await caller.closed()


async def test_one_that_nobody_has_listened_to_yet_ends_with_the_listener(stack: AsyncExitStack) -> None:
    listener = await TcpListener.open(LOOPBACK, None)
    caller = Caller(stack, listener)
    greet = listener._greet
    closing: list[asyncio.Task[None]] = []

    async def never(connection: socket.socket, host: str) -> None:
        await greet(connection, host)

    def greeting(connection: socket.socket, host: str) -> Coroutine[Any, Any, None]:
        closing.append(asyncio.ensure_future(listener.close()))  # its first step comes before the greeting's
        return never(connection, host)

    listener._greet = greeting  # type: ignore[method-assign]
    await become(lambda: bool(closing))
    await closing[0]
    assert await caller.closed()
