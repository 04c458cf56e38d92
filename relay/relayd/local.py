"""The local service on `<store>/relayd.sock`: what a rollout engine on this host asks of its own relayd.

Only who runs as the same user may connect (mode 0600). It knows what has landed through `LocalView`, and nothing of
objects, fetches or the coordinator.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from chappe.errors import ConfigError, UsageError
from chappe.hop.source import Signal
from chappe.v1 import local_pb2, local_pb2_grpc
from relayd.engine import DutyView

SOCKET_PATH_BYTES_MAX = 107
"""What fits into a sockaddr_un, with its closing zero."""

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class LandedView:
    """The newest version that has landed; version 0 for none."""

    run: str
    version: int = 0
    root: str = ""
    path: Path | None = None
    installed: bool = False


class LocalView(Protocol):
    """What the service sees of the daemon."""

    landed: Signal
    """Fires when `newest` may have changed."""

    def newest(self) -> LandedView: ...

    def confirms(self) -> bool:
        """Whether the engine is asked to confirm (`--install confirm`)."""

    def landing(self, version: int) -> bool:
        """Whether this version is just about to be there."""

    def duty(self) -> DutyView:
        """What is wanted of the engine."""

    @property
    def duty_changed(self) -> Signal:
        """Fires when `duty` may have changed."""

    def generates(self, rollouts_per_s: float) -> None:
        """Pass on what the engine says it makes."""

    def confirm(self, version: int, ok: bool, reason: str) -> bool:
        """Take the engine's answer. False when the version is not here."""


class LocalService(local_pb2_grpc.LocalServicer):
    def __init__(self, view: LocalView, name: str) -> None:
        self._view = view
        self._name = name

    async def Current(self, _request: local_pb2.CurrentRequest, _context: Context) -> local_pb2.Landed:
        return _message(self._view.newest())

    async def Watch(self, request: local_pb2.WatchRequest, context: Context) -> None:
        newest = self._view.newest()
        await context.write(_message(newest))
        sent = max(request.newer_than, newest.version)
        while True:
            seen = self._view.landed.count
            newest = self._view.newest()
            if newest.version > sent:
                sent = newest.version
                await context.write(_message(newest))
            else:
                await self._view.landed.wait(seen)

    async def Ensure(self, request: local_pb2.EnsureRequest, _context: Context) -> local_pb2.Landed:
        wanted = max(1, request.learner_version - request.max_gap)
        while True:
            seen = self._view.landed.count
            newest = self._view.newest()
            if newest.version >= wanted:
                return _message(newest)
            await self._view.landed.wait(seen)

    async def Confirm(self, request: local_pb2.ConfirmRequest, context: Context) -> local_pb2.ConfirmReply:
        if not self._view.confirms():
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "relayd does not wait for a confirmation: run it with --install confirm",
            )
        while True:  # the engine may see `current` move a moment before relayd has taken note of its own landing
            seen = self._view.landed.count
            if self._view.confirm(request.version, request.ok, request.reason):
                return local_pb2.ConfirmReply()
            if not self._view.landing(request.version):
                await context.abort(grpc.StatusCode.NOT_FOUND, f"version {request.version} has not landed here")
            await self._view.landed.wait(seen)

    async def Report(self, request: local_pb2.RolloutReport, context: Context) -> local_pb2.DutyState:
        rate = request.rollouts_per_second
        if not (math.isfinite(rate) and rate >= 0):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{rate} rollouts per second: zero or more")
        self._view.generates(rate)
        return self._duty()

    async def WatchDuty(self, _request: local_pb2.DutyRequest, context: Context) -> None:
        while True:
            seen = self._view.duty_changed.count
            await context.write(self._duty())
            await self._view.duty_changed.wait(seen)

    def _duty(self) -> local_pb2.DutyState:
        duty = self._view.duty()
        return local_pb2.DutyState(duty=duty.duty, reason=duty.reason, worker=self._name)


def _message(view: LandedView) -> local_pb2.Landed:
    return local_pb2.Landed(
        run=view.run,
        version=view.version,
        root=view.root,
        path="" if view.path is None else str(view.path),
        installed=view.installed,
    )


async def serve_local(socket: Path, view: LocalView, name: str = "") -> grpc.aio.Server:
    """Listen on the socket, for this user only. Call under the store's lock: a socket that is there is a dead one's.

    Raises UsageError for a path that is too long for a socket, ConfigError when it cannot listen there.
    """
    length = len(os.fsencode(socket))
    if length > SOCKET_PATH_BYTES_MAX:
        raise UsageError(
            f"--store: the socket {socket} would have {length} bytes, at most {SOCKET_PATH_BYTES_MAX} are possible: "
            "use a shorter path (a symbolic link will not do)"
        )
    _remove(socket)
    server = grpc.aio.server()
    local_pb2_grpc.add_LocalServicer_to_server(LocalService(view, name), server)
    umask = os.umask(0o177)  # before it exists, so that nobody slips in
    try:
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
    except RuntimeError as error:
        await server.stop(None)
        raise ConfigError(f"--store: cannot listen on {socket}: {error}") from error
    finally:
        os.umask(umask)
    return server


def _remove(socket: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        socket.unlink()
