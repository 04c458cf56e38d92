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
from pathlib import Path
from typing import NoReturn

import grpc
import grpc.aio

from chappe.clock import boot_now
from chappe.errors import ChappeError, RelaydUnavailableError, StoreError, UsageError, WaitTimeoutError
from chappe.snapshot import Snapshot
from chappe.v1 import local_pb2, local_pb2_grpc

SOCKET_NAME = "relayd.sock"
RELAYD_GRACE_S = 10.0
_RETRY_S = 0.05
_PRESENT_AFTER_S = 1.0  # a call that lasted so long had a relayd at its other end
_SOCKET_PATH_BYTES_MAX = 107
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)  # no reconnect backoff inherited from an earlier call
_ABSENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class _Endpoint:
    """The address of a store's relayd, and what its answers mean."""

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self.store = Path(store).absolute()
        self.socket = self.store / SOCKET_NAME
        if len(os.fsencode(self.socket)) > _SOCKET_PATH_BYTES_MAX:
            raise UsageError(
                f"{self.socket}: a socket's path has at most {_SOCKET_PATH_BYTES_MAX} bytes: "
                "use a store with a shorter path"
            )

    @property
    def target(self) -> str:
        return f"unix:{self.socket}"

    def check_present(self) -> None:
        if not self.socket.exists():
            self.absent("its socket does not exist")

    def absent(self, why: str) -> NoReturn:
        raise RelaydUnavailableError(
            f"no relayd answers for the store {self.store} ({why}): "
            f"is `relayd --store {self.store}` running on this host?"
        )

    def snapshot(self, landed: local_pb2.Landed) -> Snapshot | None:
        if landed.version == 0:
            return None
        return Snapshot(version=landed.version, path=Path(landed.path), root=landed.root, run=landed.run)

    def fail(self, error: grpc.RpcError | grpc.aio.AioRpcError) -> NoReturn:
        """Raise what an answer other than OK means to the caller."""
        code, details = _code(error), error.details() or ""
        if code in _ABSENT:
            self.absent(details)
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
            raise UsageError(details) from error
        raise StoreError(f"relayd of {self.store}: {code.name}: {details}") from error


def _code(error: grpc.RpcError | grpc.aio.AioRpcError) -> grpc.StatusCode:
    code = error.code()
    assert isinstance(code, grpc.StatusCode)
    return code


class _Patience:
    """How long a wait may go on: until its own deadline, and without a relayd only for the grace."""

    def __init__(self, endpoint: _Endpoint, what: str, timeout_s: float | None, grace_s: float) -> None:
        self._endpoint, self._what, self._timeout_s, self._grace_s = endpoint, what, timeout_s, grace_s
        self._started_s = self._attempt_s = boot_now()
        self._absent_since_s: float | None = None

    def left_s(self) -> float | None:
        """For the deadline of the next call."""
        if self._timeout_s is None:
            return None
        return max(0.0, self._started_s + self._timeout_s - boot_now())

    def attempt(self) -> float | None:
        """A call starts now: its deadline."""
        self._attempt_s = boot_now()
        return self.left_s()

    def seen(self) -> None:
        """The relayd has answered."""
        self._absent_since_s = None

    def timed_out(self) -> NoReturn:
        raise WaitTimeoutError(f"{self._what} did not come within {self._timeout_s:g} s")

    def failed(self, error: ChappeError | grpc.RpcError | None) -> None:
        """Decide about a call that ended without what is waited for: return to try again, or raise."""
        if isinstance(error, grpc.RpcError):
            if _code(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
                self.timed_out()
            if _code(error) not in _ABSENT:
                self._endpoint.fail(error)
        now = boot_now()
        if self._absent_since_s is None or now - self._attempt_s > _PRESENT_AFTER_S:
            self._absent_since_s = now  # a stream may be silent for hours, and then break
        left_s = self.left_s()
        if now - self._absent_since_s < self._grace_s and (left_s is None or left_s > 0):
            return
        if isinstance(error, grpc.RpcError):
            self._endpoint.fail(error)
        if error is not None:
            raise error
        self._endpoint.absent("it closed the connection")


def _watch_request(newer_than: int) -> local_pb2.WatchRequest:
    if newer_than < 0:
        raise UsageError(f"newer_than={newer_than} is not a version")
    return local_pb2.WatchRequest(newer_than=newer_than)


def _ensure_request(learner_version: int, max_gap: int) -> local_pb2.EnsureRequest:
    if learner_version < 1 or max_gap < 0:
        raise UsageError(
            f"learner_version={learner_version}, max_gap={max_gap}: a version is positive, a gap not negative"
        )
    return local_pb2.EnsureRequest(learner_version=learner_version, max_gap=max_gap)


def _confirm_request(version: int, ok: bool, reason: str) -> local_pb2.ConfirmRequest:
    if version < 1:
        raise UsageError(f"version={version} is not a version")
    return local_pb2.ConfirmRequest(version=version, ok=ok, reason=reason)


class Subscriber:
    """What a rollout engine asks its own relayd. Blocking; safe to share between threads."""

    def __init__(self, store: str | os.PathLike[str], *, relayd_grace_s: float = RELAYD_GRACE_S) -> None:
        self._endpoint = _Endpoint(store)
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

        Raises WaitTimeoutError after `timeout_s`, RelaydUnavailableError when no relayd answers.
        """
        request = _watch_request(newer_than)
        patience = _Patience(self._endpoint, f"a version above {newer_than}", timeout_s, self._grace_s)
        while True:
            error: ChappeError | grpc.RpcError | None = None
            try:
                with self._channel() as channel:
                    call = local_pb2_grpc.LocalStub(channel).Watch(request, timeout=patience.attempt())
                    for landed in call:
                        patience.seen()
                        snapshot = self._endpoint.snapshot(landed)
                        if snapshot is not None and snapshot.version > newer_than:
                            call.cancel()
                            return snapshot
            except (grpc.RpcError, RelaydUnavailableError) as caught:
                error = caught
            patience.failed(error)
            time.sleep(_RETRY_S)

    def ensure(self, learner_version: int, max_gap: int = 0, timeout_s: float | None = None) -> Snapshot:
        """Return once what is current is at most `max_gap` versions behind the learner (sequential mode).

        Raises as `wait` does.
        """
        request = _ensure_request(learner_version, max_gap)
        patience = _Patience(self._endpoint, f"version {learner_version - max_gap}", timeout_s, self._grace_s)
        while True:
            error: ChappeError | grpc.RpcError | None = None
            try:
                with self._channel() as channel:
                    landed = local_pb2_grpc.LocalStub(channel).Ensure(request, timeout=patience.attempt())
                patience.seen()
                snapshot = self._endpoint.snapshot(landed)
                if snapshot is not None:
                    return snapshot
            except (grpc.RpcError, RelaydUnavailableError) as caught:
                error = caught
            patience.failed(error)
            time.sleep(_RETRY_S)

    def confirm(self, version: int, ok: bool = True, reason: str = "") -> None:
        """Under `relayd --install confirm`: say that the engine runs `version` now, or why it does not."""
        request = _confirm_request(version, ok, reason)
        with self._channel() as channel:
            try:
                local_pb2_grpc.LocalStub(channel).Confirm(request)
            except grpc.RpcError as error:
                self._endpoint.fail(error)


class AsyncSubscriber:
    """`Subscriber` with coroutines."""

    def __init__(self, store: str | os.PathLike[str], *, relayd_grace_s: float = RELAYD_GRACE_S) -> None:
        self._endpoint = _Endpoint(store)
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
        request = _watch_request(newer_than)
        patience = _Patience(self._endpoint, f"a version above {newer_than}", timeout_s, self._grace_s)
        while True:
            error: ChappeError | grpc.RpcError | None = None
            try:
                async with self._channel() as channel:
                    async for landed in local_pb2_grpc.LocalStub(channel).Watch(request, timeout=patience.attempt()):
                        patience.seen()
                        snapshot = self._endpoint.snapshot(landed)
                        if snapshot is not None and snapshot.version > newer_than:
                            return snapshot
            except (grpc.aio.AioRpcError, RelaydUnavailableError) as caught:
                error = caught
            patience.failed(error)
            await asyncio.sleep(_RETRY_S)

    async def ensure(self, learner_version: int, max_gap: int = 0, timeout_s: float | None = None) -> Snapshot:
        """Return once what is current is at most `max_gap` versions behind the learner. Raises as `wait` does."""
        request = _ensure_request(learner_version, max_gap)
        patience = _Patience(self._endpoint, f"version {learner_version - max_gap}", timeout_s, self._grace_s)
        while True:
            error: ChappeError | grpc.RpcError | None = None
            try:
                async with self._channel() as channel:
                    landed = await local_pb2_grpc.LocalStub(channel).Ensure(request, timeout=patience.attempt())
                patience.seen()
                snapshot = self._endpoint.snapshot(landed)
                if snapshot is not None:
                    return snapshot
            except (grpc.aio.AioRpcError, RelaydUnavailableError) as caught:
                error = caught
            patience.failed(error)
            await asyncio.sleep(_RETRY_S)

    async def confirm(self, version: int, ok: bool = True, reason: str = "") -> None:
        """Under `relayd --install confirm`: say that the engine runs `version` now, or why it does not."""
        request = _confirm_request(version, ok, reason)
        async with self._channel() as channel:
            try:
                await local_pb2_grpc.LocalStub(channel).Confirm(request)
            except grpc.aio.AioRpcError as error:
                self._endpoint.fail(error)
