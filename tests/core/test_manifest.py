"""Geometry covers every byte once; the root depends on paths, sizes and bytes, and on nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.digest import ALGORITHMS, XXH3_128, Algorithm
from chappe.core.manifest import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    CHUNK_BYTES_PLAIN,
    LEAF_BYTES,
    FileEntry,
    Manifest,
    TensorEntry,
    check_page,
    chunk_bytes_for,
    file_digest,
    snapshot_root,
)
from chappe.errors import ManifestError

OBJECT_ID = "0123456789abcdef" * 2
sizes = st.lists(st.integers(0, 3 * CHUNK_BYTES_MAX + 7), min_size=1, max_size=6)


def manifest(sizes: list[int], chunk_bytes: int = CHUNK_BYTES_MIN, **changes: object) -> Manifest:
    files = tuple(FileEntry(f"file-{i}", size) for i, size in enumerate(sizes))
    return replace(Manifest(OBJECT_ID, XXH3_128, chunk_bytes, files), **changes)  # type: ignore[arg-type]


@given(sizes, st.sampled_from([1 << k for k in range(16, 22)]), st.integers(1, 9))
def test_chunks_cover_every_byte_once_and_never_cross_a_file_or_a_leaf(
    sizes: list[int], chunk_bytes: int, per_page: int
) -> None:
    m = manifest(sizes, chunk_bytes, chunks_per_page=per_page)
    expected = [0] * len(sizes)
    for chunk in range(m.chunks_total):
        place = m.place(chunk)
        assert place.offset == expected[place.file]
        assert 0 < place.length <= chunk_bytes
        if chunk_bytes <= LEAF_BYTES:
            assert place.offset // LEAF_BYTES == (place.offset + place.length - 1) // LEAF_BYTES
        else:
            assert place.offset % LEAF_BYTES == 0
        start, stop = m.chunks_of_file(place.file)
        assert start <= chunk < stop
        first, last = m.chunks_of_page(m.page_of(chunk))
        assert first <= chunk < last
        expected[place.file] += place.length
    assert expected == sizes
    assert m.payload_bytes == sum(sizes)
    assert sum(b - a for a, b in map(m.chunks_of_page, range(m.pages_total))) == m.chunks_total


@pytest.mark.parametrize("chunk", [-1, 3])
def test_a_chunk_outside_the_object_has_no_place(chunk: int) -> None:
    with pytest.raises(IndexError):
        manifest([3 * CHUNK_BYTES_MIN]).place(chunk)


@pytest.mark.parametrize(
    "change",
    [
        {"object_id": "../../etc"},
        {"object_id": OBJECT_ID.upper()},
        {"chunk_bytes": CHUNK_BYTES_MIN - 1},
        {"chunk_bytes": 3 * CHUNK_BYTES_MIN},
        {"chunk_bytes": 2 * CHUNK_BYTES_MAX},
        {"chunk_bytes": 0},
        {"chunks_per_page": 0},
        {"chunks_per_page": 1 << 20},
        {"files": ()},
        {"files": (FileEntry("a", 1), FileEntry("a", 2))},
        {"files": (FileEntry("a", -1),)},
        {"files": (FileEntry("a", 1 << 60),)},
        {"algorithm": Algorithm("md5", 16, XXH3_128.once, XXH3_128.start)},
        {"tensors": (TensorEntry("t", "F32", (1,), 1, 0, 4),)},
        {"tensors": (TensorEntry("t", "F32", (1,), 0, 4, 0),)},
        {"tensors": (TensorEntry("t", "F32", (1,), 0, 0, 11),)},
    ],
)
def test_refuses_a_header_that_cannot_be_true(change: dict[str, object]) -> None:
    with pytest.raises(ManifestError):
        manifest([10], **change)


def root_of(files: dict[str, bytes], algorithm: Algorithm) -> str:
    entries = [FileEntry(path, len(data)) for path, data in files.items()]
    digests = [
        file_digest(algorithm, len(d), [algorithm.once(d[i : i + LEAF_BYTES]) for i in range(0, len(d), LEAF_BYTES)])
        for d in files.values()
    ]
    return snapshot_root(algorithm, entries, digests)


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=list(ALGORITHMS))
def test_the_root_names_the_bytes_and_nothing_else(algorithm: Algorithm) -> None:
    big = bytes(LEAF_BYTES + 5)
    base = root_of({"a": big, "b": b"xyz"}, algorithm)
    assert base.startswith(algorithm.name + ":")
    assert root_of({"b": b"xyz", "a": big}, algorithm) == base, "order of travel must not matter"
    changed = [
        {"a": big, "b": b"xyz!"},
        {"a": big, "c": b"xyz"},
        {"a": big[:-1] + b"\1", "b": b"xyz"},
        {"a": big},
        {"a": big, "b": b"xyz", "empty": b""},
        {"b": big, "a": b"xyz"},
    ]
    assert len({root_of(files, algorithm) for files in changed} | {base}) == len(changed) + 1


def test_a_page_must_have_one_digest_per_chunk() -> None:
    m = manifest([3 * CHUNK_BYTES_MIN], chunks_per_page=2)
    assert check_page(m, 0, bytes(32)) == [bytes(16), bytes(16)]
    assert check_page(m, 1, bytes(16)) == [bytes(16)]
    for index, digests in [(0, bytes(31)), (0, bytes(48)), (1, bytes(32)), (2, b""), (-1, b"")]:
        with pytest.raises(ManifestError):
            check_page(m, index, digests)


def test_chunk_size_is_about_ten_milliseconds() -> None:
    assert chunk_bytes_for(1.0) == CHUNK_BYTES_PLAIN
    assert chunk_bytes_for(50e6 / 8) == CHUNK_BYTES_PLAIN
    assert chunk_bytes_for(100e6 / 8) == 128 << 10
    assert chunk_bytes_for(1e9 / 8) == chunk_bytes_for(100e9 / 8) == LEAF_BYTES
