"""Folding and inverting: the same bytes as a direct comparison, without looking at a snapshot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from deltakit import ROOT, MemorySnapshot, apply_delta, indexed, make_delta, safetensors_file
from hypothesis import given, settings
from hypothesis import strategies as st

from chappe.core.digest import XXH3_128
from chappe.errors import CodecError, SnapshotError
from chappe.hop.ordered import OrderedMap
from chappe.payload.container import Packer
from chappe.payload.fold import Delta, fold, folded_plan, inverse, inverse_plan
from chappe.payload.plan import BLOCK_ELEMENTS, DeltaPlan
from chappe.payload.safetensors import data_bytes


def delta(base: MemorySnapshot, target: MemorySnapshot) -> Delta:
    plan, chunks = make_delta(base, target)
    return Delta.of(plan, XXH3_128, chunks)


def folded(first: Delta, second: Delta) -> tuple[DeltaPlan, list[bytes]]:
    packer = Packer(XXH3_128)
    with ThreadPoolExecutor(2) as pool:
        chunks = list(packer.pack(fold(first, second, mapper=OrderedMap(pool, 4))))
    return folded_plan(first.plan, second.plan), [*chunks, packer.close(ROOT)]


def inverted(one: Delta, have: MemorySnapshot, *, with_base: bool = False) -> tuple[DeltaPlan, list[bytes]]:
    whole, chunks = make_delta(MemorySnapshot.of({}), have)
    index = indexed(whole, chunks)
    digests = [index.digest(i) or b"" for i in range(whole.blocks_total)]
    packer = Packer(XXH3_128)
    packed = list(packer.pack(inverse(one, digests, read_base=have.read if with_base else None)))
    return inverse_plan(one.plan), [*packed, packer.close(ROOT)]


def steps(seed: int, width: int, densities: list[float], count: int) -> list[MemorySnapshot]:
    """Versions of one model; each changes the one before, some elements back and forth."""
    rng = np.random.default_rng(seed)
    dtype = {1: "F8_E4M3", 2: "BF16", 4: "F32", 8: "F64"}[width]
    kind = np.dtype(f"<u{width}")
    values = np.frombuffer(rng.bytes(count * width), kind)
    versions = []
    for density in [0.0, *densities]:
        values = values + ((rng.random(count) < density) * rng.integers(-20, 20, count)).astype(kind)
        files = {"m.safetensors": safetensors_file([("w", dtype, (count,), values.tobytes())])}
        versions.append(MemorySnapshot.of({**files, "config.json": b'{"step": %d}' % len(versions)}))
    return versions


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 4, 8]),
    st.lists(st.floats(0, 1), min_size=2, max_size=4),
    st.integers(1, 5000),
)
@settings(max_examples=60, deadline=None)
def test_folded_is_direct_and_inverse_is_direct(seed: int, width: int, densities: list[float], count: int) -> None:
    versions = steps(seed, width, densities, count)
    total = delta(versions[0], versions[1])
    for previous, now in pairwise(versions[1:]):
        plan, chunks = folded(total, delta(previous, now))
        total = Delta.of(plan, XXH3_128, chunks)
    assert (total.plan, chunks) == make_delta(versions[0], versions[-1])
    assert inverted(total, versions[0]) == make_delta(versions[-1], versions[0])


@pytest.mark.parametrize("densities", [[0.01, 0.02], [0.25, 0.2], [0.9, 0.01], [0.01, 0.95], [0.0, 0.01]])
def test_folded_is_direct_over_many_blocks_and_cuts(densities: list[float]) -> None:
    versions = steps(4, 2, densities, 2 * BLOCK_ELEMENTS + 99)
    one, two = delta(versions[0], versions[1]), delta(versions[1], versions[2])
    assert folded(one, two) == make_delta(versions[0], versions[2])
    assert inverted(one, versions[0]) == make_delta(versions[1], versions[0])


def test_there_and_back_is_no_change() -> None:
    one, two = steps(5, 2, [0.4], 70_000)
    plan, chunks = folded(delta(one, two), delta(two, one))
    assert (plan, chunks) == make_delta(one, one)
    assert all(Delta.of(plan, XXH3_128, chunks).index.unchanged())


Shape = dict[str, tuple[str, int]]
A: Shape = {"a": ("BF16", 1000), "b": ("BF16", 333), "c": ("F32", 77), "d": ("F8_E5M2", 19)}


def model(seed: int, shape: Shape, names: list[str] | None = None) -> MemorySnapshot:
    rng = np.random.default_rng(seed)
    rows = []
    for name in names or list(shape):
        dtype, count = shape[name]
        base = np.frombuffer(np.random.default_rng(99).bytes(data_bytes(dtype, (count,))), np.uint8).copy()
        base[rng.random(base.size) < 0.05] += 1
        rows.append((name, dtype, (count,), base.tobytes()))
    return MemorySnapshot.of({"m.safetensors": safetensors_file(rows)})


@pytest.mark.parametrize(
    "shapes",
    [
        [A, {**A, "new": ("BF16", 50)}, {**A, "new": ("BF16", 50)}],
        [A, A, {k: v for k, v in A.items() if k != "b"}],
        [A, {k: v for k, v in A.items() if k != "b"}, {k: v for k, v in A.items() if k != "b"}],
        [A, {**A, "a": ("BF16", 1001)}, {**A, "a": ("BF16", 1001)}],
        [A, dict(reversed(A.items())), {**A, "e": ("F32", 4)}],
    ],
    ids=["added", "dropped", "dropped-first", "grown", "reordered-added"],
)
def test_folded_is_direct_when_tables_change(shapes: list[Shape]) -> None:
    have, mid, now = (model(i, shape) for i, shape in enumerate(shapes))
    assert folded(delta(have, mid), delta(mid, now)) == make_delta(have, now)
    assert inverted(delta(have, now), have, with_base=True) == make_delta(now, have)


def test_a_tensor_that_was_away_comes_whole() -> None:
    have, mid, now = model(0, A), model(1, A, ["a", "c", "d"]), model(2, A)
    plan, chunks = folded(delta(have, mid), delta(mid, now))
    assert apply_delta(plan, chunks, have) == now.files
    shuffled = model(1, A, ["d", "c", "a", "b"])
    plan, chunks = folded(delta(have, shuffled), delta(shuffled, now))
    assert apply_delta(plan, chunks, have) == now.files
    plan, chunks = folded(delta(have, mid), delta(mid, now))
    assert len(b"".join(chunks)) > len(b"".join(make_delta(have, now)[1]))


def test_what_a_delta_dropped_cannot_be_made_up() -> None:
    have, now = model(0, A), model(1, A, ["a", "c", "d"])
    with pytest.raises(SnapshotError, match="no successor"):
        inverted(delta(have, now), have)


def test_deltas_that_do_not_follow_each_other() -> None:
    with pytest.raises(ValueError, match="does not begin"):
        folded(delta(model(0, A), model(1, A)), delta(model(0, {"a": ("F32", 3)}), model(1, A)))


def test_a_delta_with_a_chunk_missing() -> None:
    plan, chunks = make_delta(*steps(6, 2, [0.9], 200_000))
    assert len(chunks) > 3
    for missing in range(len(chunks)):
        with pytest.raises(CodecError):
            Delta.of(plan, XXH3_128, chunks[:missing] + chunks[missing + 1 :])
