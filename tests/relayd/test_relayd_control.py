from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from relay_fleet import FakeCoordinator, assignment, target
from relayd.control import REFUSED_RETRY_S, Control, Outbox

from chappe.core.events import HeldEdge, Holding, ObjectState
from chappe.core.probes import ProbeOrder
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import (
    Acknowledge,
    Assigned,
    Connected,
    Disconnected,
    RelayEvent,
    ReportHolding,
    ReportLost,
)
from chappe.errors import ConfigError, RefusedError
from chappe.hop.net import open_channel, parse_address
from chappe.v1 import coordinator_pb2 as pb
from chappe.wire.relay_messages import Node, Welcomed, encode_hello

A = "a" * 32
NODE = Node("id-r1", "r1", 1, "", "127.0.0.1:1")


class Client:
    def __init__(self, address: str) -> None:
        self.events: asyncio.Queue[RelayEvent] = asyncio.Queue()
        self.welcomes: list[Welcomed] = []
        self.probes: list[ProbeOrder] = []
        self.failures: list[Exception] = []
        self.control = Control(
            coordinator=address,
            open_channel=lambda: open_channel(parse_address(address), None, "coordinator"),
            hello=self.hello,
            on_welcome=self.welcomes.append,
            on_event=self.events.put_nowait,
            on_probe=self.probes.append,
            jitter=lambda: 0.0,
        )

    async def hello(self) -> pb.JoinRequest:
        if self.failures:
            raise self.failures.pop()
        return encode_hello(NODE, 1, (), (), 0)

    async def next(self) -> RelayEvent:
        async with asyncio.timeout(30):
            return await self.events.get()


@asynccontextmanager
async def running(client: Client) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(client.control.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def coordinator() -> AsyncIterator[FakeCoordinator]:
    made = FakeCoordinator()
    yield made
    await made.stop()


async def test_a_session_from_welcome_to_its_loss_and_back(coordinator: FakeCoordinator) -> None:
    client = Client(await coordinator.start())
    client.control.report(Acknowledge(1))  # nobody listens yet: part of no stream
    async with running(client):
        assert await client.next() == Connected()
        assert client.welcomes[0].run == "run-1"
        session = coordinator.sessions["r1"]
        session.say(assignment(3, [target(A, 1)], []))
        assigned = await client.next()
        assert isinstance(assigned, Assigned)
        assert assigned.assignment.epoch == 3
        client.control.report(Acknowledge(3))
        assert (await coordinator.told("r1", "acknowledge")).epoch == 3
        await coordinator.told("r1", "heartbeat")
        session.end()
        assert await client.next() == Disconnected()
        assert await client.next() == Connected()
        assert coordinator.sessions["r1"] is not session
        assert [m.WhichOneof("message") for m in session.heard].count("acknowledge") == 1


async def test_what_is_said_between_hello_and_welcome_is_not_lost(coordinator: FakeCoordinator) -> None:
    """The Hello was made before it, and is all that the coordinator would otherwise know."""
    client = Client(await coordinator.start())
    said = client.hello

    async def hello() -> pb.JoinRequest:
        asyncio.get_running_loop().call_soon(client.control.report, Acknowledge(9))
        return await said()

    client.control._hello = hello
    async with running(client):
        assert await client.next() == Connected()
        assert (await coordinator.told("r1", "acknowledge")).epoch == 9


@pytest.mark.parametrize(
    "reply",
    [
        pb.JoinReply(),
        pb.JoinReply(assignment=pb.Assignment(targets=[pb.Target(object_id="../x", version=1)])),
    ],
)
async def test_a_coordinator_that_breaks_the_protocol_is_dialled_again(
    coordinator: FakeCoordinator, reply: pb.JoinReply
) -> None:
    client = Client(await coordinator.start())
    async with running(client):
        assert await client.next() == Connected()
        coordinator.sessions["r1"].say(reply)
        assert await client.next() == Disconnected()
        assert await client.next() == Connected()


async def test_a_refusal_counts_only_before_the_first_welcome(coordinator: FakeCoordinator) -> None:
    client = Client(await coordinator.start())
    async with running(client) as task:
        assert await client.next() == Connected()
        coordinator.refusal = "the name r1 is taken"
        coordinator.sessions["r1"].end()
        assert await client.next() == Disconnected()
        await coordinator.until(lambda: len(coordinator.joins) >= 3)  # it was refused, and came again
        coordinator.refusal = ""
        assert await client.next() == Connected()
        assert not task.done()


async def test_who_is_refused_comes_again_before_its_lease_has_lapsed() -> None:
    control = Client("127.0.0.1:1").control
    for lease_s in (5.0, 40.0, 0.5):
        control._lease_s = lease_s
        waits = [control._wait_s(failures=n, refusals=n) for n in range(1, 20)]
        assert sum(waits[:3]) * 1.5 < lease_s  # whatever the jitter
        assert max(waits) == waits[-1] == REFUSED_RETRY_S


async def test_a_refusal_at_first_ends_it(coordinator: FakeCoordinator) -> None:
    client = Client(await coordinator.start())
    coordinator.refusal = "the name r1 is taken: choose another"
    with pytest.raises(RefusedError, match="the name r1 is taken: choose another"):
        await client.control.run()


async def test_what_is_no_coordinator_is_a_refusal() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with pytest.raises(RefusedError, match="does not take this node"):
        await Client(f"127.0.0.1:{port}").control.run()
    await server.stop(0)


async def test_no_route_now_is_tried_again(coordinator: FakeCoordinator) -> None:
    client = Client(await coordinator.start())
    client.failures = [ConfigError("no local address leads to the coordinator")]
    async with running(client):
        assert await client.next() == Connected()


async def test_the_outbox_keeps_the_newest_of_each_thing_in_order() -> None:
    outbox = Outbox()
    held = HeldEdge(A, 0, "id-p", 1)
    receiving, received = Holding(A, ObjectState.RECEIVING), Holding(A, ObjectState.RECEIVED)
    lost = ReportLost(held, ParentLossReason.BROKEN)
    for report in (ReportHolding(receiving), lost, ReportHolding(received), lost):
        outbox.put(report)
    assert await outbox.take(10) == ReportHolding(received)
    assert await outbox.take(10) == lost
    assert await outbox.take(0.001) is None
    waiting = asyncio.create_task(outbox.take(30))
    outbox.put(Acknowledge(2))
    assert await waiting == Acknowledge(2)
