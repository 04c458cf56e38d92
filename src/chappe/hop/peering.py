"""Everything of a node that its peers meet: whom it serves, dials, measures and is measured by. Relay and origin alike.

    children that dial ──▶ RelayService ─┐                  ┌─▶ HopMeters ──▶ link reports
    children to dial   ◀── Pushes ───────┴─▶ ChildStreams ──┘
    probes             ◀─▶ ProbeDesk (only while nothing flows)

Puts the pieces together; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import grpc.aio

from chappe.core.effects import PeerRef
from chappe.core.events import LinkSample
from chappe.core.probes import ProbeOrder, ProbeOutcome
from chappe.hop.catalog import Catalog
from chappe.hop.guard import AssignedChild, EdgeGuard
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import HopMeters
from chappe.hop.probe import ProbeDesk
from chappe.hop.push import PushEnd, PushInbox
from chappe.hop.pushes import PushEdge, Pushes
from chappe.hop.reports import report_links
from chappe.hop.server import RelayService
from chappe.hop.source import Signal
from chappe.hop.stall import STALL_FLOOR_S
from chappe.hop.stream import StreamBook
from chappe.hop.tcp_routes import TcpRoutes


class Peering:
    """One per node. `service` is to be added to a server; `spawn` keeps tasks and cancels them when the node stops."""

    def __init__(
        self,
        worker_id: str,
        *,
        open_channel: Callable[[PeerRef], grpc.aio.Channel],
        spawn: Callable[[str, asyncio.Task[None]], None],
        on_push_end: Callable[[PushEdge, PushEnd], None],
        limit_uplink_bytes_per_s: float | None = None,
        limit_downlink_bytes_per_s: float | None = None,
        stall_floor_s: float = STALL_FLOOR_S,
        tcp: TcpRoutes | None = None,
    ) -> None:
        """`open_channel` raises UsageError for an address that is none. `on_push_end`: see `Pushes`. `tcp`: to which
        children data connections are dialled."""
        self.catalog = Catalog()
        self.guard = EdgeGuard(worker_id, stall_timeout_s=stall_floor_s)
        self.inbox = PushInbox(self.guard)
        self.downlink = _bucket(limit_downlink_bytes_per_s)
        uplink = _bucket(limit_uplink_bytes_per_s)
        self._hops = Signal()
        self.received = HopMeters(sending=False, signal=self._hops)
        streams = StreamBook(self._hops)
        self._sent = streams.meters
        self._open_channel = open_channel
        self._probes = ProbeDesk(self.guard, self.flowing, uplink=uplink, downlink=self.downlink)
        self.service = RelayService(
            self.catalog, self.guard, uplink=uplink, inbox=self.inbox, streams=streams, probes=self._probes
        )
        self._pushes = Pushes(
            catalog=self.catalog,
            guard=self.guard,
            streams=streams,
            open_channel=open_channel,
            spawn=spawn,
            on_end=on_push_end,
            uplink=uplink,
            tcp=tcp,
            connections=lambda: self.service.connections,
        )

    def flowing(self) -> bool:
        """An object is being received or sent, or is about to be."""
        return self.received.flowing or self._sent.flowing

    def assign(self, children: Iterable[AssignedChild], pushes: Iterable[PushEdge]) -> None:
        """Replace what is known: every child of this node, and those of them that it has to dial."""
        self.guard.assign(children)
        self._pushes.assign(pushes)

    async def probe(self, order: ProbeOrder) -> ProbeOutcome:
        """Measure a link. What went wrong is in the outcome."""
        return await self._probes.run(order, lambda: self._open_channel(order.peer))

    async def report_links(self, send: Callable[[tuple[LinkSample, ...]], None]) -> None:
        """Until cancelled: what the hops of this node carry."""
        await report_links((self.received, self._sent), self._hops, send)


def _bucket(rate_bytes_per_s: float | None) -> TokenBucket | None:
    return None if rate_bytes_per_s is None else TokenBucket(rate_bytes_per_s)
