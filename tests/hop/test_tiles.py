from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.digest import BLAKE3, XXH3_128
from chappe.hop.tiles import Tiles
from tests.hop.storekit import some_bytes


@given(
    sizes=st.lists(st.integers(0, 500), min_size=1, max_size=3),
    step=st.sampled_from([1, 16, 64]),
    seed=st.integers(0, 1 << 16),
    threads=st.sampled_from([1, 3]),
    algorithm=st.sampled_from([XXH3_128, BLAKE3]),
)
def test_digests_are_those_of_the_pieces(sizes, step, seed, threads, algorithm) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(seed)
    files = [some_bytes(size, seed + i) for i, size in enumerate(sizes)]
    portions = []
    for file, data in enumerate(files):
        at = 0
        while at < len(data):
            length = rng.randint(1, 120)
            portions.append((file, at, memoryview(data)[at : at + length]))
            at += length
    rng.shuffle(portions)
    tiles = Tiles(algorithm, step, sizes)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda portion: tiles.feed(*portion), portions))
    for file, data in enumerate(files):
        assert tiles.of(file) == [algorithm.once(data[i : i + step]) for i in range(0, len(data), step)]


def test_a_portion_is_free_to_change_once_it_was_fed() -> None:
    data, buffer = some_bytes(100, 1), bytearray(10)
    tiles = Tiles(XXH3_128, 64, [100])
    for at in (90, 20, 10, 0, 80, 70, 30, 60, 50, 40):
        buffer[:] = data[at : at + 10]
        tiles.feed(0, at, memoryview(buffer))
    assert tiles.of(0) == [XXH3_128.once(data[:64]), XXH3_128.once(data[64:])]


def test_what_is_missing_is_said() -> None:
    tiles = Tiles(XXH3_128, 64, [100])
    tiles.feed(0, 0, memoryview(bytes(64)))
    tiles.feed(0, 65, memoryview(bytes(35)))
    with pytest.raises(ValueError, match="not all bytes of file 0"):
        tiles.of(0)
