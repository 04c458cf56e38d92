"""Runs the fetches that the transfer machine opens, and tells it how far each object is. Decides neither.

    OpenFetch ──▶ task: dial, or be dialled ──▶ FetchConnected ──▶ chunks go into the store ──▶ Progress, FetchEnded
    CloseFetch ─▶ the task is cancelled, and nothing more is heard of it
    DrainFetch ─▶ the call is ended, what is on its way is taken ──▶ FetchEnded

An object is watched through its own signal: header, last chunk and rot are told at once, the rest once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import grpc.aio
import structlog

from chappe.core.effects import PeerRef
from chappe.core.ranges import Range
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import (
    ChunksDropped,
    FetchConnected,
    FetchEnded,
    LocalFault,
    OpenFetch,
    Progress,
    RelayEvent,
)
from chappe.errors import DiskFullError, StoreError, UsageError
from chappe.hop.client import Departure, FetchEnd, build_request, fetch
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import GRPC, HopMeter, HopMeters
from chappe.hop.objects import StoredObject
from chappe.hop.push import ExpectedPush, PushInbox
from chappe.hop.receive import Receiver
from chappe.hop.source import SourceState
from chappe.hop.stall import STALL_FLOOR_S, StallRule
from chappe.hop.tcp_routes import TcpRoutes
from chappe.v1.relay_pb2 import EdgeToken, FetchRequest

log = structlog.get_logger()

PROGRESS_INTERVAL_S = 1.0
PUSH_WAIT_S = 6.0
"""For a parent that dials, whose call is not parked here: its own assignment may come later, and it calls again after
at most 3 s."""


def progress_of(held: StoredObject) -> Progress:
    return Progress(held.object_id, held.ledger.held.ranges(), held.ledger.total)


def fault_of(error: StoreError) -> LocalFault:
    return LocalFault.DISK_FULL if isinstance(error, DiskFullError) else LocalFault.STORE


def watch(held: StoredObject, on_event: Callable[[RelayEvent], None]) -> Coroutine[None, None, None]:
    """Tell what changes from the moment of this call on, until the object is dropped."""
    return _watch(held, on_event, _Told.of(held))


async def _watch(held: StoredObject, on_event: Callable[[RelayEvent], None], told: _Told) -> None:
    while held.state is SourceState.OPEN:
        seen = held.signal.count
        now = _Told.of(held)
        if now.dropped != told.dropped:
            on_event(ChunksDropped(held.object_id, now.chunks))  # with what has come meanwhile
        elif now != told:
            on_event(progress_of(held))
        told = now
        await held.signal.wait(seen, PROGRESS_INTERVAL_S)


@dataclass(frozen=True, slots=True)
class _Told:
    chunks: tuple[Range, ...]
    count: int
    dropped: int
    total: int | None

    @classmethod
    def of(cls, held: StoredObject) -> _Told:
        ledger = held.ledger
        return cls(ledger.held.ranges(), len(ledger.held), ledger.dropped, ledger.total)


def _stored(held: StoredObject) -> tuple[bool, int, int]:
    """Grows with each header, page and chunk that is stored, and with nothing else."""
    return held.manifest is not None, held.pages_held, held.ledger.arrived


class Fetches:
    """All on the event loop's thread."""

    def __init__(
        self,
        *,
        open_object: Callable[[str], StoredObject],
        open_channel: Callable[[PeerRef], grpc.aio.Channel],
        on_event: Callable[[RelayEvent], None],
        on_mismatch: Callable[[int], None],
        spawn: Callable[[str, asyncio.Task[None]], None],
        downlink: TokenBucket | None,
        meters: HopMeters,
        inbox: PushInbox,
        tcp: TcpRoutes,
        generation: int,
        stall_floor_s: float = STALL_FLOOR_S,
    ) -> None:
        """`open_object` raises StoreError, `open_channel` UsageError for an address that is none."""
        self._open_object = open_object
        self._open_channel = open_channel
        self._on_event = on_event
        self._on_mismatch = on_mismatch
        self._spawn = spawn
        self._downlink = downlink
        self._meters = meters
        self._inbox = inbox
        self._tcp = tcp
        self._generation = generation
        self._stalls = StallRule(stall_floor_s)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._departures: dict[int, Departure] = {}
        self._faulted: set[str] = set()  # objects that the store did not take the last time: tried again every 2 s

    def open(self, order: OpenFetch) -> None:
        task = asyncio.create_task(self._run(order))
        self._tasks[order.fetch] = task
        self._spawn(f"fetch {order.fetch} from {order.source.peer.name}", task)

    def drain(self, fetch_number: int) -> None:
        departure = self._departures.get(fetch_number)
        if departure is None or not departure.drain():
            self.close(fetch_number)
            self._on_event(FetchEnded(fetch_number, None, "moved: nothing was on its way"))

    def close(self, fetch_number: int) -> None:
        task = self._tasks.pop(fetch_number, None)
        if task is not None:
            task.cancel()

    async def _run(self, order: OpenFetch) -> None:
        peer = order.source.peer
        again = order.object_id in self._faulted
        opened = log.debug if again else log.info
        opened("fetch_opened", object_id=order.object_id, parent=peer.name, address=peer.address)
        try:
            ended = await self._fetch(order)
        finally:
            self._tasks.pop(order.fetch, None)
            self._departures.pop(order.fetch, None)
        faulted = isinstance(ended.reason, LocalFault)
        (self._faulted.add if faulted else self._faulted.discard)(order.object_id)
        told = log.debug if again and faulted else log.info
        told(
            "fetch_ended",
            object_id=order.object_id,
            parent=peer.name,
            reason=ended.reason.value if ended.reason else "complete",
            detail=ended.detail,
        )
        self._on_event(ended)

    async def _fetch(self, order: OpenFetch) -> FetchEnded:
        try:
            held = self._open_object(order.object_id)
        except StoreError as error:
            return FetchEnded(order.fetch, fault_of(error), str(error))
        before = _stored(held)
        try:
            end = await self._receive(order, held)
            if end.rejected:
                self._on_mismatch(len(end.rejected))
            reason, detail, rejected = end.reason, end.detail, end.rejected
        except UsageError as error:
            return FetchEnded(order.fetch, ParentLossReason.UNREACHABLE, str(error))
        except StoreError as error:
            self._tell_progress(held)
            return FetchEnded(order.fetch, fault_of(error), str(error))
        self._tell_progress(held)  # before the end, so that nobody asks again for what has just come
        progressed = before != _stored(held)
        self._stalls.ended(
            order.source.peer.worker_id, stalled=reason is ParentLossReason.STALLED, progressed=progressed
        )
        return FetchEnded(order.fetch, reason, detail, rejected, progressed)

    def _tell_progress(self, held: StoredObject) -> None:
        if (
            held.state is SourceState.OPEN
        ):  # else it is received from scratch, or not at all: what this held is not here
            self._on_event(progress_of(held))

    async def _receive(self, order: OpenFetch, held: StoredObject) -> FetchEnd:
        peer = order.source.peer
        with self._meters.measure(peer.worker_id, HopMeter()) as meter:
            if order.source.dials:
                return await self._await_push(order, held, meter)
            departure = self._departures[order.fetch] = Departure()
            async with self._open_channel(peer) as channel:
                return await fetch(
                    channel,
                    self._request(order, held),
                    held,
                    downlink=self._downlink,
                    meter=meter,
                    on_connected=lambda: self._on_event(FetchConnected(order.fetch)),
                    stall_floor_s=self._stalls.floor_for(peer.worker_id),
                    expected_bytes_per_s=order.expected_bytes_per_s or None,
                    tcp=self._tcp.to(peer),
                    on_fallback=lambda reason: self._tcp.failed(peer, reason),
                    departure=departure,
                )

    def _request(self, order: OpenFetch, held: StoredObject) -> FetchRequest:
        token = EdgeToken.FromString(order.source.token)
        return build_request(held, order.stripe, token, order.rejected, order.stripes)

    async def _await_push(self, order: OpenFetch, held: StoredObject, meter: HopMeter) -> FetchEnd:
        """The parent cannot be dialled: wait for its call."""
        peer = order.source.peer

        def connected() -> None:  # again, when a data connection broke and the rest comes over gRPC
            if waiting.when() is not None:
                waiting.reschedule(None)
                self._on_event(FetchConnected(order.fetch))

        def request() -> FetchRequest:
            asked = self._request(order, held)
            asked.expected_bytes_per_s = order.expected_bytes_per_s or 0.0
            return asked

        def fell_back(reason: str) -> None:
            meter.transport = GRPC
            self._tcp.failed(peer, reason)

        def receiver(request: FetchRequest) -> Receiver:
            return Receiver(
                request,
                held,
                downlink=self._downlink,
                meter=meter,
                on_connected=connected,
                stall_floor_s=self._stalls.floor_for(peer.worker_id),
                expected_bytes_per_s=order.expected_bytes_per_s or None,
            )

        edge = ExpectedPush(
            order.object_id, order.stripe, peer.worker_id, peer.name, order.epoch, generation=self._generation
        )
        try:
            async with asyncio.timeout(PUSH_WAIT_S) as waiting:
                on_fallback = fell_back if self._tcp.takes(peer) else None
                return await self._inbox.receive(edge, request, receiver, on_fallback)
        except TimeoutError:
            return FetchEnd(
                ParentLossReason.UNREACHABLE, detail=f"the parent was to dial and did not within {PUSH_WAIT_S:g} s"
            )
