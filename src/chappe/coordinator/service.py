"""The Coordinator service: streams and calls on one side, the runner on the other. No decisions.

    Join ──────▶ joins ──┐                          ┌──▶ joins ──▶ streams
                         ├──▶ runner.submit ··▶ deliver
    Publish, … ▶ calls ──┘                          └──▶ calls ──▶ answers

Handlers write to the context instead of yielding: a generator that is suspended when its caller leaves is closed by the
garbage collector only, and its session with it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

from chappe.coordinator.calls import Calls, Views
from chappe.coordinator.dialback import DialBack
from chappe.coordinator.joins import Joins, Terms
from chappe.coordinator.runner import Runner
from chappe.coordinator.sessions import abort, stopping_error
from chappe.core import events
from chappe.core.effects import Effect
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc
from chappe.wire.token import TokenKey

Context = Any  # grpc.aio.ServicerContext of the call's own message types

STATUS_INTERVAL_S = 0.2
"""WatchStatus says at most five states a second, and one a second when nothing changes."""
STATUS_IDLE_S = 1.0


class CoordinatorService(coordinator_pb2_grpc.CoordinatorServicer):
    """Bind the runner before the server starts: it delivers here what the fleet decides."""

    def __init__(self, terms: Terms, key: TokenKey, views: Views, dial_back: DialBack) -> None:
        self._views = views
        self._joins = Joins(terms, key, dial_back)
        self._calls = Calls(terms.run, views, self._joins)
        self._numbers = itertools.count(1)  # of sessions and calls: never used twice
        self._stopping = False
        self._runner: Runner | None = None

    def bind(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def runner(self) -> Runner:
        assert self._runner is not None
        return self._runner

    def deliver(self, effect: Effect) -> None:
        """The runner's way out. Does not block."""
        self._joins.deliver(effect)
        self._calls.deliver(effect)

    def stop(self) -> None:
        """End every stream and call with UNAVAILABLE."""
        self._stopping = True
        self._joins.stop()
        self._calls.stop()
        self.runner.changed.fire()

    async def Join(self, request_iterator: AsyncIterator[pb.JoinRequest], context: Context) -> None:
        await self._joins.serve(self.runner, next(self._numbers), request_iterator, context)

    async def Publish(self, request: pb.PublishRequest, context: Context) -> None:
        await self._calls.publish(self.runner, next(self._numbers), request, context)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        number = next(self._numbers)
        await self._calls.ask(self.runner, number, events.CancelRequested(number, request.version), context)
        return pb.CancelReply()

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        number = next(self._numbers)
        await self._calls.ask(self.runner, number, events.DrainRequested(number, request.name), context)
        return pb.DrainReply()

    async def Forget(self, request: pb.ForgetRequest, context: Context) -> pb.ForgetReply:
        number = next(self._numbers)
        await self._calls.ask(self.runner, number, events.ForgetRequested(number, request.name), context)
        return pb.ForgetReply()

    async def GetStatus(self, _request: pb.StatusRequest, _context: Context) -> pb.Status:
        return self._views.status()

    async def WatchStatus(self, _request: pb.StatusRequest, context: Context) -> None:
        changed = self.runner.changed
        while not self._stopping:
            seen = changed.count
            await context.write(self._views.status())
            await asyncio.sleep(STATUS_INTERVAL_S)
            try:
                async with asyncio.timeout(STATUS_IDLE_S - STATUS_INTERVAL_S):
                    await changed.wait(seen)
            except TimeoutError:
                pass  # say it again: elapsed times have moved
        await abort(context, stopping_error())
