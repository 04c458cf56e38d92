"""On the rollout host: what the local relayd has landed, and waiting for more.

Talks to relayd's local service over `<store>/relayd.sock`; no network, no coordinator. Knows nothing of objects,
chunks or chains: a version is here, or it is waited for.

A relayd that is absent is given `relayd_grace_s` to (re)appear while something is waited for, so that its restart
under a waiting engine is not an error; `current` and `confirm` do not wait. Every call opens its own connection:
there is nothing to close, and an engine may fork between two calls.
"""

from __future__ import annotations

import asyncio
import os
import time

import grpc
import grpc.aio

from chappe.errors import ChappeError, RelaydUnavailableError
from chappe.relayd_calls import (
    Duty,
    Endpoint,
    Patience,
    confirm_request,
    duty_of,
    ensured,
    rollout_report,
    watch_request,
)
from chappe.snapshot import Snapshot
from chappe.v1 import local_pb2, local_pb2_grpc

RELAYD_GRACE_S = 10.0
_RETRY_S = 0.05
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)  # no reconnect backoff inherited from an earlier call


class Subscriber:
    """What a rollout engine asks its own relayd. Blocking; safe to share between threads."""

    def __init__(self, store: str | os.PathLike[str], *, relayd_grace_s: float = RELAYD_GRACE_S) -> None:
        self._endpoint = Endpoint(store)
        self._grace_s = relayd_grace_s

    def _channel(self) -> grpc.Channel:
        self._endpoint.check_present()
        return grpc.insecure_channel(self._endpoint.target, options=_OPTIONS)

    def current(self) -> Snapshot | None:
        """The newest landed version, or None before the first. Raises RelaydUnavailableError."""
        with self._channel() as channel:
            try:
                return self._endpoint.snapshot(local_pb2_grpc.LocalStub(channel).Current(local_pb2.CurrentRequest()))
            except grpc.RpcError as error:
                self._endpoint.fail(error)

    def wait(self, newer_than: int = 0, timeout_s: float | None = None) -> Snapshot:
        """Return the first version above `newer_than` that is or becomes current.

        Raises WaitTimeoutError after `timeout_s` (0: of what is there), RelaydUnavailableError when no relayd answers.
        """
        return self._above(newer_than, f"a version above {newer_than}", timeout_s)

    def _above(self, newer_than: int, what: str, timeout_s: float | None) -> Snapshot:
        request = watch_request(newer_than)
        patience = Patience(self._endpoint, what, timeout_s, self._grace_s)
        while True:
            error: ChappeError | grpc.RpcError | None = None
            deadline_s = patience.attempt()
            try:
                with self._channel() as channel:
                    call = local_pb2_grpc.LocalStub(channel).Watch(request, timeout=deadline_s)
                    for landed in call:
                        patience.seen()
                        snapshot = self._endpoint.snapshot(landed)
                        if snapshot is not None and snapshot.version > newer_than:
                            call.cancel()
                            return snapshot
                        patience.go_on()
            except (grpc.RpcError, RelaydUnavailableError) as caught:
                error = caught
            patience.failed(error)
            time.sleep(_RETRY_S)

    def ensure(self, learner_version: int, max_gap: int = 0, timeout_s: float | None = None) -> Snapshot:
        """Return once what is current is at most `max_gap` versions behind the learner (sequential mode).

        Raises as `wait` does.
        """
        oldest = ensured(learner_version, max_gap)
        return self._above(oldest - 1, f"version {oldest}", timeout_s)

    def confirm(self, version: int, ok: bool = True, reason: str = "") -> None:
        """Under `relayd --install confirm`: say that the engine runs `version` now, or why it does not."""
        request = confirm_request(version, ok, reason)
        with self._channel() as channel:
            try:
                local_pb2_grpc.LocalStub(channel).Confirm(request)
            except grpc.RpcError as error:
                self._endpoint.fail(error)

    def duty(self) -> Duty:
        """Whether this worker's rollouts are wanted now (see `[training]` of the coordinator).

        Raises RelaydUnavailableError.
        """
        with self._channel() as channel:
            try:
                call = local_pb2_grpc.LocalStub(channel).WatchDuty(local_pb2.DutyRequest())
                state = next(call)
                call.cancel()
                return duty_of(state)
            except grpc.RpcError as error:
                self._endpoint.fail(error)
            except StopIteration:
                self._endpoint.absent("it closed the connection")

    def wait_active(self, timeout_s: float | None = None) -> Duty:
        """Return once this worker's rollouts are wanted. Raises as `wait` does."""
        patience = Patience(self._endpoint, "being active", timeout_s, self._grace_s)
        while True:
            error: ChappeError | grpc.RpcError | None = None
            deadline_s = patience.attempt()
            try:
                with self._channel() as channel:
                    stub = local_pb2_grpc.LocalStub(channel)
                    call = stub.WatchDuty(local_pb2.DutyRequest(), timeout=deadline_s)
                    for state in call:
                        patience.seen()
                        if duty_of(state).active:
                            call.cancel()
                            return duty_of(state)
                        patience.go_on()
            except (grpc.RpcError, RelaydUnavailableError) as caught:
                error = caught
            patience.failed(error)
            time.sleep(_RETRY_S)

    def report(self, rollouts_per_s: float) -> Duty:
        """Tell what this worker generates, as measured. Raises RelaydUnavailableError."""
        request = rollout_report(rollouts_per_s)
        with self._channel() as channel:
            try:
                return duty_of(local_pb2_grpc.LocalStub(channel).Report(request))
            except grpc.RpcError as error:
                self._endpoint.fail(error)


class AsyncSubscriber:
    """`Subscriber` with coroutines."""

    def __init__(self, store: str | os.PathLike[str], *, relayd_grace_s: float = RELAYD_GRACE_S) -> None:
        self._endpoint = Endpoint(store)
        self._grace_s = relayd_grace_s

    def _channel(self) -> grpc.aio.Channel:
        self._endpoint.check_present()
        return grpc.aio.insecure_channel(self._endpoint.target, options=_OPTIONS)

    async def current(self) -> Snapshot | None:
        """The newest landed version, or None before the first. Raises RelaydUnavailableError."""
        async with self._channel() as channel:
            try:
                return self._endpoint.snapshot(
                    await local_pb2_grpc.LocalStub(channel).Current(local_pb2.CurrentRequest())
                )
            except grpc.aio.AioRpcError as error:
                self._endpoint.fail(error)

    async def wait(self, newer_than: int = 0, timeout_s: float | None = None) -> Snapshot:
        """Return the first version above `newer_than` that is or becomes current. Raises as `Subscriber.wait` does."""
        return await self._above(newer_than, f"a version above {newer_than}", timeout_s)

    async def _above(self, newer_than: int, what: str, timeout_s: float | None) -> Snapshot:
        request = watch_request(newer_than)
        patience = Patience(self._endpoint, what, timeout_s, self._grace_s)
        while True:
            error: ChappeError | grpc.RpcError | None = None
            deadline_s = patience.attempt()
            try:
                async with self._channel() as channel:
                    async for landed in local_pb2_grpc.LocalStub(channel).Watch(request, timeout=deadline_s):
                        patience.seen()
                        snapshot = self._endpoint.snapshot(landed)
                        if snapshot is not None and snapshot.version > newer_than:
                            return snapshot
                        patience.go_on()
            except (grpc.aio.AioRpcError, RelaydUnavailableError) as caught:
                error = caught
            patience.failed(error)
            await asyncio.sleep(_RETRY_S)

    async def ensure(self, learner_version: int, max_gap: int = 0, timeout_s: float | None = None) -> Snapshot:
        """Return once what is current is at most `max_gap` versions behind the learner. Raises as `wait` does."""
        oldest = ensured(learner_version, max_gap)
        return await self._above(oldest - 1, f"version {oldest}", timeout_s)

    async def confirm(self, version: int, ok: bool = True, reason: str = "") -> None:
        """Under `relayd --install confirm`: say that the engine runs `version` now, or why it does not."""
        request = confirm_request(version, ok, reason)
        async with self._channel() as channel:
            try:
                await local_pb2_grpc.LocalStub(channel).Confirm(request)
            except grpc.aio.AioRpcError as error:
                self._endpoint.fail(error)

    async def duty(self) -> Duty:
        """Whether this worker's rollouts are wanted now. Raises RelaydUnavailableError."""
        async with self._channel() as channel:
            call = local_pb2_grpc.LocalStub(channel).WatchDuty(local_pb2.DutyRequest())
            try:
                state = await call.read()
            except grpc.aio.AioRpcError as error:
                self._endpoint.fail(error)
        if not isinstance(state, local_pb2.DutyState):  # its end instead
            self._endpoint.absent("it closed the connection")
        return duty_of(state)

    async def wait_active(self, timeout_s: float | None = None) -> Duty:
        """Return once this worker's rollouts are wanted. Raises as `Subscriber.wait` does."""
        patience = Patience(self._endpoint, "being active", timeout_s, self._grace_s)
        while True:
            error: ChappeError | grpc.RpcError | None = None
            deadline_s = patience.attempt()
            try:
                async with self._channel() as channel:
                    stub = local_pb2_grpc.LocalStub(channel)
                    async for state in stub.WatchDuty(local_pb2.DutyRequest(), timeout=deadline_s):
                        patience.seen()
                        if duty_of(state).active:
                            return duty_of(state)
                        patience.go_on()
            except (grpc.aio.AioRpcError, RelaydUnavailableError) as caught:
                error = caught
            patience.failed(error)
            await asyncio.sleep(_RETRY_S)

    async def report(self, rollouts_per_s: float) -> Duty:
        """Tell what this worker generates, as measured. Raises RelaydUnavailableError."""
        request = rollout_report(rollouts_per_s)
        async with self._channel() as channel:
            try:
                return duty_of(await local_pb2_grpc.LocalStub(channel).Report(request))
            except grpc.aio.AioRpcError as error:
                self._endpoint.fail(error)
