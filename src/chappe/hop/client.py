"""A child fetches from its parent: `Relay.Fetch`, dialled by the child. What is said is in `chappe.hop.receive`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable

import grpc
import grpc.aio

from chappe.core.ledger import OPEN_END
from chappe.core.reasons import ParentLossReason
from chappe.core.stripemap import PLAIN, StripeMap
from chappe.hop.inlet import Inlet
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import GRPC, HopMeter
from chappe.hop.receive import FetchEnd, Receiver
from chappe.hop.source import ChunkSink
from chappe.hop.stall import STALL_FLOOR_S
from chappe.hop.tcp_receive import TcpRoute
from chappe.hop.tcp_send import TcpLostError
from chappe.v1.relay_pb2 import EdgeToken, FetchRequest, Range, Watermark
from chappe.wire.frames import PROTOCOL_VERSION
from chappe.wire.stripes import decode_stripes, encode_stripes
from chappe.wire.tcp_frames import SECRET_BYTES

__all__ = ["Departure", "FetchEnd", "build_request", "fetch"]

_FETCH = "/chappe.v1.Relay/Fetch"
_REFUSED = {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # a message above the limit
}


def build_request(
    sink: ChunkSink, stripe: int, token: EdgeToken, rejected: Iterable[int] = (), stripes: StripeMap = PLAIN
) -> FetchRequest:
    """Ask for everything that the sink lacks of this stripe. `rejected` are the chunks of `FetchEnd.rejected`."""
    return FetchRequest(
        protocol_version=PROTOCOL_VERSION,
        object_id=sink.object_id,
        stripe=stripe,
        token=token,
        lacks_header=sink.manifest is None,
        lacks_pages=[Range(start=sink.pages_held, stop=OPEN_END)],
        lacks_chunks=[Range(start=start, stop=stop) for start, stop in sink.ledger.missing()],
        rejected_chunks=rejected,
        stripes=encode_stripes(stripes),
    )


class Departure:
    """How whoever runs a `fetch` ends it without losing what is on its way. For one fetch."""

    def __init__(self) -> None:
        self.drain: Callable[[], bool] = lambda: False
        """The fetch takes that, asks for no more, and returns; False where there is nothing to wait for."""


async def fetch(
    channel: grpc.aio.Channel,
    request: FetchRequest,
    sink: ChunkSink,
    *,
    downlink: TokenBucket | None = None,
    meter: HopMeter | None = None,
    on_connected: Callable[[], None] | None = None,
    on_watermark: Callable[[Watermark], None] | None = None,
    stall_floor_s: float = STALL_FLOOR_S,
    expected_bytes_per_s: float | None = None,
    tcp: TcpRoute | None = None,
    on_fallback: Callable[[str], None] | None = None,
    departure: Departure | None = None,
) -> FetchEnd:
    """Receive into the sink until all is here or the parent is lost. Cancel it to close the stream.

    Silence of the parent is a stall after `stall_floor_s`, later on a hop on which a chunk takes long. `on_connected`
    is called once, when the parent has taken this child in. With `tcp`, the payload may come over a data connection;
    `on_fallback` hears why it does not, or not any more. With `departure` it can be ended gently: there is no reason
    then, whatever the parent made of it. Raises StoreError (DiskFullError) when this node's own store
    is the trouble; nothing else.
    """
    meter = meter if meter is not None else HopMeter()
    connected = False

    def first_word() -> None:
        nonlocal connected
        if not connected and on_connected is not None:
            on_connected()
        connected = True

    def fell_back(reason: str) -> None:
        meter.transport = GRPC
        if on_fallback is not None:
            on_fallback(reason)

    async def attempt(request: FetchRequest, tcp: TcpRoute | None) -> FetchEnd:
        request.accepts_tcp = tcp is not None
        request.streams = 0 if tcp is None else tcp.streams
        request.tcp_secret = b"" if tcp is None else secrets.token_bytes(SECRET_BYTES)
        request.expected_bytes_per_s = expected_bytes_per_s or 0.0
        receiver = Receiver(
            request,
            sink,
            downlink=downlink,
            meter=meter,
            on_connected=first_word,
            on_watermark=on_watermark,
            stall_floor_s=stall_floor_s,
            expected_bytes_per_s=expected_bytes_per_s,
        )
        call = _method(channel)(request)
        inlet = Inlet(
            call,
            tcp,
            receiver,
            secret=request.tcp_secret,
            on_switch=receiver.switched,
            on_fallback=fell_back,
            on_more=receiver.more,
            whole=receiver.whole,
        )

        def drain() -> bool:
            drains = inlet.drain()
            if drains:
                call.cancel()
            return drains

        if departure is not None:
            departure.drain = drain
        try:
            end = await receiver.run(inlet.read, inlet.silent_s)
        except grpc.aio.AioRpcError as error:
            return FetchEnd(_loss(error, connected), detail=error.details() or error.code().name)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # gRPC says so of a call that something else has ended: whoever waits must hear of it, or waits for ever.
            return FetchEnd(ParentLossReason.BROKEN, detail="the call was cancelled, and not by this node")
        finally:
            inlet.close()
            call.cancel()
        if inlet.draining:
            return FetchEnd(None, end.rejected, "moved: what was on its way has been taken")
        if inlet.switched and end.reason is ParentLossReason.STALLED:
            if inlet.at_its_end:  # one of several carries nothing any more: another one was good to the end
                raise TcpLostError(end.detail)
            fell_back(end.detail)  # perhaps it is only this connection that carries nothing any more
        return end

    try:
        return await attempt(request, tcp)
    except TcpLostError:  # the parent is there all the same
        meter.transport = GRPC
        stripes = decode_stripes(request.stripes if request.HasField("stripes") else None, request.stripe)
        return await attempt(build_request(sink, request.stripe, request.token, (), stripes), None)


def _method(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamMultiCallable[FetchRequest, bytes]:
    return channel.unary_stream(_FETCH, request_serializer=FetchRequest.SerializeToString)


def _loss(error: grpc.aio.AioRpcError, connected: bool) -> ParentLossReason:
    if error.code() in _REFUSED:
        return ParentLossReason.PROTOCOL
    return ParentLossReason.BROKEN if connected else ParentLossReason.UNREACHABLE
