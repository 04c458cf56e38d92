from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import KIB, MIB, Model, make_model, receive

from chappe.errors import StoreCorruptError, UsageError
from chappe.hop.store import Store
from chappe.hop.verify import FileState, verify_directory

MODEL = make_model(1, {"b/model.safetensors": 2 * MIB + 9, "a.json": 100, "empty": 0})
SPARE = make_model(2, {"x": 10})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        for model, version in ((SPARE, 1), (MODEL, 2)):
            receive(opened, model)
            opened.land(model.object_id, version, model.root)
        yield opened


def unlock(store: Store, name: str) -> Path:
    for path in (store.layout.snapshot(2), store.layout.snapshot(2) / "b"):
        path.chmod(0o755)
    file = store.layout.snapshot(2) / name
    if file.exists():
        file.chmod(0o644)
    return file


def states(store: Store) -> dict[str, FileState]:
    report = verify_directory(store.layout.root)
    assert not report.ok
    return {f.path: f.state for f in report.files if f.state is not FileState.OK}


@pytest.mark.parametrize("name", [".", "current", "snapshots/2"])
def test_a_whole_snapshot_is_ok_however_it_is_named_while_its_store_is_open(store: Store, name: str) -> None:
    report = verify_directory(store.layout.root / name)
    assert report.ok
    assert (report.version, report.path) == (2, store.layout.snapshot(2))
    assert report.root_actual == report.root_expected == MODEL.root
    assert [(f.path, f.state) for f in report.files] == [(p, FileState.OK) for p in sorted(MODEL.files)]
    assert report.snapshot_bytes == sum(len(data) for data in MODEL.files.values())


def test_an_older_version_is_verified_against_its_own_manifest(store: Store) -> None:
    report = verify_directory(store.layout.snapshot(1))
    assert (report.ok, report.version, report.root_actual) == (True, 1, SPARE.root)


def test_one_bit_is_found_and_its_place_is_told(store: Store) -> None:
    file = unlock(store, "b/model.safetensors")
    data = bytearray(file.read_bytes())
    data[MIB + 70 * KIB] ^= 1
    file.write_bytes(data)
    report = verify_directory(store.layout.root)
    assert not report.ok
    assert report.root_actual not in ("", MODEL.root)
    bad = [f for f in report.files if f.state is not FileState.OK]
    assert [(f.path, f.state) for f in bad] == [("b/model.safetensors", FileState.MISMATCH)]
    assert bad[0].detail == f"1 of 33 chunks differ, the first at byte {MIB + 64 * KIB}"


def test_missing_short_and_extra_files_are_told(store: Store) -> None:
    unlock(store, "a.json").unlink()
    unlock(store, "b/model.safetensors").write_bytes(b"short")
    unlock(store, "b/extra").write_bytes(b"")
    unlock(store, "b/link").symlink_to("extra")
    assert states(store) == {
        "a.json": FileState.MISSING,
        "b/model.safetensors": FileState.MISMATCH,
        "b/extra": FileState.EXTRA,
        "b/link": FileState.EXTRA,
    }
    assert verify_directory(store.layout.root).root_actual == ""


def test_an_extra_file_alone_is_not_ok(store: Store) -> None:
    unlock(store, "more").write_bytes(b"")
    assert states(store) == {"more": FileState.EXTRA}


def test_a_symlink_is_not_a_file_of_the_snapshot(store: Store, tmp_path: Path) -> None:
    file = unlock(store, "a.json")
    (tmp_path / "same").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(tmp_path / "same")
    assert states(store) == {"a.json": FileState.MISMATCH}


def test_the_root_still_tells_when_pages_are_gone(store: Store) -> None:
    store.layout.object(MODEL.object_id).pages.write_bytes(b"")
    assert verify_directory(store.layout.root).ok
    file = unlock(store, "a.json")
    file.write_bytes(b"x" * 100)
    report = verify_directory(store.layout.root)
    assert not report.ok
    assert report.root_actual != report.root_expected


def test_other_places_are_wrong_usage(store: Store, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", store.layout.objects, store.layout.snapshots, store.layout.lock):
        with pytest.raises(UsageError, match="name a store, its `current`, or one of its snapshots"):
            verify_directory(path)
    with Store.open(tmp_path / "new"), pytest.raises(UsageError, match="nothing has landed"):
        verify_directory(tmp_path / "new")


def test_a_snapshot_without_records_cannot_be_judged(store: Store) -> None:
    store.layout.object(MODEL.object_id).header.write_bytes(b"rot")
    with pytest.raises(StoreCorruptError, match="manifest of version 2 cannot be read"):
        verify_directory(store.layout.root)
    store.layout.object(MODEL.object_id).landing.unlink()
    with pytest.raises(StoreCorruptError, match="no record"):
        verify_directory(store.layout.root)


def test_the_model_is_what_the_tests_think() -> None:
    assert isinstance(MODEL, Model)
    assert MODEL.manifest.chunks_total == 33 + 1
