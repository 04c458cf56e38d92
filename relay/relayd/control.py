"""The stream to the coordinator: dials for ever, says who and what is here, and passes on what is wanted.

    dial ──▶ Hello ──▶ Welcome ──▶ Assignment*, while reports and heartbeats go up ──▶ stream lost: dial again
               └─▶ refused: RefusedError if it was never welcomed (somebody has to act), else dial again, a few times
                   before its lease has lapsed, then seldom

Reports are state: of two about the same thing that wait to be sent only the newer goes, and what was said while nobody
listened is part of the next Hello. It decides nothing else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
import structlog

from chappe.core.probes import ProbeOrder
from chappe.core.relay_events import Assigned, Connected, Disconnected, RelayEvent, Released
from chappe.errors import ConfigError, PeerError, RefusedError
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc
from chappe.wire.relay_messages import Refusal, Report, Welcomed, decode_reply, encode_report, report_key

log = structlog.get_logger()

RETRY_S_MIN = 0.1
RETRY_S_MAX = 2.0
REFUSED_RETRY_S = 5.0
REFUSED_RETRY_SHARE = 1 / 16
"""Of the lease: the first wait after a refusal. They double: at least four Hellos before it has lapsed."""
_REFUSALS = (
    grpc.StatusCode.FAILED_PRECONDITION,  # another protocol version
    grpc.StatusCode.PERMISSION_DENIED,  # the certificate is for another name
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,  # no coordinator at all
)


class Outbox:
    """Reports of one session that wait to be sent: bounded, because newer ones replace older ones."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], Report] = {}
        self._wake = asyncio.Event()

    def put(self, report: Report) -> None:
        key = report_key(report)
        self._waiting.pop(key, None)  # so that the newer one goes in its own turn
        self._waiting[key] = report
        self._wake.set()

    async def take(self, limit_s: float) -> Report | None:
        """The next report, or None when there is none within the limit."""
        if not self._waiting:
            self._wake.clear()
            try:
                async with asyncio.timeout(limit_s):
                    await self._wake.wait()
            except TimeoutError:
                return None
        return self._waiting.pop(next(iter(self._waiting)))


class Control:
    """`run` it once. `report` at any time, on the event loop's thread."""

    def __init__(
        self,
        *,
        coordinator: str,
        open_channel: Callable[[], grpc.aio.Channel],
        hello: Callable[[], Awaitable[pb.JoinRequest]],
        on_welcome: Callable[[Welcomed], None],
        on_event: Callable[[RelayEvent], None],
        on_probe: Callable[[ProbeOrder], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.joined = False
        self._introduced = False  # this stream's Hello has been made: what is said from now on is not part of it
        self._coordinator = coordinator
        self._open_channel = open_channel
        self._hello = hello
        self._on_welcome = on_welcome
        self._on_event = on_event
        self._on_probe = on_probe
        self._jitter = jitter
        self._welcomed_once = False
        self._heartbeat_s, self._lease_s = 1.0, 5.0
        self._outbox = Outbox()
        self._problem = ""

    def report(self, report: Report) -> None:
        """Say it, if there is anybody to hear it now."""
        if self._introduced:
            self._outbox.put(report)

    async def run(self) -> None:
        """Until cancelled. Raises RefusedError, and what `on_welcome` raises for a run that this node is no part of."""
        failures = refusals = 0
        while True:
            refused = False
            try:
                async with self._open_channel() as channel:
                    await self._converse(coordinator_pb2_grpc.CoordinatorStub(channel))
                problem = "it closed the stream"
            except grpc.aio.AioRpcError as error:
                problem = f"{error.code().name}: {error.details()}"
                refused = error.code() in _REFUSALS
            except RefusedError as error:
                problem, refused = str(error), True
            except PeerError as error:
                problem = f"it broke the protocol: {error}"
            except ConfigError as error:  # no route to it now
                problem = str(error)
            was_joined = self._leave_session()
            if refused and not self._welcomed_once:
                raise RefusedError(f"the coordinator at {self._coordinator} does not take this node: {problem}")
            if was_joined or problem != self._problem:
                log.warning("coordinator_lost", coordinator=self._coordinator, problem=problem)
            self._problem = problem
            failures = 0 if was_joined else failures + 1
            refusals = refusals + 1 if refused else 0
            await asyncio.sleep(self._wait_s(failures, refusals) * (0.5 + self._jitter()))

    def _wait_s(self, failures: int, refusals: int) -> float:
        """Before the next try, by how often in a row it has failed and been refused."""
        if refusals:
            return min(REFUSED_RETRY_S, self._lease_s * REFUSED_RETRY_SHARE * 2.0 ** min(refusals - 1, 8))
        return min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(failures, 8))

    def _leave_session(self) -> bool:
        was_joined, self.joined, self._introduced = self.joined, False, False
        if was_joined:
            self._on_event(Disconnected())
        return was_joined

    async def _converse(self, stub: coordinator_pb2_grpc.CoordinatorStub) -> None:
        self._outbox = Outbox()
        hello = await self._hello()
        self._introduced = True
        call = stub.Join(self._requests(hello, self._outbox))
        try:
            async for message in call:
                match decode_reply(message):
                    case Welcomed() as welcome:
                        self._welcome(welcome)
                    case Refusal(reason):
                        raise RefusedError(reason)
                    case (Assigned() | Released()) as event if self.joined:
                        self._on_event(event)
                    case ProbeOrder() as order if self.joined:
                        self._on_probe(order)
                    case other:
                        raise PeerError(f"{type(other).__name__} before Welcome")
        finally:
            call.cancel()

    def _welcome(self, welcome: Welcomed) -> None:
        self._on_welcome(welcome)
        self._heartbeat_s, self._lease_s = welcome.heartbeat_s, welcome.lease_s
        self._problem = ""
        self.joined = self._welcomed_once = True
        log.info("joined", coordinator=self._coordinator, run=welcome.run)
        self._on_event(Connected())

    async def _requests(self, hello: pb.JoinRequest, outbox: Outbox) -> AsyncIterator[pb.JoinRequest]:
        yield hello
        while True:
            report = await outbox.take(self._heartbeat_s)
            yield pb.JoinRequest(heartbeat=pb.Heartbeat()) if report is None else encode_report(report)
