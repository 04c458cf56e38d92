"""What an object of the store is after a restart, and when its disk has lost or changed bytes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from storekit import MIB, FaultyDisk, make_model, receive, rot

from chappe.core.events import ObjectState
from chappe.errors import (
    StoreError,
)
from chappe.hop.store import Store

# ---- restarts ----


def test_a_restart_holds_what_is_there_after_hashing_it(tmp_path: Path) -> None:
    model = make_model()
    with Store.open(tmp_path) as store:
        receive(store, model, [0, 1, 2, 20, 21, 40])
    with Store.open(tmp_path) as store:
        held = store.create(model.object_id)
        assert list(held.ledger.held) == []
        assert store.holdings()[0].chunks == ()
        held.recover()
        assert list(held.ledger.held) == [(0, 3), (20, 22), (40, 41)]
        held.put_chunks(model.chunks())
        assert held.computed_root() == model.root


async def test_the_store_recovers_off_the_loop(tmp_path: Path) -> None:
    models = [make_model(seed) for seed in (1, 2)]
    with Store.open(tmp_path) as store:
        for model in models:
            receive(store, model)
    with Store.open(tmp_path) as store:
        await store.recover(threads=2)
        assert [h.state for h in store.holdings()] == [ObjectState.RECEIVED] * 2
        for model in models:
            assert store.create(model.object_id).computed_root() == model.root


def test_a_restart_drops_only_what_is_wrong(tmp_path: Path) -> None:
    model = make_model()
    with Store.open(tmp_path) as store:
        held = receive(store, model)
        for chunk in (0, 7, 30):
            rot(held, chunk, store.layout.object(model.object_id).files)
    with Store.open(tmp_path) as store:
        held = store.create(model.object_id)
        held.recover()
        assert held.ledger.missing() == [(0, 1), (7, 8), (30, 31)]
        held.put_chunks(model.chunks([0, 7, 30]))
        assert held.computed_root() == model.root


def test_lost_pages_cost_their_chunks_only(tmp_path: Path) -> None:
    model = make_model()
    with Store.open(tmp_path) as store:
        receive(store, model)
    pages = tmp_path / "objects" / model.object_id / "pages"
    pages.write_bytes(pages.read_bytes()[:-3])
    with Store.open(tmp_path) as store:
        held = store.create(model.object_id)
        held.recover()
        last = model.manifest.chunks_of_page(model.manifest.pages_total - 1)[0]
        assert held.pages_held == model.manifest.pages_total - 1
        assert list(held.ledger.held) == [(0, last)]
        held.put_page(model.pages[-1])
        held.put_chunks(model.chunks(range(last, model.manifest.chunks_total)))
        assert held.computed_root() == model.root


@pytest.mark.parametrize("harm", ["header torn", "header of another", "file gone", "file short"])
def test_an_object_that_is_not_whole_is_set_aside_and_said(tmp_path: Path, harm: str) -> None:
    model = make_model()
    with Store.open(tmp_path) as store:
        receive(store, model)
    own = tmp_path / "objects" / model.object_id
    if harm == "header torn":
        (own / "header").write_bytes((own / "header").read_bytes()[:-1])
    elif harm == "header of another":
        with Store.open(tmp_path / "x") as other:
            receive(other, make_model(2), [])
        (own / "header").write_bytes((tmp_path / "x" / "objects" / f"{2:032x}" / "header").read_bytes())
    elif harm == "file gone":
        (own / "files" / "config.json").unlink()
    else:
        os.truncate(own / "files" / "model.safetensors", 5)
    with Store.open(tmp_path) as store:
        assert store.objects() == {}
        assert len(store.notes) == 1
        assert "is not whole" in store.notes[0]
        assert list((tmp_path / "trash").iterdir()) == []
        assert receive(store, model).computed_root() == model.root


# ---- rot ----


def test_recheck_drops_only_what_is_rotten(store: Store) -> None:
    model = make_model()
    held = receive(store, model)
    rot(held, 5, store.layout.object(model.object_id).files)
    seen = held.signal.count
    assert held.recheck([4, 5, 6, 10**9]) == [5]
    assert held.signal.count == seen + 1
    assert held.ledger.missing() == [(5, 6)]
    assert held.recheck([4, 5, 6]) == []
    held.put_chunks(model.chunks([5]))
    assert held.computed_root() == model.root


def test_an_unreadable_chunk_is_rotten(store: Store, disk: FaultyDisk) -> None:
    model = make_model()
    held = receive(store, model)
    disk.fail(["pread"], errno.EIO)
    assert held.recheck([3]) == [3]


def test_rot_between_arrival_and_root_is_found_when_leaves_are_read_back(store: Store) -> None:
    model = make_model(files={"a": MIB})
    held = receive(store, model, range(15))
    held.recheck([3])  # sound: nothing happens
    rot(held, 0, store.layout.object(model.object_id).files)
    assert held.recheck([0]) == [0]
    rot(held, 1, store.layout.object(model.object_id).files)
    held._rooting.leaves.feed = lambda *_: True  # type: ignore[union-attr, method-assign]
    held.put_chunks(model.chunks([0, 15]))
    with pytest.raises(StoreError, match=r"chunks \[\(1, 2\)\].*rotted on disk: recheck"):
        held.computed_root()


def test_a_landed_file_is_mended_beside_and_never_written_to(tmp_path: Path, store: Store) -> None:
    model = make_model()
    held = receive(store, model)
    landed = store.land(model.object_id, 1, model.root)
    chunk = model.manifest.chunks_of_file(1)[0] + 2
    rot(held, chunk, landed.path)
    file = landed.path / "model.safetensors"
    rotten, inode = file.read_bytes(), file.stat().st_ino
    with file.open("rb") as reader:
        assert held.recheck([chunk]) == [chunk]
        assert not held.ledger.complete
        held.put_chunks(model.chunks([chunk]))
        assert held.read_chunk(chunk) == model.chunk(chunk)  # served at once, from beside
        assert file.read_bytes() == rotten
        assert held.mend() == 1
        assert reader.read() == rotten  # whoever has it open keeps it
    assert file.stat().st_ino != inode
    assert file.read_bytes() == model.files["model.safetensors"]
    assert (file.stat().st_mode & 0o777, landed.path.stat().st_mode & 0o777) == (0o444, 0o555)
    assert held.read_chunk(chunk) == model.chunk(chunk)
    assert held.mend() == 0


def test_mends_outlive_a_restart(tmp_path: Path) -> None:
    model = make_model()
    with Store.open(tmp_path) as store:
        held = receive(store, model)
        landed = store.land(model.object_id, 1, model.root)
        rot(held, 3, landed.path)
        held.recheck([3])
        held.put_chunks(model.chunks([3]))
    with Store.open(tmp_path) as store:
        held = store.create(model.object_id)
        assert held.read_chunk(3) == model.chunk(3)
        assert held.mend() == 1
        assert held.recheck(range(model.manifest.chunks_total)) == []
