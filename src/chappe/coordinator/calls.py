"""The calls that wait for the fleet: Publish (a stream), Cancel, Drain and Forget (one answer).

Each has a number, which its event carries in and the effects that answer it carry back.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc

from chappe.coordinator import codec
from chappe.coordinator.joins import Joins
from chappe.coordinator.runner import Runner, RunnerStoppedError
from chappe.coordinator.sessions import PublishWatcher, StreamError, abort, standstill_error, stopping_error
from chappe.core import effects as fx
from chappe.core import events
from chappe.core.effects import Effect, PublishErrorKind
from chappe.errors import PeerError
from chappe.hop.net import peer_name
from chappe.v1 import coordinator_pb2 as pb

CODES = {
    PublishErrorKind.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    PublishErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    PublishErrorKind.NO_WORKERS: grpc.StatusCode.FAILED_PRECONDITION,
    PublishErrorKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    PublishErrorKind.FAILED: grpc.StatusCode.ABORTED,
    PublishErrorKind.CANCELLED: grpc.StatusCode.CANCELLED,
    PublishErrorKind.SUPERSEDED: grpc.StatusCode.ABORTED,
}


class Views(Protocol):
    """The fleet as people see it, now."""

    def status(self) -> pb.Status: ...
    def publication(self, object_id: str) -> pb.PublicationStatus | None: ...
    def publication_of_version(self, version: int) -> pb.PublicationStatus | None: ...


class Calls:
    """All calls under way at one coordinator."""

    def __init__(self, run: str, views: Views, joins: Joins) -> None:
        self._run = run
        self._views = views
        self._joins = joins
        self._watchers: dict[int, PublishWatcher] = {}
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True
        for watcher in self._watchers.values():
            watcher.fail(stopping_error())
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(stopping_error())

    # ---- effects ---------------------------------------------------------------------------------------------------

    def deliver(self, effect: Effect) -> None:
        """Answer the calls it is for; one whose caller left has no use for it."""
        match effect:
            case fx.PublishAccepted(request, version, chunk_bytes, object_id, root, bases, compressed) if (
                request in self._watchers
            ):
                accepted = pb.Accepted(
                    run=self._run,
                    version=version,
                    chunk_bytes=chunk_bytes,
                    object_id=object_id,
                    root=root,
                    base_root=bases[0] if bases else "",
                    older_base_roots=bases[1:],
                    compressed=compressed,
                )
                if object_id:
                    self._watchers[request].render = lambda: self._views.publication(object_id)
                self._watchers[request].answer(pb.PublishEvent(accepted=accepted))
            case fx.PublishAlready(request, version, root) if request in self._watchers:
                publication = self._views.publication_of_version(version)
                already = pb.AlreadyPublished(root=root, publication=publication)
                self._watchers[request].answer(pb.PublishEvent(already=already))
            case fx.PublishProgress(requests=requests):
                for watcher in self._of(requests):
                    watcher.progressed()
            case fx.PublishFinished(object_id, requests):
                status = self._views.publication(object_id)
                for watcher in self._of(requests):
                    watcher.finish(status or pb.PublicationStatus())
            case fx.RequestRefused(request, kind, message):
                self._end(request, StreamError(CODES[kind], message, kind.value))
            case fx.RequestDone(request):
                self._end(request, None)
            case _:
                pass

    def _of(self, requests: tuple[int, ...]) -> list[PublishWatcher]:
        return [self._watchers[request] for request in requests if request in self._watchers]

    def _end(self, request: int, error: StreamError | None) -> None:
        if request in self._watchers:
            self._watchers[request].fail(error or StreamError(grpc.StatusCode.INTERNAL, "Publish has no plain answer"))
        answer = self._answers.get(request)
        if answer is not None and not answer.done():
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def publish(self, runner: Runner, number: int, request: pb.PublishRequest, context: Any) -> None:
        await _refuse_at_standstill(runner, context)
        watcher = PublishWatcher(lambda: self._views.publication(request.object_id))
        self._watchers[number] = watcher
        try:
            await runner.submit(self._publish_event(request, number, context))
            async for message in watcher.messages():
                await context.write(message)
        except StreamError as error:
            watcher.ended = True
            await abort(context, error)
        except RunnerStoppedError as error:
            await abort(context, stopping_error(error))
        finally:
            del self._watchers[number]
            if not watcher.ended:
                runner.post(events.PublishWatcherLeft(number))

    def _publish_event(self, request: pb.PublishRequest, number: int, context: Any) -> events.PublishRequested:
        if self._stopping:
            raise stopping_error()
        try:
            event = codec.decode_publish(request, number)
        except PeerError as error:
            kind = PublishErrorKind.INVALID
            raise StreamError(CODES[kind], str(error), kind.value) from error
        caller = peer_name(context)
        for session in self._joins.of_worker(request.origin_id):
            if session.certificate_name not in (None, caller):
                raise StreamError(
                    grpc.StatusCode.PERMISSION_DENIED,
                    f"origin {session.hello.name!r} is not {caller!r}: a publisher publishes from its own origin",
                )
        return event

    async def ask(self, runner: Runner, number: int, event: events.Event, context: Any) -> None:
        """Return when the fleet says it is done."""
        await _refuse_at_standstill(runner, context)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            await runner.submit(event)
            await answer
        except StreamError as error:
            await abort(context, error)
        except RunnerStoppedError as error:
            await abort(context, stopping_error(error))
        finally:
            del self._answers[number]
            if answer.done() and not answer.cancelled():
                answer.exception()  # looked at, also when the submit before it has failed already


async def _refuse_at_standstill(runner: Runner, context: Any) -> None:
    """A publisher asks again by itself, a person is told why; put off, they would hear nothing."""
    if runner.standstill:
        await abort(context, standstill_error(runner.standstill))
