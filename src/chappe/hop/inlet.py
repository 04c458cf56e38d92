"""Where the replies to a Fetch come from: gRPC first, and a data connection once the parent has gone over to it.

    gRPC: TcpOffer ──▶ dial, in a thread; replies go on here ── TcpSwitch ──▶ replies come from there
                            └── cannot be reached: nothing more comes of it
    the parent's port is known: dial at once, beside the Fetch and with its secret ── TcpSwitch ──▶ the same
                            └── refused, or another port by now: nobody is told, and an offer is dialled. Not where it
                                has been closed with the payload in it: that may come before the news of it on gRPC
                                        TcpMore ──▶ more of them are dialled, and read as soon as they are there
    after the switch chunks are taken in the thread that reads them (chappe.hop.tcp_receive), and gRPC is the control
    side: an End there ends the fetch, its break breaks the fetch, its good end means that the parent has put everything
    on the data connection, which is read to its End

    drain: the child goes elsewhere. Its call is ended, upon which the parent stops behind the chunk that it is at, and
    data connections are read to their ends, or until nothing more comes

A data connection that breaks while gRPC holds raises TcpLostError: the Fetch can be repeated without one. Of several it
is the last one that does: the parent sends on the others what the broken one had. Each has an end of its own; the Fetch
is over with the first one after which all is here, or with the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable
from typing import Protocol

import grpc.aio

from chappe.errors import PeerError
from chappe.hop.source import Signal
from chappe.hop.tcp_receive import TCP_LOST, FrameTaker, TcpInlet, TcpRoute, check_offer
from chappe.hop.tcp_send import TcpLostError
from chappe.hop.tcp_taken import TakenInlet
from chappe.v1.relay_pb2 import End, EndReason, TcpMore, TcpOffer, TcpSwitch
from chappe.wire.frames import Reply, decode_reply

VERDICT_S = 1.0
"""How long a broken data connection waits to hear on gRPC whether the parent itself is gone."""


DRAIN_SILENCE_S = 0.2
"""On a connection whose parent has not said its end: what has not come by then is not waited for."""
_LOOK_S = 0.05


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
        decode: Callable[[bytes], Reply] = decode_reply,
        on_switch: Callable[[], None],
        on_fallback: Callable[[str], None],
        on_more: Callable[[int], bool] = lambda _: False,
        whole: Callable[[], bool] = lambda: True,
    ) -> None:
        """`secret` is what the Fetch has said that its data connection would say. Dials at once where it can. `decode`
        reads what comes on gRPC.

        `on_more` hears how many more connections the parent offers, and says whether they are wanted; `whole` says
        whether all that was asked for is stored.
        """
        self.switched = False
        self.at_its_end = False
        """A data connection has said that all is sent: a parent that is silent now is there all the same."""
        self.draining = False
        """Nothing but what is on its way is wanted, and the end of the call is no news."""
        self._end: tuple[Reply, int] | None = None  # came on gRPC, and is told behind what is on its way
        self._on_more, self._whole = on_more, whole
        self._call, self._route, self._taker = call, route, taker
        self._secret, self._offered, self._decode = secret, False, decode
        self._on_switch, self._on_fallback = on_switch, on_fallback
        self._tcp: TcpInlet | None = None
        self._lanes: list[TcpInlet] = []  # those that are not over, once it has switched
        self._broken: str | None = None  # how the last one that broke did
        self._control: asyncio.Future[object] | None = None
        self._signal = Signal()
        self._closed = False
        self._again = False  # what was dialled early is what was offered: it may be dialled once more
        if route is not None and route.port:
            self._tcp = TcpInlet(route, route.port, secret, taker, self._changed)

    async def read(self) -> tuple[Reply, int] | None:
        """The next reply for the event loop and its size in bytes, None at the end: what the taker takes is none.

        Raises PeerError, AioRpcError, TcpLostError, and what the taker raises. It may be cancelled and called again.
        """
        while not self.switched:
            # A read of gRPC that is cancelled cancels its call, and the next one is cancelled in turn.
            if self._control is None:
                self._control = asyncio.ensure_future(self._call.read())
                self._control.add_done_callback(_retrieve)
            await asyncio.wait({self._control})
            control, self._control = self._control, None
            message = control.result()
            if not isinstance(message, bytes):
                return None
            reply = self._decode(message)
            if isinstance(reply, TcpOffer):
                self._dial(reply)
            elif isinstance(reply, TcpSwitch):
                self._switch()
            else:
                return reply, len(message)
        return await self._read_tcp()

    def silent_s(self) -> float:
        """Since bytes came on a data connection; infinite before the switch."""
        return min((tcp.silent_s() for tcp in self._lanes), default=math.inf)

    def take_over(self, connection: socket.socket) -> None:
        """The data connection that the parent has dialled. Takes over the socket."""
        if self._closed or self._tcp is not None:
            connection.close()
            return
        self._offered = True
        self._tcp = TakenInlet(connection, self._taker, self._changed)

    def drain(self) -> bool:
        """`read` goes on with what is on its way on data connections, and returns None behind that. For a call that is
        ended next. False: nothing is on its way that could be told from what is not."""
        if not self.switched or self._closed:
            return False
        self.draining = True
        if self._control is not None:
            self._control.cancel()
            self._control = None
        self._signal.fire()
        return True

    def close(self) -> None:
        self._closed = True
        for tcp in (self._tcp, *self._lanes):
            if tcp is not None:
                tcp.close()
        if self._control is not None:
            self._control.cancel()

    def _dial(self, offer: TcpOffer) -> None:
        if self._route is None or self._offered:
            raise PeerError("the offer of a data connection that was not asked for")
        check_offer(offer)
        self._offered = True
        if self._tcp is not None:
            if (offer.port, offer.secret) == (self._route.port, self._secret) and self._tcp.problem is None:
                self._again = True  # the parent has not met it yet, or has let it go without a word
                return
            self._tcp.close()
        self._tcp = TcpInlet(self._route, offer.port, offer.secret, self._taker, self._changed)

    def _changed(self) -> None:
        if self._closed or self._tcp is None:
            return
        if not self.switched and self._offered and self._tcp.problem is not None:  # else the port may be another now
            if self._again and self._route is not None:
                self._again = False
                self._tcp = TcpInlet(self._route, self._route.port, self._secret, self._taker, self._changed)
            else:
                self._on_fallback(str(self._tcp.problem))
        self._signal.fire()

    def _switch(self) -> None:
        if self._tcp is None:
            raise PeerError("a switch to a data connection that there is not")
        self.switched = True
        self._lanes.append(self._tcp)
        self._tcp.go()
        self._on_switch()
        self._listen()

    def _listen(self) -> None:
        self._control = asyncio.ensure_future(self._call.read())
        self._control.add_done_callback(lambda _: self._signal.fire())

    def _dial_more(self, more: TcpMore) -> None:
        if self._route is None or not self._on_more(len(more.secrets)):
            raise PeerError(f"{len(more.secrets)} more data connections, which were not asked for")
        for secret in more.secrets:
            check_offer(TcpOffer(port=more.port, secret=secret))
        for secret in more.secrets:
            self._lanes.append(tcp := TcpInlet(self._route, more.port, secret, self._taker, self._changed))
            tcp.go()

    async def _read_tcp(self) -> tuple[Reply, int] | None:
        while not self.draining:
            seen = self._signal.count
            for tcp in tuple(self._lanes):
                message = tcp.take()
                if message is not None:
                    if self._is_only_its_own_end(tcp, message[0]):
                        continue
                    return message
                if tcp.refused is not None:
                    raise tcp.refused
                if tcp.problem is not None:
                    self._broken = str(tcp.problem)
                    self._lanes.remove(tcp)
            if not self._lanes:
                return await self._verdict(self._broken or "all of them ended early")
            if self._control is not None and self._control.done():
                control, self._control = self._control, None
                self._end = self._heard(control)
                if self._end is not None and not self._is_eviction(self._end[0]):
                    return self._end
                if self._end is not None:
                    break
                continue
            await self._signal.wait(seen)
        return await self._read_rest()

    async def _read_rest(self) -> tuple[Reply, int] | None:
        while self._lanes:
            seen = self._signal.count
            for tcp in tuple(self._lanes):
                message = tcp.take()
                if message is not None and not isinstance(message[0], End):
                    return message
                if tcp.refused is not None:
                    raise tcp.refused
                if message is not None or tcp.problem is not None or tcp.silent_s() >= DRAIN_SILENCE_S:
                    self._lanes.remove(tcp)
                    tcp.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._signal.wait(seen)
        return self._end

    @staticmethod
    def _is_eviction(reply: Reply) -> bool:
        """The parent has taken the next child because this one has been moved, of which it has not heard yet."""
        return isinstance(reply, End) and reply.reason == EndReason.END_REASON_EVICTED

    def _is_only_its_own_end(self, tcp: TcpInlet, reply: Reply) -> bool:
        """All is sent, and what is not here is on its way on other connections, or was on one that broke."""
        if not isinstance(reply, End) or reply.reason != EndReason.END_REASON_COMPLETE:
            return False
        self.at_its_end = True
        others = len(self._lanes) > 1 or self._broken is not None
        if not others or self._whole():
            return False
        self._lanes.remove(tcp)
        tcp.close()
        return True

    def _heard(self, control: asyncio.Future[object]) -> tuple[Reply, int] | None:
        """What came on gRPC after the switch: an End, or None at its good end, and for more connections to dial.

        Raises AioRpcError, TcpLostError.
        """
        try:
            message = control.result()
        except grpc.aio.AioRpcError as error:
            if error.code() == TCP_LOST:
                raise self._lost(error.details() or "the parent lost it") from error
            raise
        if not isinstance(message, bytes):
            return None
        reply = self._decode(message)
        if isinstance(reply, TcpMore):
            self._dial_more(reply)
            self._listen()
            return None
        if not isinstance(reply, End):
            raise PeerError(f"a {type(reply).__name__} on gRPC after the switch to a data connection")
        return reply, len(message)

    async def _verdict(self, problem: str) -> tuple[Reply, int] | None:
        """The data connection is gone, or all of several. The parent as well? None: the child has left meanwhile."""
        if self.at_its_end and self._whole():
            end = End(reason=EndReason.END_REASON_COMPLETE)
            return end, end.ByteSize()
        control = self._control
        if control is not None:
            await asyncio.wait({control}, timeout=VERDICT_S)
            if self.draining:
                return None
            if control.done() and (heard := self._heard(control)) is not None:
                return heard
        raise self._lost(problem)

    def _lost(self, problem: str) -> TcpLostError:
        if not self.at_its_end:  # else there was another that was good to the end
            self._on_fallback(problem)
        return TcpLostError(problem)


def _retrieve(control: asyncio.Future[object]) -> None:
    """Of one that nobody waits for any more there is nothing to be said."""
    if not control.cancelled():
        control.exception()
