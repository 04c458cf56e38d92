"""The `Relay` service of a relay or an origin: admits children and gives each a stream.

Who is admitted is `chappe.hop.guard`, what a child is sent is `chappe.hop.stream`. Replies leave as bytes that
`chappe.wire.frames` has made, without a protobuf object in between.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import grpc.aio

from chappe.clock import boot_now
from chappe.errors import ChappeError, UsageError
from chappe.hop.catalog import Catalog
from chappe.hop.guard import EdgeGuard, Refusal, Ticket
from chappe.hop.limits import TokenBucket
from chappe.hop.net import peer_name
from chappe.hop.probe import ProbeDesk
from chappe.hop.push import PushInbox
from chappe.hop.source import ChunkSource
from chappe.hop.stream import ChildStream, StreamBook
from chappe.hop.tcp_listen import TcpListener
from chappe.hop.tcp_receive import TCP_LOST
from chappe.hop.tcp_send import TcpLostError
from chappe.v1.relay_pb2 import EndReason, FetchRequest, ProbeMessage, PushReply
from chappe.wire.frames import PROTOCOL_VERSION, encode_end, encode_tcp_offer

RELAY_SERVICE = "chappe.v1.Relay"

Context = grpc.aio.ServicerContext[Any, Any]


class RelayService:
    """Add it to a server with `add_to`. One per node."""

    def __init__(
        self,
        catalog: Catalog,
        guard: EdgeGuard,
        *,
        uplink: TokenBucket | None = None,
        inbox: PushInbox | None = None,
        streams: StreamBook | None = None,
        probes: ProbeDesk | None = None,
        tcp: TcpListener | None = None,
        connections: int = 1,
    ) -> None:
        """Children are offered data connections when there is a listener for them, which may come later: `tcp`. Each is
        offered so many `connections`, or as many as it asks for; `STREAMS_AUTO`: as its link needs."""
        self.tcp = tcp
        self.connections = connections
        self.streams = streams if streams is not None else StreamBook()
        self._catalog = catalog
        self._guard = guard
        self._uplink = uplink
        self._inbox = inbox
        self._probes = probes
        self._leaving = False

    def add_to(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Fetch": grpc.unary_stream_rpc_method_handler(
                self._fetch, request_deserializer=FetchRequest.FromString, response_serializer=None
            )
        }
        if self._inbox is not None:
            handlers["Push"] = grpc.stream_stream_rpc_method_handler(
                self._push, request_deserializer=None, response_serializer=PushReply.SerializeToString
            )
        if self._probes is not None:
            handlers["Probe"] = grpc.stream_stream_rpc_method_handler(
                self._probe,
                request_deserializer=ProbeMessage.FromString,
                response_serializer=ProbeMessage.SerializeToString,
            )
        server.add_registered_method_handlers(RELAY_SERVICE, handlers)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(RELAY_SERVICE, handlers),))

    @property
    def data_port(self) -> int:
        """Where children may open data connections; 0: there is no listener for them."""
        return 0 if self.tcp is None else self.tcp.address.port

    def leave(self) -> None:
        """Tell all children, and who comes from now on, that this node stops."""
        self._leaving = True
        self._guard.end_all(EndReason.END_REASON_LEAVING)
        if self._inbox is not None:
            self._inbox.leave()

    async def _fetch(self, request: FetchRequest, context: Context) -> None:
        if request.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"protocol version {request.protocol_version}, this node speaks {PROTOCOL_VERSION}: "
                "run the same release on all nodes",
            )
        if self._leaving:
            await context.write(encode_end(EndReason.END_REASON_LEAVING))
            return
        now, name = boot_now(), peer_name(context)
        ticket = self._guard.admit(request.token, request.object_id, request.stripe, now, name)
        if isinstance(ticket, Refusal):
            await context.write(encode_end(ticket.reason, ticket.detail))
            return
        try:
            source = self._catalog.get(request.object_id)
            if source is None:
                await context.write(encode_end(EndReason.END_REASON_UNKNOWN_OBJECT))
                return
            await self._serve(source, request, ticket, context)
        finally:
            self._guard.release(ticket)

    async def _serve(self, source: ChunkSource, request: FetchRequest, ticket: Ticket, context: Context) -> None:
        offer, offer_more = None, None
        try:
            try:
                if self.tcp is not None and request.accepts_tcp:
                    offer_more = partial(self.tcp.offer, context.peer(), peer_name(context))
                    offer = offer_more(source.signal.fire, request.tcp_secret)
                stream = ChildStream(
                    source,
                    request,
                    ticket,
                    context.write,
                    uplink=self._uplink,
                    offer=offer,
                    offer_more=offer_more,
                    streams=self.connections,
                )
            except UsageError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if offer is not None and not offer.here:
                await context.write(encode_tcp_offer(offer.port, offer.secret))
            await self.streams.run(stream)
        except TcpLostError as error:
            await context.abort(TCP_LOST, f"object {source.object_id}: {error}")
        except (OSError, ChappeError) as error:
            await context.abort(grpc.StatusCode.INTERNAL, f"object {source.object_id}: {error}")
        except grpc.aio.InternalError:
            return  # the child is gone: nobody is left to tell
        finally:
            if offer is not None:
                offer.close()

    async def _push(self, _requests: object, context: Context) -> None:
        assert self._inbox is not None
        await self._inbox.serve(context, self.tcp)

    async def _probe(self, _requests: object, context: Context) -> None:
        assert self._probes is not None
        await self._probes.serve(context)
