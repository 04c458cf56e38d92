"""The hop over real gRPC on loopback: server and client together."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest
from fakes import OBJECT_ID, MemoryObject, MemoryOrigin, background, start_node, token, until

from chappe.core.ledger import OPEN_END
from chappe.core.manifest import CHUNK_BYTES_MAX, CHUNK_BYTES_PLAIN, FileEntry
from chappe.core.reasons import ParentLossReason
from chappe.errors import DiskFullError
from chappe.hop.client import build_request, fetch
from chappe.hop.guard import AssignedChild
from chappe.hop.limits import TokenBucket
from chappe.hop.net import open_channel
from chappe.v1.relay_pb2 import EndReason, FetchRequest, Range, Watermark
from chappe.v1.relay_pb2_grpc import RelayStub
from chappe.wire.frames import PROTOCOL_VERSION

PAYLOAD = os.urandom(20 * CHUNK_BYTES_PLAIN + 123)


async def test_everything_arrives_bit_for_bit(stack: AsyncExitStack) -> None:
    files = [FileEntry("a", 3 * CHUNK_BYTES_PLAIN + 1), FileEntry("empty", 0), FileEntry("b", len(PAYLOAD) - 196609)]
    source = MemoryOrigin(PAYLOAD, files=files)
    source.release()
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    connected: list[bool] = []
    end = await relay.fetch_from(origin, on_connected=lambda: connected.append(True))
    assert end.reason is None
    assert relay.object.payload() == PAYLOAD
    assert relay.object.header_bytes == source.header_bytes
    assert [relay.object.page_bytes(i) for i in range(relay.object.pages_held)] == [
        source.page_bytes(i) for i in range(source.pages_held)
    ]
    assert connected == [True]
    assert origin.service.streams.forwarded_bytes_total > len(PAYLOAD)
    assert origin.guard.children() == []


async def test_an_object_without_bytes(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(b"", files=[FileEntry("empty", 0)])
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    assert (await relay.fetch_from(origin)).reason is None
    assert relay.object.ledger.complete


@pytest.mark.parametrize("chunk_bytes", [CHUNK_BYTES_PLAIN, CHUNK_BYTES_MAX])
async def test_no_message_comes_near_the_limit(stack: AsyncExitStack, chunk_bytes: int) -> None:
    source = MemoryOrigin(os.urandom(3 * CHUNK_BYTES_MAX + 5), chunk_bytes=chunk_bytes)
    source.release()
    origin = await start_node(stack, "origin", source)
    sizes: list[int] = []
    chunks = 0
    async with open_channel(origin.server.address, None, "origin") as channel:
        async for reply in RelayStub(channel).Fetch(build_request(MemoryObject(), 0, token("origin", "r1"))):
            sizes.append(reply.ByteSize())
            assert 0 <= len(reply.chunks.chunks) <= 32
            chunks += len(reply.chunks.chunks)
    assert chunks == source.manifest.chunks_total  # type: ignore[union-attr]
    assert max(sizes) <= CHUNK_BYTES_MAX + 64


async def test_cut_through_while_the_origin_is_held_at_half(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(10)
    nodes = [await start_node(stack, "origin", source)]
    for i in range(1, 5):
        nodes.append(await start_node(stack, f"r{i}"))
        background(stack, nodes[i].fetch_from(nodes[i - 1]))
    for node in nodes[1:]:
        await until(node.object.signal, lambda node=node: len(node.object.ledger.held) == 10)  # type: ignore[misc]
    source.release()
    for node in nodes[1:]:
        await until(node.object.signal, lambda node=node: node.object.ledger.complete)  # type: ignore[misc]
        assert node.object.payload() == PAYLOAD


async def test_only_what_is_lacked_is_sent(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release()
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    assert source.header_bytes is not None
    relay.object.put_header(source.header_bytes)
    for page in range(3):
        relay.object.put_page(source.page_bytes(page))
    relay.object.put_chunks([(i, source._all[i]) for i in range(2, 11)])
    assert (await relay.fetch_from(origin)).reason is None
    assert relay.object.payload() == PAYLOAD
    assert sorted(source.reads) == [0, 1, *range(11, 21)]


async def test_a_newer_child_evicts_the_present_one(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(4)
    origin = await start_node(stack, "origin", source)
    old, new = await start_node(stack, "r1"), await start_node(stack, "r2")
    first = background(stack, old.fetch_from(origin))
    await until(old.object.signal, lambda: len(old.object.ledger.held) == 4)
    second = background(stack, new.fetch_from(origin, edge={"epoch": 2}))
    assert (await first).reason is ParentLossReason.EVICTED  # type: ignore[attr-defined]
    again = await old.fetch_from(origin)
    assert again.reason is ParentLossReason.STALE
    source.release()
    assert (await second).reason is None  # type: ignore[attr-defined]
    assert new.object.payload() == PAYLOAD


async def test_a_child_older_than_the_assignment_is_stale(stack: AsyncExitStack) -> None:
    origin, relay = await start_node(stack, "origin", MemoryOrigin(PAYLOAD)), await start_node(stack, "r1")
    origin.guard.assign([AssignedChild(OBJECT_ID, 0, 0, "r2", "r2", 1, epoch=5)])
    assert (await relay.fetch_from(origin, edge={"epoch": 4})).reason is ParentLossReason.STALE


async def test_a_fallback_waits_until_the_present_child_stalls(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(4)
    origin = await start_node(stack, "origin", source)
    child, guest = await start_node(stack, "r1"), await start_node(stack, "r2")
    present = background(stack, child.fetch_from(origin))
    await until(child.object.signal, lambda: len(child.object.ledger.held) == 4)
    fallback = {"epoch": 2, "fallback": True}
    assert (await guest.fetch_from(origin, edge=fallback)).reason is ParentLossReason.BUSY
    origin.guard.stall_timeout_s = 0  # whatever it does, it is too slow
    taken = background(stack, guest.fetch_from(origin, edge=fallback))
    assert (await present).reason is ParentLossReason.EVICTED  # type: ignore[attr-defined]
    source.release()
    assert (await taken).reason is None  # type: ignore[attr-defined]
    assert guest.object.payload() == PAYLOAD


@pytest.mark.parametrize(
    ("edge", "reason"),
    [
        ({"run": "other"}, ParentLossReason.BAD_TOKEN),
        ({"parent": "somebody"}, ParentLossReason.BAD_TOKEN),
        ({"object_id": "f" * 32}, ParentLossReason.BAD_TOKEN),
        ({"stripe": 1}, ParentLossReason.BAD_TOKEN),
    ],
)
async def test_a_token_for_something_else(
    stack: AsyncExitStack, edge: dict[str, object], reason: ParentLossReason
) -> None:
    origin, relay = await start_node(stack, "origin", MemoryOrigin(PAYLOAD)), await start_node(stack, "r1")
    assert (await relay.fetch_from(origin, edge=edge)).reason is reason


async def test_unknown_dropped_and_leaving(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(1)
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    origin.catalog.remove(OBJECT_ID)
    assert (await relay.fetch_from(origin)).reason is ParentLossReason.UNKNOWN_OBJECT
    origin.catalog.add(source)
    task = background(stack, relay.fetch_from(origin))
    await until(relay.object.signal, lambda: len(relay.object.ledger.held) == 1)
    origin.service.leave()
    assert (await task).reason is ParentLossReason.LEAVING  # type: ignore[attr-defined]
    assert (await relay.fetch_from(origin)).reason is ParentLossReason.LEAVING


async def test_dropped_at_the_source(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(1)
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    task = background(stack, relay.fetch_from(origin))
    await until(relay.object.signal, lambda: len(relay.object.ledger.held) == 1)
    source.drop()
    assert (await task).reason is ParentLossReason.DROPPED  # type: ignore[attr-defined]


async def test_nobody_there_and_parent_gone(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(1)
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    task = background(stack, relay.fetch_from(origin))
    await until(relay.object.signal, lambda: len(relay.object.ledger.held) == 1)
    await origin.server.stop(0)
    assert (await task).reason is ParentLossReason.BROKEN  # type: ignore[attr-defined]
    assert (await relay.fetch_from(origin)).reason is ParentLossReason.UNREACHABLE


async def test_a_rotten_chunk_is_rejected_rechecked_and_sent_again(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release()
    source.rot(7)
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    end = await relay.fetch_from(origin)
    assert (end.reason, end.rejected) == (ParentLossReason.CORRUPT, (7,))
    assert 7 not in relay.object.ledger.held
    task = background(stack, relay.fetch_from(origin, rejected=end.rejected))
    await until(relay.object.signal, lambda: len(relay.object.ledger.held) == 20)
    assert source.rechecked == [7]
    source.mend(7)
    assert (await task).reason is None  # type: ignore[attr-defined]
    assert relay.object.payload() == PAYLOAD


async def test_a_full_disk_is_the_callers_to_hear(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release()
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    relay.object.put_error = DiskFullError("no room")
    with pytest.raises(DiskFullError):
        await relay.fetch_from(origin)


async def test_a_child_that_does_not_read_harms_nobody(stack: AsyncExitStack) -> None:
    payload = os.urandom(16 << 20)
    source = MemoryOrigin(payload, chunk_bytes=1 << 20)
    source.release()
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    channel = open_channel(origin.server.address, None, "origin")
    stack.push_async_callback(channel.close)
    stopped = RelayStub(channel).Fetch(build_request(MemoryObject(), 0, token("origin", "r2", slot=1)))
    await stopped.read()
    assert (await relay.fetch_from(origin)).reason is None
    assert relay.object.payload() == payload
    (ticket,) = origin.guard.children()
    assert ticket.child == "r2"
    assert origin.service.streams.forwarded_bytes_total < 2 * len(payload)  # the window, and not the payload
    assert origin.service.streams.backlog_bytes() > 0
    released = asyncio.Event()
    release = origin.guard.release

    def seen(ended: object) -> None:
        release(ticket)
        released.set()

    origin.guard.release = seen  # type: ignore[method-assign]
    ticket.end(EndReason.END_REASON_EVICTED)
    async with asyncio.timeout(10):
        await released.wait()  # its blocked write does not keep the slot


async def test_a_starved_child_hears_watermarks_and_does_not_call_it_a_stall(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(PAYLOAD)
    source.release(4)
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    marks: asyncio.Queue[Watermark] = asyncio.Queue()
    task = background(stack, relay.fetch_from(origin, on_watermark=marks.put_nowait, stall_floor_s=0.7))
    seen = [await marks.get() for _ in range(4)]
    assert [(m.chunks_held, m.chunks_total, m.complete) for m in seen] == [(4, 21, False)] * 4
    source.release()
    assert (await task).reason is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (FetchRequest(protocol_version=99), grpc.StatusCode.FAILED_PRECONDITION),
        (
            FetchRequest(
                protocol_version=PROTOCOL_VERSION,
                object_id=OBJECT_ID,
                token=token("origin", "r1"),
                lacks_chunks=[Range(start=5, stop=3)],
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            FetchRequest(
                protocol_version=PROTOCOL_VERSION,
                object_id=OBJECT_ID,
                token=token("origin", "r1"),
                expected_bytes_per_s=float("nan"),
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
async def test_a_request_that_makes_no_sense(
    stack: AsyncExitStack, request_: FetchRequest, code: grpc.StatusCode
) -> None:
    origin, relay = await start_node(stack, "origin", MemoryOrigin(PAYLOAD)), await start_node(stack, "r1")
    async with open_channel(origin.server.address, None, "origin") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await RelayStub(channel).Fetch(request_).read()
        assert caught.value.code() is code
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            end = await fetch(channel, request_, relay.object)
            assert end.reason is ParentLossReason.PROTOCOL
    async with asyncio.timeout(10):  # the child may hear of the refusal before the handler has ended
        while origin.guard.children():  # noqa: ASYNC110  a slot that is released signals nothing
            await asyncio.sleep(0)


async def test_any_grpc_client_can_fetch(stack: AsyncExitStack) -> None:
    """The generated stub, and protobuf's own decoder, read what the byte-level encoder wrote."""
    source = MemoryOrigin(PAYLOAD)
    source.release()
    origin = await start_node(stack, "origin", source)
    got: dict[int, bytes] = {}
    async with open_channel(origin.server.address, None, "origin") as channel:
        request = build_request(MemoryObject(), 0, token("origin", "r1"))
        assert request.lacks_chunks[0].stop == OPEN_END
        kinds: set[str | None] = set()
        async for reply in RelayStub(channel).Fetch(request):
            kinds.add(reply.WhichOneof("message"))
            got |= {c.index: c.data for c in reply.chunks.chunks}
    assert kinds == {"header", "page", "chunks", "watermark", "end"}
    assert b"".join(got[i] for i in sorted(got)) == PAYLOAD


async def test_the_uplink_is_shared_by_all_children(stack: AsyncExitStack) -> None:
    clock = [0.0]

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    bucket = TokenBucket(1e6, now=lambda: clock[0], sleep=sleep)
    source = MemoryOrigin(os.urandom(8 << 20), chunk_bytes=1 << 20)
    source.release()
    origin = await start_node(stack, "origin", source, uplink=bucket)
    relays = [await start_node(stack, f"r{i}") for i in range(2)]
    ends = await asyncio.gather(*(r.fetch_from(origin, edge={"slot": i}) for i, r in enumerate(relays)))
    assert [e.reason for e in ends] == [None, None]
    sent = origin.service.streams.forwarded_bytes_total
    assert sent > 16 << 20
    assert sent - 1.1 * (1 << 20) <= clock[0] * 1e6 <= sent  # the last message need not be waited for


async def test_the_downlink_limit_is_kept(stack: AsyncExitStack) -> None:
    clock = [0.0]

    async def sleep(seconds: float) -> None:
        clock[0] += seconds

    bucket = TokenBucket(1e6, now=lambda: clock[0], sleep=sleep)
    source = MemoryOrigin(os.urandom(8 << 20), chunk_bytes=1 << 20)
    source.release()
    origin, relay = await start_node(stack, "origin", source), await start_node(stack, "r1")
    assert (await relay.fetch_from(origin, downlink=bucket)).reason is None
    assert (8 << 20) - 1.1 * (1 << 20) <= clock[0] * 1e6 <= 1.01 * (8 << 20)
