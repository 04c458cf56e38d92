from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import KIB, MIB, Model, make_model

from chappe.core.digest import BLAKE3, XXH3_128
from chappe.hop.leaves import RUNNING_MAX, LeafTable

SIZES = {"a": 2 * MIB + 5, "b": 0, "c": 64 * KIB, "d": 1 * MIB, "e": 5 * MIB // 2}


def feed(table: LeafTable, model: Model, chunk: int) -> bool:
    data = model.chunk(chunk)
    return table.feed(model.manifest.place(chunk), data, model.manifest.algorithm.once(data))


def fill(table: LeafTable, model: Model) -> None:
    """Read back what was not hashed on the way, as the store does."""
    for file, entry in enumerate(model.manifest.files):
        for offset in table.missing(file):
            data = model.files[entry.path][offset : offset + MIB]
            table.set(table.number(file, offset), model.manifest.algorithm.once(data))


@pytest.mark.parametrize("algorithm", [XXH3_128, BLAKE3])
@pytest.mark.parametrize("chunk_bytes", [64 * KIB, 256 * KIB, MIB, 2 * MIB])
def test_chunks_in_order_need_no_second_pass(chunk_bytes: int, algorithm: type) -> None:
    model = make_model(files=SIZES, chunk_bytes=chunk_bytes, algorithm=algorithm)  # type: ignore[arg-type]
    table = LeafTable(model.manifest)
    assert all(feed(table, model, chunk) for chunk in range(model.manifest.chunks_total))
    assert all(not table.missing(file) for file in range(len(SIZES)))
    assert table.root() == model.root


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    chunk_bytes=st.sampled_from([64 * KIB, 512 * KIB, MIB, 2 * MIB]),
    drops=st.integers(0, 5),
)
def test_the_root_is_the_same_in_any_order_and_after_drops(seed: int, chunk_bytes: int, drops: int) -> None:
    model = make_model(files=SIZES, chunk_bytes=chunk_bytes)
    table = LeafTable(model.manifest)
    order = list(range(model.manifest.chunks_total))
    chance = random.Random(seed)
    chance.shuffle(order)
    for chunk in order:
        feed(table, model, chunk)
    for chunk in chance.sample(order, min(drops, len(order))):
        place = model.manifest.place(chunk)
        table.drop(place)
        assert not table.has(table.number(place.file, place.offset))
    fill(table, model)
    assert table.root() == model.root


def test_a_missing_leaf_is_an_error_not_a_wrong_root() -> None:
    model = make_model(files=SIZES)
    table = LeafTable(model.manifest)
    with pytest.raises(ValueError, match="lacks leaves"):
        table.root()


def test_a_leaf_out_of_order_is_left_for_reading_back() -> None:
    model = make_model(files={"a": 128 * KIB})
    table = LeafTable(model.manifest)
    assert not feed(table, model, 1)
    assert feed(table, model, 0)  # begins a leaf, which its second chunk will not end
    assert table.missing(0) == [0]


def test_running_hashers_are_bounded() -> None:
    model = make_model(files={str(i): 128 * KIB for i in range(RUNNING_MAX + 4)})
    table = LeafTable(model.manifest)
    for file in range(RUNNING_MAX + 4):
        feed(table, model, 2 * file)
    assert len(table._running) == RUNNING_MAX
    ended = [feed(table, model, 2 * file + 1) for file in range(RUNNING_MAX + 4)]
    assert ended == [False] * 4 + [True] * RUNNING_MAX
