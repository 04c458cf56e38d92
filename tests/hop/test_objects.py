from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import KIB, MIB, FaultyDisk, abandon, make_model, model_of, receive, rot, some_bytes, synced_ahead, tree

from chappe.core.manifest import Manifest
from chappe.errors import (
    ChunkMismatchError,
    DiskFullError,
    ManifestError,
    RootMismatchError,
    StoreError,
    UnsafePathError,
)
from chappe.hop.filecache import OPEN_FILES_MAX
from chappe.hop.objects import StoredObject
from chappe.hop.recent import RECENT_BYTES_MAX, RecentChunks
from chappe.hop.source import SourceState
from chappe.hop.store import Store
from chappe.v1 import relay_pb2 as pb


def forget_recent(held: StoredObject) -> None:
    held._contents._recent = RecentChunks()


# ---- taking and serving ----


@pytest.mark.parametrize("chunk_bytes", [64 * KIB, MIB, 2 * MIB])
def test_what_was_put_is_served(store: Store, chunk_bytes: int) -> None:
    model = make_model(chunk_bytes=chunk_bytes)
    held = receive(store, model)
    assert held.ledger.complete
    assert held.header_bytes == model.header
    assert [held.page_bytes(i) for i in range(held.pages_held)] == model.pages
    forget_recent(held)
    assert [(c, held.read_chunk(c)) for c in range(model.manifest.chunks_total)] == model.chunks()
    assert held.computed_root() == model.root


def test_every_arrival_wakes_the_children(store: Store) -> None:
    model = make_model()
    held = store.create(model.object_id)
    seen = [held.signal.count]
    held.put_header(model.header)
    seen.append(held.signal.count)
    held.put_page(model.pages[0])
    seen.append(held.signal.count)
    held.put_chunks(model.chunks([0, 1]))
    seen.append(held.signal.count)
    assert seen == sorted(set(seen))
    held.put_header(model.header)
    held.put_page(model.pages[0])
    held.put_chunks(model.chunks([0, 1]))
    assert held.signal.count == seen[-1]  # nothing new came


def test_a_bad_chunk_is_neither_stored_nor_held_and_those_before_it_are(store: Store) -> None:
    model = make_model()
    held = receive(store, model, [])
    seen = held.signal.count
    bad = bytearray(model.chunk(3))
    bad[100] ^= 1
    with pytest.raises(ChunkMismatchError) as caught:
        held.put_chunks([(2, model.chunk(2)), (3, bytes(bad)), (4, model.chunk(4))])
    assert caught.value.chunk == 3
    assert list(held.ledger.held) == [(2, 3)]
    assert held.signal.count == seen + 1
    with pytest.raises(ChunkMismatchError):
        held.put_chunks([(5, model.chunk(5)[:-1])])
    with pytest.raises(OSError, match="not held"):
        held.read_chunk(3)


def test_lent_bytes_are_not_kept(store: Store) -> None:
    """Their bytes lie in a buffer that is used again: what is served later comes from the disk."""
    model = make_model()
    held = receive(store, model, [])
    buffer = bytearray(model.chunk(2))
    held.put_chunks([(2, memoryview(buffer))], lent=True)
    with pytest.raises(ChunkMismatchError):
        held.put_chunks([(3, memoryview(buffer))], lent=True)
    buffer[:] = bytes(len(buffer))
    assert held.read_chunk(2) == model.chunk(2)
    assert list(held.ledger.held) == [(2, 3)]
    opened = held.open_chunk(2)
    assert opened is not None
    with opened as span:
        assert os.pread(span.descriptor, len(buffer), span.offset) == model.chunk(2)


def test_one_of_two_threads_with_the_same_chunk_writes_it(tmp_path: Path) -> None:
    """A parent that was left is still bringing what the next one brings: no byte is written once the ledger has it."""
    writing, go = threading.Event(), threading.Event()

    class SlowDisk(FaultyDisk):
        def _step(self, operation: str) -> None:
            super()._step(operation)
            if operation == "pwrite" and threading.current_thread().name == "first":
                writing.set()
                assert go.wait(30)

    disk = SlowDisk()
    with Store.open(tmp_path, disk) as store:
        model = make_model()
        held = receive(store, model, [])
        before = disk.operations.count("pwrite")
        chunk = [(2, memoryview(model.chunk(2)))]
        first, second = (threading.Thread(target=held.put_chunks, args=(chunk,), name=n) for n in ("first", "second"))
        first.start()
        assert writing.wait(30)
        second.start()
        assert 2 not in held.ledger.held
        go.set()
        for thread in (first, second):
            thread.join(30)
        assert disk.operations.count("pwrite") == before + 1
        assert held.ledger.held.ranges() == ((2, 3),)


@pytest.mark.parametrize("end", ["drop", "close"])
def test_a_thread_that_comes_late_with_a_chunk_finds_the_object_closed(tmp_path: Path, end: str) -> None:
    """The fetch was cancelled, the object dropped or the store closed while its thread still had one in hand."""
    model = make_model()
    store = Store.open(tmp_path)
    held = receive(store, model, [0])
    if end == "drop":
        store.discard(model.object_id)
    else:
        store.close()
    before = tree(tmp_path)
    with pytest.raises(StoreError, match="was dropped"):
        held.put_chunks([(1, memoryview(model.chunk(1)))], lent=True)
    assert tree(tmp_path) == before
    assert held.ledger.held.ranges() == ((0, 1),)
    if end == "drop":
        store.close()


def test_verified_bytes_are_never_written_again(store: Store, disk: FaultyDisk) -> None:
    model = make_model()
    held = receive(store, model, [0])
    writes = disk.operations.count("pwrite")
    held.put_chunks([(0, model.chunk(0)), (0, b"rubbish")])
    assert disk.operations.count("pwrite") == writes


def test_what_comes_before_its_time_or_does_not_fit_is_refused(store: Store) -> None:
    model, other = make_model(1), make_model(2)
    held = store.create(model.object_id)
    with pytest.raises(ManifestError, match="no header yet"):
        held.put_page(model.pages[0])
    with pytest.raises(ManifestError, match="no header yet"):
        held.put_chunks([(0, b"")])
    with pytest.raises(ManifestError):
        held.put_header(other.header)  # names another object
    held.put_header(model.header)
    with pytest.raises(ManifestError, match="differs from the first"):
        held.put_header(make_model(1, files={"x": 5}).header)
    with pytest.raises(ManifestError, match="page 1 came before page 0"):
        held.put_page(model.pages[1])
    with pytest.raises(ManifestError, match="came before its page"):
        held.put_chunks(model.chunks([0]))
    held.put_page(model.pages[0])
    with pytest.raises(ManifestError, match="differs from the first"):
        held.put_page(other.pages[0])
    for number in (-1, model.manifest.chunks_total, 1 << 62):
        with pytest.raises(ManifestError):
            held.put_chunks([(number, b"")])
    assert len(held.ledger.held) == 0


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../out", "a/./b", "C:evil", "a\\b", ""])
def test_a_name_from_a_peer_never_leads_out(store: Store, tmp_path: Path, path: str) -> None:
    model = make_model()
    header = pb.Header.FromString(model.header)
    header.files[0].path = path
    held = store.create(model.object_id)
    with pytest.raises((UnsafePathError, ManifestError)):
        held.put_header(header.SerializeToString())
    assert held.manifest is None
    assert not (store.layout.object(model.object_id).files).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


def test_a_snapshot_of_empty_files_is_complete_with_its_header(store: Store) -> None:
    model = make_model(files={"a": 0, "d/b": 0})
    held = receive(store, model)
    assert held.ledger.complete
    assert held.computed_root() == model.root
    landed = store.land(model.object_id, 1, model.root)
    assert sorted(p.name for p in landed.path.rglob("*")) == ["a", "b", "d"]


def test_many_files_keep_few_descriptors(store: Store) -> None:
    before = len(os.listdir("/proc/self/fd"))
    model = make_model(files={f"d{i % 7}/f{i}": 100 + i for i in range(300)}, chunks_per_page=64)
    held = receive(store, model)
    forget_recent(held)
    assert all(held.read_chunk(c) == data for c, data in model.chunks())
    assert synced_ahead(held) == []
    assert len(os.listdir("/proc/self/fd")) <= before + OPEN_FILES_MAX + 2  # and the journal and the pages
    assert held.computed_root() == model.root


def test_recent_chunks_are_bounded() -> None:
    recent = RecentChunks()
    for chunk in range(40):
        recent.put(chunk, bytes(MIB))
        assert recent.held_bytes <= RECENT_BYTES_MAX
    assert recent.get(39) is not None
    assert recent.get(31) is None
    recent.put(39, b"x")
    recent.forget(38)
    assert recent.held_bytes == RECENT_BYTES_MAX - 2 * MIB + 1


def test_a_child_that_has_caught_up_costs_no_read(store: Store, disk: FaultyDisk) -> None:
    model = make_model(chunk_bytes=MIB)
    held = receive(store, model, [0, 1])
    reads = disk.operations.count("pread")
    assert held.read_chunk(1) == model.chunk(1)
    assert disk.operations.count("pread") == reads


# ---- the disk ----


@pytest.mark.parametrize("operation", ["create", "allocate", "write_record", "mkdir"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_an_object_gives_back_what_was_taken(
    store: Store, disk: FaultyDisk, operation: str, code: int
) -> None:
    model = make_model()
    held = store.create(model.object_id)
    disk.fail([operation], code)
    with pytest.raises(DiskFullError, match=r"no room for object .* Free some space"):
        held.put_header(model.header)
    assert held.manifest is None
    assert not store.layout.object(model.object_id).files.exists()
    disk.heal()
    assert receive(store, model).computed_root() == model.root  # goes on by itself


def test_a_snapshot_larger_than_the_disk_takes_nothing(store: Store, disk: FaultyDisk) -> None:
    header = pb.Header.FromString(make_model().header)
    header.files[1].size_bytes = 1 << 49
    header.payload_bytes = header.snapshot_bytes = sum(f.size_bytes for f in header.files)
    with pytest.raises(DiskFullError, match=r"no room for object .*: 5\d\d TB short \(5\d\d TB needed, .* free in /"):
        store.create(header.object_id).put_header(header.SerializeToString())
    assert "create" not in disk.operations


def test_a_disk_that_fills_on_the_way_says_what_is_missing(
    store: Store, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    held = receive(store, model, range(4))
    assert held.manifest is not None
    missing = (held.manifest.chunks_total - 4) * held.manifest.chunk_bytes
    monkeypatch.setattr("chappe.hop.disk.free_bytes", lambda path: missing - 5000)
    disk.fail(["pwrite"])
    with pytest.raises(DiskFullError, match=r"no room for chunks of .*: 5 kB short .* Free some space"):
        held.put_chunks(model.chunks([4, 5]))
    monkeypatch.setattr("chappe.hop.disk.free_bytes", lambda path: missing)  # not what the device says: nobody can see
    with pytest.raises(DiskFullError, match="No space left on device"):
        held.put_chunks(model.chunks([4, 5]))


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, StoreError)])
def test_a_write_that_fails_holds_nothing_that_is_not_there(
    store: Store, disk: FaultyDisk, code: int, error: type[StoreError]
) -> None:
    model = make_model()
    held = receive(store, model, range(4))
    disk.fail(["pwrite"], code)
    with pytest.raises(error) as caught:
        held.put_chunks(model.chunks([4, 5]))
    assert type(caught.value) is error
    assert list(held.ledger.held) == [(0, 4)]
    disk.heal()
    held.put_chunks(model.chunks(range(4, model.manifest.chunks_total)))
    assert held.computed_root() == model.root


def test_no_room_for_a_page_leaves_the_pages_as_they_were(store: Store, disk: FaultyDisk) -> None:
    model = make_model()
    held = store.create(model.object_id)
    held.put_header(model.header)
    disk.fail(["pwrite"])
    with pytest.raises(DiskFullError):
        held.put_page(model.pages[0])
    assert held.pages_held == 0
    disk.heal()
    assert receive(store, model).computed_root() == model.root


# ---- the whole ----


def test_the_root_needs_all_chunks(store: Store) -> None:
    held = receive(store, make_model(), [0, 1])
    with pytest.raises(StoreError, match="not complete"):
        held.computed_root()


def test_chunks_that_match_their_pages_can_still_have_the_wrong_root(store: Store) -> None:
    model = make_model()
    receive(store, model)
    with pytest.raises(RootMismatchError, match=f"has root {model.root}"):
        store.land(model.object_id, 1, model.root[:-1] + "x")
    assert store.current() is None


def test_a_dropped_object_takes_nothing_and_tells_its_children(store: Store) -> None:
    model = make_model()
    held = receive(store, model, [0])
    seen = held.signal.count
    store.discard(model.object_id)
    assert held.state is SourceState.DROPPED
    assert held.signal.count == seen + 1
    for put in (lambda: held.put_header(model.header), lambda: held.put_page(b""), lambda: held.put_chunks([])):
        with pytest.raises(StoreError, match="was dropped"):
            put()
    assert store.holdings() == []
    assert receive(store, model).computed_root() == model.root  # from scratch


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    chunk_bytes=st.sampled_from([64 * KIB, 256 * KIB, MIB, 2 * MIB]),
    rots=st.integers(0, 3),
    restarts=st.integers(0, 3),
)
def test_any_order_with_rot_and_deaths_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, chunk_bytes: int, rots: int, restarts: int
) -> None:
    """The store against a dict: what it holds is right, and what it lost was lost for a reason."""
    chance = random.Random(seed)
    data = {
        "a": some_bytes(chance.randrange(3 * MIB), seed),
        "d/b": b"",
        "d/c": some_bytes(chance.randrange(200 * KIB), seed),
    }
    model = model_of(data, object_id=f"{7:032x}", chunk_bytes=chunk_bytes)
    path = tmp_path_factory.mktemp("store")
    store = Store.open(path)
    held = receive(store, model, [])
    total = model.manifest.chunks_total
    events = ["restart"] * restarts + ["rot"] * rots + ["put"] * total
    chance.shuffle(events)
    for event in events:
        held_now = [c for a, b in held.ledger.held for c in range(a, b)]
        if event == "restart":
            abandon(store)
            store = Store.open(path)
            held = store.create(model.object_id)
            held.recover(threads=1)
            lost = set(held_now) - {c for a, b in held.ledger.held for c in range(a, b)}
            assert sum(model.manifest.place(c).length for c in lost) < MIB + chunk_bytes
        elif event == "rot" and held_now:
            chunk = chance.choice(held_now)
            rot(held, chunk, store.layout.object(model.object_id).files)
            assert held.recheck(held_now) == [chunk]
        else:
            held.put_chunks(model.chunks(chance.sample(range(total), min(total, 3))))
    held.put_chunks(model.chunks(chance.sample(range(total), total)))
    assert held.computed_root() == model.root
    landed = store.land(model.object_id, 1, model.root)
    assert {n: (landed.path / n).read_bytes() for n in data} == data
    store.close()


def test_geometry_is_the_manifest_s(store: Store) -> None:
    model = make_model()
    held = receive(store, model, [])
    assert held.manifest == model.manifest
    assert isinstance(held.manifest, Manifest)
    assert held.ledger.total == model.manifest.chunks_total
