"""Stripes over real gRPC and data connections: several parents, one sink, each with its own chunks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fakes import OBJECT_ID, MemoryOrigin, Node, start_node, token, until

from chappe.core.ledger import OPEN_END
from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.core.reasons import ParentLossReason
from chappe.core.stripemap import StripeMap
from chappe.hop.client import build_request
from chappe.hop.course import Carry, Course
from chappe.hop.guard import Ticket
from chappe.hop.net import parse_address
from chappe.hop.receive import Receiver
from chappe.hop.stream import ChildStream
from chappe.hop.tcp_listen import TcpListener
from chappe.hop.tcp_receive import TcpRoute
from chappe.v1.relay_pb2 import FetchRequest, Range, Watermark
from chappe.v1.relay_pb2 import StripeMap as StripeMapMessage
from chappe.wire.frames import ChunkBatch, Reply, decode_reply, encode_watermark

CHUNKS = 41
PAYLOAD = os.urandom((CHUNKS - 1) * CHUNK_BYTES_PLAIN + 77)
MAP = StripeMap((2, 1, 1))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


def of_stripe(stripe: int, stop: int = CHUNKS) -> list[int]:
    return [c for a, b in MAP.within(stripe, [(0, stop)], CHUNKS) for c in range(a, b)]


async def fetch_stripe(child: Node, parent: Node, stripe: int, **options: Any) -> ParentLossReason | None:
    end = await child.fetch_from(parent, edge={"stripe": stripe}, stripe=stripe, stripes=MAP, **options)
    return end.reason


async def test_three_parents_fill_one_ledger_and_nothing_comes_twice(stack: AsyncExitStack) -> None:
    parents = []
    for number in range(3):
        source = MemoryOrigin(PAYLOAD)
        source.release()
        parents.append(await start_node(stack, f"p{number}", source))
    child = await start_node(stack, "child")
    ends = await asyncio.gather(*(fetch_stripe(child, parents[stripe], stripe) for stripe in range(3)))
    assert ends == [None] * 3
    assert child.object.payload() == PAYLOAD
    for stripe, parent in enumerate(parents):
        assert sorted(parent.object.reads) == of_stripe(stripe)


@pytest.mark.parametrize("streams", [1, 3])
async def test_over_data_connections_too(stack: AsyncExitStack, streams: int) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(10)
    parent, child = await start_node(stack, "parent", source), await start_node(stack, "child")
    parent.service.tcp = listener = await TcpListener.open(parse_address("127.0.0.1:0"), None)
    stack.push_async_callback(listener.close)
    route = TcpRoute.to(parent.server.address, None, "parent", streams=streams)
    fetches = [asyncio.ensure_future(fetch_stripe(child, parent, stripe, tcp=route)) for stripe in range(3)]
    await until(child.object.signal, lambda: len(child.object.ledger.held) == 10)
    source.release()
    assert await asyncio.gather(*fetches) == [None] * 3
    assert child.object.payload() == PAYLOAD
    assert len(source.reads) == CHUNKS


async def test_a_relay_passes_its_stripes_on_while_they_come(stack: AsyncExitStack) -> None:
    """Two chains with the same two relays in opposite order, from one origin."""
    source = MemoryOrigin(PAYLOAD)
    source.release(13)
    origin, a, b = [await start_node(stack, n, o) for n, o in (("origin", source), ("a", None), ("b", None))]
    hops = [(origin, a, 0), (a, b, 0), (origin, b, 1), (b, a, 1), (origin, a, 2), (a, b, 2)]
    fetches = [asyncio.ensure_future(fetch_stripe(child, parent, stripe)) for parent, child, stripe in hops]
    for node in (a, b):
        await until(node.object.signal, lambda node=node: len(node.object.ledger.held) == 13)  # type: ignore[misc]
    source.release()
    assert await asyncio.gather(*fetches) == [None] * len(hops)
    assert a.object.payload() == b.object.payload() == PAYLOAD
    assert len(source.reads) == CHUNKS, "the origin sent everything once"


async def test_the_chunks_of_a_stripe_are_known_when_the_header_is(stack: AsyncExitStack) -> None:
    """A child that asks its parent before either has the header, at two parents that get it at different times."""
    source = MemoryOrigin(PAYLOAD)
    source.release()
    origin = await start_node(stack, "origin", source)
    early, late, child = [await start_node(stack, name) for name in ("early", "late", "child")]
    asked = [asyncio.ensure_future(fetch_stripe(child, p, s)) for p, s in ((early, 0), (late, 1))]
    await until(early.service.streams.meters.signal, lambda: early.service.streams.meters.flowing)
    assert (await early.fetch_from(origin, edge={"slot": 1})).reason is None
    await until(child.object.signal, lambda: len(child.object.ledger.held) == len(of_stripe(0)))
    assert (await late.fetch_from(origin, edge={"slot": 2})).reason is None
    assert await asyncio.gather(*asked) == [None, None]
    assert [c for a, b in child.object.ledger.held for c in range(a, b)] == sorted(of_stripe(0) + of_stripe(1))


async def test_a_parent_without_more_of_the_stripe_is_starved_not_stalled() -> None:
    """It holds more than the child, of other stripes: its watermarks say that it has sent what it has of this one."""
    source = MemoryOrigin(PAYLOAD)
    source.release(20)
    marks: list[Watermark] = []
    sent = 0
    wrote = asyncio.Event()

    async def write(frame: bytes) -> None:
        nonlocal sent
        reply = decode_reply(frame)
        if isinstance(reply, ChunkBatch):
            sent += len(reply.chunks)
        if isinstance(reply, Watermark):
            marks.append(reply)
            if sent == len(of_stripe(1, 20)):
                wrote.set()

    request = FetchRequest(
        object_id=OBJECT_ID,
        stripe=1,
        token=token("parent", "child", stripe=1),
        lacks_header=True,
        lacks_pages=[Range(start=0, stop=OPEN_END)],
        lacks_chunks=[Range(start=0, stop=OPEN_END)],
        stripes=StripeMapMessage(weights=MAP.weights, run=MAP.run),
    )
    ticket = Ticket((OBJECT_ID, 1, 0), "child", 1, 1, fallback=False, progressed_s=0.0)
    serving = asyncio.ensure_future(ChildStream(source, request, ticket, write).run())
    async with asyncio.timeout(30):
        await wrote.wait()
    assert marks[-1].chunks_held == sent == len(of_stripe(1, 20))
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def said(replies: list[Reply], stall_floor_s: float) -> tuple[ParentLossReason | None, str]:
    """What a child of stripe 1 makes of these replies, and of the last one for ever."""
    sink = MemoryOrigin(PAYLOAD)
    for chunk in of_stripe(0):
        sink.ledger.held.add(chunk, chunk + 1)  # came from another parent
    request = build_request(sink, 1, token("parent", "child", stripe=1), (), MAP)
    receiver = Receiver(request, sink, stall_floor_s=stall_floor_s)
    turns = 0

    async def read() -> tuple[Reply, int] | None:
        nonlocal turns
        await asyncio.sleep(0.01)
        turns += 1
        if turns > 40:
            return None
        return replies[min(turns - 1, len(replies) - 1)], 1

    end = await receiver.run(read)
    return end.reason, end.detail


async def test_a_child_counts_this_streams_chunks_only() -> None:
    assert (await said([Watermark(chunks_held=0)], 0.05))[0] is ParentLossReason.BROKEN  # it waited to the end
    assert (await said([Watermark(chunks_held=1)], 0.05))[0] is ParentLossReason.STALLED


async def test_a_chunk_that_waits_for_its_turn_is_not_to_be_had_yet() -> None:
    """A parent's other stripes may have its uplink for longer than a child has patience."""
    source = MemoryOrigin(PAYLOAD)
    source.release()
    request = build_request(MemoryOrigin(PAYLOAD), 1, token("parent", "child", stripe=1), (), MAP)
    course = Course(source, request)
    sent = 0
    while True:
        match course.next(0.0, lambda _: 2):
            case Carry(_, chunks):
                waiting = Watermark(chunks_held=sent)
                assert course.mark(0.0, unsent=len(chunks)).reply == encode_watermark(sent, CHUNKS, True)
                assert (await said([waiting], 0.05))[0] is ParentLossReason.BROKEN  # it waited to the end
                sent += len(chunks)
                break
            case _:
                continue
    assert course.mark(0.0).reply == encode_watermark(sent + 1, CHUNKS, True)


async def test_chunks_of_another_stripe_were_not_asked_for() -> None:
    chunk = of_stripe(0)[0]
    reason, detail = await said([ChunkBatch([(chunk, PAYLOAD[:CHUNK_BYTES_PLAIN])])], 5.0)
    assert reason is ParentLossReason.PROTOCOL
    assert "was not asked for" in detail


async def test_maps_that_cannot_be_are_refused_by_the_parent(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release()
    parent, child = await start_node(stack, "parent", source), await start_node(stack, "child")
    end = await child.fetch_from(parent, edge={"stripe": 5}, stripe=5, stripes=StripeMap((1,) * 6))
    assert end.reason is None
    channel_request = build_request(child.object, 5, token("parent", "child", stripe=5), (), StripeMap((1,) * 6))
    channel_request.stripes.weights[:] = [1, 1]  # five of two
    ticket = Ticket((OBJECT_ID, 5, 0), "child", 1, 1, fallback=False, progressed_s=0.0)

    async def write(_: bytes) -> None:
        raise AssertionError("nothing is sent")

    with pytest.raises(Exception, match="stripe 5 of 2"):
        ChildStream(source, channel_request, ticket, write)
