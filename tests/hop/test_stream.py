"""The parent's half of a hop, without a network: what goes into one message."""

from __future__ import annotations

import asyncio

import pytest
from fakes import OBJECT_ID, MemoryOrigin, token

from chappe.core.ledger import OPEN_END
from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.hop import stream
from chappe.hop.guard import Ticket
from chappe.hop.outlet import BATCH_BYTES_MAX
from chappe.hop.stream import ChildStream
from chappe.v1.relay_pb2 import EndReason, FetchRequest, Range
from chappe.wire.frames import ChunkBatch, decode_reply

REQUEST = FetchRequest(
    object_id=OBJECT_ID,
    token=token("parent", "child"),
    lacks_header=True,
    lacks_pages=[Range(start=0, stop=OPEN_END)],
    lacks_chunks=[Range(start=0, stop=OPEN_END)],
)


class Link:
    """A socket buffer in front of a link, on a clock of their own: `write` returns as soon as the buffer has room."""

    def __init__(self, bytes_per_s: float, buffer_bytes: int) -> None:
        self.now = 100.0
        self.batches: list[tuple[float, int]] = []  # when a message of chunks was written, how many it had
        self._bytes_per_s, self._buffer_bytes = bytes_per_s, buffer_bytes
        self._empty_s = self.now  # when all that was written will have left

    def clock(self) -> float:
        return self.now

    async def write(self, frame: bytes) -> None:
        self._empty_s = max(self._empty_s, self.now) + len(frame) / self._bytes_per_s
        self.now = max(self.now + 1e-5, self._empty_s - self._buffer_bytes / self._bytes_per_s)
        reply = decode_reply(frame)
        if isinstance(reply, ChunkBatch):
            self.batches.append((self.now, len(reply.chunks)))
        await asyncio.sleep(0)


async def serve(link: Link, chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that comes late: all is here when it asks."""
    monkeypatch.setattr(stream, "boot_now", link.clock)
    source = MemoryOrigin(bytes(chunks * CHUNK_BYTES_PLAIN))
    source.release()
    ticket = Ticket((OBJECT_ID, 0, 0), "child", 1, 1, False, link.now)
    assert await ChildStream(source, REQUEST, ticket, link.write).run() == EndReason.END_REASON_COMPLETE
    assert sum(count for _, count in link.batches) == chunks


async def test_on_a_thin_link_chunks_go_one_by_one_whatever_the_buffer_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(1.25e6, 1 << 20)
    await serve(link, 200, monkeypatch)
    assert {count for _, count in link.batches} == {1}


async def test_a_fast_link_gets_several_in_a_message_once_it_has_shown_it(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(1e8, 1 << 20)
    await serve(link, 700, monkeypatch)
    assert link.batches[0][1] == 1
    assert 4 <= max(count for _, count in link.batches) <= BATCH_BYTES_MAX // CHUNK_BYTES_PLAIN
