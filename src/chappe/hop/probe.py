"""`Relay.Probe`: filler in one direction, then in the other, to measure a link that has no history.

    caller: version, token, limits ──▶ callee: may it, and does nothing flow here?   no ─▶ refused
                                ◀───── taken_bytes 0: it acknowledges (an older one does not)
            filler ... all_sent ─────▶ counts it, by the time from its first byte to its last; taken_bytes
            counts it, taken_bytes ◀── got_bytes, got_seconds, then filler ... end

Each direction takes so many bytes or seconds, whichever is first. A probe stops as soon as a publication flows at
either end, and has little under way then (`probeflow`): it does not delay one. What is measured is what the far end
received. An older peer neither acknowledges nor knows `all_sent`: it gets a half-close, and filler without a window.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from chappe.clock import boot_now
from chappe.core.probes import ProbeOrder, ProbeOutcome
from chappe.errors import BadTokenError, UsageError
from chappe.hop.guard import EdgeGuard
from chappe.hop.limits import TokenBucket
from chappe.hop.probeflow import PROBE_BYTES_MAX, PROBE_SECONDS_MAX, Arrivals, Limits, Window
from chappe.v1.relay_pb2 import EdgeToken, ProbeMessage
from chappe.wire.frames import PROTOCOL_VERSION

BUSY = "something flows here"
_HANDSHAKE_S = 3.0
_HELLO_S = 1.0
_PROBE = "/chappe.v1.Relay/Probe"


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
        if first.acknowledges:
            await context.write(ProbeMessage(protocol_version=PROTOCOL_VERSION, taken_bytes=0))
        async for message in _messages(context.read):
            if self._flowing():
                await _refuse(context, BUSY)
                return
            if message.all_sent:
                break
            await self._take(arrivals, message)
            if arrivals.bytes > PROBE_BYTES_MAX:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "more filler than is allowed")
            if first.acknowledges:
                await context.write(ProbeMessage(taken_bytes=arrivals.bytes))
        rate = arrivals.bytes_per_s()
        got_seconds = arrivals.bytes / rate if rate else 0.0
        await context.write(ProbeMessage(got_bytes=arrivals.bytes, got_seconds=got_seconds))
        await self._send_back(first, context)

    async def _send_back(self, first: ProbeMessage, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Filler for the caller, until it is sent or something begins to flow here."""
        window, limits = Window(), Limits(first.want_bytes, first.seconds_max)
        hearing = asyncio.ensure_future(_hear(context.read, window)) if first.acknowledges else None
        try:
            if hearing is not None:
                window.taken(0, boot_now())
            async for piece in limits.filler(self._uplink, window):
                if self._flowing():
                    if hearing is None:
                        await _refuse(context, BUSY)
                        return
                    await context.write(ProbeMessage(protocol_version=PROTOCOL_VERSION, refused=BUSY))
                    await asyncio.wait({hearing}, timeout=_HANDSHAKE_S)
                    return
                await context.write(ProbeMessage(filler=piece))
            if hearing is not None:  # a call that ends while the caller writes is an error there, here and above
                await window.empty(boot_now() + _HANDSHAKE_S)
        finally:
            if hearing is not None:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)

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
        try:
            return await self._converse(probe, call)
        except ValueError as error:  # a peer that has taken what was never sent
            return str(error)
        finally:
            call.cancel()

    async def _converse(self, probe: _Probe, call: grpc.aio.StreamStreamCall[ProbeMessage, ProbeMessage]) -> str:
        window = Window()
        answered = asyncio.ensure_future(_hear(call.read, window))  # it may stop this at any moment
        try:
            await call.write(probe.first)
            await window.opened(boot_now() + _HELLO_S, answered)
            acknowledges = False
            try:
                async for piece in probe.limits.filler(self._uplink, window):
                    if self._flowing():
                        return BUSY
                    if answered.done():
                        break
                    await call.write(ProbeMessage(filler=piece))
                acknowledges = window.acknowledged  # by now: far away it takes longer than `_HELLO_S`
                if acknowledges:
                    await call.write(ProbeMessage(all_sent=True))
                else:
                    await call.done_writing()
            except asyncio.InvalidStateError:
                pass  # it has ended the call: its answer says why
            answer = await answered
            if answer is None:
                return "the peer said nothing"
            if answer.refused:
                return answer.refused
            probe.answered(answer)
            async for message in _messages(call.read):
                if message.refused or self._flowing():
                    return message.refused or BUSY
                await self._take(probe.down, message)
                if acknowledges:
                    with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: what is read next says why
                        await call.write(ProbeMessage(taken_bytes=probe.down.bytes))
            return ""
        finally:
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
            acknowledges=True,
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


async def _hear(read: Callable[[], Awaitable[Any]], window: Window) -> ProbeMessage | None:
    """Acknowledgements, until something else comes, which is returned; None at the end.

    Raises ValueError for one of what was never sent.
    """
    async for message in _messages(read):
        if not message.HasField("taken_bytes"):
            return message
        window.taken(message.taken_bytes, boot_now())
    return None


async def _messages(read: Callable[[], Awaitable[Any]]) -> AsyncIterator[ProbeMessage]:
    while isinstance(message := await read(), ProbeMessage):
        yield message
