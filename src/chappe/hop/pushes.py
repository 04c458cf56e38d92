"""The children that this node has to dial, because they cannot dial it: keeps one call open to each.

Decides only when to call again. Who the children are is the coordinator's word, whether one may be served the guard's.

    assign ──▶ dial ──▶ parked by the child ──▶ serve until it ends ──▶ wait ──▶ dial
                           │                      └── named no more: goes on, as a child that has moved leaves by itself
                           └── other news: dial again                     or is evicted

A child that has everything is called again: what rots there it can ask for in no other way. The wait has jitter, and
grows with each failure in a row; that the child wanted nothing is none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import grpc.aio

from chappe.core.effects import PeerRef
from chappe.core.relay_events import PushOrder
from chappe.errors import UsageError
from chappe.hop.catalog import Catalog
from chappe.hop.guard import EdgeGuard
from chappe.hop.limits import TokenBucket
from chappe.hop.push import PushEnd, push
from chappe.hop.stream import StreamBook
from chappe.hop.tcp_routes import TcpRoutes
from chappe.v1.relay_pb2 import EdgeToken, EndReason

RETRY_S_MIN = 0.05
RETRY_S_MAX = 2.0
UNWANTED_RETRY_S = 0.5
"""The child parks the next call. A short wait, for one that lets go at once."""
_UNWANTED = (EndReason.END_REASON_COMPLETE, EndReason.END_REASON_UNKNOWN_OBJECT)


@dataclass(frozen=True, slots=True)
class PushEdge:
    object_id: str
    stripe: int
    order: PushOrder

    @property
    def identity(self) -> tuple[str, int, int, PeerRef, int]:
        """What makes it another call; a newer epoch or token is only used for the next one."""
        return self.object_id, self.stripe, self.order.slot, self.order.child, self.order.generation


@dataclass(eq=False, slots=True)
class _Call:
    edge: PushEdge | None  # None: not to be dialled again
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    taken: bool = False  # the child has said what it lacks


class Pushes:
    """One per node. `on_end` hears of every call that came to something new."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        guard: EdgeGuard,
        streams: StreamBook,
        open_channel: Callable[[PeerRef], grpc.aio.Channel],
        spawn: Callable[[str, asyncio.Task[None]], None],
        on_end: Callable[[PushEdge, PushEnd], None],
        uplink: TokenBucket | None = None,
        tcp: TcpRoutes | None = None,
        connections: Callable[[], int] = lambda: 1,
    ) -> None:
        """`spawn` keeps the task, names it, and cancels it when the node stops. `tcp`: to which children data
        connections are dialled; `connections`: see `push`."""
        self._catalog, self._guard, self._streams = catalog, guard, streams
        self._open_channel, self._spawn, self._on_end = open_channel, spawn, on_end
        self._uplink, self._tcp, self._connections = uplink, tcp, connections
        self._calls: dict[tuple[str, int, int, PeerRef, int], _Call] = {}

    def assign(self, edges: Iterable[PushEdge]) -> None:
        """Replace what is known: all children to dial, of all objects."""
        wanted = {edge.identity: edge for edge in edges}
        for identity in [identity for identity in self._calls if identity not in wanted]:
            call = self._calls.pop(identity)
            call.edge = None
            call.changed.set()
        for identity, edge in wanted.items():
            known = self._calls.get(identity)
            if known is None:
                call = self._calls[identity] = _Call(edge)
                task = asyncio.create_task(self._keep(call))
                self._spawn(f"push {edge.object_id} to {edge.order.child.name}", task)
            elif known.edge != edge:
                known.edge = edge
                known.changed.set()

    async def _keep(self, call: _Call) -> None:
        failures = 0
        said = None
        while (edge := call.edge) is not None:
            call.changed.clear()
            if (pushing := await self._unless_changed(call, edge)) is None:
                continue
            end = pushing.result()
            if end is not None and end != said:
                self._on_end(edge, end)
            said = end
            unwanted = end is not None and end.reason in _UNWANTED
            failures = 0 if unwanted else failures + 1
            base_s = UNWANTED_RETRY_S if unwanted else min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(failures - 1, 8))
            try:
                async with asyncio.timeout(base_s * random.uniform(0.5, 1.5)):  # noqa: S311
                    await call.changed.wait()
                failures = 0
            except TimeoutError:
                continue

    async def _unless_changed(self, call: _Call, edge: PushEdge) -> asyncio.Task[PushEnd | None] | None:
        """Call the child to the end. None when there was news of the edge while nothing had begun to flow."""
        call.taken = False
        pushing = asyncio.create_task(self._push(call, edge))
        news = asyncio.create_task(call.changed.wait())
        try:
            await asyncio.wait((pushing, news), return_when=asyncio.FIRST_COMPLETED)
            if not pushing.done() and not call.taken:
                return None
            await asyncio.wait((pushing,))
            return pushing
        finally:
            pushing.cancel()
            news.cancel()
            await asyncio.gather(pushing, news, return_exceptions=True)

    async def _push(self, call: _Call, edge: PushEdge) -> PushEnd | None:
        """None while the object is not here."""

        def taken() -> None:
            call.taken = True

        def fell_back(reason: str) -> None:
            if self._tcp is not None:
                self._tcp.failed(edge.order.child, reason, dialled=True)

        source = self._catalog.get(edge.object_id)
        if source is None:
            return None
        try:
            async with self._open_channel(edge.order.child) as channel:
                return await push(
                    channel,
                    source,
                    edge.stripe,
                    EdgeToken.FromString(edge.order.token),
                    self._guard,
                    uplink=self._uplink,
                    streams=self._streams,
                    on_taken=taken,
                    tcp=None if self._tcp is None else self._tcp.to(edge.order.child),
                    on_fallback=fell_back,
                    connections=self._connections(),
                )
        except UsageError as error:  # an address that is none
            return PushEnd(EndReason.END_REASON_UNSPECIFIED, str(error))
