"""A delta that was received becomes a version, or leaves everything as it was.

| happens                                     | then |
|---------------------------------------------|------|
| base here, delta right                      | the publisher's files, bit for bit; the full object serves its chunks |
| a file does not change                      | it is a link to the base's |
| base not here / other bytes / other tensors | DeltaError, nothing changed, the delta is still served |
| delta leads to another root                 | DeltaError, nothing left of it |
| cut short, altered, not a delta             | DeltaError |
| no room, at any operation                   | DiskFullError, nothing left; lands when there is room |
| room for what is written alone              | lands: what is linked needs none |
| dies, at any operation                      | old or new version whole; landing again gives the new one |
| the full object is here half received       | DeltaError: it is on its way as that one |
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chappe.core.events import ObjectState
from chappe.core.manifest import DELTA_FILE
from chappe.errors import DeltaError, DiskFullError
from chappe.hop import disk as disk_module
from chappe.hop.store import Store
from chappe.hop.verify import verify_directory
from chappe.payload.container import Packer
from tests.hop.deltamodels import DeltaModel, delta_model, files_of, full_model, with_bytes
from tests.hop.storekit import CrashError, FaultyDisk, Model, abandon, receive, tree

BASE = full_model(files_of(1), f"{1:032x}")
TARGET = full_model(files_of(1, step=1), f"{2:032x}")
OTHER = full_model(files_of(2), f"{3:032x}")
DELTA = delta_model(BASE, TARGET, f"{4:032x}").delta
LARGE = delta_model(BASE, full_model(TARGET.files, f"{5:032x}", chunk_bytes=1 << 20), f"{6:032x}")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """In memory where the host has room for it there: no test of the device."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="chappe-test-") as directory:
        yield Path(directory)


@pytest.fixture
def store(home: Path, disk: FaultyDisk) -> Iterator[Store]:
    with Store.open(home / "store", disk) as opened:
        receive(opened, BASE)
        opened.land(BASE.object_id, 1, BASE.root)
        yield opened
        disk.heal()


def untouched(store: Store) -> bool:
    """Version 1 is served as it was, and nothing of an attempt is left."""
    left = sorted(path.name for path in store.layout.object(DELTA.object_id).root.iterdir())
    assert left == ["files", "header", "journal", "pages"]
    assert sorted(path.name for path in store.layout.snapshots.iterdir()) == ["1"]
    return verify_directory(store.layout.root).ok and tree(store.layout.snapshot(1)) == BASE.files


@pytest.mark.parametrize("made", [delta_model(BASE, TARGET, f"{4:032x}"), LARGE], ids=["64 KiB", "1 MiB"])
def test_what_lands_is_the_publisher_s_files_and_the_full_object(store: Store, made: DeltaModel) -> None:
    assert len(made.delta.files[DELTA_FILE]) < TARGET.manifest.payload_bytes / 20
    receive(store, made.delta).flush()
    landed = store.land(made.delta.object_id, 2, TARGET.root)
    assert (landed.version, landed.root, landed.object_id) == (2, TARGET.root, made.target.object_id)
    assert tree(landed.path) == TARGET.files
    assert verify_directory(store.layout.root).ok
    full = store.get(made.target.object_id)
    assert full is not None
    assert full.header_bytes == made.target.header
    assert [full.page_bytes(i) for i in range(full.pages_held)] == made.target.pages
    assert [(c, full.read_chunk(c)) for c in range(full.ledger.total or 0)] == made.target.chunks()
    assert full.holding().state is ObjectState.VERIFIED
    delta = store.get(made.delta.object_id)
    assert delta is not None
    assert [(c, delta.read_chunk(c)) for c in range(delta.ledger.total or 0)] == made.delta.chunks()
    assert not delta.work.root.exists()


def test_a_file_that_does_not_change_is_a_link(store: Store) -> None:
    receive(store, DELTA)
    store.land(DELTA.object_id, 2, TARGET.root)
    same = [path for path in TARGET.files if TARGET.files[path] and TARGET.files[path] == BASE.files[path]]
    assert same == ["sub/model-00002-of-00002.safetensors"]
    for path in TARGET.files:
        one, two = (store.layout.snapshot(v) / path for v in (1, 2))
        assert os.path.samestat(one.stat(), two.stat()) is (path in same)
    store.retain([], [2])
    store.empty_trash()
    assert tree(store.layout.snapshot(2)) == TARGET.files


def test_landing_twice_and_after_a_restart_changes_nothing(home: Path, store: Store) -> None:
    receive(store, DELTA)
    landed = store.land(DELTA.object_id, 2, TARGET.root)
    assert store.land(DELTA.object_id, 2, TARGET.root) == landed
    store.mark_installed(2)
    store.close()
    with Store.open(home / "store") as again:
        held = again.get(DELTA.object_id)
        assert held is not None
        held.recover()
        assert held.ledger.complete
        assert held.landed is None
        answer = again.land(DELTA.object_id, 2, TARGET.root)
        assert (answer.object_id, answer.installed) == (TARGET.object_id, True)


def test_a_chain_of_deltas(store: Store) -> None:
    before = BASE
    for step in range(1, 5):
        target = full_model(files_of(1, step=step), f"{step + 20:032x}")
        made = delta_model(before, target, f"{step + 40:032x}")
        receive(store, made.delta)
        store.land(made.delta.object_id, step + 1, target.root)
        assert tree(store.layout.current) == target.files
        store.retain([], [step, step + 1])
        before = target


def test_the_base_is_kept_while_it_is_needed(store: Store, disk: FaultyDisk) -> None:
    receive(store, OTHER)
    store.land(OTHER.object_id, 2, OTHER.root)
    receive(store, DELTA)
    seen = []

    class Retaining(FaultyDisk):
        def link(self, source: Path, target: Path) -> None:
            seen.append(store.retain([DELTA.object_id], [2]).versions)
            super().link(source, target)

    store._lander._disk = store._appliers._disk = Retaining()
    assert store.land(DELTA.object_id, 3, TARGET.root).path == store.layout.snapshot(3)
    assert seen == [()]
    assert store.retain([], [2, 3]).versions == (1,)


def test_without_the_base_nothing_happens(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        receive(store, OTHER)
        store.land(OTHER.object_id, 1, OTHER.root)
        held = receive(store, DELTA)
        with pytest.raises(DeltaError, match="is not here"):
            store.land(DELTA.object_id, 2, TARGET.root)
        assert held.ledger.complete
        assert tree(store.layout.current) == OTHER.files


def test_a_base_that_rotted_is_found_and_what_is_served_stays(store: Store) -> None:
    receive(store, DELTA).flush()
    path = store.layout.snapshot(1) / "model-00001-of-00002.safetensors"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(1_500_000)
        file.write(b"\xff\xfe\xfd")
    with pytest.raises(DeltaError, match="not come out as the publisher's"):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert not (store.layout.object(DELTA.object_id).root / "applied").exists()
    assert sorted(p.name for p in store.layout.snapshots.iterdir()) == ["1"]


def test_rot_in_a_file_that_would_be_linked_is_found(store: Store) -> None:
    receive(store, DELTA)
    path = store.layout.snapshot(1) / "sub/model-00002-of-00002.safetensors"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\xff\xfe\xfd")
    with pytest.raises(DeltaError, match="not come out as the publisher's"):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert store.landed(2) is None


def test_a_delta_to_other_bytes_than_announced(store: Store) -> None:
    """It passes every check of the transport: its publisher made it so."""
    wrong = delta_model(BASE, full_model(files_of(1, step=2), TARGET.object_id), DELTA.object_id).delta
    receive(store, wrong).flush()
    with pytest.raises(DeltaError, match="announced is"):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert untouched(store)


def test_a_delta_that_lies_about_its_root(store: Store) -> None:
    wrong = full_model(files_of(1, step=2), TARGET.object_id)
    made = delta_model(BASE, wrong, DELTA.object_id, closing_root=TARGET.root).delta
    receive(store, made).flush()
    with pytest.raises(DeltaError, match="gives root"):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert untouched(store)


def _damaged() -> dict[str, Model]:
    data = DELTA.files[DELTA_FILE]
    middle = len(data) // 2
    return {
        "cut short": with_bytes(DELTA, data[:-5]),
        "no closing chunk": with_bytes(DELTA, data[: -_closing_bytes()]),
        "goes on": with_bytes(DELTA, data + data[-_closing_bytes() :]),
        "altered": with_bytes(DELTA, data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]),
        "not a delta": with_bytes(DELTA, b"x" * len(data)),
        "prologue": with_bytes(DELTA, data[:30] + b"\0\0" + data[32:]),
    }


def _closing_bytes() -> int:
    return len(Packer(TARGET.manifest.algorithm).close(TARGET.root)) + 1


@pytest.mark.parametrize("what", ["cut short", "no closing chunk", "goes on", "altered", "not a delta", "prologue"])
def test_a_delta_that_no_publisher_makes(store: Store, what: str) -> None:
    receive(store, _damaged()[what]).flush()
    with pytest.raises(DeltaError):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert untouched(store)


def test_the_full_object_is_on_its_way_already(store: Store) -> None:
    half = receive(store, TARGET, range(10))
    receive(store, DELTA).flush()
    with pytest.raises(DeltaError, match="in the store already"):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert len(half.ledger.held) == 10
    assert untouched(store)
    half.put_chunks(TARGET.chunks())
    assert tree(store.land(TARGET.object_id, 2, TARGET.root).path) == TARGET.files
    assert store.land(DELTA.object_id, 2, TARGET.root).object_id == TARGET.object_id


@pytest.mark.parametrize("operation", ["create", "allocate", "pwrite", "link", "fsync", "write_record"])
def test_no_room_leaves_nothing_and_lands_later(store: Store, disk: FaultyDisk, operation: str) -> None:
    receive(store, DELTA).flush()
    disk.fail([operation])
    with pytest.raises(DiskFullError):
        store.land(DELTA.object_id, 2, TARGET.root)
    disk.heal()
    store.empty_trash()
    assert untouched(store)
    assert tree(store.land(DELTA.object_id, 2, TARGET.root).path) == TARGET.files


def test_room_is_asked_for_what_is_written_and_not_for_what_is_linked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what would help is said: here somebody reads a version that would have gone."""
    receive(store, DELTA).flush()
    largest = max(len(data) for path, data in TARGET.files.items() if data != BASE.files.get(path))
    assert largest + 4096 < TARGET.manifest.payload_bytes
    monkeypatch.setattr(disk_module, "free_bytes", lambda _path: largest - 1)
    with pytest.raises(DiskFullError, match=r"version 2: 1 B short .* needed, .* free in .*\. Free some space, the"):
        store.land(DELTA.object_id, 2, TARGET.root)
    assert untouched(store)
    monkeypatch.setattr(disk_module, "free_bytes", lambda _path: largest)
    assert tree(store.land(DELTA.object_id, 2, TARGET.root).path) == TARGET.files
    monkeypatch.undo()
    receive(store, OTHER)
    with store.hold(1), store.hold(2):
        monkeypatch.setattr(store._disk, "rename", no_more_room)
        with pytest.raises(DiskFullError, match=r"Free some space, or end what still reads version 1, the transfer"):
            store.land(OTHER.object_id, 3, OTHER.root)


def no_more_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_as_long_as_none_of_the_base_s_is_asked_for_before_anything_is_made(
    store: Store, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = full_model(TARGET.files | {"config.json": TARGET.files["config.json"] + b" " * 5000}, f"{7:032x}")
    delta = delta_model(BASE, longer, f"{8:032x}").delta
    receive(store, delta).flush()
    before = len(disk.operations)
    monkeypatch.setattr(disk_module, "free_bytes", lambda _path: 4999)
    with pytest.raises(DiskFullError, match="short"):
        store.land(delta.object_id, 2, longer.root)
    assert not {"create", "link", "pwrite"} & set(disk.operations[before:])


def test_it_dies_at_every_operation(home: Path) -> None:
    """Afterwards there is the old version or the new one, whole, and landing again gives the new one."""
    base, target = (
        full_model({k: v for k, v in m.files.items() if "00001" not in k}, m.object_id) for m in (BASE, TARGET)
    )
    delta = delta_model(base, target, DELTA.object_id).delta

    def prepare(path: Path, disk: FaultyDisk) -> Store:
        store = Store.open(path, disk)
        receive(store, base)
        store.land(base.object_id, 1, base.root)
        receive(store, delta).flush()
        return store

    disk = FaultyDisk()
    with prepare(Path(home, "whole"), disk) as store:
        before = len(disk.operations)
        store.land(delta.object_id, 2, target.root)
        steps = len(disk.operations) - before
    assert steps > 30
    for step in range(steps):
        disk = FaultyDisk()
        path = Path(home, str(step))
        store = prepare(path, disk)
        disk.crash_at = len(disk.operations) + step
        with pytest.raises(CrashError):
            store.land(delta.object_id, 2, target.root)
        abandon(store)
        with Store.open(path) as again:
            assert verify_directory(path).ok
            for held in again.objects().values():
                held.recover()
            landed = again.land(delta.object_id, 2, target.root)
            assert tree(landed.path) == target.files
            assert tree(again.layout.snapshot(1)) == base.files
            assert verify_directory(path).ok
