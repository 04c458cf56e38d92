"""What a receiver does with one reply. Whole conversations are in test_hop and test_tcp_hop."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Iterator

import pytest
from fakes import MemoryObject, MemoryOrigin, token

from chappe.core.reasons import ParentLossReason
from chappe.hop import receive
from chappe.hop.client import build_request
from chappe.hop.limits import TokenBucket
from chappe.hop.receive import Receiver
from chappe.v1.relay_pb2 import End, EndReason, Watermark
from chappe.wire.frames import ChunkBatch, Reply

CHUNKS = 8


async def test_a_limit_lets_pass_chunk_by_chunk_what_came_as_one_batch() -> None:
    """On a fast connection a whole snapshot may arrive in one batch: under a limit it is not stored at once."""
    origin = MemoryOrigin(os.urandom(CHUNKS << 16), chunk_bytes=1 << 16)
    origin.release()
    child = MemoryObject()
    child.put_header(origin.header_bytes or b"")
    for page in range(origin.pages_held):
        child.put_page(origin.page_bytes(page))
    held: list[int] = []
    clock = [0.0]

    async def sleep(seconds: float) -> None:
        clock[0] += seconds
        held.append(len(child.ledger.held))

    chunks = [(i, origin.read_chunk(i)) for i in range(CHUNKS)]
    size_bytes = (CHUNKS << 16) + 100
    replies: list[tuple[Reply, int]] = [
        (ChunkBatch(chunks), size_bytes),
        (End(reason=EndReason.END_REASON_COMPLETE), 4),
    ]
    bucket = TokenBucket(1e6, now=lambda: clock[0], sleep=sleep)
    receiver = Receiver(build_request(child, 0, token("o", "r"), ()), child, downlink=bucket)

    async def read() -> tuple[Reply, int]:
        return replies.pop(0)

    assert (await receiver.run(read)).reason is None
    assert held == list(range(1, CHUNKS))  # before each of the others its forerunner was there, and no more
    assert child.payload() == origin.payload()
    assert clock[0] * 1e6 == pytest.approx(size_bytes, abs=(1 << 16) + 100)


def test_of_several_connections_each_may_be_in_the_middle_of_a_chunk() -> None:
    origin, child = MemoryOrigin(os.urandom(CHUNKS << 20), chunk_bytes=1 << 20), MemoryObject()
    child.put_header(origin.header_bytes or b"")
    request = build_request(child, 0, token("o", "r"), ())
    request.streams = 4
    receiver = Receiver(request, child, expected_bytes_per_s=1e6)
    receiver.switched()
    one_s = receiver._patience_s()
    assert receiver.more(3)
    assert receiver._patience_s() == pytest.approx(4 * one_s)


class Clock:
    """Goes on by itself, and by what the test says this process was stopped for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now, self.stopped_s = receive.boot_now, 0.0
        monkeypatch.setattr(receive, "boot_now", lambda: self._now() + self.stopped_s)


def child_of(origin: MemoryOrigin) -> Receiver:
    child = MemoryObject()
    child.put_header(origin.header_bytes or b"")
    receiver = Receiver(build_request(child, 0, token("o", "r"), ()), child, stall_floor_s=0.05)
    receiver.switched()
    return receiver


async def never() -> tuple[Reply, int] | None:
    await asyncio.Event().wait()
    return None


async def test_a_chunk_that_crawls_has_more_time_and_not_for_ever() -> None:
    asked: list[float] = []
    receiver = child_of(MemoryOrigin(os.urandom(CHUNKS << 16)))

    def silent_s() -> float:
        asked.append(0.0)
        return 0.0

    end = await receiver.run(never, silent_s)
    assert end.reason is ParentLossReason.STALLED
    assert len(asked) > 1, "the first look found that bytes come"
    asked.clear()
    end = await receiver.run(never, lambda: asked.append(0.0) or math.inf)
    assert end.reason is ParentLossReason.STALLED
    assert len(asked) == 1


async def test_what_this_process_slept_through_is_no_silence_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    asked: list[float] = []

    def silent_s() -> float:
        asked.append(clock.stopped_s)
        return math.inf

    async def stopped() -> tuple[Reply, int] | None:
        if not asked:
            clock.stopped_s += 60.0
        return await never()

    end = await child_of(MemoryOrigin(os.urandom(CHUNKS << 16))).run(stopped, silent_s)
    assert end.reason is ParentLossReason.STALLED, "and then it has been silent"
    assert len(asked) == 2


async def test_a_watermark_from_before_a_pause_does_not_count_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ahead = Watermark(chunks_held=3, chunks_total=CHUNKS)

    def replies() -> Iterator[Reply]:
        yield ahead
        clock.stopped_s += 60.0
        yield ahead
        yield End(reason=EndReason.END_REASON_LEAVING)

    said = replies()

    async def read() -> tuple[Reply, int]:
        return next(said), 4

    assert (await child_of(MemoryOrigin(os.urandom(CHUNKS << 16))).run(read)).reason is ParentLossReason.LEAVING
