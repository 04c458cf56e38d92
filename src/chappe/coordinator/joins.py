"""The Join streams: one session for each, from its Hello until it ends.

    Hello ──▶ checks ──▶ session ──▶ fleet hears of it ──┬─ reader: message ──▶ event
                                                         └─ writer: Outbox ──▶ stream

What is refused here is what the fleet must never hear of: another protocol, another run, a name that the peer's
certificate does not bear, a message that cannot be true. Everything else is the fleet's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from chappe.coordinator import codec
from chappe.coordinator.assignments import encode_assignment, encode_probe
from chappe.coordinator.dialback import DialBack
from chappe.coordinator.runner import Runner, RunnerStoppedError
from chappe.coordinator.sessions import Outbox, StreamError, abort, standstill_error, stopping_error
from chappe.core import effects as fx
from chappe.core import events
from chappe.core.effects import Effect
from chappe.errors import PeerError
from chappe.hop.net import peer_name
from chappe.v1 import coordinator_pb2 as pb
from chappe.wire.frames import PROTOCOL_VERSION
from chappe.wire.token import TokenKey

log = structlog.get_logger()

HELLO_TIMEOUT_S = 10.0
REFUSED_KEPT = 256


@dataclass(frozen=True, slots=True)
class Terms:
    """What every Welcome says."""

    run: str
    lease_s: float
    heartbeat_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    hello: events.Hello
    outbox: Outbox
    certificate_name: str | None  # None on a plaintext connection


class Joins:
    """All sessions of one coordinator."""

    def __init__(self, terms: Terms, key: TokenKey, dial_back: DialBack) -> None:
        self._terms = terms
        self._dial_back = dial_back
        self._key = key
        self._sessions: dict[int, Session] = {}
        self._refused: dict[str, str] = {}  # by name, or address where there is none to be trusted: the reason
        self._stopping = False

    def of_worker(self, worker_id: str) -> list[Session]:
        return [session for session in self._sessions.values() if session.hello.worker_id == worker_id]

    def stop(self) -> None:
        self._stopping = True
        for session in self._sessions.values():
            session.outbox.close(stopping_error())

    def deliver(self, effect: Effect) -> None:
        """Say it on the stream it is for; one that is gone has no use for it."""
        match effect:
            case fx.Assign(session=number) if number in self._sessions:
                self._sessions[number].outbox.put(effect)
            case fx.Welcome(session=number) if number in self._sessions:
                self._sessions[number].outbox.put(self._welcome())
            case fx.StartProbe(session=number) if number in self._sessions:
                self._sessions[number].outbox.put(encode_probe(effect, self._terms.run, self._key.sign))
            case fx.AskPublication(session=number) if number in self._sessions:
                self._sessions[number].outbox.put(
                    pb.JoinReply(
                        wanted=pb.PublicationWanted(
                            learner_version=effect.learner_version,
                            fleet_version=effect.fleet_version,
                            reason=effect.reason,
                        )
                    )
                )
            case fx.Release(session=number) if number in self._sessions:
                self._sessions[number].outbox.put(pb.JoinReply(released=pb.Released()))
            case fx.Refuse(session=number, reason=reason) if number in self._sessions:
                outbox = self._sessions[number].outbox
                outbox.put(pb.JoinReply(refused=pb.Refused(reason=reason)))
                outbox.close()
            case fx.Replace(session=number) if number in self._sessions:
                self._sessions[number].outbox.close()
            case _:
                pass

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
        return encode_assignment(assign, self._terms.run, self._key.sign)

    async def serve(self, runner: Runner, number: int, requests: AsyncIterator[pb.JoinRequest], context: Any) -> None:
        """One stream, as session `number`, from its first message to its end."""
        if runner.standstill:  # it asks again for ever, and each time would be something to be put off
            await abort(context, standstill_error(runner.standstill))
        messages = aiter(requests)
        try:
            first = await self._first_message(messages)
            session = self._open(first, number, context)
            name = session.hello.name
            if first.run and first.run != self._terms.run:
                reason = self._wrong_run(first)
                self._note_refused(name, reason)
                await context.write(pb.JoinReply(refused=pb.Refused(reason=reason)))
                return
        except StreamError as error:
            if not self._stopping:
                self._note_refused(context.peer().rpartition(":")[0], error.message)  # its port is another each time
            await abort(context, error)
        self._refused.pop(name, None)
        self._sessions[number] = session
        reader = asyncio.create_task(self._read(runner, messages, session), name=f"join {session.hello.name}")
        dialling = None
        try:
            await runner.submit(session.hello)
            if not session.hello.no_dial_in:
                dialling = asyncio.create_task(self._try_address(runner, session.hello), name="dial back")
            async for message in session.outbox.messages():
                await context.write(message)
        except StreamError as error:
            await abort(context, error)
        except RunnerStoppedError as error:
            await abort(context, stopping_error(error))
        finally:
            reader.cancel()
            if dialling is not None:
                dialling.cancel()
            del self._sessions[number]
            runner.post(events.SessionLost(session.hello.worker_id, number))

    async def _try_address(self, runner: Runner, hello: events.Hello) -> None:
        async for reachable in self._dial_back.attempts(hello.address, hello.name):
            runner.post(events.DialedBack(hello.worker_id, hello.session, reachable))

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
        if first.hello.protocol_version != PROTOCOL_VERSION:
            raise StreamError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{first.hello.name[:80]!r} speaks protocol {first.hello.protocol_version}, this coordinator "
                f"{PROTOCOL_VERSION}: run the same release of chappe on both",
            )
        return first.hello

    def _open(self, message: pb.Hello, number: int, context: Any) -> Session:
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
        if self._stopping:
            raise stopping_error()
        return Session(hello, Outbox(self._encode_assignment), certificate_name)

    def _wrong_run(self, hello: pb.Hello) -> str:
        return (
            f"the store of {hello.name!r} belongs to run {hello.run!r}, this coordinator serves {self._terms.run!r}: "
            "give the node another --store, or the coordinator the --state of that run; where that state is lost, "
            f"start the coordinator with a new --state and --run {hello.run!r}"
        )

    def _note_refused(self, who: str, reason: str) -> None:
        """Once for each: a node that is not taken asks again for ever."""
        if self._refused.get(who) == reason:
            return
        if len(self._refused) >= REFUSED_KEPT:
            self._refused.clear()
        self._refused[who] = reason
        log.warning("join_refused", node=who[:80], reason=reason)

    async def _read(self, runner: Runner, messages: AsyncIterator[pb.JoinRequest], session: Session) -> None:
        """Feed what one node says to the fleet, at the pace at which it is written down."""
        hello = session.hello
        heard = events.Heard(hello.worker_id, hello.session)
        try:
            async for message in messages:
                event = codec.decode_join(message, hello)
                if event is None:
                    await runner.submit(heard)
                else:
                    await runner.submit(heard, event)
        except PeerError as error:
            log.warning("node_broke_protocol", node=hello.name, reason=str(error))
            session.outbox.close(StreamError(grpc.StatusCode.INVALID_ARGUMENT, str(error)))
        except RunnerStoppedError as error:
            session.outbox.close(stopping_error(error))
        else:
            session.outbox.close()
