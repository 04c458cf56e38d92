"""What a receiver does with one reply. Whole conversations are in test_hop and test_tcp_hop."""

from __future__ import annotations

import os

import pytest
from fakes import MemoryObject, MemoryOrigin, token

from chappe.hop.client import build_request
from chappe.hop.limits import TokenBucket
from chappe.hop.receive import Receiver
from chappe.v1.relay_pb2 import End, EndReason
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
