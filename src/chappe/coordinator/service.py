"""The Coordinator service: streams on one side, the runner on the other. Decode, submit, deliver; no decisions.

    Join ──▶ decode ──▶ runner.submit ··▶ deliver(effect) ──▶ Outbox ──▶ stream
    Publish, Cancel, Drain, Forget: the same with a number for the call, which the effects that answer it carry

What is refused here is what the fleet must never hear of: another protocol, another run, a name that the peer's
certificate does not bear, a message that cannot be true.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import grpc
import structlog

from chappe.coordinator import codec
from chappe.coordinator.runner import Runner, RunnerStoppedError
from chappe.coordinator.sessions import Outbox, PublishWatcher, StreamError
from chappe.core import effects as fx
from chappe.core import events
from chappe.core.effects import Effect, PublishErrorKind
from chappe.errors import PeerError
from chappe.hop.net import peer_name
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc
from chappe.wire.token import TokenKey

log = structlog.get_logger()

Context = Any  # grpc.aio.ServicerContext of the call's own message types

HELLO_TIMEOUT_S = 10.0
STATUS_INTERVAL_S = 0.2
STATUS_IDLE_S = 1.0

_CODES = {
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


@dataclass(frozen=True, slots=True)
class Terms:
    """What every Welcome says."""

    run: str
    lease_s: float
    heartbeat_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    hello: events.Hello
    outbox: Outbox
    certificate_name: str | None


class CoordinatorService(coordinator_pb2_grpc.CoordinatorServicer):
    """Bind the runner before the server starts: it delivers here what the fleet decides."""

    def __init__(self, terms: Terms, key: TokenKey, views: Views) -> None:
        self._terms = terms
        self._key = key
        self._views = views
        self._numbers = itertools.count(1)  # of sessions and calls: never used twice
        self._sessions: dict[int, _Session] = {}
        self._watchers: dict[int, PublishWatcher] = {}
        self._calls: dict[int, asyncio.Future[None]] = {}
        self._stopping = asyncio.Event()
        self._runner: Runner | None = None

    def bind(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def runner(self) -> Runner:
        assert self._runner is not None
        return self._runner

    def stop(self) -> None:
        """End every stream with UNAVAILABLE: nodes and publishers come back to the next coordinator by themselves."""
        error = _stopping_error()
        self._stopping.set()
        for session in self._sessions.values():
            session.outbox.close(error)
        for watcher in self._watchers.values():
            watcher.fail(error)
        for call in self._calls.values():
            if not call.done():
                call.set_exception(error)

    # ---- effects ---------------------------------------------------------------------------------------------------

    def deliver(self, effect: Effect) -> None:
        """Say it on the stream it is for; a stream that is gone has no use for it."""
        match effect:
            case fx.Assign(session=session) if session in self._sessions:
                self._sessions[session].outbox.put(effect)
            case fx.Welcome(session=session) if session in self._sessions:
                self._sessions[session].outbox.put(self._welcome())
            case fx.Release(session=session) if session in self._sessions:
                self._sessions[session].outbox.put(pb.JoinReply(released=pb.Released()))
            case fx.Refuse(session=session, reason=reason) if session in self._sessions:
                outbox = self._sessions[session].outbox
                outbox.put(pb.JoinReply(refused=pb.Refused(reason=reason)))
                outbox.close()
            case fx.Replace(session=session) if session in self._sessions:
                self._sessions[session].outbox.close()
            case fx.PublishAccepted() | fx.PublishAlready() | fx.PublishProgress() | fx.PublishFinished():
                self._deliver_publication(effect)
            case fx.RequestRefused(request, kind, message):
                self._end_call(request, StreamError(_CODES[kind], message, kind.value))
            case fx.RequestDone(request):
                self._end_call(request, None)
            case _:
                pass

    def _deliver_publication(
        self, effect: fx.PublishAccepted | fx.PublishAlready | fx.PublishProgress | fx.PublishFinished
    ) -> None:
        match effect:
            case fx.PublishAccepted(request, version, chunk_bytes) if request in self._watchers:
                accepted = pb.Accepted(run=self._terms.run, version=version, chunk_bytes=chunk_bytes)
                self._watchers[request].answer(pb.PublishEvent(accepted=accepted))
            case fx.PublishAlready(request, version, root) if request in self._watchers:
                publication = self._views.publication_of_version(version)
                already = pb.AlreadyPublished(root=root, publication=publication)
                self._watchers[request].answer(pb.PublishEvent(already=already))
            case fx.PublishProgress(requests=requests):
                for request in requests:
                    if request in self._watchers:
                        self._watchers[request].progressed()
            case fx.PublishFinished(object_id, requests):
                status = self._views.publication(object_id)
                for request in requests:
                    if request in self._watchers and status is not None:
                        self._watchers[request].finish(status)
            case _:
                pass

    def _end_call(self, request: int, error: StreamError | None) -> None:
        if request in self._watchers:
            self._watchers[request].fail(error or StreamError(grpc.StatusCode.INTERNAL, "Publish has no plain answer"))
        call = self._calls.get(request)
        if call is not None and not call.done():
            if error is None:
                call.set_result(None)
            else:
                call.set_exception(error)

    def _welcome(self) -> pb.JoinReply:
        terms = self._terms
        return pb.JoinReply(
            welcome=pb.Welcome(
                run=terms.run,
                token_key=self._key.public_bytes(),
                lease_s=terms.lease_s,
                heartbeat_s=terms.heartbeat_s,
            )
        )

    def _encode_assignment(self, assign: fx.Assign) -> pb.JoinReply:
        return codec.encode_assignment(assign, self._terms.run, self._key.sign)

    # ---- Join ------------------------------------------------------------------------------------------------------

    # Handlers write to the context instead of yielding: a generator that is suspended when its caller leaves is only
    # closed by the garbage collector, and with it the session.

    async def Join(self, request_iterator: AsyncIterator[pb.JoinRequest], context: Context) -> None:
        messages = aiter(request_iterator)
        number = next(self._numbers)
        try:
            first = await self._first_message(messages)
            if first.run and first.run != self._terms.run:
                await context.write(pb.JoinReply(refused=pb.Refused(reason=self._wrong_run(first))))
                return
            session = self._open(first, number, context)
        except StreamError as error:
            await _abort(context, error)
        self._sessions[number] = session
        reader = asyncio.create_task(self._read(messages, session), name=f"join {session.hello.name}")
        try:
            await self.runner.submit(session.hello)
            async for message in session.outbox.messages():
                await context.write(message)
        except StreamError as error:
            await _abort(context, error)
        except RunnerStoppedError as error:
            await _abort(context, _stopping_error(error))
        finally:
            reader.cancel()
            del self._sessions[number]
            self.runner.post(events.SessionLost(session.hello.worker_id, number))

    async def _first_message(self, messages: AsyncIterator[pb.JoinRequest]) -> pb.Hello:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                first = await anext(messages, None)
        except TimeoutError:
            raise StreamError(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no Hello within {HELLO_TIMEOUT_S:.0f} s of opening Join"
            ) from None
        if first is None or first.WhichOneof("message") != "hello":
            raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, "the first message on Join must be a Hello")
        if first.hello.protocol_version != codec.PROTOCOL_VERSION:
            raise StreamError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{first.hello.name[:80]!r} speaks protocol {first.hello.protocol_version}, this coordinator "
                f"{codec.PROTOCOL_VERSION}: run the same release of chappe on both",
            )
        return first.hello

    def _open(self, message: pb.Hello, number: int, context: Context) -> _Session:
        try:
            hello = codec.decode_hello(message, number)
        except PeerError as error:
            raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"bad Hello: {error}") from error
        certificate_name = peer_name(context)
        if certificate_name is not None and certificate_name != hello.name:
            raise StreamError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the certificate is for {certificate_name!r}, the name given is {hello.name!r}: start the node with "
                f"--name {certificate_name}, or issue it a certificate for its name",
            )
        if self._stopping.is_set():
            raise _stopping_error()
        return _Session(hello, Outbox(self._encode_assignment), certificate_name)

    def _wrong_run(self, hello: pb.Hello) -> str:
        return (
            f"the store of {hello.name!r} belongs to run {hello.run!r}, this coordinator serves {self._terms.run!r}: "
            "give the node another --store, or the coordinator the --state of that run"
        )

    async def _read(self, messages: AsyncIterator[pb.JoinRequest], session: _Session) -> None:
        """Feed what one node says to the fleet, at the pace at which it is written down."""
        hello = session.hello
        heard = events.Heard(hello.worker_id, hello.session)
        try:
            async for message in messages:
                event = codec.decode_join(message, hello)
                if event is None:
                    await self.runner.submit(heard)
                else:
                    await self.runner.submit(heard, event)
        except PeerError as error:
            log.warning("node_broke_protocol", node=hello.name, reason=str(error))
            session.outbox.close(StreamError(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        except RunnerStoppedError as error:
            session.outbox.close(_stopping_error(error))
        else:
            session.outbox.close()

    # ---- Publish ---------------------------------------------------------------------------------------------------

    async def Publish(self, request: pb.PublishRequest, context: Context) -> None:
        number = next(self._numbers)
        watcher = PublishWatcher(request.object_id, lambda: self._views.publication(request.object_id))
        self._watchers[number] = watcher
        try:
            event = self._publish_event(request, number, context)
            await self.runner.submit(event)
            async for message in watcher.messages():
                await context.write(message)
        except StreamError as error:
            await _abort(context, error)
        except RunnerStoppedError as error:
            await _abort(context, _stopping_error(error))
        finally:
            del self._watchers[number]
            if not watcher.ended:
                self.runner.post(events.PublishWatcherLeft(number))

    def _publish_event(self, request: pb.PublishRequest, number: int, context: Context) -> events.PublishRequested:
        if self._stopping.is_set():
            raise _stopping_error()
        try:
            event = codec.decode_publish(request, number)
        except PeerError as error:
            kind = PublishErrorKind.INVALID
            raise StreamError(_CODES[kind], str(error), kind.value) from error
        caller = peer_name(context)
        for session in self._sessions.values():
            if session.hello.worker_id == request.origin_id and session.certificate_name not in (None, caller):
                raise StreamError(
                    grpc.StatusCode.PERMISSION_DENIED,
                    f"origin {session.hello.name!r} is not {caller!r}: a publisher publishes from its own origin",
                )
        return event

    # ---- one answer ------------------------------------------------------------------------------------------------

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        number = next(self._numbers)
        await self._call(events.CancelRequested(number, request.version), number, context)
        return pb.CancelReply()

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        number = next(self._numbers)
        await self._call(events.DrainRequested(number, request.name), number, context)
        return pb.DrainReply()

    async def Forget(self, request: pb.ForgetRequest, context: Context) -> pb.ForgetReply:
        number = next(self._numbers)
        await self._call(events.ForgetRequested(number, request.name), number, context)
        return pb.ForgetReply()

    async def _call(self, event: events.Event, number: int, context: Context) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls[number] = done
        try:
            await self.runner.submit(event)
            await done
        except StreamError as error:
            await _abort(context, error)
        except RunnerStoppedError as error:
            await _abort(context, _stopping_error(error))
        finally:
            del self._calls[number]
            if done.done() and not done.cancelled():
                done.exception()  # looked at, also when the submit before it has failed already

    # ---- status ----------------------------------------------------------------------------------------------------

    async def GetStatus(self, _request: pb.StatusRequest, _context: Context) -> pb.Status:
        return self._views.status()

    async def WatchStatus(self, _request: pb.StatusRequest, context: Context) -> None:
        while not self._stopping.is_set():
            seen = self.runner.changed.count
            await context.write(self._views.status())
            if await _set_within(self._stopping, STATUS_INTERVAL_S):
                break
            try:
                async with asyncio.timeout(STATUS_IDLE_S - STATUS_INTERVAL_S):
                    await self.runner.changed.wait(seen)
            except TimeoutError:
                pass  # say it again: elapsed times have moved
        await _abort(context, _stopping_error())


async def _set_within(event: asyncio.Event, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            return await event.wait()
    except TimeoutError:
        return False


def _stopping_error(cause: RunnerStoppedError | None = None) -> StreamError:
    return StreamError(grpc.StatusCode.UNAVAILABLE, str(cause or "the coordinator stops"))


async def _abort(context: Context, error: StreamError) -> NoReturn:
    metadata = ((codec.ERROR_KIND_METADATA, error.kind),) if error.kind else ()
    await context.abort(error.code, error.message, trailing_metadata=metadata)
    raise AssertionError("abort returned")
