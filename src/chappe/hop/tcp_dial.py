"""The parent's end of a data connection that the parent dials, because its child cannot: `Relay.Push`.

    PushReply.tcp_offer ──▶ connect, [TLS], hello ──▶ the child says that it has taken it ──▶ TcpOutlet
                              └── refused, filtered, silent, or somebody else: `on_fallback`, and gRPC carries it

The child's word is waited for before anything is sent: who does not know the secret, or is not whom the child expects,
is closed without one. What comes of it has the shape of an `Offer`: a connection to be taken once it is there.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from chappe.errors import PeerError
from chappe.hop.tcp_receive import CONNECT_S, HANDSHAKE_S, TcpRoute, check_offer
from chappe.hop.tcp_send import TcpOutlet, open_outlet
from chappe.hop.tcp_sockets import SOCKET_ERRORS, check_name, client_context, step
from chappe.v1.relay_pb2 import TcpOffer
from chappe.wire.tcp_frames import TAKEN, encode_hello

_Found: TypeAlias = tuple[Any, Any, int, str, tuple[Any, ...]]
"""An answer of `getaddrinfo`."""


class Dialled:
    """`start` it, and `close` it when the stream is over. `on_connected` is called when it can be taken."""

    def __init__(
        self,
        route: TcpRoute,
        offer: TcpOffer,
        *,
        on_connected: Callable[[], None],
        on_fallback: Callable[[str], None],
    ) -> None:
        """Raises PeerError for an offer that cannot be meant."""
        check_offer(offer)
        self._connection: socket.socket | None = None
        self._on_connected, self._on_fallback = on_connected, on_fallback
        self._route, self._offer = route, offer
        self._dialling: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._dialling = asyncio.create_task(self._dial(), name="data connection")

    def take(self) -> TcpOutlet | None:
        """The connection once it is there: given away once."""
        connection, self._connection = self._connection, None
        return None if connection is None else open_outlet(connection)

    def close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _dial(self) -> None:
        try:
            connection = await dial(self._route, self._offer.port, self._offer.secret)
        except (*SOCKET_ERRORS, ValueError, PeerError) as error:  # ValueError: a host or a certificate that is none
            self._on_fallback(str(error) or type(error).__name__)
            return
        self._connection = connection
        self._on_connected()


async def dial(route: TcpRoute, port: int, secret: bytes) -> socket.socket:
    """A blocking socket that the other side has taken. Raises OSError (also SSLError), ValueError, PeerError."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + CONNECT_S
    async with asyncio.timeout_at(deadline_s):
        found = await loop.getaddrinfo(route.host, port, type=socket.SOCK_STREAM)
    connection = await _connect(found, deadline_s)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            if route.tls is not None:
                connection = client_context(route.tls).wrap_socket(connection, do_handshake_on_connect=False)
                await step(connection, connection.do_handshake)
                check_name(connection, route.expected_name)
            hello = encode_hello(secret)
            await step(connection, lambda: connection.sendall(hello))  # an empty socket buffer takes all of it
            _check_word(await step(connection, lambda: connection.recv(len(TAKEN))))
        connection.setblocking(True)
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect(found: Sequence[_Found], deadline_s: float) -> socket.socket:
    """To the first that answers, in their order: each has an equal part of the time that is left. Raises OSError."""
    loop = asyncio.get_running_loop()
    problem = OSError("the name has no address")
    for number, (family, kind, protocol, _, target) in enumerate(found):
        now = loop.time()
        connection: socket.socket | None = None
        try:
            connection = socket.socket(family, kind, protocol)
            connection.setblocking(False)
            async with asyncio.timeout_at(now + (deadline_s - now) / (len(found) - number)):
                await loop.sock_connect(connection, target)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, OSError):  # TimeoutError is one
                raise
            problem = error if str(error) else OSError(f"{target[0]} did not answer in time")
        else:
            return connection
    raise problem


def _check_word(word: bytes) -> None:
    if word != TAKEN:
        raise PeerError(f"the child answered {word!r} to the hello" if word else "the child closed the data connection")
