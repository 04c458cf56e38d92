"""The origin's Join session against a coordinator that says what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from chappe.errors import CoordinatorUnavailableError, RefusedError
from chappe.hop.guard import EdgeGuard, Refusal, Ticket
from chappe.hop.net import open_channel, parse_address
from chappe.origin.session import ObjectOffer, OriginSession
from chappe.publication import PublicationWanted
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc
from chappe.v1.relay_pb2 import EdgeClaims
from chappe.wire.token import TokenKey

OBJECT = "a" * 32
OTHER = "b" * 32


class ScriptedCoordinator(coordinator_pb2_grpc.CoordinatorServicer):
    """Collects what comes up Join, sends what the test puts into `down`; `hang_up` ends the present stream."""

    def __init__(self) -> None:
        self.key = TokenKey.generate()
        self.run = "run-1"
        self.up: asyncio.Queue[pb.JoinRequest] = asyncio.Queue()
        self.down: asyncio.Queue[pb.JoinReply | None] = asyncio.Queue()
        self.abort: tuple[grpc.StatusCode, str] | None = None
        self.refuse = ""
        self.server = grpc.aio.server()
        coordinator_pb2_grpc.add_CoordinatorServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    async def Join(self, messages: AsyncIterator[pb.JoinRequest], context: Any) -> None:
        hello = await anext(messages)
        self.up.put_nowait(hello)
        if self.abort is not None:
            await context.abort(*self.abort)
        if self.refuse:
            await context.write(pb.JoinReply(refused=pb.Refused(reason=self.refuse)))
            return
        self.down = asyncio.Queue()
        await context.write(
            pb.JoinReply(
                welcome=pb.Welcome(run=self.run, token_key=self.key.public_bytes(), lease_s=5, heartbeat_s=0.05)
            )
        )

        async def read() -> None:
            async for message in messages:
                self.up.put_nowait(message)

        reader = asyncio.create_task(read())
        try:
            while (reply := await self.down.get()) is not None:
                await context.write(reply)
        finally:
            reader.cancel()

    def hang_up(self) -> None:
        self.down.put_nowait(None)

    async def next(self, kind: str) -> Any:
        """The next message of this kind."""
        while True:
            message = await self.up.get()
            if message.WhichOneof("message") == kind:
                return getattr(message, kind)

    def assign(self, *object_ids: str, epoch: int = 1, edges: list[pb.Edge] | None = None) -> None:
        targets = [pb.Target(object_id=object_id, version=1) for object_id in object_ids]
        self.down.put_nowait(pb.JoinReply(assignment=pb.Assignment(epoch=epoch, targets=targets, edges=edges or [])))


@pytest.fixture
async def coordinator() -> AsyncIterator[ScriptedCoordinator]:
    scripted = ScriptedCoordinator()
    await scripted.server.start()
    yield scripted
    await scripted.server.stop(None)


@asynccontextmanager
async def joined(coordinator: ScriptedCoordinator, unwanted: list[str] | None = None) -> AsyncIterator[OriginSession]:
    session = make_session(coordinator.port, unwanted if unwanted is not None else [])
    session.start()
    try:
        await session.ready(30)
        yield session
    finally:
        await session.leave(0)


def make_session(
    port: int,
    unwanted: list[str],
    guard: EdgeGuard | None = None,
    wanted: list[PublicationWanted] | None = None,
) -> OriginSession:
    return OriginSession(
        worker_id="origin-id",
        name="origin-1",
        address="127.0.0.1:4000",
        data_port=4001,
        uplink_bytes_per_s=5e6,
        open_channel=lambda: open_channel(parse_address(f"127.0.0.1:{port}"), None, "coordinator"),
        coordinator=f"127.0.0.1:{port}",
        guard=(guard := guard or EdgeGuard("origin-id")),
        on_unwanted=unwanted.append,
        on_children=lambda children, _: guard.assign(children),
        on_probe=lambda _: None,
        on_wanted=wanted.append if wanted is not None else lambda _: None,
    )


def an_offer(object_id: str = OBJECT, root: str = "") -> ObjectOffer:
    return ObjectOffer(object_id, version=3, payload_bytes=10, snapshot_bytes=10, chunks_total=1, root=root)


async def test_hello_says_who_this_is(coordinator: ScriptedCoordinator) -> None:
    async with joined(coordinator) as session:
        hello = await coordinator.next("hello")
        assert (hello.role, hello.worker_id, hello.name) == (pb.ROLE_ORIGIN, "origin-id", "origin-1")
        assert (hello.address, hello.data_port) == ("127.0.0.1:4000", 4001)
        assert (hello.run, hello.address, hello.uplink_bytes_per_s) == ("", "127.0.0.1:4000", 5e6)
        assert session.run == "run-1"


async def test_an_idle_session_sends_heartbeats(coordinator: ScriptedCoordinator) -> None:
    async with joined(coordinator):
        await coordinator.next("heartbeat")
        await coordinator.next("heartbeat")


async def test_offer_root_and_failure_go_up_in_order(coordinator: ScriptedCoordinator) -> None:
    async with joined(coordinator) as session:
        session.offer(an_offer())
        session.announce_root(OBJECT, "xxh3_128:1")
        session.source_failed(OBJECT, "changed")
        offer = await coordinator.next("offer")
        assert (offer.object_id, offer.version, offer.root) == (OBJECT, 3, "")
        assert (await coordinator.next("root")).root == "xxh3_128:1"
        assert (await coordinator.next("source_failed")).reason == "changed"


async def test_a_lost_stream_is_opened_again_with_every_offer_and_its_root(coordinator: ScriptedCoordinator) -> None:
    async with joined(coordinator) as session:
        await coordinator.next("hello")
        session.offer(an_offer())
        session.announce_root(OBJECT, "xxh3_128:1")
        session.offer(an_offer(OTHER))
        session.withdraw(OTHER)
        session.offer(an_offer("d" * 32))
        session.source_failed("d" * 32, "changed")
        await coordinator.next("source_failed")
        coordinator.assign(OBJECT, epoch=7)
        assert (await coordinator.next("acknowledge")).epoch == 7
        coordinator.hang_up()
        hello = await coordinator.next("hello")
        assert (hello.run, hello.assignment_epoch) == ("run-1", 7)
        offer = await coordinator.next("offer")
        assert (offer.object_id, offer.root) == (OBJECT, "xxh3_128:1")
        assert (await coordinator.next("source_failed")).object_id == "d" * 32
        session.offer(an_offer("c" * 32))
        assert (await coordinator.next("offer")).object_id == "c" * 32  # and OTHER was not offered again


async def test_what_was_named_and_is_not_any_more_is_unwanted(coordinator: ScriptedCoordinator) -> None:
    unwanted: list[str] = []
    async with joined(coordinator, unwanted) as session:
        session.offer(an_offer(OBJECT))
        session.offer(an_offer(OTHER))
        coordinator.assign(OBJECT, epoch=1)  # written before the coordinator had read of OTHER
        await coordinator.next("acknowledge")
        assert unwanted == []
        coordinator.assign(OTHER, epoch=2)
        await coordinator.next("acknowledge")
        assert unwanted == [OBJECT]


async def test_an_offer_is_not_unwanted_by_the_first_word_after_a_reconnect(coordinator: ScriptedCoordinator) -> None:
    unwanted: list[str] = []
    async with joined(coordinator, unwanted) as session:
        session.offer(an_offer())
        coordinator.assign(OBJECT, epoch=1)
        await coordinator.next("acknowledge")
        coordinator.hang_up()
        await coordinator.next("hello")
        await coordinator.next("offer")
        coordinator.assign(epoch=2)
        await coordinator.next("acknowledge")
        assert unwanted == []


async def test_the_assignment_decides_whom_the_guard_admits(coordinator: ScriptedCoordinator) -> None:
    guard = EdgeGuard("origin-id")
    session = make_session(coordinator.port, [], guard)

    def admit(epoch: int) -> Ticket | Refusal:
        claims = EdgeClaims(
            run="run-1", object_id=OBJECT, parent="origin-id", child="w1", child_generation=1, epoch=epoch
        )
        return guard.admit(coordinator.key.sign(claims), OBJECT, 0, 0.0)

    assert isinstance(admit(5), Refusal)  # before Welcome nobody
    session.start()
    await session.ready(30)
    slot = pb.ChildSlot(child=pb.Peer(worker_id="w1", name="w1", address="h:1"), slot=0, generation=1, epoch=5)
    coordinator.assign(OBJECT, edges=[pb.Edge(object_id=OBJECT, children=[slot])])
    await coordinator.next("acknowledge")
    assert isinstance(admit(4), Refusal)
    assert isinstance(admit(5), Ticket)
    await session.leave(0)


async def test_a_refusal_ends_the_session_with_its_reason(coordinator: ScriptedCoordinator) -> None:
    coordinator.refuse = "the name is taken: choose another"
    session = make_session(coordinator.port, [])
    session.start()
    with pytest.raises(RefusedError, match="choose another"):
        await session.ready(30)
    await session.leave(0)


async def test_an_error_that_repetition_cannot_mend_is_a_refusal(coordinator: ScriptedCoordinator) -> None:
    coordinator.abort = (grpc.StatusCode.FAILED_PRECONDITION, "run the same release")
    session = make_session(coordinator.port, [])
    session.start()
    with pytest.raises(RefusedError, match="the same release"):
        await session.ready(30)
    await session.leave(0)


async def test_a_coordinator_of_another_run_is_not_followed(coordinator: ScriptedCoordinator) -> None:
    async with joined(coordinator) as session:
        coordinator.run = "run-2"
        coordinator.hang_up()
        while session.failed is None:
            await session.signal.wait(session.signal.count)
        assert "run-2" in str(session.failed)
        with pytest.raises(RefusedError):
            await session.ready(30)


async def test_nobody_there_is_said_with_the_address(coordinator: ScriptedCoordinator) -> None:
    await coordinator.server.stop(None)
    session = make_session(coordinator.port, [])
    session.start()
    with pytest.raises(CoordinatorUnavailableError, match=f"127.0.0.1:{coordinator.port}.*UNAVAILABLE"):
        await session.ready(0.3)
    await session.leave(0)


async def test_leaving_waits_for_the_release(coordinator: ScriptedCoordinator) -> None:
    session = make_session(coordinator.port, [])
    session.start()
    await session.ready(30)
    leaving = asyncio.create_task(session.leave(30))
    await coordinator.next("leaving")
    assert not leaving.done()
    coordinator.down.put_nowait(pb.JoinReply(released=pb.Released()))
    await leaving


async def test_leaving_does_not_wait_for_ever(coordinator: ScriptedCoordinator) -> None:
    session = make_session(coordinator.port, [])
    session.start()
    await session.ready(30)
    await session.leave(0.05)
    await coordinator.next("leaving")


async def test_the_learner_is_told_of_again_on_every_stream_and_what_is_wanted_arrives(
    coordinator: ScriptedCoordinator,
) -> None:
    wanted: list[PublicationWanted] = []
    session = make_session(coordinator.port, [], wanted=wanted)
    session.report_learner(4, 30, 2)
    session.start()
    try:
        await session.ready(30)
        assert (await coordinator.next("learner")) == pb.LearnerProgress(version=4, admitted=30, discarded=2)
        session.report_learner(5, 40, 2)
        assert (await coordinator.next("learner")).version == 5
        asked = pb.PublicationWanted(learner_version=5, fleet_version=2, reason="too far ahead")
        coordinator.down.put_nowait(pb.JoinReply(wanted=asked))
        coordinator.assign(epoch=77)
        while (await coordinator.next("acknowledge")).epoch != 77:
            pass
        assert wanted == [PublicationWanted(5, 2, "too far ahead")]
    finally:
        await session.leave(0)
