"""A child and a parent that is silent, stalls, or breaks the protocol: real gRPC, a scripted parent."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest
from fakes import MemoryOrigin, Node, background, start_node

from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.core.reasons import ParentLossReason
from chappe.hop import client, receive
from chappe.hop.client import FetchEnd
from chappe.hop.net import open_server, parse_address
from chappe.hop.receive import Receiver
from chappe.hop.server import RELAY_SERVICE
from chappe.v1.relay_pb2 import End, EndReason, FetchReply, FetchRequest, Watermark
from chappe.wire.manifest import split_header

PAYLOAD = os.urandom(20 * CHUNK_BYTES_PLAIN + 123)


async def odd_parent(
    stack: AsyncExitStack, replies: list[FetchReply], *, hang: bool = False, speaks: asyncio.Event | None = None
) -> Node:
    """A node whose Fetch sends just this, once it `speaks`."""
    node = await start_node(stack, "origin")

    async def answer(request: FetchRequest, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        if speaks is not None:
            await speaks.wait()
        for reply in replies:
            await context.write(reply.SerializeToString())
        if hang:
            await asyncio.Event().wait()

    node.service._fetch = answer  # type: ignore[method-assign]

    node.server = await open_server(parse_address("127.0.0.1:0"), None, {RELAY_SERVICE: node.service.add_to})
    stack.push_async_callback(node.server.stop, 0)
    return node


def genuine(source: MemoryOrigin) -> list[FetchReply]:

    assert source.header_bytes is not None
    replies = [FetchReply(header=part) for part in split_header(source.header_bytes)]
    for i in range(source.pages_held):
        page = FetchReply()
        page.page.ParseFromString(source.page_bytes(i))
        replies.append(page)
    return replies


def chunk(*pairs: tuple[int, bytes]) -> FetchReply:
    reply = FetchReply()
    for index, data in pairs:
        reply.chunks.chunks.add(index=index, data=data)
    return reply


def protocol_cases() -> dict[str, list[FetchReply]]:
    source = MemoryOrigin(PAYLOAD)
    source.release()
    known = genuine(source)
    header, pages = known[0], known[1:]
    first = chunk((0, source._all[0]))
    complete = FetchReply()
    complete.end.reason = EndReason.END_REASON_COMPLETE
    unspecified = FetchReply()
    unspecified.end.detail = "?"
    return {
        "chunk before the header": [first],
        "page before the header": [pages[0]],
        "chunk before its page": [header, first],
        "page out of order": [header, pages[1]],
        "page twice": [header, pages[0], pages[0]],
        "header twice": [header, header],
        "chunk twice": [*known, first, first],
        "chunk twice in one message": [*known, chunk((0, source._all[0]), (0, source._all[0]))],
        "chunk outside": [*known, chunk((21, source._all[0]))],
        "chunk too short": [*known, chunk((0, b"x"))],
        "chunk empty": [*known, chunk((0, b""))],
        "no chunks": [*known, chunk()],
        "33 chunks": [*known, chunk(*((i, b"") for i in range(33)))],
        "empty reply": [FetchReply()],
        "complete, and it is not": [*known, complete],
        "an end without a reason": [unspecified],
    }


@pytest.mark.parametrize("case", protocol_cases())
async def test_a_parent_that_breaks_the_protocol(stack: AsyncExitStack, case: str) -> None:
    parent = await odd_parent(stack, protocol_cases()[case], hang=True)
    relay = await start_node(stack, "r1")
    assert (await relay.fetch_from(parent)).reason is ParentLossReason.PROTOCOL


async def test_a_parent_that_is_ahead_and_sends_nothing_has_stalled(stack: AsyncExitStack) -> None:
    marks = [FetchReply(watermark=Watermark(chunks_held=9))]
    parent = await odd_parent(stack, marks, hang=True)
    relay = await start_node(stack, "r1")
    assert (await relay.fetch_from(parent, stall_floor_s=0.3)).reason is ParentLossReason.STALLED
    mute = await odd_parent(stack, [], hang=True)
    assert (await relay.fetch_from(mute, stall_floor_s=0.3)).reason is ParentLossReason.UNREACHABLE


async def test_a_pause_of_this_process_does_not_end_the_call(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that was given up in time, and then found to have been a pause, used to cancel the call with it."""
    monkeypatch.setattr(receive, "PAUSE_S", -1.0)  # whoever is woken has been paused
    source = MemoryOrigin(PAYLOAD[: 2 * CHUNK_BYTES_PLAIN])
    source.release()
    replies = [*genuine(source), *(chunk((i, source.read_chunk(i))) for i in range(2))]
    replies.append(FetchReply(end=End(reason=EndReason.END_REASON_COMPLETE)))
    paused, speaks = asyncio.Event(), asyncio.Event()
    looks, left = 0, Receiver._left_s

    def looked(self: Receiver, now: float, quiet_s: float) -> float:
        nonlocal looks
        looks += 1
        if looks >= 5:
            paused.set()
        return left(self, now, quiet_s)

    monkeypatch.setattr(Receiver, "_left_s", looked)
    parent = await odd_parent(stack, replies, speaks=speaks)
    relay = await start_node(stack, "r1")
    fetching = background(stack, relay.fetch_from(parent, stall_floor_s=0.05))
    await asyncio.wait_for(paused.wait(), 30)
    speaks.set()
    ended = await asyncio.wait_for(fetching, 30)
    assert ended == FetchEnd(None)
    assert relay.object.payload() == PAYLOAD[: 2 * CHUNK_BYTES_PLAIN]


async def test_a_call_that_something_else_has_cancelled_is_heard_of(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cancelled:
        async def read(self) -> object:
            raise asyncio.CancelledError  # as grpc.aio does of a call that is over

        def cancel(self) -> None:
            """It has been."""

    parent = await odd_parent(stack, [], hang=True)
    relay = await start_node(stack, "r1")
    monkeypatch.setattr(client, "_method", lambda _: lambda _: Cancelled())
    assert (await relay.fetch_from(parent)).reason is ParentLossReason.BROKEN


async def test_a_hop_of_which_little_is_expected_is_given_the_time_of_a_few_chunks(stack: AsyncExitStack) -> None:
    """It is as silent as one that has stalled, for longer than the floor, and is left alone."""
    marks = [FetchReply(watermark=Watermark(chunks_held=9))]
    parent = await odd_parent(stack, marks, hang=True)
    relay = await start_node(stack, "r1")
    slow = background(stack, relay.fetch_from(parent, stall_floor_s=0.2, expected_bytes_per_s=10_000))
    fast = await relay.fetch_from(parent, stall_floor_s=0.2, expected_bytes_per_s=1e9, edge={"epoch": 2})
    assert fast.reason is ParentLossReason.STALLED
    assert not slow.done()


async def test_a_stream_that_ends_without_a_reason_is_broken(stack: AsyncExitStack) -> None:
    parent = await odd_parent(stack, [FetchReply(watermark=Watermark())])
    relay = await start_node(stack, "r1")
    assert (await relay.fetch_from(parent)).reason is ParentLossReason.BROKEN
