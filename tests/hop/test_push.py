from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fakes import OBJECT_ID, MemoryOrigin, Node, start_node, token, until

import chappe.hop.push
from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.core.reasons import ParentLossReason
from chappe.errors import DiskFullError
from chappe.hop.client import build_request
from chappe.hop.net import open_channel
from chappe.hop.push import ExpectedPush, PushEnd, push
from chappe.hop.receive import FetchEnd, Receiver
from chappe.v1.relay_pb2 import EdgeToken, EndReason

PAYLOAD = os.urandom(9 * CHUNK_BYTES_PLAIN + 17)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def receive(node: Node, **changes: Any) -> FetchEnd:
    fields: dict[str, Any] = {"parent": "origin", "parent_name": "origin", "epoch": 1, "generation": 1}
    edge = ExpectedPush(OBJECT_ID, 0, **(fields | changes))
    return await node.inbox.receive(
        edge, lambda: build_request(node.object, 0, EdgeToken()), lambda request: Receiver(request, node.object)
    )


async def push_to(parent: Node, child: Node, /, **edge: Any) -> PushEnd:
    async with open_channel(child.server.address, None, child.worker_id) as channel:
        return await push(
            channel,
            parent.object,
            0,
            token("origin", "r1", **edge),
            parent.guard,
            streams=parent.service.streams,
        )


async def pair(stack: AsyncExitStack) -> tuple[Node, MemoryOrigin, Node]:
    source = MemoryOrigin(PAYLOAD)
    return await start_node(stack, "origin", source), source, await start_node(stack, "r1")


async def test_everything_arrives(stack: AsyncExitStack) -> None:
    origin, source, relay = await pair(stack)
    source.release(3)
    received = asyncio.ensure_future(receive(relay))
    await asyncio.sleep(0)
    pushed = asyncio.ensure_future(push_to(origin, relay))
    await until(relay.object.signal, lambda: len(relay.object.ledger.held) == 3)
    source.release()
    assert (await received).reason is None
    assert (await pushed).reason == EndReason.END_REASON_COMPLETE
    assert relay.object.payload() == PAYLOAD
    assert origin.service.streams.forwarded_bytes_total > len(PAYLOAD)
    assert origin.guard.children() == []


async def test_nobody_waits_for_it(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chappe.hop.push, "PARK_S", 0.01)
    origin, _, relay = await pair(stack)
    end = await push_to(origin, relay)
    assert end.reason == EndReason.END_REASON_UNKNOWN_OBJECT
    assert "nothing is wanted from this parent" in end.detail
    assert origin.guard.children() == []


async def parked(node: Node, calls: int = 1) -> None:
    """That many calls have come to it, and have not been looked at since."""
    changed = node.inbox._changed
    while changed.count < calls:
        await changed.wait(changed.count)


async def test_a_call_that_comes_too_early_is_parked(stack: AsyncExitStack) -> None:
    origin, source, relay = await pair(stack)
    source.release()
    pushed = asyncio.ensure_future(push_to(origin, relay))
    await parked(relay)
    assert (await receive(relay)).reason is None
    assert (await pushed).reason == EndReason.END_REASON_COMPLETE
    assert relay.object.payload() == PAYLOAD


async def test_of_two_parked_calls_of_a_parent_the_newer_counts(stack: AsyncExitStack) -> None:
    origin, source, relay = await pair(stack)
    source.release()
    first = asyncio.ensure_future(push_to(origin, relay))
    await parked(relay)
    second = asyncio.ensure_future(push_to(origin, relay))
    assert (await first).reason == EndReason.END_REASON_UNKNOWN_OBJECT
    assert (await receive(relay)).reason is None
    assert (await second).reason == EndReason.END_REASON_COMPLETE


async def test_a_parked_call_that_is_stale_when_it_is_wanted_is_refused(stack: AsyncExitStack) -> None:
    origin, source, relay = await pair(stack)
    source.release()
    stale = asyncio.ensure_future(push_to(origin, relay))
    await parked(relay)
    received = asyncio.ensure_future(receive(relay, epoch=2))
    assert "the token's epoch is 1, the edge's 2" in (await stale).detail
    assert (await push_to(origin, relay, epoch=2)).reason == EndReason.END_REASON_COMPLETE
    assert (await received).reason is None


async def test_who_stops_lets_go_of_parked_calls_and_parks_no_more(stack: AsyncExitStack) -> None:
    origin, _, relay = await pair(stack)
    pushed = asyncio.ensure_future(push_to(origin, relay))
    await parked(relay)
    relay.service.leave()
    assert (await pushed).reason == EndReason.END_REASON_UNKNOWN_OBJECT
    assert (await push_to(origin, relay)).reason == EndReason.END_REASON_UNKNOWN_OBJECT


async def test_a_call_for_somebody_else_is_not_parked(stack: AsyncExitStack) -> None:
    origin, _, relay = await pair(stack)
    assert "another child" in (await push_to(origin, relay, child="r2")).detail
    assert relay.inbox._changed.count == 0


@pytest.mark.parametrize(
    ("expected", "edge", "says"),
    [
        ({"parent": "other", "parent_name": "other"}, {}, "parent of this edge is 'other'"),
        ({"epoch": 9}, {}, "epoch is 1, the edge's 9"),
        ({"generation": 2}, {}, "another generation of this child"),
    ],
)
async def test_the_wrong_parent_is_refused_and_the_right_one_still_expected(
    stack: AsyncExitStack, expected: dict[str, Any], edge: dict[str, Any], says: str
) -> None:
    origin, source, relay = await pair(stack)
    source.release()
    received = asyncio.ensure_future(receive(relay, **expected))
    await asyncio.sleep(0)
    end = await push_to(origin, relay, **edge)
    assert says in end.detail
    assert not received.done()
    received.cancel()
    await asyncio.gather(received, return_exceptions=True)


async def test_a_newer_edge_replaces_the_older(stack: AsyncExitStack) -> None:
    _, _, relay = await pair(stack)
    first = asyncio.ensure_future(receive(relay))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(receive(relay, epoch=2))
    assert (await first).reason is ParentLossReason.EVICTED
    assert not second.done()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_a_rotten_chunk(stack: AsyncExitStack) -> None:
    origin, source, relay = await pair(stack)
    source.release()
    source.rot(4)
    received = asyncio.ensure_future(receive(relay))
    await asyncio.sleep(0)
    pushed = asyncio.ensure_future(push_to(origin, relay))
    end = await received
    assert (end.reason, end.rejected) == (ParentLossReason.CORRUPT, (4,))
    await pushed
    assert origin.guard.children() == []


async def test_a_full_disk_is_the_callers_to_hear(stack: AsyncExitStack) -> None:
    origin, source, relay = await pair(stack)
    source.release()
    relay.object.put_error = DiskFullError("no room")
    received = asyncio.ensure_future(receive(relay))
    await asyncio.sleep(0)
    pushed = asyncio.ensure_future(push_to(origin, relay))
    with pytest.raises(DiskFullError):
        await received
    await pushed


async def test_a_child_that_leaves_ends_the_push(stack: AsyncExitStack) -> None:
    origin, source, relay = await pair(stack)
    source.release(2)
    received = asyncio.ensure_future(receive(relay))
    await asyncio.sleep(0)
    pushed = asyncio.ensure_future(push_to(origin, relay))
    await until(relay.object.signal, lambda: len(relay.object.ledger.held) == 2)
    received.cancel()
    await asyncio.gather(received, return_exceptions=True)
    end = await pushed
    assert end.reason == EndReason.END_REASON_UNSPECIFIED
    assert origin.guard.children() == []


async def test_the_guard_refuses_a_push_as_it_would_a_fetch(stack: AsyncExitStack) -> None:
    origin, _, relay = await pair(stack)
    assert (await push_to(origin, relay, run="other")).reason == EndReason.END_REASON_BAD_TOKEN


async def test_a_parent_that_goes_away_breaks_it(stack: AsyncExitStack) -> None:
    origin, source, relay = await pair(stack)
    source.release(2)
    received = asyncio.ensure_future(receive(relay))
    await asyncio.sleep(0)
    pushed = asyncio.ensure_future(push_to(origin, relay))
    await until(relay.object.signal, lambda: len(relay.object.ledger.held) == 2)
    pushed.cancel()
    await asyncio.gather(pushed, return_exceptions=True)
    assert (await received).reason is ParentLossReason.BROKEN


async def test_a_fault_of_this_program_is_told_to_whoever_waits(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin, source, relay = await pair(stack)

    def fault(*_: object, **__: object) -> None:
        raise TypeError("of this program")

    monkeypatch.setattr(relay.object, "put_chunks", fault)
    source.release()
    pushing = asyncio.ensure_future(push_to(origin, relay))
    with pytest.raises(TypeError, match="of this program"):
        await asyncio.wait_for(receive(relay), 30)
    await asyncio.wait_for(pushing, 30)
