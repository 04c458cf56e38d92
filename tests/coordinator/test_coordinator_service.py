"""The Coordinator service over real gRPC, with nodes that speak Join."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from join_nodes import (
    LIMIT_S,
    ROOT,
    ROOT_2,
    Node,
    broadcast,
    coordinator,
    error_of,
    event,
    fleet,
    object_id,
    parents,
    publish_request,
    settings,
)
from structlog.testing import capture_logs

from chappe.coordinator.daemon import Coordinator, open_coordinator
from chappe.coordinator.status import publication_json
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1.coordinator_pb2_grpc import CoordinatorStub
from chappe.wire.token import verify

Running = tuple[Coordinator, CoordinatorStub]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with coordinator(tmp_path, run="alpha") as pair:
        yield pair


@pytest.fixture
def stub(running: Running) -> CoordinatorStub:
    return running[1]


async def test_welcome_says_run_key_and_lease(stub: CoordinatorStub) -> None:
    node = await Node(stub, "w1").join()
    assert node.welcome is not None
    assert (node.welcome.run, len(node.welcome.token_key)) == ("alpha", 32)
    assert (node.welcome.lease_s, node.welcome.heartbeat_s) == (5.0, 1.0)
    await node.send(heartbeat=pb.Heartbeat())
    status = await stub.GetStatus(pb.StatusRequest())
    assert [(r.name, r.state) for r in status.relays] == [("name-w1", "idle")]


@pytest.mark.parametrize(
    ("hello", "code", "message"),
    [
        ({"protocol_version": 2}, grpc.StatusCode.FAILED_PRECONDITION, "speaks protocol 2, this coordinator 1"),
        ({"protocol_version": 0}, grpc.StatusCode.FAILED_PRECONDITION, "run the same release"),
        ({"name": "no good"}, grpc.StatusCode.INVALID_ARGUMENT, "bad Hello: name 'no good'"),
        ({"generation": 0}, grpc.StatusCode.INVALID_ARGUMENT, "generation"),
    ],
)
async def test_a_hello_that_is_not_taken_ends_the_stream_with_the_reason(
    stub: CoordinatorStub, hello: dict[str, object], code: grpc.StatusCode, message: str
) -> None:
    ended = await (await Node(stub, "w1", **hello).join()).end()
    assert isinstance(ended, grpc.aio.AioRpcError)
    assert ended.code() is code
    assert message in (ended.details() or "")


async def test_join_begins_with_hello_and_has_one(stub: CoordinatorStub) -> None:
    call = stub.Join()
    await call.write(pb.JoinRequest(heartbeat=pb.Heartbeat()))
    code, _, message = await error_of(call)
    assert (code, message) == (grpc.StatusCode.INVALID_ARGUMENT, "the first message on Join must be a Hello")
    call = stub.Join()
    await call.done_writing()
    assert (await error_of(call))[0] is grpc.StatusCode.INVALID_ARGUMENT
    node = await Node(stub, "w1").join()
    await node.until(lambda a: a.epoch > 0)  # a write that meets the end of its call would hide the status
    await node.send(hello=node.hello)
    ended = await node.end()
    assert isinstance(ended, grpc.aio.AioRpcError)
    assert "second Hello" in (ended.details() or "")


async def test_a_message_beyond_the_limit_is_refused(stub: CoordinatorStub) -> None:
    call = stub.Join()
    await call.write(pb.JoinRequest(hello=pb.Hello(name="x" * (5 << 20))))
    assert (await error_of(call))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_store_of_another_run_is_refused(stub: CoordinatorStub) -> None:
    ended = await (await Node(stub, "w1", run="beta").join()).end()
    assert isinstance(ended, pb.JoinReply)
    assert "belongs to run 'beta', this coordinator serves 'alpha': give the node another --store" in (
        ended.refused.reason
    )
    assert "where that state is lost, start the coordinator with a new --state and --run 'beta'" in ended.refused.reason
    assert (await Node(stub, "w2", run="alpha").join()).welcome is not None


async def test_who_is_refused_is_said_once_in_the_log(stub: CoordinatorStub) -> None:
    with capture_logs() as logs:
        for _ in range(3):  # it asks for ever
            await (await Node(stub, "w1", run="beta").join()).end()
        for _ in range(2):
            await (await Node(stub, "w2", protocol_version=2).join()).end()
        node = await Node(stub, "w1", run="alpha").join()  # its store was exchanged
        await node.until(lambda a: a.epoch > 0)
    refused = [entry for entry in logs if entry["event"] == "join_refused"]
    assert [(entry["node"], entry["log_level"]) for entry in refused] == [
        ("name-w1", "warning"),
        ("ipv4:127.0.0.1", "warning"),
    ]
    assert "belongs to run 'beta'" in refused[0]["reason"]
    assert "protocol 2" in refused[1]["reason"]


async def test_a_name_that_is_taken_is_refused(stub: CoordinatorStub) -> None:
    await Node(stub, "w1", name="same").join()
    ended = await (await Node(stub, "w2", name="same").join()).end()
    assert isinstance(ended, pb.JoinReply)
    assert "same" in ended.refused.reason


async def test_a_newer_stream_of_a_worker_replaces_the_older_without_a_word(stub: CoordinatorStub) -> None:
    older = Node(stub, "w1")
    await older.join()
    newer = await Node(stub, "w1", generation=2).join()
    assert newer.welcome is not None
    async with asyncio.timeout(LIMIT_S):
        assert older._reader is not None
        await older._reader
    assert older.ended_with is None
    assert len((await stub.GetStatus(pb.StatusRequest())).relays) == 1


async def test_a_publication_from_publish_to_finished(stub: CoordinatorStub) -> None:
    origin, relays = await fleet(stub, ["a", "b", "c"])
    call = stub.Publish(publish_request(1, elapsed_s=0.5))
    accepted = await event(call, "accepted")
    assert (accepted.run, accepted.version) == ("alpha", 1)
    assert accepted.chunk_bytes >= 1 << 16
    await origin.offer(1, accepted.version)
    for relay in relays:
        await relay.until(lambda a: len(a.edges) == 1)
    assert relays[0].latest.targets[0].root == ""
    chain = parents(relays)
    assert sorted(chain.values()) != ["origin"] * 3  # undeclared links are equal: one chain
    assert list(chain.values()).count("origin") == 1
    for relay in relays:
        edge = relay.latest.edges[0]
        assert relay.welcome is not None
        claims = verify(relay.welcome.token_key, edge.token)
        assert (claims.parent, claims.child, claims.epoch) == (edge.parent.worker_id, relay.worker_id, edge.epoch)
    await origin.announce(1)
    for relay in relays:
        await relay.until(lambda a: a.targets[0].root == ROOT)
        await relay.install(1, 1)
    finished = await event(call, "finished")
    assert (finished.targeted, finished.installed, finished.installed_fraction) == (3, 3, 1.0)
    assert set(finished.t_bcast) == {"0.5", "0.9", "1.0"}
    assert finished.t_bcast["1.0"] >= finished.t_bcast["0.5"] >= 0.5
    assert sorted(name for c in finished.chains for name in c.names) == ["name-a", "name-b", "name-c"]
    status = await stub.GetStatus(pb.StatusRequest())
    assert {r.installed for r in status.relays} == {1}
    assert sorted(r.position for r in status.relays) == [0, 1, 2]


async def test_the_same_version_again_is_answered_with_its_root_and_status(stub: CoordinatorStub) -> None:
    origin, relays = await fleet(stub, ["a", "b"])
    finished = await broadcast(stub, origin, relays, 1, version=7)
    already = await event(stub.Publish(publish_request(2, version=7)), "already")
    assert already.root == ROOT
    assert publication_json(already.publication) == publication_json(finished)


async def test_versions_only_grow(stub: CoordinatorStub) -> None:
    origin, relays = await fleet(stub, ["a"])
    await broadcast(stub, origin, relays, 1, version=7)
    code, kind, message = await error_of(stub.Publish(publish_request(2, version=6)))
    assert (code, kind) == (grpc.StatusCode.ALREADY_EXISTS, "conflict")
    assert "7" in message
    assert (await broadcast(stub, origin, relays, 3, root=ROOT_2)).version == 8


async def test_without_workers_there_is_nothing_to_publish_to(stub: CoordinatorStub) -> None:
    await Node(stub, "origin", pb.ROLE_ORIGIN).join()
    code, kind, message = await error_of(stub.Publish(publish_request(1)))
    assert (code, kind) == (grpc.StatusCode.FAILED_PRECONDITION, "no_workers")
    assert message


async def test_bad_publish_requests_name_the_field(stub: CoordinatorStub) -> None:
    code, kind, message = await error_of(stub.Publish(publish_request(1, until=1.5)))
    assert (code, kind) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid")
    assert "until" in message


async def test_cancel_ends_the_publish_call_and_takes_the_object_away(stub: CoordinatorStub) -> None:
    origin, relays = await fleet(stub, ["a"])
    call = stub.Publish(publish_request(1))
    version = (await event(call, "accepted")).version
    await origin.offer(1, version)
    await relays[0].until(lambda a: len(a.targets) == 1)
    await stub.Cancel(pb.CancelRequest(version=version))
    code, kind, _ = await error_of(call)
    assert (code, kind) == (grpc.StatusCode.CANCELLED, "cancelled")
    await relays[0].until(lambda a: len(a.targets) == 0)
    code, kind, _ = await error_of(stub.Cancel(pb.CancelRequest(version=99)))
    assert (code, kind) == (grpc.StatusCode.NOT_FOUND, "not_found")


async def test_a_source_that_changes_fails_the_publication(stub: CoordinatorStub) -> None:
    origin, _ = await fleet(stub, ["a"])
    call = stub.Publish(publish_request(1))
    await origin.offer(1, (await event(call, "accepted")).version)
    await origin.send(source_failed=pb.SourceFailed(object_id=object_id(1), reason="model.safetensors changed"))
    code, kind, message = await error_of(call)
    assert (code, kind) == (grpc.StatusCode.ABORTED, "failed")
    assert "model.safetensors changed" in message


async def test_a_publication_goes_on_without_its_watcher_and_takes_it_back(stub: CoordinatorStub) -> None:
    origin, relays = await fleet(stub, ["a"])
    call = stub.Publish(publish_request(1))
    version = (await event(call, "accepted")).version
    call.cancel()
    await origin.offer(1, version)
    await origin.announce(1)
    await relays[0].until(lambda a: a.targets[0].root == ROOT if a.targets else False)
    again = stub.Publish(publish_request(1))
    assert (await event(again, "accepted")).version == version
    await relays[0].install(1, version)
    assert (await event(again, "finished")).installed == 1


async def test_a_relay_that_drains_is_released_and_its_child_moved(stub: CoordinatorStub) -> None:
    origin, relays = await fleet(stub, ["a", "b"])
    call = stub.Publish(publish_request(1))
    await origin.offer(1, (await event(call, "accepted")).version)
    for relay in relays:
        await relay.until(lambda a: len(a.edges) == 1)
    chain = parents(relays)
    head = next(relay for relay in relays if chain[relay.worker_id] == "origin")
    tail = next(relay for relay in relays if relay is not head)
    draining = asyncio.ensure_future(stub.Drain(pb.DrainRequest(name=head.hello.name)))
    await tail.until(lambda a: a.edges[0].parent.worker_id == "origin")
    async with asyncio.timeout(LIMIT_S):
        await draining
    code, kind, _ = await error_of(stub.Drain(pb.DrainRequest(name="nobody")))
    assert (code, kind) == (grpc.StatusCode.NOT_FOUND, "not_found")


async def test_only_a_dead_worker_can_be_forgotten(stub: CoordinatorStub) -> None:
    node = await Node(stub, "w1").join()
    code, _, message = await error_of(stub.Forget(pb.ForgetRequest(name="name-w1")))
    assert code is not grpc.StatusCode.OK
    assert "name-w1" in message
    await node.leave()
    async with asyncio.timeout(LIMIT_S):
        async for status in stub.WatchStatus(pb.StatusRequest()):
            if status.relays[0].state in ("absent", "lost"):
                break
    await stub.Forget(pb.ForgetRequest(name="name-w1"))
    assert not (await stub.GetStatus(pb.StatusRequest())).relays


async def test_watch_status_shows_what_changes(stub: CoordinatorStub) -> None:
    watch = aiter(stub.WatchStatus(pb.StatusRequest()))
    assert not (await anext(watch)).relays
    await Node(stub, "w1").join()
    async with asyncio.timeout(LIMIT_S):
        async for status in watch:
            if status.relays:
                break
    assert status.run == "alpha"


async def test_the_standard_health_service_answers(running: Running) -> None:
    async with grpc.aio.insecure_channel(str(running[0].address)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reply = await health.Check(health_pb2.HealthCheckRequest(service="chappe.v1.Coordinator"))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_stopping_coordinator_says_so_on_every_stream(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(open_coordinator(settings(tmp_path)))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(str(running.address)))
        stub = CoordinatorStub(channel)
        _, relays = await fleet(stub, ["a"])
        publishing, watching = stub.Publish(publish_request(1)), stub.WatchStatus(pb.StatusRequest())
        await event(publishing, "accepted")
        await anext(aiter(watching))
        closing = asyncio.ensure_future(running.close())
        ended = await relays[0].end()
        assert isinstance(ended, grpc.aio.AioRpcError)
        assert (ended.code(), ended.details()) == (grpc.StatusCode.UNAVAILABLE, "the coordinator stops")
        for call in (publishing, watching):
            code, kind, message = await error_of(call)
            assert (code, kind, message) == (grpc.StatusCode.UNAVAILABLE, "", "the coordinator stops")
        await closing
