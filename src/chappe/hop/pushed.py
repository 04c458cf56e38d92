"""A child receives from a parent that has dialled it: `Relay.Push`, once it is known what is wanted from it.

    PushReply(lacks, tcp_offer) ──▶ replies as in Fetch ──▶ Receiver ──▶ its end
        ▲                              └── TcpSwitch: from the data connection that the parent has dialled
        └────────── without an offer ─────────── that breaks, and the call still stands

Repeating the request on the same call is what a child that dials does with a second Fetch: nobody hears of a loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from chappe.core.reasons import ParentLossReason
from chappe.errors import PeerError
from chappe.hop.inlet import Inlet
from chappe.hop.net import peer_name
from chappe.hop.receive import FetchEnd, Receiver
from chappe.hop.tcp_listen import Offer, TcpListener
from chappe.hop.tcp_send import TcpLostError
from chappe.v1.relay_pb2 import FetchRequest, PushHello, PushReply, TcpOffer
from chappe.wire.frames import Reply, decode_push

Context = grpc.aio.ServicerContext[Any, Any]


async def receive_pushed(
    context: Context,
    request: Callable[[], FetchRequest],
    receiver: Callable[[FetchRequest], Receiver],
    on_fallback: Callable[[str], None] | None,
    tcp: TcpListener | None,
) -> FetchEnd:
    """Ask for what is lacked and take it until there is an end. `tcp`: where the parent may open a data connection;
    `on_fallback` hears why there is none after all. Without both there is none.

    Raises StoreError, and what `request` and `receiver` raise.
    """
    call = _Call(context)
    if on_fallback is None:
        tcp, on_fallback = None, _nothing_to_say
    while True:
        asked = request()
        taker = receiver(asked)
        inlet = Inlet(call, None, taker, decode=_decode, on_switch=taker.switched, on_fallback=on_fallback)
        offer = None if tcp is None else _offer(tcp, context, inlet)
        try:
            await context.write(_reply(asked, offer))
            end = await taker.run(inlet.read, inlet.silent_s)
        except TcpLostError:
            if call.ended:
                return FetchEnd(ParentLossReason.BROKEN, detail="the stream ended with its data connection")
            tcp = None  # the parent is there all the same
            continue
        finally:
            inlet.close()
            if offer is not None:
                offer.close()
        if inlet.switched and end.reason is ParentLossReason.STALLED:
            on_fallback(end.detail)  # perhaps it is only this connection that carries nothing any more
        return end


def _nothing_to_say(_: str) -> None:
    """There is no data connection that could come to nothing."""


def _offer(tcp: TcpListener, context: Context, inlet: Inlet) -> Offer | None:
    def connected() -> None:
        connection = None if offer is None else offer.take_connection()
        if connection is not None:
            inlet.take_over(connection)

    offer = tcp.offer(context.peer(), peer_name(context), connected)
    return offer


def _reply(asked: FetchRequest, offer: Offer | None) -> PushReply:
    if offer is None:
        return PushReply(lacks=asked)
    return PushReply(lacks=asked, tcp_offer=TcpOffer(port=offer.port, secret=offer.secret))


def _decode(message: bytes) -> Reply:
    reply = decode_push(message)
    if isinstance(reply, PushHello):
        raise PeerError("a second introduction")
    return reply


class _Call:
    """What the parent says. A read that is given up is the next one's: gRPC bears one at a time, and none cancelled."""

    def __init__(self, context: Context) -> None:
        self.ended = False
        self._context = context
        self._reading: asyncio.Future[object] | None = None

    async def read(self) -> object:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        message = await asyncio.shield(self._reading)
        self._reading = None
        self.ended = message is grpc.aio.EOF
        return message

    async def _read(self) -> object:
        try:
            message: object = await self._context.read()
        except grpc.aio.UsageError:  # the call is over
            return grpc.aio.EOF
        return message
