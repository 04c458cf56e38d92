"""What a receiver does with one reply. Whole conversations are in test_hop and test_tcp_hop."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Iterator, Sequence

import pytest
from fakes import MemoryObject, MemoryOrigin, token

from chappe.core.manifest import Manifest
from chappe.core.reasons import ParentLossReason
from chappe.hop import receive
from chappe.hop.asked import Asked
from chappe.hop.client import build_request
from chappe.hop.limits import TokenBucket
from chappe.hop.receive import FetchEnd, Receiver
from chappe.hop.source import Data
from chappe.hop.stall import STALL_FLOOR_S
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


def test_it_is_not_whole_while_a_thread_has_the_last_chunk_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two connections one says that all is sent; the other one's thread takes the last chunk at this very moment."""
    origin, child = MemoryOrigin(os.urandom(CHUNKS << 16), chunk_bytes=1 << 16), MemoryObject()
    origin.release()
    child.put_header(origin.header_bytes or b"")
    for page in range(origin.pages_held):
        child.put_page(origin.page_bytes(page))
    child.put_chunks([(i, origin.read_chunk(i)) for i in range(CHUNKS - 1)])
    receiver = Receiver(build_request(child, 0, token("o", "r"), ()), child)
    taken, store = threading.Event(), threading.Event()
    put_chunks, lacks = child.put_chunks, Asked.lacks

    def put_slowly(chunks: Sequence[tuple[int, Data]], *, lent: bool = False) -> None:
        taken.set()
        assert store.wait(30)
        put_chunks(chunks, lent=lent)

    def look_after_it_was_taken(asked: Asked, manifest: Manifest) -> bool:
        thread.start()
        assert taken.wait(30)
        return lacks(asked, manifest)

    last = CHUNKS - 1
    thread = threading.Thread(target=receiver.take_chunk, args=(last, memoryview(origin.read_chunk(last)), _no_pause))
    monkeypatch.setattr(child, "put_chunks", put_slowly)
    monkeypatch.setattr(Asked, "lacks", look_after_it_was_taken)
    whole = receiver.whole()
    held = last in child.ledger.held
    store.set()
    thread.join(30)
    assert (whole, held) == (False, False)
    monkeypatch.setattr(Asked, "lacks", lacks)
    assert receiver.whole()


def _no_pause(seconds: float) -> None:
    raise AssertionError(f"nothing limits it, and it waits {seconds} s")


async def test_dialling_that_took_long_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's first word comes late and says how much there is: only from then on can it be late with that."""
    origin, child = MemoryOrigin(os.urandom(CHUNKS << 16), chunk_bytes=1 << 16), MemoryObject()
    origin.release()
    child.put_header(origin.header_bytes or b"")
    for page in range(origin.pages_held):
        child.put_page(origin.page_bytes(page))
    clock = [100.0]
    monkeypatch.setattr(receive, "boot_now", lambda: clock[0])
    replies: list[tuple[float, Reply]] = [
        (1.5 * STALL_FLOOR_S, Watermark(chunks_held=CHUNKS)),
        (0.1, ChunkBatch([(i, origin.read_chunk(i)) for i in range(CHUNKS)])),
        (0.1, End(reason=EndReason.END_REASON_COMPLETE)),
    ]
    receiver = Receiver(build_request(child, 0, token("o", "r"), ()), child)

    async def read() -> tuple[Reply, int]:
        after_s, reply = replies.pop(0)
        clock[0] += after_s
        return reply, 4

    assert await receiver.run(read) == FetchEnd(None)


@pytest.mark.parametrize(
    ("said", "shown"), [(EndReason.END_REASON_UNKNOWN_OBJECT, "the parent said unknown_object"), (77, "reason 77")]
)
async def test_an_end_without_a_word_is_named(said: int, shown: str) -> None:
    child = MemoryObject()
    receiver = Receiver(build_request(child, 0, token("o", "r"), ()), child)

    async def read() -> tuple[Reply, int]:
        return End.FromString(bytes([8, said])), 2

    assert shown in (await receiver.run(read)).detail
