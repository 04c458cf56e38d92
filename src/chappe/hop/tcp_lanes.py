"""Feeds one child over all data connections that it opens, until all is sent or the last one is gone.

    the first ──▶ lane ─┐                                  a lane breaks ──▶ the others go on with what it had
    TcpMore ──▶ child opens more ──▶ a lane each ─┼──▶ End(COMPLETE) on each of them
    none left ──▶ TcpLostError: the child goes on over gRPC

On the event loop; each lane's thread runs a `chappe.hop.tcp_feed`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from chappe.clock import boot_now
from chappe.hop.course import Course
from chappe.hop.guard import Ticket
from chappe.hop.limits import TokenBucket
from chappe.hop.linkwatch import LOOK_S, STEADY, STREAMS_WHERE_LOSSY, LinkWatch
from chappe.hop.meter import HopMeter
from chappe.hop.outlet import Outlet
from chappe.hop.signal import Signal
from chappe.hop.source import ChunkSource
from chappe.hop.tcp_deal import Deal
from chappe.hop.tcp_feed import Feed
from chappe.hop.tcp_listen import Offer
from chappe.hop.tcp_send import TcpLostError, TcpOutlet
from chappe.hop.turns import Turns
from chappe.v1.relay_pb2 import EndReason
from chappe.wire.frames import encode_tcp_more
from chappe.wire.tcp_frames import STREAMS_AUTO

log = logging.getLogger(__name__)

OfferMore = Callable[[Callable[[], None]], Offer | None]
"""Expect another connection of the same child; the callback says that it is there."""


class Lanes:
    """Of one Fetch. `run` once."""

    def __init__(
        self,
        source: ChunkSource,
        course: Course,
        ticket: Ticket,
        meter: HopMeter,
        outlet: Outlet,
        *,
        uplink: TokenBucket | None,
        turns: Turns | None,
        on_unreadable: Callable[[Sequence[int]], None],
        offer_more: OfferMore | None = None,
        streams: int = 1,
        expected_bytes_per_s: float = 0.0,
    ) -> None:
        """`on_unreadable` drops chunks that cannot be read, or raises StoreError; `offer_more` for more than one:
        None where the child takes no other, or cannot dial one.
        `expected_bytes_per_s` is what the coordinator expects of the hop, 0 for nothing."""
        self._source, self._ticket, self._meter, self._outlet = source, ticket, meter, outlet
        self._uplink, self._on_unreadable, self._offer_more = uplink, on_unreadable, offer_more
        self._expected_bytes_per_s = expected_bytes_per_s
        self._auto = streams == STREAMS_AUTO
        self._streams = max(1, streams) if offer_more is not None else 1
        self._deal = Deal(course, turns, most=self._streams)
        self._signal = Signal()
        self._offers: list[Offer] = []
        self._tasks: set[asyncio.Task[EndReason | None]] = set()

    async def run(self, first: TcpOutlet) -> EndReason:
        """Raises TcpLostError, StoreError, and what the source raises."""
        watching: asyncio.Task[None] | None = None
        try:
            self._begin(first)
            await self._ask_for_more()
            if self._auto:
                watching = asyncio.create_task(self._watch(first), name="watch of a data connection")
                watching.add_done_callback(self._watched)
            return await self._end()
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            for offer in self._offers:
                offer.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, tcp: TcpOutlet) -> None:
        manifest = self._source.manifest
        if self._streams > 1 and manifest is not None:
            self._outlet.limit_unsent(tcp, manifest, self._streams)
        task = asyncio.create_task(self._feed(tcp), name="data connection")
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._signal.fire())

    async def _ask_for_more(self) -> None:
        if self._offer_more is None or self._streams == 1:
            return
        offers = [self._offer_more(self._take_more) for _ in range(self._streams - 1)]
        self._offers = [offer for offer in offers if offer is not None]
        if not self._offers:
            return
        await self._outlet.write(encode_tcp_more(self._offers[0].port, [offer.secret for offer in self._offers]))

    async def _watch(self, first: TcpOutlet) -> None:
        """Until one connection turns out to be too few for the link, or the stream is over."""
        watch, child = LinkWatch(self._expected_bytes_per_s), self._ticket.child
        while True:
            if watch.one_is_too_few(first.info(), first.congestion_control(), boot_now()):
                break
            await asyncio.sleep(LOOK_S)
        if first.choose_congestion_control(STEADY):
            log.info("%s: a long link that loses packets: its data connection goes on with %s", child, STEADY)
            return
        if self._offer_more is None:
            log.info("%s: a long link that loses packets, where %s cannot be had: it stays as it is", child, STEADY)
            return
        manifest = self._source.manifest
        assert manifest is not None  # chunks have been sent
        self._streams = STREAMS_WHERE_LOSSY
        self._deal.allow(self._streams)
        self._outlet.limit_unsent(first, manifest, self._streams)
        log.info("%s: a long link that loses packets: %d data connections", child, self._streams)
        await self._ask_for_more()

    def _watched(self, watching: asyncio.Task[None]) -> None:
        """The stream goes on as it is: only a help has ended."""
        if not watching.cancelled() and (error := watching.exception()) is not None:
            child = self._ticket.child
            log.error("%s: its data connection is not watched for losses any more", child, exc_info=error)

    def _take_more(self) -> None:
        for offer in self._offers:
            if (tcp := offer.take()) is not None:
                self._outlet.beside(tcp)
                self._begin(tcp)

    async def _end(self) -> EndReason:
        """Once all lanes are over. One that broke when another had said that all is sent changes nothing: what it lost,
        the child will ask for."""
        said: set[EndReason] = set()
        lost = TcpLostError("all data connections are gone")
        while self._tasks:
            seen = self._signal.count
            over = [task for task in self._tasks if task.done()]
            self._tasks.difference_update(over)
            for task in over:
                try:
                    reason = task.result()
                except TcpLostError as error:
                    lost = error
                    continue
                if reason is not None:
                    said.add(reason)
            if self._tasks:
                await self._signal.wait(seen)
        for reason in said - {EndReason.END_REASON_COMPLETE}:
            return reason
        if not said:
            raise lost
        return EndReason.END_REASON_COMPLETE

    async def _feed(self, tcp: TcpOutlet) -> EndReason | None:
        """None: it broke, and others go on."""
        lane = self._deal.join(tcp)
        feed = Feed(self._source, self._deal, lane, self._ticket, self._meter, self._uplink)
        try:
            while True:
                fed = await tcp.run(feed.run)
                if fed.lost is not None:
                    self._go_on_without(fed.lost)
                    return None
                if fed.reason is not None:
                    return fed.reason
                self._on_unreadable(fed.unreadable)
        except asyncio.CancelledError:
            tcp.finish()
            raise
        finally:
            feed.stop()
            if self._streams > 1:
                tcp.close()

    def _go_on_without(self, lost: TcpLostError) -> None:
        log.info("%s: one of several data connections is gone: %s", self._ticket.child, lost)
        if lost.doubted is not None:
            self._source.recheck([lost.doubted])
            self._deal.looked_at(lost.doubted)
