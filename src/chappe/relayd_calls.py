"""Calls to the relayd on the same host: its address, what its answers mean, how long it is waited for.

What `Subscriber` and its twin share; nothing here opens a connection.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import grpc
import grpc.aio

from chappe.clock import boot_now
from chappe.errors import ChappeError, RelaydUnavailableError, StoreError, UsageError, WaitTimeoutError
from chappe.snapshot import Snapshot
from chappe.v1 import local_pb2

SOCKET_NAME = "relayd.sock"
_PRESENT_AFTER_S = 1.0  # a call that lasted so long had a relayd at its other end
_ANSWER_S = 1.0  # for what a relayd has at hand: who gives no time to wait still asks
_SOCKET_PATH_BYTES_MAX = 107
_ABSENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Endpoint:
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


class Patience:
    """How long a wait may go on: until its own deadline, and without a relayd only for the grace."""

    def __init__(self, endpoint: Endpoint, what: str, timeout_s: float | None, grace_s: float) -> None:
        self._endpoint, self._what, self._timeout_s, self._grace_s = endpoint, what, timeout_s, grace_s
        self._started_s = self._attempt_s = boot_now()
        self._absent_since_s: float | None = None

    def left_s(self) -> float | None:
        """For the deadline of the next call."""
        if self._timeout_s is None:
            return None
        return max(0.0, self._started_s + self._timeout_s - boot_now())

    def attempt(self) -> float | None:
        """A call starts now, or finds that there is no socket: its deadline."""
        self._attempt_s = boot_now()
        return self.left_s() or (None if self._timeout_s is None else _ANSWER_S)

    def seen(self) -> None:
        """The relayd has answered."""
        self._absent_since_s = None

    def go_on(self) -> None:
        """What it answered is not what is waited for."""
        if self.left_s() == 0:
            self.timed_out()

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


def watch_request(newer_than: int) -> local_pb2.WatchRequest:
    if newer_than < 0:
        raise UsageError(f"newer_than={newer_than} is not a version")
    return local_pb2.WatchRequest(newer_than=newer_than)


def ensured(learner_version: int, max_gap: int) -> int:
    """The oldest version that is new enough; of what is landed, the first at least."""
    if learner_version < 1 or max_gap < 0:
        raise UsageError(
            f"learner_version={learner_version}, max_gap={max_gap}: a version is positive, a gap not negative"
        )
    return max(1, learner_version - max_gap)


def confirm_request(version: int, ok: bool, reason: str) -> local_pb2.ConfirmRequest:
    if version < 1:
        raise UsageError(f"version={version} is not a version")
    return local_pb2.ConfirmRequest(version=version, ok=ok, reason=reason)


@dataclass(frozen=True, slots=True)
class Duty:
    """What is wanted of a worker. `state` is active, standby, or empty: nobody decides that, it generates."""

    state: str
    reason: str
    worker: str

    @property
    def active(self) -> bool:
        return self.state != "standby"


def duty_of(state: local_pb2.DutyState) -> Duty:
    return Duty(state.duty, state.reason, state.worker)


def rollout_report(rollouts_per_s: float) -> local_pb2.RolloutReport:
    if not (math.isfinite(rollouts_per_s) and rollouts_per_s >= 0):
        raise UsageError(f"rollouts_per_s={rollouts_per_s!r}: give a number of zero or more")
    return local_pb2.RolloutReport(rollouts_per_second=rollouts_per_s)
