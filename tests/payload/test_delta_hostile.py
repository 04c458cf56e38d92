"""What a peer sends may be anything: it is refused with a PeerError, and nothing large is allocated on its word."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import zstandard
from deltakit import MemorySnapshot, make_delta, safetensors_file
from hypothesis import given, settings
from hypothesis import strategies as st

from chappe.core.digest import XXH3_128
from chappe.core.manifest import FileEntry, TensorEntry
from chappe.errors import CodecError, ManifestError, PeerError
from chappe.payload.blocks import add_piece, parse_piece
from chappe.payload.container import PARSED_BYTES_MAX, DataChunk, parse_chunk
from chappe.payload.delta import BlockState, apply_block, base_bytes
from chappe.payload.index import Index
from chappe.payload.plan import DeltaPlan
from chappe.payload.planes import ZSTD, put_varint, unpack
from chappe.payload.table import NO_BASE, SnapshotTable


def model(seed: int, density: float) -> MemorySnapshot:
    values = np.random.default_rng(1).integers(0, 1 << 16, 40_000, dtype=np.uint16)
    rng = np.random.default_rng(seed)
    values[rng.random(values.size) < density] += rng.integers(1, 40, dtype=np.uint16)
    return MemorySnapshot.of({"m.safetensors": safetensors_file([("w", "BF16", values.shape, values.tobytes())])})


BASE = model(0, 0)
CASES = [make_delta(BASE, model(seed, density)) for seed, density in ((1, 0.01), (2, 0.2), (3, 0.5), (4, 0.99))]


def carry_out(plan: DeltaPlan, data: bytes) -> list[BlockState]:
    """What a receiver does with one chunk that holds whole blocks."""
    chunk = parse_chunk(plan, XXH3_128, data)
    if not isinstance(chunk, DataChunk):
        return []
    states = []
    for ordinal in Index(plan).add(0, chunk):
        block = plan.block(ordinal)
        base = base_bytes(plan, block, BASE.read)
        out = memoryview(bytearray(block.length))
        states.append(
            apply_block(plan, XXH3_128, ordinal, chunk.digest_of(ordinal), chunk.pieces_of(ordinal), base, out)
        )
    return states


@pytest.mark.parametrize("case", range(len(CASES)))
def test_every_truncation_is_refused(case: int) -> None:
    plan, chunks = CASES[case]
    for data in chunks:
        cuts = {*range(min(len(data), 200)), *range(0, len(data), 97), len(data) - 1}
        for cut in cuts:
            with pytest.raises(PeerError):
                carry_out(plan, data[:cut])
        with pytest.raises(PeerError):
            carry_out(plan, data + b"\0")


@given(st.data(), st.sampled_from(CASES))
@settings(max_examples=300, deadline=None)
def test_a_flipped_bit_is_refused_or_found_out(data: st.DataObject, case: tuple[DeltaPlan, list[bytes]]) -> None:
    plan, chunks = case
    chunk = bytearray(chunks[0])
    at = data.draw(st.one_of(st.integers(0, min(80, len(chunk) - 1)), st.integers(0, len(chunk) - 1)))
    chunk[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        states = carry_out(plan, bytes(chunk))
    except PeerError:
        return
    covered = [s is BlockState.APPLIED for s in states]
    assert not all(covered) or len(covered) < plan.blocks_total or carry_out_equals(plan, chunks[0], bytes(chunk))


def carry_out_equals(plan: DeltaPlan, one: bytes, other: bytes) -> bool:
    """Another encoding of the same bytes: unused bits of a nibble or a bitmap."""
    a, b = parse_chunk(plan, XXH3_128, one), parse_chunk(plan, XXH3_128, other)
    assert isinstance(a, DataChunk)
    assert isinstance(b, DataChunk)
    return a.digests == b.digests


@given(st.binary(max_size=300), st.sampled_from([b"", b"D", b"C", b"D\0\1\1"]))
@settings(max_examples=300, deadline=None)
def test_any_bytes(data: bytes, start: bytes) -> None:
    try:
        carry_out(CASES[0][0], start + data)
    except PeerError:
        return


@given(st.binary(max_size=120), st.sampled_from([1, 2, 4, 8]), st.integers(0, 5000))
@settings(max_examples=300, deadline=None)
def test_any_piece(data: bytes, width: int, elements: int) -> None:
    block = np.zeros(elements, np.dtype(f"<u{width}"))
    try:
        add_piece(parse_piece(data, elements, width), block)
    except PeerError:
        return


def test_a_frame_that_claims_a_size_is_not_believed() -> None:
    plain = bytes(64 << 20)
    for sized in (True, False):
        parameters = zstandard.ZstdCompressionParameters.from_level(
            1, write_content_size=sized, format=zstandard.FORMAT_ZSTD1_MAGICLESS
        )
        bomb = zstandard.ZstdCompressor(compression_params=parameters).compress(plain)
        tracemalloc.start()
        try:
            with pytest.raises(CodecError):
                unpack(ZSTD, memoryview(bomb), 1000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20


def piece(*numbers: int, tail: bytes = b"") -> bytes:
    out = bytearray()
    for number in numbers:
        put_varint(out, number)
    return bytes(out) + tail


@pytest.mark.parametrize(
    "data",
    [
        piece(7),
        piece(3),
        piece(0, 13),
        piece(0, 1, 2),
        piece(0, 0, 0, 101),
        piece(0, 0, 0, 5, 6),
        piece(0, 0, 0, 1 << 40),
        piece(1, 0, 0, 5, 1 << 40),
        b"\x00" + b"\xff" * 12,
        piece(0, 0, 0, 2, 0, 8, 0, 0, 0, 8, tail=bytes((60, 60)) + b"\0\0"),  # positions run past the end
        piece(0, 0, 0, 1, 0, 4, 0, 0, 0, 4, tail=bytes((255, 0))),  # an escape that was not announced
        piece(4, 0, 0, 3, 13 << 2, 3 << 2, tail=bytes(13) + bytes(3)),  # fewer bits than changes
    ],
)
def test_pieces_that_cannot_be(data: bytes) -> None:
    with pytest.raises(CodecError):
        add_piece(parse_piece(data, 100, 1), np.zeros(100, np.uint8))


def test_chunks_that_contradict_each_other() -> None:
    plan, chunks = CASES[3]
    data = [parse_chunk(plan, XXH3_128, c) for c in chunks[:-1]]
    index = Index(plan)
    for number, chunk in enumerate(data):
        assert isinstance(chunk, DataChunk)
        index.add(number, chunk)
    with pytest.raises(CodecError, match="two chunks"):
        index.add(len(data), DataChunk(0, (b"x" * 16,), ()))
    closing = parse_chunk(plan, XXH3_128, CASES[2][1][-1])
    assert not isinstance(closing, DataChunk)
    with pytest.raises(CodecError, match="closing"):
        index.prove(closing, XXH3_128)


def test_a_chunk_that_is_too_long() -> None:
    with pytest.raises(CodecError, match="limit"):
        parse_chunk(CASES[0][0], XXH3_128, bytes(PARSED_BYTES_MAX + 1))


def test_pieces_that_do_not_make_a_block() -> None:
    plan, chunks = make_delta(BASE, model(5, 0.99), chunk_bytes=1 << 14)
    chunk = parse_chunk(plan, XXH3_128, chunks[0])
    assert isinstance(chunk, DataChunk)
    whole = CASES[0][0].block(1)
    one = [r.piece for r in chunk.records][:1] or [parse_piece(piece(1, 1, 0, 0, 1, 1), whole.elements, 2)]
    with pytest.raises(CodecError, match="pieces"):
        apply_block(plan, XXH3_128, 1, b"", [*one, *one], None, memoryview(bytearray(whole.length)))


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ((0,), "maps 1 regions"),
        ((0, 0), "twice"),
        ((0, 7), "not like it"),
        ((1, 0), "not like it"),
        ((-2, 1), "not like"),
    ],
)
def test_mappings_that_cannot_be(mapping: tuple[int, ...], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        DeltaPlan(BASE.table, BASE.table, mapping)
    DeltaPlan(BASE.table, BASE.table, (0, NO_BASE))


@pytest.mark.parametrize(
    ("begin", "end", "dtype", "words"),
    [(0, 9, "U8", "leaves"), (0, 7, "F32", "whole"), (0, 8, "Q4", "dtype"), (4, 2, "U8", "overlaps")],
)
def test_tables_that_cannot_be(begin: int, end: int, dtype: str, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        SnapshotTable.build([FileEntry("m", 8)], [TensorEntry("t", dtype, (), 0, begin, end)])
    with pytest.raises(ManifestError, match="outside"):
        SnapshotTable.build([FileEntry("m", 8)], [TensorEntry("t", "U8", (), 1, 0, 1)])
    both = [TensorEntry("t", "U8", (5,), 0, 0, 5), TensorEntry("u", "U8", (4,), 0, 4, 8)]
    with pytest.raises(ManifestError, match="overlaps"):
        SnapshotTable.build([FileEntry("m", 8)], both)
