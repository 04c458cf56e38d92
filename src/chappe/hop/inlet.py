"""Where the replies to a Fetch come from: gRPC first, and a data connection once the parent has gone over to it.

    gRPC: TcpOffer ──▶ dial, in a thread; replies go on here ── TcpSwitch ──▶ replies come from there
                            └── cannot be reached: nothing more comes of it
    the parent's port is known: dial at once, beside the Fetch and with its secret ── TcpSwitch ──▶ the same
                            └── refused, or another port by now: nobody is told, and an offer is dialled
    after the switch chunks are taken in the thread that reads them (chappe.hop.tcp_receive), and gRPC is the control
    side: an End there ends the fetch, its break breaks the fetch, its good end means that the parent has put everything
    on the data connection, which is read to its End

A data connection that breaks while gRPC holds raises TcpLostError: the Fetch can be repeated without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import grpc.aio

from chappe.errors import PeerError
from chappe.hop.source import Signal
from chappe.hop.tcp_receive import TCP_LOST, FrameTaker, TcpInlet, TcpRoute, check_offer
from chappe.hop.tcp_send import TcpLostError
from chappe.v1.relay_pb2 import End, TcpOffer, TcpSwitch
from chappe.wire.frames import Reply, decode_reply

VERDICT_S = 1.0
"""How long a broken data connection waits to hear on gRPC whether the parent itself is gone."""


class Replies(Protocol):
    """A gRPC call: `grpc.aio.UnaryStreamCall` of bytes."""

    async def read(self) -> object:
        """The next message; anything that is not bytes at the end. Raises AioRpcError."""


class Inlet:
    """Of one Fetch call. `route` None: no data connection. `taker` gets what comes on one, in the thread that reads it.
    `on_fallback` hears, once, why there is none after all."""

    def __init__(
        self,
        call: Replies,
        route: TcpRoute | None,
        taker: FrameTaker,
        *,
        secret: bytes = b"",
        on_switch: Callable[[], None],
        on_fallback: Callable[[str], None],
    ) -> None:
        """`secret` is what the Fetch has said that its data connection would say. Dials at once where it can."""
        self.switched = False
        self._call, self._route, self._taker = call, route, taker
        self._secret, self._offered = secret, False
        self._on_switch, self._on_fallback = on_switch, on_fallback
        self._tcp: TcpInlet | None = None
        self._control: asyncio.Future[object] | None = None
        self._signal = Signal()
        self._closed = False
        if route is not None and route.port:
            self._tcp = TcpInlet(route, route.port, secret, taker, self._changed)

    async def read(self) -> tuple[Reply, int] | None:
        """The next reply for the event loop and its size in bytes, None at the end: what the taker takes is none.

        Raises PeerError, AioRpcError, TcpLostError, and what the taker raises. After the switch it may be cancelled and
        called again.
        """
        while not self.switched:
            message = await self._call.read()
            if not isinstance(message, bytes):
                return None
            reply = decode_reply(message)
            if isinstance(reply, TcpOffer):
                self._dial(reply)
            elif isinstance(reply, TcpSwitch):
                self._switch()
            else:
                return reply, len(message)
        return await self._read_tcp()

    def close(self) -> None:
        self._closed = True
        if self._tcp is not None:
            self._tcp.close()
        if self._control is not None:
            self._control.cancel()

    def _dial(self, offer: TcpOffer) -> None:
        if self._route is None or self._offered:
            raise PeerError("the offer of a data connection that was not asked for")
        check_offer(offer)
        self._offered = True
        if self._tcp is not None:
            if (offer.port, offer.secret) == (self._route.port, self._secret) and self._tcp.usable():
                return  # the parent has only not met it yet
            self._tcp.close()
        self._tcp = TcpInlet(self._route, offer.port, offer.secret, self._taker, self._changed)

    def _changed(self) -> None:
        if self._closed or self._tcp is None:
            return
        if not self.switched and self._offered and self._tcp.problem is not None:  # else the port may be another now
            self._on_fallback(str(self._tcp.problem))
        self._signal.fire()

    def _switch(self) -> None:
        if self._tcp is None:
            raise PeerError("a switch to a data connection that there is not")
        self.switched = True
        self._tcp.go()
        self._on_switch()
        self._control = asyncio.ensure_future(self._call.read())
        self._control.add_done_callback(lambda _: self._signal.fire())

    async def _read_tcp(self) -> tuple[Reply, int] | None:
        assert self._tcp is not None
        while True:
            seen = self._signal.count
            message = self._tcp.take()
            if message is not None:
                return message
            if self._tcp.refused is not None:
                raise self._tcp.refused
            if self._tcp.problem is not None:
                return await self._verdict(str(self._tcp.problem))
            if self._control is not None and self._control.done():
                end = self._heard(self._control)
                if end is not None:
                    return end
                self._control = None
            await self._signal.wait(seen)

    def _heard(self, control: asyncio.Future[object]) -> tuple[Reply, int] | None:
        """What came on gRPC after the switch: an End, or None at its good end. Raises AioRpcError, TcpLostError."""
        try:
            message = control.result()
        except grpc.aio.AioRpcError as error:
            if error.code() == TCP_LOST:
                raise self._lost(error.details() or "the parent lost it") from error
            raise
        if not isinstance(message, bytes):
            return None
        reply = decode_reply(message)
        if not isinstance(reply, End):
            raise PeerError(f"a {type(reply).__name__} on gRPC after the switch to a data connection")
        return reply, len(message)

    async def _verdict(self, problem: str) -> tuple[Reply, int]:
        """The data connection is gone. The parent as well?"""
        if self._control is not None:
            await asyncio.wait({self._control}, timeout=VERDICT_S)
            if self._control.done() and (end := self._heard(self._control)) is not None:
                return end
        raise self._lost(problem)

    def _lost(self, problem: str) -> TcpLostError:
        self._on_fallback(problem)
        return TcpLostError(problem)
