"""A delta is exact: whatever the bytes, the widths, the edits and the shape of the snapshots."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import numpy as np
import pytest
from deltakit import ROOT, MemorySnapshot, apply_delta, make_delta, safetensors_file
from hypothesis import given, settings
from hypothesis import strategies as st

from chappe.core.digest import BLAKE3, XXH3_128
from chappe.core.manifest import FileEntry, TensorEntry
from chappe.payload.blocks import add_piece, encode, parse_piece
from chappe.payload.container import Closing, DataChunk, Packer, parse_chunk
from chappe.payload.delta import BlockState, apply_block, base_bytes, encode_block, encode_delta, encode_whole
from chappe.payload.difference import TYPES, Difference
from chappe.payload.plan import BLOCK_ELEMENTS, DeltaPlan
from chappe.payload.safetensors import DTYPES, data_bytes
from chappe.payload.table import SnapshotTable

SPECIAL = {
    # every one of 256 bytes, 0, -0.0, Inf, quiet and signalling NaN with payloads, subnormals, the extremes
    1: list(range(256)),
    2: [0, 1, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7F81, 0xFFFF, 0x7C00, 0xFC00, 0x7E01, 0x7FFF, 0x8001, 0x3F80, 0x00FF],
    4: [
        0,
        1,
        0x80000000,
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0x7F800001,
        0xFFFFFFFF,
        0x7FFFFFFF,
        0x80000001,
        0x3F800000,
    ],
    8: [0, 1, 1 << 63, 0x7FF << 52, 0xFFF << 52, 0x7FF8 << 48, (0x7FF << 52) + 1, (1 << 64) - 1, (1 << 63) - 1],
}


def roundtrip(base: np.ndarray | None, target: np.ndarray, limit: int = 1 << 16) -> list[bytes]:
    difference = Difference.between(base, target)
    pieces = encode(difference, limit)
    out = np.zeros_like(target) if base is None else base.copy()
    for data in pieces:
        add_piece(parse_piece(data, target.size, target.itemsize), out)
    np.testing.assert_array_equal(out, target)
    assert pieces == encode(Difference.of(target - (0 if base is None else base)), limit)
    return pieces


@given(st.data(), st.sampled_from([1, 2, 4, 8]), st.integers(0, 2000), st.floats(0, 1), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_any_elements_survive(data: st.DataObject, width: int, count: int, density: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = np.frombuffer(rng.bytes(count * width), TYPES[width]).copy()
    target = base.copy()
    changed = rng.random(count) < density
    special = np.array(SPECIAL[width], TYPES[width])
    kind = data.draw(st.sampled_from(["steps", "special", "random"]))
    if kind == "steps":
        target[changed] += rng.integers(0, 40, count).astype(TYPES[width])[changed] - TYPES[width].type(20)
    elif kind == "special":
        base[:: max(1, count // 7)] = special[0]
        target[changed] = rng.choice(special, count)[changed]
    else:
        target[changed] = np.frombuffer(rng.bytes(count * width), TYPES[width])[changed]
    roundtrip(base, target)
    roundtrip(None, target)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_special_pattern_to_every_other(width: int) -> None:
    patterns = np.array(SPECIAL[width], TYPES[width])
    roundtrip(np.repeat(patterns, patterns.size), np.tile(patterns, patterns.size))


def test_every_pair_of_neighbours_of_all_16_bit_patterns() -> None:
    every = np.arange(1 << 16, dtype=TYPES[2])
    for step in (1, 0xFFFF, 0x8000, 15, 0x7FFF):
        roundtrip(every, every + TYPES[2].type(step))


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("density", [0.0001, 0.01, 0.1, 0.2, 0.29, 0.31, 0.6, 0.95, 1.0])
def test_densities_and_cuts(width: int, density: float) -> None:
    rng = np.random.default_rng(int(density * 1e4) + width)
    count = (1 << 17) + 77
    base = np.frombuffer(rng.bytes(count * width), TYPES[width])
    target = base.copy()
    changed = rng.random(count) < density
    target[changed] += rng.integers(1, 200, int(changed.sum())).astype(TYPES[width])
    limit = 1 << 14
    pieces = roundtrip(base, target, limit)
    assert max(map(len, pieces)) <= limit * 3 // 2
    assert len(pieces) == 1 or sum(map(len, pieces)) > limit


def test_gaps_at_the_escape() -> None:
    for gap in (1, 254, 255, 256, 257, 511, 70000, BLOCK_ELEMENTS - 1):
        base = np.zeros(BLOCK_ELEMENTS, TYPES[2])
        target = base.copy()
        target[::gap] = 1
        target[-1] = 5
        roundtrip(base, target)


def test_one_piece_may_be_all_there_is_to_change() -> None:
    """Dense in one corner of a block: the pieces without changes cost a few bytes each."""
    rng = np.random.default_rng(3)
    base = np.zeros(BLOCK_ELEMENTS, TYPES[4])
    target = base.copy()
    target[-200_000:] = np.frombuffer(rng.bytes(800_000), TYPES[4])
    pieces = roundtrip(base, target)
    assert len(pieces) > 8
    assert len(pieces[0]) < 32


def snapshot(
    seed: int, tensors: dict[str, tuple[str, tuple[int, ...]]], pad: int = 0, **sidecars: bytes
) -> MemorySnapshot:
    rng = np.random.default_rng(seed)
    rows = [(n, d, s, rng.bytes(data_bytes(d, s))) for n, (d, s) in tensors.items()]
    files = {name.replace("_", "."): data for name, data in sidecars.items()}
    return MemorySnapshot.of({"model.safetensors": safetensors_file(rows, pad=pad), **files})


def check(base: MemorySnapshot, target: MemorySnapshot) -> list[bytes]:
    plan, chunks = make_delta(base, target)
    assert apply_delta(plan, chunks, base) == target.files
    return chunks


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_every_dtype_odd_lengths_and_unaligned_data(dtype: str, pad: int) -> None:
    shape = (3, 8, 43)
    check(
        snapshot(1, {"a": (dtype, shape), "b": (dtype, (8,))}, pad),
        snapshot(2, {"a": (dtype, shape), "b": (dtype, (8,))}),
    )


BASE = {"a": ("BF16", (64, 65)), "b": ("F32", (17,)), "c": ("BF16", (999,)), "d": ("U8", (5,)), "s": ("F32", ())}


@pytest.mark.parametrize(
    "target",
    [
        {**BASE, "new": ("F16", (40,))},
        {k: v for k, v in BASE.items() if k != "c"},
        {("renamed" if k == "c" else k): v for k, v in BASE.items()},
        {**BASE, "a": ("BF16", (65, 64))},
        {**BASE, "a": ("BF16", (64, 66))},
        {**BASE, "a": ("F16", (64, 65))},
        dict(reversed(BASE.items())),
        {**BASE, "empty": ("F32", (0, 4))},
    ],
    ids=["added", "dropped", "renamed", "reshaped", "grown", "retyped", "reordered", "empty"],
)
def test_tables_that_change(target: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    check(snapshot(1, BASE), snapshot(2, target))
    check(snapshot(2, target), snapshot(1, BASE))


def test_reordered_tensors_cost_nothing_but_their_header() -> None:
    one = snapshot(1, BASE)
    data = {r.name: bytes(one.read(r.file, r.begin, r.end - r.begin)) for r in one.table.regions}
    rows = [(n, *BASE[n], data[n]) for n in reversed(BASE)]
    other = MemorySnapshot.of({"model.safetensors": safetensors_file(rows)})
    chunks = check(one, other)
    assert sum(map(len, chunks)) < 700


def test_a_tensor_is_found_in_another_shard() -> None:
    rows = [(n, d, s, np.random.default_rng(5).bytes(data_bytes(d, s))) for n, (d, s) in BASE.items()]
    one = MemorySnapshot.of({"1.safetensors": safetensors_file(rows)})
    two = MemorySnapshot.of({"1.safetensors": safetensors_file(rows[:2]), "2.safetensors": safetensors_file(rows[2:])})
    assert sum(map(len, check(one, two))) < 1000


def test_the_same_name_in_two_files_is_not_mixed_up() -> None:
    rng = np.random.default_rng(6)
    x, y = rng.bytes(4000), rng.bytes(4000)
    file = {v: safetensors_file([("t", "BF16", (2000,), v)]) for v in (x, y)}
    one = MemorySnapshot.of({"a.safetensors": file[x], "b.safetensors": file[y]})
    two = MemorySnapshot.of({"a.safetensors": file[y], "c.safetensors": file[x]})
    check(one, two)
    check(two, one)
    plan, chunks = make_delta(one, one)
    assert not any(len(parse_chunk(plan, XXH3_128, c).records) for c in chunks[:-1])  # type: ignore[union-attr]


def test_sidecars_come_go_and_change() -> None:
    one = snapshot(1, BASE, config_json=b'{"a": 1}', tokenizer_json=b"x" * 70_000, empty_txt=b"")
    two = snapshot(1, BASE, config_json=b'{"a": 2}', vocab_txt=b"hello", empty_txt=b"")
    check(one, two)
    check(two, one)


def test_ten_thousand_random_edits() -> None:
    rng = np.random.default_rng(10_000)
    data = bytearray(rng.bytes(4_000_000))
    previous = MemorySnapshot.of({"m.safetensors": safetensors_file([("t", "F32", (1_000_000,), bytes(data))])})
    for _ in range(10):
        for at in rng.integers(0, len(data) - 8, 1000):
            data[at : at + int(rng.integers(1, 8))] = rng.bytes(1)  # also shifts what follows
        data = data[:4_000_000] + bytes(max(0, 4_000_000 - len(data)))
        now = MemorySnapshot.of({"m.safetensors": safetensors_file([("t", "F32", (1_000_000,), bytes(data))])})
        check(previous, now)
        previous = now


@given(
    st.lists(st.tuples(st.sampled_from(["BF16", "F32", "F8_E4M3", "I64", "F4"]), st.integers(0, 300)), max_size=8),
    st.data(),
)
@settings(max_examples=100, deadline=None)
def test_any_two_snapshots(rows: list[tuple[str, int]], data: st.DataObject) -> None:
    tensors = {f"t{i}": (dtype, (n * 2,)) for i, (dtype, n) in enumerate(rows)}
    names = data.draw(st.permutations(sorted(tensors)))
    keep = data.draw(st.integers(0, len(names)))
    seed = data.draw(st.integers(1, 3))
    check(snapshot(1, tensors), snapshot(seed, {n: tensors[n] for n in names[:keep]}, config_json=b"{}"))


def bf16(values: np.ndarray) -> MemorySnapshot:
    return MemorySnapshot.of({"m.safetensors": safetensors_file([("w", "BF16", values.shape, values.tobytes())])})


@pytest.fixture(scope="module")
def pair() -> tuple[MemorySnapshot, MemorySnapshot]:
    """Three blocks and a bit: 1 % changed, nothing changed, nearly all changed, 5 % changed."""
    rng = np.random.default_rng(8)
    base = rng.integers(0, 1 << 16, 3 * BLOCK_ELEMENTS + 12_345, dtype=np.uint16)
    target = base.copy()
    for block, density in enumerate((0.01, 0.0, 0.97, 0.05)):
        part = target[block * BLOCK_ELEMENTS : (block + 1) * BLOCK_ELEMENTS]
        part += ((rng.random(part.size) < density) * rng.integers(1, 500, part.size)).astype(np.uint16)
    return bf16(base), bf16(target)


def test_chunks_tile_the_blocks_and_stand_alone(pair: tuple[MemorySnapshot, MemorySnapshot]) -> None:
    plan, chunks = make_delta(*pair)
    *data, last = [parse_chunk(plan, XXH3_128, c) for c in chunks]
    assert isinstance(last, Closing)
    assert last.root == ROOT
    assert all(isinstance(c, DataChunk) for c in data)
    assert data[0].first == 0
    assert data[-1].stop == plan.blocks_total
    for one, other in pairwise(data):
        cut = other.first == one.stop - 1 and other.first in {r.ordinal for r in one.records}
        assert cut or other.first == one.stop
    assert max(map(len, chunks)) <= 3 << 15
    assert apply_delta(plan, list(reversed(chunks[:-1])) + chunks[-1:], pair[0]) == pair[1].files


def test_chunks_leave_while_later_blocks_are_compared(pair: tuple[MemorySnapshot, MemorySnapshot]) -> None:
    base, target = pair
    plan = DeltaPlan.between(base.table, target.table)
    compared: list[int] = []

    def read(file: int, offset: int, length: int) -> memoryview:
        compared.append(plan.block_at(file, offset))
        return target.read(file, offset, length)

    chunks = Packer(XXH3_128).pack(encode_delta(plan, XXH3_128, base.read, read))
    next(chunks)
    assert max(compared) < plan.blocks_total - 1


def test_the_three_states_of_a_block(pair: tuple[MemorySnapshot, MemorySnapshot]) -> None:
    base, target = pair
    plan = DeltaPlan.between(base.table, target.table)
    encoded = encode_block(plan, XXH3_128, 1, base.read, target.read)
    block = plan.block(1)
    pieces = [parse_piece(p, block.elements, block.width) for p in encoded.pieces]
    want = bytes(target.read(block.file, block.offset, block.length))
    have = base_bytes(plan, block, base.read)
    out = bytearray(want)

    def apply(digest: bytes = encoded.digest, **kwargs: bool) -> BlockState:
        return apply_block(plan, XXH3_128, 1, digest, pieces, have, memoryview(out), **kwargs)

    assert apply(check_present=True) is BlockState.PRESENT
    assert apply() is BlockState.APPLIED
    out[7] ^= 1
    assert apply(check_present=True) is BlockState.APPLIED
    assert bytes(out) == want
    have = bytearray(have)  # type: ignore[arg-type]
    have[9] ^= 1
    assert apply() is BlockState.WRONG
    repair = encode_whole(plan, XXH3_128, 1, want)
    assert repair.digest == encoded.digest
    pieces, have = [parse_piece(p, block.elements, block.width) for p in repair.pieces], None
    assert apply() is BlockState.APPLIED
    assert bytes(out) == want


@pytest.mark.parametrize(("width", "density"), [(2, 0.01), (2, 0.2), (2, 0.95), (4, 0.2), (4, 0.95)])
def test_only_the_short_calls_of_decoding_are_brief(width: int, density: float) -> None:
    """Those of a piece with gaps; all others have calls for each of its elements, also where half of them changed."""
    rng = np.random.default_rng(4)
    count = 1 << 18
    base = rng.integers(0, 1 << 14, count).astype(TYPES[width])
    target = base + (rng.random(count) < density) * rng.integers(1, 200, count).astype(TYPES[width])
    size = count * width
    tensor = TensorEntry("w", {2: "BF16", 4: "F32"}[width], (count,), 0, 0, size)
    table = SnapshotTable.build([FileEntry("m", size)], [tensor])
    plan = DeltaPlan.between(table, table)
    encoded = encode_block(plan, XXH3_128, 0, lambda *_: base.tobytes(), lambda *_: target.tobytes())
    pieces = [parse_piece(piece, count, width) for piece in encoded.pieces]
    told: list[int] = []

    def brief(elements: int) -> AbstractContextManager[object]:
        told.append(elements)
        return nullcontext()

    out = memoryview(bytearray(size))
    assert apply_block(plan, XXH3_128, 0, encoded.digest, pieces, base.tobytes(), out, brief=brief) is (
        BlockState.APPLIED
    )
    lengths = [stop - start for start, stop in (piece.bounds for piece in pieces)]
    assert told == ([p.changed for p in pieces] if density < 0.1 else [length * width for length in lengths])


def test_a_whole_snapshot_compressed(pair: tuple[MemorySnapshot, MemorySnapshot]) -> None:
    rng = np.random.default_rng(9)
    weights = (rng.normal(0, 0.02, 400_000).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    target = bf16(weights)
    plan = DeltaPlan.whole(target.table)
    packer = Packer(BLAKE3)
    chunks = list(packer.pack(encode_delta(plan, BLAKE3, target.read, target.read)))
    chunks.append(packer.close(ROOT, b"s" * 64))
    assert packer.payload_bytes < 0.72 * weights.nbytes
    closing = parse_chunk(plan, BLAKE3, chunks[-1])
    assert isinstance(closing, Closing)
    assert closing.signature == b"s" * 64


def test_small_tensors_share_blocks_and_wide_ones_do_not_mix() -> None:
    files = [FileEntry("m.safetensors", 3000)]
    rows = [("a", "BF16", 0, 1000), ("b", "F16", 1000, 2000), ("c", "F32", 2000, 3000)]
    tensors = [TensorEntry(n, d, ((e - b) // (4 if d == "F32" else 2),), 0, b, e) for n, d, b, e in rows]
    plan = DeltaPlan.whole(SnapshotTable.build(files, tensors))
    assert [(b.offset, b.length, b.width) for b in map(plan.block, range(plan.blocks_total))] == [
        (0, 2000, 2),
        (2000, 1000, 4),
    ]
