from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fakes import OBJECT_ID, MemoryOrigin, Node, start_node, token, until

import chappe.hop.push
from chappe.core.effects import PeerRef
from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import PushOrder
from chappe.hop.client import build_request
from chappe.hop.net import open_channel, parse_address
from chappe.hop.push import ExpectedPush, PushEnd
from chappe.hop.pushes import PushEdge, Pushes
from chappe.hop.receive import FetchEnd, Receiver
from chappe.v1.relay_pb2 import EdgeToken, EndReason

PAYLOAD = os.urandom(5 * CHUNK_BYTES_PLAIN + 17)


class Parent:
    """A node that dials its children, with what its calls came to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.ends: asyncio.Queue[PushEnd] = asyncio.Queue()
        self.tasks: set[asyncio.Task[None]] = set()
        self.pushes = Pushes(
            catalog=node.catalog,
            guard=node.guard,
            streams=node.service.streams,
            open_channel=lambda peer: open_channel(parse_address(peer.address), None, peer.name),
            spawn=lambda _, task: self.tasks.add(task),
            on_end=lambda _, end: self.ends.put_nowait(end),
        )

    async def ended(self, reason: Any) -> PushEnd:
        """The next end with this reason."""
        async with asyncio.timeout(30):
            while (end := await self.ends.get()).reason != reason:
                pass
        return end

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def start_parent(stack: AsyncExitStack, source: MemoryOrigin) -> Parent:
    parent = Parent(await start_node(stack, "origin", source))
    stack.push_async_callback(parent.stop)
    return parent


def edge_to(child: Node, *, epoch: int = 1, generation: int = 1, address: str | None = None) -> PushEdge:
    peer = PeerRef(child.worker_id, child.worker_id, address or str(child.server.address))
    introduction = token("origin", child.worker_id, epoch=epoch, child_generation=generation)
    return PushEdge(OBJECT_ID, 0, PushOrder(peer, 0, generation, epoch, introduction.SerializeToString()))


def receive(child: Node, epoch: int = 1) -> asyncio.Task[FetchEnd]:
    return asyncio.ensure_future(
        child.inbox.receive(
            ExpectedPush(OBJECT_ID, 0, "origin", "origin", epoch, 1),
            lambda: build_request(child.object, 0, EdgeToken()),
            lambda request: Receiver(request, child.object),
        )
    )


async def test_a_child_that_wants_nothing_is_called_again(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chappe.hop.push, "PARK_S", 0.01)
    source = MemoryOrigin(PAYLOAD)
    source.release()
    parent, child = await start_parent(stack, source), await start_node(stack, "r1")
    parent.pushes.assign([edge_to(child)])
    assert "nothing is wanted" in (await parent.ended(EndReason.END_REASON_UNKNOWN_OBJECT)).detail
    received = receive(child)
    await parent.ended(EndReason.END_REASON_COMPLETE)
    assert (await received).reason is None
    assert child.object.payload() == PAYLOAD


async def test_what_rots_at_a_child_that_has_all_comes_again_without_news(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release()
    parent, child = await start_parent(stack, source), await start_node(stack, "r1")
    parent.pushes.assign([edge_to(child)])
    assert (await receive(child)).reason is None
    for _ in range(2):
        child.object.ledger.drop(1, 2)
        assert (await receive(child)).reason is None
    assert child.object.payload() == PAYLOAD


async def test_news_of_the_edge_replace_a_parked_call(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release()
    parent, child = await start_parent(stack, source), await start_node(stack, "r1")
    parent.pushes.assign([edge_to(child)])
    await until(child.inbox._changed, lambda: child.inbox._changed.count == 1)
    parent.pushes.assign([edge_to(child, epoch=2)])
    await until(child.inbox._changed, lambda: child.inbox._changed.count == 2)
    assert (await receive(child, epoch=2)).reason is None
    assert len(parent.tasks) == 1


async def test_told_the_same_again_the_call_goes_on_and_a_newer_token_is_used_next(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(2)
    parent, child = await start_parent(stack, source), await start_node(stack, "r1")
    received = receive(child)
    parent.pushes.assign([edge_to(child)])
    await until(child.object.signal, lambda: len(child.object.ledger.held) == 2)
    parent.pushes.assign([edge_to(child, epoch=2)])
    source.release()
    assert (await received).reason is None
    assert len(parent.tasks) == 1
    await parent.ended(EndReason.END_REASON_COMPLETE)
    child.object.ledger.drop(1, 2)  # it rots, and is asked for on the newer edge
    again = receive(child, epoch=2)
    parent.pushes.assign([edge_to(child, epoch=3)])  # news: not waited for longer
    assert (await again).reason is None
    assert child.object.payload() == PAYLOAD


async def test_a_successor_takes_the_slot(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(2)
    parent = await start_parent(stack, source)
    first, second = await start_node(stack, "r1"), await start_node(stack, "r2")
    old, new = receive(first), receive(second, epoch=2)
    parent.pushes.assign([edge_to(first)])
    await until(first.object.signal, lambda: len(first.object.ledger.held) == 2)
    parent.pushes.assign([edge_to(second, epoch=2)])
    assert (await old).reason is ParentLossReason.EVICTED
    source.release()
    assert (await new).reason is None
    assert second.object.payload() == PAYLOAD


async def test_who_is_named_no_more_is_not_dialled_again(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    parent, child = await start_parent(stack, source), await start_node(stack, "r1")
    parent.pushes.assign([edge_to(child)])
    await until(child.inbox._changed, lambda: child.inbox._changed.count == 1)  # it is parked
    parent.pushes.assign([])
    await asyncio.wait_for(asyncio.gather(*parent.tasks), 30)


@pytest.mark.parametrize("address", ["not an address", "127.0.0.1:1"])
async def test_who_cannot_be_reached_is_told_once(stack: AsyncExitStack, address: str) -> None:
    parent, child = await start_parent(stack, MemoryOrigin(PAYLOAD)), await start_node(stack, "r1")
    parent.pushes.assign([edge_to(child, address=address)])
    assert (await parent.ended(EndReason.END_REASON_UNSPECIFIED)).detail
    parent.pushes.assign([edge_to(child)])  # it has moved: another call
    received = receive(child)
    parent.node.object.drop()
    assert (await received).reason is ParentLossReason.DROPPED
