"""A delta as one file: what is read is what was written, and nothing else is read at all."""

from __future__ import annotations

import pytest
import zstandard
from deltakit import ROOT, MemorySnapshot, make_delta, safetensors_file
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.digest import XXH3_128
from chappe.errors import CodecError
from chappe.payload.container import CHUNK_BYTES_MIN
from chappe.payload.envelope import BlockStream, Envelope, Prologue, pack_chunk, pack_prologue
from chappe.payload.fold import Delta
from chappe.payload.plan import DeltaPlan
from chappe.payload.planes import put_varint

PROLOGUE = Prologue("xxh3_128:" + "1" * 32, b"t" * 16, b"header" * 100)


def snapshot(seed: int, changed: int) -> MemorySnapshot:
    data = bytearray(b"\x01\x3c" * 1_200_000)  # two blocks
    for i in range(changed):
        data[2 * (i * 7919 * seed % 1_200_000)] ^= 1 + i % 200
    weights = [("w", "BF16", (1_200_000,), bytes(data)), ("b", "F32", (3,), bytes(12))]
    return MemorySnapshot.of({"a.json": b"{}" * seed, "m.safetensors": safetensors_file(weights)})


def made(changed: int, chunk_bytes: int = CHUNK_BYTES_MIN) -> tuple[DeltaPlan, list[bytes], bytes]:
    plan, chunks = make_delta(snapshot(1, 0), snapshot(3, changed), chunk_bytes=chunk_bytes)
    return plan, chunks, pack_prologue(PROLOGUE) + b"".join(map(pack_chunk, chunks))


def opened(data: bytes) -> Envelope:
    return Envelope(lambda offset, length: data[offset : offset + length], len(data))


@pytest.mark.parametrize("changed", [0, 5, 300_000])  # not at all, in one chunk, blocks over many chunks
def test_what_is_read_is_what_was_written(changed: int) -> None:
    plan, chunks, data = made(changed)
    envelope = opened(data)
    assert envelope.prologue == PROLOGUE
    assert [bytes(chunk) for chunk in envelope.chunks()] == chunks
    stream = BlockStream(plan, XXH3_128, envelope)
    blocks = list(stream)
    assert stream.closing is not None
    assert (stream.closing.root, stream.closing.blocks) == (ROOT, plan.blocks_total)
    delta = Delta.of(plan, XXH3_128, chunks)
    assert [b.ordinal for b in blocks] == list(range(plan.blocks_total))
    assert [b.digest for b in blocks] == [delta.digest(i) for i in range(plan.blocks_total)]
    for block in blocks:
        pieces = [(p.index, p.log2, p.elements) for p in block.pieces]
        assert pieces == [(p.index, p.log2, p.elements) for p in delta.pieces(block.ordinal)]
    if changed > 100_000:
        assert len(chunks) > max(len(b.pieces) for b in blocks) > 2


@given(st.data())
def test_damage_is_a_codec_error_or_nothing_at_all(data: st.DataObject) -> None:
    plan, chunks, whole = DAMAGED
    delta = Delta.of(plan, XXH3_128, chunks)
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole = whole[:at]
    else:
        whole = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    try:
        envelope = opened(whole)
        blocks = list(BlockStream(plan, XXH3_128, envelope))
    except CodecError:
        return
    assert [b.digest for b in blocks] == [delta.digest(i) for i in range(plan.blocks_total)]  # it was in a plane


DAMAGED = made(200)


def test_chunks_out_of_order_or_twice() -> None:
    plan, chunks, _ = made(300_000)
    for order in ([1, 0, *range(2, len(chunks))], [0, 0, *range(1, len(chunks))]):
        data = pack_prologue(PROLOGUE) + b"".join(pack_chunk(chunks[i]) for i in order)
        with pytest.raises(CodecError):
            list(BlockStream(plan, XXH3_128, opened(data)))


def test_a_prologue_that_would_fill_the_memory_is_refused_before() -> None:
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(200 << 20))
    head = bytearray(b"chappe delta 1\n")
    put_varint(head, len(bomb))
    with pytest.raises(CodecError, match="a prologue of 209715200 bytes"):
        opened(bytes(head) + bomb)
    unsized = zstandard.ZstdCompressor(level=3, write_content_size=False).compress(bytes(100))
    head = bytearray(b"chappe delta 1\n")
    put_varint(head, len(unsized))
    with pytest.raises(CodecError):
        opened(bytes(head) + unsized)


def test_a_length_beyond_every_limit() -> None:
    head = bytearray(b"chappe delta 1\n")
    put_varint(head, 1 << 40)
    with pytest.raises(CodecError, match="the limit is"):
        opened(bytes(head) + bytes(100))
