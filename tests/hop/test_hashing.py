from __future__ import annotations

from pathlib import Path

import pytest
from storekit import KIB, MIB, Model, make_model

from chappe.core.ranges import RangeSet
from chappe.hop import hashing


def write(model: Model, base: Path) -> None:
    for name, data in model.files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(data)


def all_regions(model: Model) -> list[hashing.Region]:
    return [r for f in range(len(model.manifest.files)) for r in hashing.regions_of_file(model.manifest, f)]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("chunk_bytes", [64 * KIB, MIB, 2 * MIB])
def test_every_chunk_and_leaf_is_hashed_once(tmp_path: Path, chunk_bytes: int, threads: int) -> None:
    model = make_model(chunk_bytes=chunk_bytes)
    write(model, tmp_path)
    once = model.manifest.algorithm.once
    chunks: dict[int, bytes] = {}
    leaves: dict[tuple[int, int], bytes] = {}

    def on_region(region: hashing.Region, found: hashing.RegionDigests | None) -> None:
        assert found is not None
        for chunk, digest in zip(hashing.chunks_of_region(model.manifest, region), found.chunks, strict=True):
            assert chunk not in chunks
            chunks[chunk] = digest
        for i, digest in enumerate(found.leaves):
            leaves[region.file, region.offset + i * MIB] = digest

    hashing.hash_regions(model.manifest, tmp_path, all_regions(model), on_region, threads)
    assert chunks == {c: once(data) for c, data in model.chunks()}
    assert leaves == {
        (f, at): once(model.files[entry.path][at : at + MIB])
        for f, entry in enumerate(model.manifest.files)
        for at in range(0, entry.size_bytes, MIB)
    }


def test_what_cannot_be_read_in_full_is_said(tmp_path: Path) -> None:
    model = make_model(files={"short": 3 * MIB, "gone": MIB, "link": MIB})
    write(model, tmp_path)
    with (tmp_path / "short").open("r+b") as file:
        file.truncate(2 * MIB + 7)
    (tmp_path / "gone").unlink()
    (tmp_path / "link").rename(tmp_path / "target")
    (tmp_path / "link").symlink_to("target")  # a stored file is never a symlink
    found: dict[tuple[int, int], bool] = {}
    hashing.hash_regions(
        model.manifest,
        tmp_path,
        all_regions(model),
        lambda region, digests: found.__setitem__((region.file, region.offset), digests is not None),
    )
    assert found == {(0, 0): True, (0, MIB): True, (0, 2 * MIB): False, (1, 0): False, (2, 0): False}


def test_an_error_of_the_caller_ends_the_work(tmp_path: Path) -> None:
    model = make_model()
    write(model, tmp_path)

    def on_region(region: hashing.Region, found: hashing.RegionDigests | None) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        hashing.hash_regions(model.manifest, tmp_path, all_regions(model), on_region, 3)


def test_regions_of_chunks_come_once(tmp_path: Path) -> None:
    manifest = make_model(files={"a": 3 * MIB, "b": 10}).manifest
    regions = list(hashing.regions_of_chunks(manifest, RangeSet([(1, 3), (5, 6), (40, 49)])))
    assert regions == [
        hashing.Region(0, 0, MIB),
        hashing.Region(0, 2 * MIB, MIB),
        hashing.Region(1, 0, 10),
    ]
