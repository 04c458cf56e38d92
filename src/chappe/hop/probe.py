"""`Relay.Probe`: filler in one direction, then in the other, to measure a link that has no history.

    caller: version, token, limits ──▶ callee: may it, and does nothing flow here?   no ─▶ refused
            filler ... half-close ───▶ counts it, by the time from its first byte to its last
            counts it ◀─────────────── got_bytes, got_seconds, then filler ... end

Each direction takes so many bytes or seconds, whichever is first. A probe stops as soon as a publication flows at
either end: it never delays one. What is measured is what the far end received, without the first quarter, in which
windows still grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from chappe.clock import boot_now
from chappe.core.probes import ProbeOrder, ProbeOutcome
from chappe.errors import BadTokenError, UsageError
from chappe.hop.guard import EdgeGuard
from chappe.hop.limits import TokenBucket
from chappe.v1.relay_pb2 import EdgeToken, ProbeMessage
from chappe.wire.frames import PROTOCOL_VERSION

PROBE_BYTES_MAX = 8 << 20
PROBE_SECONDS_MAX = 2.0
"""In each direction, whatever the order says."""
BUSY = "something flows here"
_FILLER = os.urandom(64 << 10)  # random, so that nothing on the way can compress it
_HANDSHAKE_S = 3.0
_PROBE = "/chappe.v1.Relay/Probe"


class Arrivals:
    """Filler as it arrives."""

    def __init__(self) -> None:
        self.bytes = 0
        self._times: list[tuple[float, int]] = []

    def add(self, size_bytes: int, now: float) -> None:
        self.bytes += size_bytes
        self._times.append((now, self.bytes))

    def bytes_per_s(self) -> float:
        """0 when too little came to tell."""
        if len(self._times) < 2:
            return 0.0
        start = next(i for i, (_, total) in enumerate(self._times) if total >= self.bytes / 4)
        start = min(start, len(self._times) - 2)
        (start_s, start_bytes), (end_s, end_bytes) = self._times[start], self._times[-1]
        return (end_bytes - start_bytes) / (end_s - start_s) if end_s > start_s else 0.0


class Limits:
    """How much one direction may still take."""

    def __init__(self, bytes_max: int, seconds_max: float) -> None:
        self.left_bytes = min(bytes_max, PROBE_BYTES_MAX)
        self.seconds = seconds_max if 0 < seconds_max < PROBE_SECONDS_MAX else PROBE_SECONDS_MAX
        self._end_s = math.inf

    async def filler(self, bucket: TokenBucket | None) -> AsyncIterator[ProbeMessage]:
        self._end_s = boot_now() + self.seconds
        while self.left_bytes > 0 and boot_now() < self._end_s:
            piece = _FILLER[: self.left_bytes]
            self.left_bytes -= len(piece)
            if bucket is not None:
                await bucket.take(len(piece))
            yield ProbeMessage(filler=piece)


class ProbeDesk:
    """Both ends of probes at one node: at most one at a time, none while anything flows."""

    def __init__(
        self,
        guard: EdgeGuard,
        flowing: Callable[[], bool],
        *,
        uplink: TokenBucket | None = None,
        downlink: TokenBucket | None = None,
    ) -> None:
        self._guard, self._flowing = guard, flowing
        self._uplink, self._downlink = uplink, downlink
        self._probing = asyncio.Lock()

    async def idle(self) -> None:
        """Return once no probe is under way here: an end that gave up hears its peer out first."""
        async with self._probing:
            pass

    def _busy(self) -> str:
        return BUSY if self._flowing() else "another probe is under way here" if self._probing.locked() else ""

    # ---- the end that is dialled -----------------------------------------------------------------------------------

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """One Probe call."""
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                first = await context.read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "a probe without a word")
        if not isinstance(first, ProbeMessage):
            return
        refused = self._refusal(first)
        if refused:
            await _refuse(context, refused)
            return
        try:
            async with self._probing, asyncio.timeout(3 * PROBE_SECONDS_MAX + _HANDSHAKE_S):
                await self._answer(first, context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the probe took too long")

    def _refusal(self, first: ProbeMessage) -> str:
        if first.protocol_version != PROTOCOL_VERSION:
            return f"protocol version {first.protocol_version}, this node speaks {PROTOCOL_VERSION}"
        if busy := self._busy():
            return busy
        try:
            self._guard.check_probe(first.token)
        except BadTokenError as error:
            return str(error)
        return ""

    async def _answer(self, first: ProbeMessage, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        arrivals = Arrivals()
        async for message in _messages(context.read):
            if self._flowing():
                await _refuse(context, BUSY)
                return
            await self._take(arrivals, message)
            if arrivals.bytes > PROBE_BYTES_MAX:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "more filler than is allowed")
        rate = arrivals.bytes_per_s()
        got_seconds = arrivals.bytes / rate if rate else 0.0
        await context.write(ProbeMessage(got_bytes=arrivals.bytes, got_seconds=got_seconds))
        async for message in Limits(first.want_bytes, first.seconds_max).filler(self._uplink):
            if self._flowing():
                await context.write(ProbeMessage(refused=BUSY))
                return
            await context.write(message)

    async def _take(self, arrivals: Arrivals, message: ProbeMessage) -> None:
        if self._downlink is not None:
            await self._downlink.take(len(message.filler))
        arrivals.add(len(message.filler), boot_now())

    # ---- the end that dials ----------------------------------------------------------------------------------------

    async def run(self, order: ProbeOrder, open_channel: Callable[[], grpc.aio.Channel]) -> ProbeOutcome:
        """Carry an order out. Raises nothing: what went wrong is in the outcome."""
        if busy := self._busy():
            return ProbeOutcome(order.order, error=busy)
        began_s = boot_now()
        limits = Limits(order.bytes_max, order.seconds_max)
        probe = _Probe(order, limits)
        try:
            async with (
                self._probing,
                asyncio.timeout(2 * limits.seconds + _HANDSHAKE_S),
                open_channel() as channel,
            ):
                error = await self._measure(probe, channel)
        except TimeoutError:
            error = "" if probe.down.bytes else "the peer did not answer in time"
        except grpc.aio.AioRpcError as failure:
            error = failure.details() or failure.code().name
        except UsageError as failure:  # an address that is none
            error = str(failure)
        if error:
            return ProbeOutcome(order.order, error=error)
        return probe.outcome(boot_now() - began_s)

    async def _measure(self, probe: _Probe, channel: grpc.aio.Channel) -> str:
        method: grpc.aio.StreamStreamMultiCallable[ProbeMessage, ProbeMessage] = channel.stream_stream(
            _PROBE,
            request_serializer=ProbeMessage.SerializeToString,
            response_deserializer=ProbeMessage.FromString,
        )
        call = method()
        answered = asyncio.ensure_future(call.read())  # it may stop this at any moment
        try:
            await call.write(probe.first)
            try:
                async for message in probe.limits.filler(self._uplink):
                    if self._flowing():
                        return BUSY
                    if answered.done():
                        break
                    await call.write(message)
                await call.done_writing()
            except asyncio.InvalidStateError:
                pass  # it has ended the call: its answer says why
            answer = await answered
            if not isinstance(answer, ProbeMessage):
                return "the peer said nothing"
            if answer.refused:
                return answer.refused
            probe.answered(answer)
            async for message in _messages(call.read):
                if message.refused or self._flowing():
                    return message.refused or BUSY
                await self._take(probe.down, message)
            return ""
        finally:
            call.cancel()
            answered.cancel()
            await asyncio.gather(answered, return_exceptions=True)


class _Probe:
    """What one order has come to."""

    def __init__(self, order: ProbeOrder, limits: Limits) -> None:
        self.limits = limits
        self.down = Arrivals()
        self.first = ProbeMessage(
            protocol_version=PROTOCOL_VERSION,
            want_bytes=limits.left_bytes,
            token=EdgeToken.FromString(order.token),
            seconds_max=limits.seconds,
        )
        self._order = order.order
        self._up_bytes = 0
        self._up_bytes_per_s = 0.0

    def answered(self, answer: ProbeMessage) -> None:
        self._up_bytes = answer.got_bytes
        if math.isfinite(answer.got_seconds) and answer.got_seconds > 0:
            self._up_bytes_per_s = answer.got_bytes / answer.got_seconds

    def outcome(self, seconds: float) -> ProbeOutcome:
        return ProbeOutcome(
            self._order,
            self._up_bytes_per_s,
            self.down.bytes_per_s(),
            self._up_bytes + self.down.bytes,
            seconds,
        )


async def _refuse(context: grpc.aio.ServicerContext[Any, Any], why: str) -> None:
    """Say so, and hear the caller out until it has noticed: gRPC loses the last word of a call that is cut off."""
    await context.write(ProbeMessage(protocol_version=PROTOCOL_VERSION, refused=why))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HANDSHAKE_S):
            async for _ in _messages(context.read):
                pass


async def _messages(read: Callable[[], Awaitable[Any]]) -> AsyncIterator[ProbeMessage]:
    while isinstance(message := await read(), ProbeMessage):
        yield message
