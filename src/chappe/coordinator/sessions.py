"""What waits to be said on one stream: bounded by construction, because the newest of a kind replaces the older.

    Join     Welcome, newest Assignment, Released, Refused      then the end of the stream
    Publish  Accepted or AlreadyPublished, newest progress, finished or an error

Nothing here knows the fleet; a slow or stopped reader costs one message of each kind, whatever happens meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from chappe.core.effects import Assign
from chappe.v1 import coordinator_pb2 as pb
from chappe.wire.failures import encode_kind

PROGRESS_INTERVAL_S = 0.1
"""A watcher sees at most ten states a second."""
PROGRESS_IDLE_S = 1.0
"""And at least one, so that a person sees time pass."""


class StreamError(Exception):
    """Ends a stream with a gRPC status. `kind` goes into its trailing metadata."""

    def __init__(self, code: grpc.StatusCode, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.kind = kind


@dataclass(slots=True, eq=False)
class Outbox:
    """What the coordinator still has to say to one node."""

    encode: Callable[[Assign], pb.JoinReply]
    """Called when the assignment is sent, not when it is made: one that is replaced unsent costs no signatures."""
    _waiting: dict[str, pb.JoinReply | Assign] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _closed: bool = False
    _error: StreamError | None = None

    def put(self, message: pb.JoinReply | Assign) -> None:
        """Say this after what waits already; an older one of its kind is dropped."""
        kind = "assignment" if isinstance(message, Assign) else str(message.WhichOneof("message"))
        self._waiting.pop(kind, None)
        self._waiting[kind] = message
        self._wake.set()

    def close(self, error: StreamError | None = None) -> None:
        """End the stream once what waits is said, or with an error at once. The first close counts."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake.set()

    async def messages(self) -> AsyncIterator[pb.JoinReply]:
        """Until closed. Raises StreamError."""
        while True:
            self._wake.clear()
            if self._error is not None:
                raise self._error
            while self._waiting:
                message = self._waiting.pop(next(iter(self._waiting)))
                yield self.encode(message) if isinstance(message, Assign) else message
                if self._error is not None:
                    raise self._error
            if self._closed:
                return
            await self._wake.wait()


@dataclass(slots=True, eq=False)
class PublishWatcher:
    """One caller of Publish."""

    render: Callable[[], pb.PublicationStatus | None]
    """The publication as it is now."""
    ended: bool = False
    _answer: pb.PublishEvent | None = None
    _answered: bool = False
    _finished: pb.PublishEvent | None = None
    _error: StreamError | None = None
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)  # an answer or the end
    _news: asyncio.Event = field(default_factory=asyncio.Event)  # that, or progress

    def answer(self, message: pb.PublishEvent) -> None:
        """Accepted or AlreadyPublished; the latter ends the stream."""
        self._answer = message
        self.ended = message.WhichOneof("message") == "already"
        self._hurry()

    def progressed(self) -> None:
        self._news.set()

    def finish(self, status: pb.PublicationStatus) -> None:
        if not self.ended:
            self._finished = pb.PublishEvent(finished=status)
            self.ended = True
            self._hurry()

    def fail(self, error: StreamError) -> None:
        if not self.ended:
            self._error = error
            self.ended = True
            self._hurry()

    def _hurry(self) -> None:
        self._news.set()
        self._urgent.set()

    async def messages(self) -> AsyncIterator[pb.PublishEvent]:
        """Until the publication has finished for this caller. Raises StreamError."""
        while True:
            self._urgent.clear()
            if self._answer is not None:
                message, self._answer, self._answered = self._answer, None, True
                yield message
            if self.ended:
                break
            if not await _wait(self._urgent, PROGRESS_INTERVAL_S):
                await _wait(self._news, PROGRESS_IDLE_S - PROGRESS_INTERVAL_S)
            if self._answered and not self._urgent.is_set():
                self._news.clear()
                status = self.render()
                if status is not None:
                    yield pb.PublishEvent(progress=status)
        if self._error is not None:
            raise self._error
        if self._finished is not None:
            yield self._finished


async def _wait(event: asyncio.Event, limit_s: float) -> bool:
    """Whether it was set within the limit."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def stopping_error(cause: Exception | None = None) -> StreamError:
    """Nodes and publishers come back to the next coordinator by themselves."""
    return StreamError(grpc.StatusCode.UNAVAILABLE, str(cause or "the coordinator stops"))


def standstill_error(reason: str) -> StreamError:
    """Who asks again later may be answered."""
    return StreamError(grpc.StatusCode.UNAVAILABLE, f"the coordinator decides nothing until it can write: {reason}")


async def abort(context: Any, error: StreamError) -> NoReturn:
    """End a call with the error's status."""
    await context.abort(error.code, error.message, trailing_metadata=encode_kind(error.kind))
    raise AssertionError("abort returned")
