"""A child fetches from its parent: `Relay.Fetch`, dialled by the child. What is said is in `chappe.hop.receive`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import grpc
import grpc.aio

from chappe.core.ledger import OPEN_END
from chappe.core.reasons import ParentLossReason
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import HopMeter
from chappe.hop.receive import FetchEnd, Receiver
from chappe.hop.source import ChunkSink
from chappe.hop.stall import STALL_FLOOR_S
from chappe.v1.relay_pb2 import EdgeToken, FetchRequest, Range, Watermark
from chappe.wire.frames import PROTOCOL_VERSION, Reply, decode_reply

__all__ = ["FetchEnd", "build_request", "fetch"]

_FETCH = "/chappe.v1.Relay/Fetch"
_REFUSED = {
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # a message above the limit
}


def build_request(sink: ChunkSink, stripe: int, token: EdgeToken, rejected: Iterable[int] = ()) -> FetchRequest:
    """Ask for everything that the sink lacks. `rejected` are the chunks of `FetchEnd.rejected`."""
    return FetchRequest(
        protocol_version=PROTOCOL_VERSION,
        object_id=sink.object_id,
        stripe=stripe,
        token=token,
        lacks_header=sink.manifest is None,
        lacks_pages=[Range(start=sink.pages_held, stop=OPEN_END)],
        lacks_chunks=[Range(start=start, stop=stop) for start, stop in sink.ledger.missing()],
        rejected_chunks=rejected,
    )


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
) -> FetchEnd:
    """Receive into the sink until all is here or the parent is lost. Cancel it to close the stream.

    Silence of the parent is a stall after `stall_floor_s`, later on a hop on which a chunk takes long. `on_connected`
    is called once, when the parent has taken this child in. Raises StoreError (DiskFullError) when this node's own
    store is the trouble; nothing else.
    """
    receiver = Receiver(
        request,
        sink,
        downlink=downlink,
        meter=meter,
        on_connected=on_connected,
        on_watermark=on_watermark,
        stall_floor_s=stall_floor_s,
        expected_bytes_per_s=expected_bytes_per_s,
    )
    method: grpc.aio.UnaryStreamMultiCallable[FetchRequest, bytes] = channel.unary_stream(
        _FETCH, request_serializer=FetchRequest.SerializeToString
    )
    call = method(request)

    async def read() -> tuple[Reply, int] | None:
        message = await call.read()
        if not isinstance(message, bytes):
            return None  # EOF
        return decode_reply(message), len(message)

    try:
        return await receiver.run(read)
    except grpc.aio.AioRpcError as error:
        return FetchEnd(_loss(error, receiver.connected), detail=error.details() or error.code().name)
    finally:
        call.cancel()


def _loss(error: grpc.aio.AioRpcError, connected: bool) -> ParentLossReason:
    if error.code() in _REFUSED:
        return ParentLossReason.PROTOCOL
    return ParentLossReason.BROKEN if connected else ParentLossReason.UNREACHABLE
