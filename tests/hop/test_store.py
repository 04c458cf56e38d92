from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from storekit import KIB, FaultyDisk, make_model, receive, tree

from chappe.core.events import Holding, ObjectState
from chappe.errors import StoreError
from chappe.hop.source import ChunkSink, ChunkSource, SourceState
from chappe.hop.store import Store

ONE, TWO, THREE = (make_model(seed, {"a": 100 * KIB, "d/b": 7}) for seed in (1, 2, 3))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "deep" / "store") as opened:
        yield opened


def test_an_object_is_a_source_and_a_sink(store: Store) -> None:
    source: ChunkSource = store.create(ONE.object_id)
    sink: ChunkSink = store.create(ONE.object_id)
    assert source is sink


@pytest.mark.parametrize("object_id", ["", "../x", "A" * 32, "a" * 31, "a" * 33, "../" + "a" * 29])
def test_an_object_id_never_leads_out(store: Store, object_id: str) -> None:
    with pytest.raises(StoreError, match="lower-case hex"):
        store.create(object_id)
    assert store.objects() == {}


def test_holdings_tell_what_the_coordinator_wants_to_know(store: Store) -> None:
    store.create(THREE.object_id)
    receive(store, TWO, [1])
    receive(store, ONE)
    total = ONE.manifest.chunks_total
    unknown, part, whole = store.holdings()
    assert unknown == Holding(THREE.object_id, ObjectState.RECEIVING)
    assert part == Holding(TWO.object_id, ObjectState.RECEIVING, chunks=((1, 2),), chunks_total=total)
    assert whole == Holding(ONE.object_id, ObjectState.RECEIVED, chunks=((0, total),), chunks_total=total)
    store.land(ONE.object_id, 3, ONE.root)
    landed = Holding(ONE.object_id, ObjectState.VERIFIED, 3, ONE.root, ((0, total),), total)
    assert store.holdings()[2] == landed
    store.mark_installed(3)
    assert store.holdings()[2].state is ObjectState.INSTALLED


def test_versions_and_installs_outlive_a_restart(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for model, version in ((ONE, 1), (TWO, 5)):
            receive(store, model)
            store.land(model.object_id, version, model.root)
        store.mark_installed(1)
        before = store.versions()
        with pytest.raises(StoreError, match="version 2 is not in the store"):
            store.mark_installed(2)
    with Store.open(tmp_path) as store:
        assert store.versions() == before
        assert [(s.version, s.installed) for s in before] == [(1, True), (5, False)]
        assert store.current() == before[1]
        assert store.landed(1) == before[0]
        assert store.landed(2) is None
        assert store.notes == []


def test_a_new_store_holds_nothing(store: Store) -> None:
    assert (store.current(), store.versions(), store.holdings(), store.get(ONE.object_id)) == (None, [], [], None)


def test_retention_keeps_what_is_read_and_what_is_wanted(store: Store) -> None:
    models = [make_model(seed, {"a": 10}) for seed in range(1, 7)]
    for version, model in enumerate(models, 1):
        receive(store, model)
        store.land(model.object_id, version, model.root)
    partial = receive(store, make_model(9, {"a": 10}), [])
    with store.hold(1) as held:
        assert held.version == 1
        gone = store.retain({models[1].object_id}, {3})
        assert gone.versions == (4,)
        assert gone.objects == tuple(sorted([models[3].object_id, partial.object_id]))
        assert partial.state is SourceState.DROPPED
        assert tree(held.path) == models[0].files
    assert store.retain([], []).versions == (1, 2, 3)
    assert [s.version for s in store.versions()] == [5, 6]
    assert len(list(store.layout.trash.iterdir())) == 9
    store.empty_trash()
    assert list(store.layout.trash.iterdir()) == []
    with pytest.raises(StoreError, match="version 1 is not in the store"), store.hold(1):
        pass


def test_the_store_takes_no_more_room_than_what_it_keeps(store: Store) -> None:
    for version in range(1, 6):
        model = make_model(version, {"a": 100 * KIB})
        receive(store, model)
        store.land(model.object_id, version, model.root)
        store.retain([], [])
        store.empty_trash()
    assert sum(p.stat().st_size for p in store.layout.root.rglob("a")) == 2 * 100 * KIB


def test_an_object_that_is_landing_is_left_alone(tmp_path: Path) -> None:
    """Retention on the loop meets a landing in its thread."""
    disk = FaultyDisk()
    with Store.open(tmp_path, disk) as store:
        receive(store, ONE)
        landing, go_on = threading.Event(), threading.Event()
        step = disk._step

        def slow(operation: str) -> None:
            step(operation)
            if operation == "fsync" and threading.current_thread() is not threading.main_thread():
                landing.set()
                go_on.wait()

        disk._step = slow  # type: ignore[method-assign]
        thread = threading.Thread(target=store.land, args=(ONE.object_id, 1, ONE.root))
        thread.start()
        landing.wait()
        try:
            assert store.retain([], []).objects == ()
            with pytest.raises(StoreError, match="retention decides"):
                store.discard(ONE.object_id)
        finally:
            go_on.set()
            thread.join()
        assert store.current() is not None


def test_an_object_that_was_dropped_does_not_land(store: Store) -> None:
    receive(store, ONE)
    store.discard(ONE.object_id)
    store.discard(ONE.object_id)
    with pytest.raises(StoreError, match="is not in the store"):
        store.land(ONE.object_id, 1, ONE.root)
    with pytest.raises(ValueError, match="positive"):
        store.land(ONE.object_id, 0, ONE.root)


@pytest.mark.parametrize("harm", ["landing", "header", "file"])
def test_a_version_whose_records_rotted_is_set_aside_and_the_one_before_serves(tmp_path: Path, harm: str) -> None:
    with Store.open(tmp_path) as store:
        for model, version in ((ONE, 1), (TWO, 2)):
            receive(store, model)
            store.land(model.object_id, version, model.root)
        own = store.layout.object(TWO.object_id)
        if harm == "landing":
            own.landing.write_text(json.dumps({"version": "2"}))
        elif harm == "header":
            own.header.write_bytes(b"rot")
        else:
            (store.layout.snapshot(2) / "a").unlink()
    with Store.open(tmp_path) as store:
        assert store.notes
        current = store.current()
        assert current is not None
        assert current.version == 1
        assert tree(current.path) == ONE.files
        receive(store, TWO)
        store.land(TWO.object_id, 2, TWO.root)
        assert tree(store.layout.current.resolve()) == TWO.files


def test_a_version_that_nobody_knows_is_set_aside(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        receive(store, ONE)
        store.land(ONE.object_id, 1, ONE.root)
        (store.layout.snapshots / "7").mkdir()
        store.layout.current.unlink()
        store.layout.current.symlink_to("snapshots/7")
    with Store.open(tmp_path) as store:
        assert ["belongs to no object here" in note for note in store.notes] == [True]
        current = store.current()
        assert current is not None
        assert current.version == 1


def test_a_store_that_lost_all_its_versions_has_no_current(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        receive(store, ONE)
        store.land(ONE.object_id, 1, ONE.root)
        store.layout.object(ONE.object_id).header.unlink()
    with Store.open(tmp_path) as store:
        assert store.current() is None
        assert not store.layout.current.is_symlink()
