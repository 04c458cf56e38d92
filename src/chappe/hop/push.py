"""`Relay.Push`: the same conversation with the dialling reversed, for a child that its parent reaches and not the other
way round.

    parent: push(...) ─── PushHello(token) ──▶ PushInbox of the child: is this the parent that I wait for?
                                                  └─ not yet: the call is parked until it is, for PARK_S at most
                      ◀── PushReply(lacks) ───
                      ─── replies as in Fetch ▶ Receiver

The child cannot call: by a parked call it gets hold of its parent at once when it wants something, be it that its own
assignment came later than the parent's, or that a chunk has rotted after all had come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from chappe.clock import boot_now
from chappe.core.reasons import ParentLossReason
from chappe.errors import BadTokenError, ChappeError, PeerError
from chappe.hop.guard import EdgeGuard, Refusal
from chappe.hop.limits import TokenBucket
from chappe.hop.net import peer_name
from chappe.hop.pushed import receive_pushed
from chappe.hop.receive import FetchEnd, Receiver
from chappe.hop.source import ChunkSource, Signal
from chappe.hop.stream import ChildStream, StreamBook
from chappe.hop.tcp_dial import Dialled
from chappe.hop.tcp_listen import TcpListener
from chappe.hop.tcp_receive import TcpRoute
from chappe.hop.tcp_send import TcpLostError
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken, EndReason, FetchRequest, PushHello, PushReply, PushRequest
from chappe.wire.frames import PROTOCOL_VERSION, decode_push, encode_pushed

_PUSH = "/chappe.v1.Relay/Push"
HANDSHAKE_S = 5.0
"""From the call to its introduction, and for a child that wants something to its first word."""
PARK_S = 20.0
"""How long a child keeps a call that it has no use for now. A dead host is noticed sooner, by its pings."""


@dataclass(frozen=True, slots=True)
class PushEnd:
    """How a push ended. UNKNOWN_OBJECT when the child wanted nothing for as long as it parked the call; UNSPECIFIED
    when it could not be reached, refused, or broke off: `detail` says it."""

    reason: EndReason
    detail: str = ""


async def push(
    channel: grpc.aio.Channel,
    source: ChunkSource,
    stripe: int,
    token: EdgeToken,
    guard: EdgeGuard,
    *,
    uplink: TokenBucket | None = None,
    streams: StreamBook | None = None,
    on_taken: Callable[[], None] | None = None,
    tcp: TcpRoute | None = None,
    on_fallback: Callable[[str], None] = lambda _: None,
    connections: int = 1,
) -> PushEnd:
    """Dial a child and serve it until it has all. The guard sees it like any child: one at a time in each slot.

    `on_taken` is called when the child has said what it lacks: until then the call may be parked. With `tcp` the
    payload may go over a data connection that this side dials; `on_fallback` hears why it does not, or not any more.
    It is one, whatever `connections` says; with `STREAMS_AUTO` it is helped where its link loses packets.
    """
    ticket = guard.admit(token, source.object_id, stripe, boot_now())
    if isinstance(ticket, Refusal):
        return PushEnd(ticket.reason, ticket.detail)
    method: grpc.aio.StreamStreamMultiCallable[bytes, PushReply] = channel.stream_stream(
        _PUSH, response_deserializer=PushReply.FromString
    )
    call = method()

    async def write(frame: bytes) -> None:
        await call.write(encode_pushed(frame))

    async def serve(reply: PushReply, tcp: TcpRoute | None) -> EndReason:
        dialled = None
        if tcp is not None and reply.HasField("tcp_offer"):
            dialled = Dialled(tcp, reply.tcp_offer, on_connected=source.signal.fire, on_fallback=on_fallback)
        stream = ChildStream(source, reply.lacks, ticket, write, uplink=uplink, offer=dialled, streams=connections)
        if dialled is not None:
            dialled.start()
        return await (stream.run() if streams is None else streams.run(stream))

    try:
        hello = PushHello(
            protocol_version=PROTOCOL_VERSION,
            object_id=source.object_id,
            stripe=stripe,
            token=token,
            dials_tcp=tcp is not None,
        )
        async with asyncio.timeout(PARK_S + HANDSHAKE_S):
            await call.write(PushRequest(hello=hello).SerializeToString())
            reply = await call.read()
        if not isinstance(reply, PushReply):
            return PushEnd(EndReason.END_REASON_UNSPECIFIED, "the child said nothing")
        if on_taken is not None:
            on_taken()
        try:
            reason = await serve(reply, tcp)
        except TcpLostError as error:
            on_fallback(str(error))
            async with asyncio.timeout(HANDSHAKE_S):
                reply = await call.read()  # the child asks for the rest
            if not isinstance(reply, PushReply):
                return PushEnd(EndReason.END_REASON_UNSPECIFIED, str(error))
            reason = await serve(reply, None)
        await call.done_writing()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(
                HANDSHAKE_S
            ):  # cancelled before the child has read it all, the end would be lost
                await call.code()
        return PushEnd(reason)
    except grpc.aio.AioRpcError as error:
        unwanted = error.code() is grpc.StatusCode.NOT_FOUND
        reason = EndReason.END_REASON_UNKNOWN_OBJECT if unwanted else EndReason.END_REASON_UNSPECIFIED
        return PushEnd(reason, error.details() or error.code().name)
    except TimeoutError:
        return PushEnd(EndReason.END_REASON_UNSPECIFIED, f"the child said nothing for {PARK_S + HANDSHAKE_S:g} s")
    except asyncio.InvalidStateError:
        return PushEnd(EndReason.END_REASON_UNSPECIFIED, "the child closed the stream")
    except (OSError, ChappeError) as error:
        return PushEnd(EndReason.END_REASON_UNSPECIFIED, str(error))
    finally:
        guard.release(ticket)
        call.cancel()


@dataclass(frozen=True, slots=True)
class ExpectedPush:
    """The edge on which a child waits for its parent's call."""

    object_id: str
    stripe: int
    parent: str  # worker id
    parent_name: str
    epoch: int
    generation: int  # of this node


class PushInbox:
    """Where a child waits for parents that dial it. One per node; `RelayService` hands calls to it."""

    def __init__(self, guard: EdgeGuard) -> None:
        self._guard = guard  # knows this node, its run and the coordinator's key
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._parked: dict[tuple[str, int, str], object] = {}  # the newest call of each parent
        self._changed = Signal()  # fires when somebody begins to wait, and when a parent calls
        self._leaving = False

    async def receive(
        self,
        edge: ExpectedPush,
        request: Callable[[], FetchRequest],
        receiver: Callable[[FetchRequest], Receiver],
        on_fallback: Callable[[str], None] | None = None,
    ) -> FetchEnd:
        """Wait for the parent of this edge and receive from it. Cancel it to close the stream. Raises StoreError.

        `request` is asked for what is lacked at the moment when the parent calls. With `on_fallback` the payload may
        come over a data connection; it hears why it does not, or not any more. A newer `receive` for the same
        (object, stripe) ends this one as EVICTED.
        """
        key = (edge.object_id, edge.stripe)
        if (older := self._waiting.pop(key, None)) is not None:
            older.finish(FetchEnd(ParentLossReason.EVICTED, detail="a newer edge replaced this one"))
        waiting = _Waiting(edge, request, receiver, on_fallback, asyncio.get_running_loop().create_future())
        self._waiting[key] = waiting
        self._changed.fire()
        try:
            return await waiting.result
        finally:
            if self._waiting.get(key) is waiting:
                del self._waiting[key]
            if waiting.stream is not None:
                waiting.stream.cancel()

    def leave(self) -> None:
        """This node stops: let go of the calls that are parked, and park no more."""
        self._leaving = True
        self._changed.fire()

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any], tcp: TcpListener | None = None) -> None:
        """One Push call. `tcp`: where its parent may open a data connection."""
        try:
            hello = await _read_hello(context)
            claims = self._check(hello)
            waiting = await self._park(hello, claims, peer_name(context))
        except PeerError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        if waiting is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "nothing is wanted from this parent now")
            raise AssertionError  # abort always raises
        if waiting.stream is not None:
            waiting.stream.cancel()  # the same parent calls again: its old stream is dead
        stream = waiting.stream = asyncio.ensure_future(
            self._receive(waiting, context, tcp if hello.dials_tcp else None)
        )
        stream.add_done_callback(waiting.over)
        try:
            await asyncio.wait({stream})
        except asyncio.CancelledError:
            if waiting.stream is stream:  # what it reads now may be another connection than the call that is gone
                waiting.finish(FetchEnd(ParentLossReason.BROKEN, detail="the parent broke off its call"))
            raise
        finally:
            stream.cancel()

    def _check(self, hello: PushHello) -> EdgeClaims:
        """What a call that may be parked has to show. Raises PeerError, BadTokenError."""
        if hello.protocol_version != PROTOCOL_VERSION:
            raise PeerError(f"protocol version {hello.protocol_version}, this node speaks {PROTOCOL_VERSION}")
        claims = self._guard.read(hello.token)
        if (claims.object_id, claims.stripe) != (hello.object_id, hello.stripe):
            raise BadTokenError("the token is for another object or stripe")
        if claims.child != self._guard.worker_id:
            raise BadTokenError("the token is for another child")
        return claims

    async def _park(self, hello: PushHello, claims: EdgeClaims, name: str | None) -> _Waiting | None:
        """Until this node waits for something of this object and stripe. None when it does not for PARK_S, when the
        parent has called again, and when this node stops."""
        call, key = object(), (hello.object_id, hello.stripe, claims.parent)
        self._parked[key] = call
        self._changed.fire()
        try:
            async with asyncio.timeout(PARK_S):
                while (waiting := self._waiting.get((hello.object_id, hello.stripe))) is None:
                    if self._leaving or self._parked.get(key) is not call:
                        return None
                    await self._changed.wait(self._changed.count)
        except TimeoutError:
            return None
        finally:
            if self._parked.get(key) is call:
                del self._parked[key]
        self._check_edge(waiting.edge, claims, name)
        return waiting

    def _check_edge(self, edge: ExpectedPush, claims: EdgeClaims, name: str | None) -> None:
        if claims.child_generation != edge.generation:
            raise BadTokenError("the token is for another generation of this child")
        if claims.parent != edge.parent or (name is not None and name != edge.parent_name):
            raise BadTokenError(f"the parent of this edge is {edge.parent_name!r}")
        if claims.epoch < edge.epoch:
            raise BadTokenError(f"the token's epoch is {claims.epoch}, the edge's {edge.epoch}")

    async def _receive(
        self, waiting: _Waiting, context: grpc.aio.ServicerContext[Any, Any], tcp: TcpListener | None
    ) -> None:
        waiting.finish(await receive_pushed(context, waiting.request, waiting.receiver, waiting.on_fallback, tcp))


@dataclass(slots=True)
class _Waiting:
    edge: ExpectedPush
    request: Callable[[], FetchRequest]
    receiver: Callable[[FetchRequest], Receiver]
    on_fallback: Callable[[str], None] | None
    result: asyncio.Future[FetchEnd]
    stream: asyncio.Future[None] | None = None

    def finish(self, end: FetchEnd) -> None:
        if not self.result.done():
            self.result.set_result(end)

    def over(self, stream: asyncio.Future[None]) -> None:
        """Whatever it raised is for whoever waits: also a fault of this program, which nobody would hear of."""
        if not stream.cancelled() and (error := stream.exception()) is not None and not self.result.done():
            self.result.set_exception(error)


async def _read_hello(context: grpc.aio.ServicerContext[Any, Any]) -> PushHello:
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            message = await context.read()
    except TimeoutError:
        raise PeerError(f"a Push that says nothing for {HANDSHAKE_S:g} s") from None
    if message is grpc.aio.EOF:
        raise PeerError("a Push without a word")
    hello = decode_push(message)
    if not isinstance(hello, PushHello):
        raise PeerError("a Push that does not begin with its introduction")
    return hello
