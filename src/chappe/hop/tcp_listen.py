"""Where children open the data connections that they were offered. One listener per node, beside its gRPC port.

    offer ──▶ secret ──gRPC──▶ child ──connect, [TLS], hello──▶ secret offered, not used, not expired? no ─▶ it waits
                                                                 same host and certificate as the Fetch? no ─▶ closed
                                                                 yes ─▶ it is in the offer, `on_connected`
    child ──connect, [TLS], hello with a secret of its own──▶ waits for its Fetch (`chappe.hop.tcp_early`)
      └─────Fetch with that secret ──▶ offer ──▶ there already, same host and certificate: nothing has to be said

Nothing is sent to anybody before all of that. Who connects has `HELLO_S` in all to say its hello, one byte at a time or
at once, and only `GREETING_MAX` may be at it at a time. A connection that comes to nothing costs its Fetch half a
second at most: then the payload goes over gRPC. A secret is for one Fetch: another that names it gets no offer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote

from chappe.errors import ConfigError, UsageError
from chappe.hop.net import Address, Tls, parse_address
from chappe.hop.tcp_early import Caller, EarlyCallers, plain_host
from chappe.hop.tcp_send import TcpOutlet, open_outlet
from chappe.hop.tcp_sockets import SOCKET_ERRORS, server_context, step
from chappe.wire.tcp_frames import HELLO_BYTES, SECRET_BYTES, decode_hello

log = logging.getLogger(__name__)

HELLO_S = 5.0
OFFER_S = 10.0
GREETING_MAX = 64
_BACKLOG = 128
_ACCEPT_PAUSE_S = 0.1  # out of descriptors: nobody says when there are some again
_QUIET_S = 10.0  # between two lines of the log that say so


@dataclass(eq=False, slots=True)
class Offer:
    """One data connection that one Fetch may have. `close` it when the Fetch is over."""

    port: int
    secret: bytes
    host: str | None  # whence it must come
    name: str | None  # whose certificate it must show
    on_connected: Callable[[], None]
    _forget: Callable[[Offer], None]
    _connection: socket.socket | None = field(default=None, init=False)
    _open: bool = field(default=True, init=False)

    @property
    def here(self) -> bool:
        """The connection is there, and not taken yet."""
        return self._connection is not None

    def take(self) -> TcpOutlet | None:
        """The connection once it is there, to send on: given away once."""
        connection = self.take_connection()
        return None if connection is None else open_outlet(connection)

    def take_connection(self) -> socket.socket | None:
        """The same, as a blocking socket: the taker's to close."""
        connection, self._connection = self._connection, None
        return connection

    def close(self) -> None:
        self._open = False
        self._forget(self)
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connected(self, connection: socket.socket) -> None:
        """Takes over the socket. For the listener."""
        if not self._open:
            connection.close()
            return
        self._connection = connection
        self.on_connected()


class TcpListener:
    """`open` it on the event loop; `close` it before the loop ends."""

    def __init__(self, listening: socket.socket, address: Address, tls: Tls | None) -> None:
        self.address = address
        self._listening = listening
        self._context = None if tls is None else server_context(tls)
        self._offers: dict[bytes, Offer] = {}
        self._early = EarlyCallers()
        self._greetings: dict[asyncio.Task[None], socket.socket] = {}
        self._failed = 0  # to accept
        self._accepting = asyncio.create_task(self._accept(), name="data connections")

    @classmethod
    async def open(cls, address: Address, tls: Tls | None) -> Self:
        """Raises ConfigError when it cannot listen there."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, target = found[0]
            listening = socket.socket(family, kind, protocol)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listening.bind(target)
                listening.listen(_BACKLOG)
                listening.setblocking(False)
            except BaseException:
                listening.close()
                raise
        except OSError as error:
            raise ConfigError(
                f"cannot listen for data connections on {address} ({error.strerror or error}): choose another, or 'off'"
            ) from error
        return cls(listening, address.with_port(listening.getsockname()[1]), tls)

    def offer(self, peer: str, name: str | None, on_connected: Callable[[], None], secret: bytes = b"") -> Offer | None:
        """Expect a connection from `peer` (as gRPC names it) with a certificate for `name` (where there is TLS). It may
        be here already (`here`) when the child has chosen the `secret`. None: another Fetch has chosen that.

        Raises UsageError for a secret that is none.
        """
        if secret and len(secret) != SECRET_BYTES:
            raise UsageError(f"a secret of {len(secret)} bytes for a data connection; {SECRET_BYTES} are needed")
        if secret in self._offers:
            return None
        secret = secret or secrets.token_bytes(SECRET_BYTES)
        offer = Offer(self.address.port, secret, host_of(peer), name, on_connected, self._forget)
        early = self._early.take(secret)
        if early is not None and self._bind(offer, early):
            return offer
        self._offers[secret] = offer
        asyncio.get_running_loop().call_later(OFFER_S, self._forget, offer)
        return offer

    def _forget(self, offer: Offer) -> None:
        if self._offers.get(offer.secret) is offer:
            del self._offers[offer.secret]

    async def close(self) -> None:
        """Offers come to nothing from now on; connections that were taken are their takers'."""
        self._offers.clear()
        self._early.close()
        greetings = dict(self._greetings)
        tasks = [self._accepting, *greetings]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task, connection in greetings.items():
            if task.cancelled():
                connection.close()  # of one that had not begun nobody else does
        self._listening.close()

    async def _accept(self) -> None:
        loop, quiet_until_s = asyncio.get_running_loop(), -math.inf
        while True:
            try:
                connection, address = await loop.sock_accept(self._listening)
            except OSError as error:
                self._failed += 1
                if (now := loop.time()) >= quiet_until_s:
                    quiet_until_s = now + _QUIET_S
                    log.warning("data connections cannot be accepted: %s (%d times so far)", error, self._failed)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._greetings) >= GREETING_MAX:
                connection.close()
                continue
            task = asyncio.create_task(self._greet(connection, plain_host(str(address[0]))), name="data connection")
            self._greetings[task] = connection
            task.add_done_callback(self._greetings.pop)

    async def _greet(self, connection: socket.socket, host: str) -> None:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(HELLO_S):
                if self._context is not None:
                    connection = self._context.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
                    )
                    await step(connection, connection.do_handshake)
                secret = decode_hello(await _read_hello(connection))
            caller = Caller(connection, host)
            if secret is None:
                problem = "it does not say what it was told to"
            elif (offer := self._offers.pop(secret, None)) is not None:
                self._bind(offer, caller)
                return
            elif not (problem := self._early.admit(secret, caller)):
                return
        except TimeoutError:
            problem = f"it did not say its hello within {HELLO_S:g} s"
        except SOCKET_ERRORS as error:
            problem = str(error)
        except asyncio.CancelledError:
            connection.close()
            raise
        _refuse(Caller(connection, host), problem)

    @staticmethod
    def _bind(offer: Offer, caller: Caller) -> bool:
        """Give the connection to the offer if it is meant for it; otherwise close it."""
        try:
            problem = caller.problem(offer.host, offer.name)
            if not problem:
                caller.connection.setblocking(True)
                offer.connected(caller.connection)
                return True
        except (*SOCKET_ERRORS, ValueError) as error:  # ValueError: a certificate that cannot be read
            problem = str(error)
        _refuse(caller, problem)
        return False


async def _read_hello(connection: socket.socket) -> bytes:
    """What there is of it when the other side stops short."""
    data = b""
    while len(data) < HELLO_BYTES:
        more = await step(connection, lambda: connection.recv(HELLO_BYTES - len(data)))  # noqa: B023  # called at once
        if not more:
            break
        data += more
    return data


def _refuse(caller: Caller, problem: str) -> None:
    caller.connection.close()
    log.info("a data connection from %s was refused: %s", caller.host, problem)


def data_address(text: str | None, listen: Address) -> Address | None:
    """What `--data-listen` says: None for `off`, any port beside `--listen` when it is not given. Raises UsageError."""
    if text is None:
        return listen.with_port(0)
    if text == "off":
        return None
    try:
        return parse_address(text, listen.host)
    except UsageError as error:
        raise UsageError(f"--data-listen: {error}, or 'off'") from error


def host_of(peer: str) -> str | None:
    """The address in gRPC's name of a peer (`ipv4:10.0.0.1:5000`, `ipv6:%5B::1%5D:5000`), None for any other kind."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    return plain_host(rest.rpartition(":")[0].strip("[]"))
