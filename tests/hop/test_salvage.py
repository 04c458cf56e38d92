"""Blocks of the base that are not what they were cost these blocks, not the version.

| happens                                              | then |
|------------------------------------------------------|------|
| one block of the base is rotten                      | its chunks are asked for, shared ones, too |
| two, at both ends; in a file that did not change     | likewise; nothing is written to what has another name |
| the process dies at any step of it                   | the next one goes on, never to a wrong version |
| ... when some pages have come                        | what is on the disk is hashed, not fetched |
| most of the base is another one                      | nothing is kept |
| the pages say other than the delta                   | what they do not name is fetched, too |
| what was made rots before its page comes             | found when it lands |
| the full object is on its way already                | left alone |
| nobody asks for it                                   | retention takes it |
| a file is named like another's copy                  | both are what they should be |
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from chappe.core.manifest import LEAF_BYTES
from chappe.core.ranges import RangeSet
from chappe.errors import DeltaError, StoreError
from chappe.hop.client import build_request
from chappe.hop.objects import StoredObject
from chappe.hop.store import Store
from chappe.hop.verify import verify_directory
from chappe.payload.plan import DeltaPlan
from tests.hop.deltamodels import ELEMENTS, delta_model, files_of, full_model, table_of
from tests.hop.fakes import token
from tests.hop.storekit import CrashError, FaultyDisk, Model, abandon, receive, tree
from tests.payload.deltakit import safetensors_file


def files(step: int = 0) -> dict[str, bytes]:
    """As `files_of`, and a third shard that stays: no two blocks are half of it."""
    rng = np.random.default_rng(5)
    more = [(f"more.{i}", "BF16", (ELEMENTS,), rng.bytes(2 * ELEMENTS)) for i in range(3)]
    return files_of(1, step=step) | {"z.safetensors": safetensors_file(more)}


BASE = full_model(files(), f"{1:032x}")
TARGET = full_model(files(30), f"{2:032x}")
DELTA = delta_model(BASE, TARGET, f"{4:032x}").delta
PLAN = DeltaPlan.between(table_of(BASE), table_of(TARGET))
FIRST, SECOND = "model-00001-of-00002.safetensors", "sub/model-00002-of-00002.safetensors"
CHUNK = TARGET.manifest.chunk_bytes


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def store(tmp_path: Path, disk: FaultyDisk) -> Store:
    return with_base(tmp_path / "store", disk)


def with_base(path: Path, disk: FaultyDisk) -> Store:
    store = Store.open(path, disk)
    receive(store, BASE)
    store.land(BASE.object_id, 1, BASE.root)
    return store


def rot(store: Store, path: str, offset: int) -> int:
    """Three bytes of the base become others; returns the block of the target that is made from them."""
    at = store.layout.snapshot(1) / path
    mode = at.stat().st_mode
    at.chmod(0o644)
    with at.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(b ^ 0x5A for b in BASE.files[path][offset : offset + 3]))
    at.chmod(mode)
    return PLAN.block_at(list(TARGET.files).index(path), offset)


def chunks_of(*blocks: int) -> RangeSet:
    """Chunks of the target that have a byte of these blocks."""
    found = RangeSet()
    for ordinal in blocks:
        block = PLAN.block(ordinal)
        first = TARGET.manifest.chunks_of_file(block.file)[0]
        found.add(first + block.offset // CHUNK, first + (block.offset + block.length - 1) // CHUNK + 1)
    return found


def fails(store: Store) -> str:
    return str(failure(store))


def failure(store: Store) -> DeltaError:
    held = store.get(DELTA.object_id) or receive(store, DELTA)
    assert held.ledger.complete
    with pytest.raises(DeltaError, match="not come out as the publisher's") as raised:
        store.land(DELTA.object_id, 2, TARGET.root)
    assert tree(store.layout.snapshot(1)).keys() == BASE.files.keys()
    return raised.value


def asked_for(held: StoredObject) -> RangeSet:
    request = build_request(held, 0, token("p", "c"))
    return RangeSet((r.start, r.stop) for r in request.lacks_chunks)


def fetch(held: StoredObject, pages: Iterable[bytes] = TARGET.pages, target: Model = TARGET) -> int:
    """What a parent would send: the pages, and the chunks that were asked for until nothing lacks. Returns bytes."""
    sent = 0
    for page in pages:
        held.put_page(page)
    while wanted := asked_for(held):
        for start, stop in wanted:
            for chunk in target.chunks(range(start, stop)):
                held.put_chunks([chunk])
                sent += len(chunk[1])
    return sent


def lands(store: Store) -> None:
    assert tree(store.land(TARGET.object_id, 2, TARGET.root).path) == TARGET.files
    assert verify_directory(store.layout.root).ok


def part_of(store: Store) -> StoredObject:
    held = store.get(TARGET.object_id)
    assert held is not None
    return held


def test_one_rotten_block_costs_one_block(store: Store) -> None:
    block = rot(store, FIRST, 2_500_000)
    before = tree(store.layout.snapshot(1))
    why = fails(store)
    wanted = chunks_of(block)
    assert len(wanted) * CHUNK <= PLAN.block(block).length + 2 * CHUNK
    lacking = sum(TARGET.manifest.place(c).length for start, stop in wanted for c in range(start, stop))
    assert f"; {lacking} of {TARGET.manifest.payload_bytes} bytes are fetched" in why
    assert f"1 of {PLAN.blocks_total} blocks" in why
    part = part_of(store)
    assert (asked_for(part), len(part.ledger.held), part.holding().version) == (wanted, 0, 0)
    assert fetch(part) == lacking
    assert part.ledger.complete
    lands(store)
    assert tree(store.layout.snapshot(1)) == before
    store.close()


def test_two_at_both_ends_and_one_in_a_file_that_did_not_change(store: Store) -> None:
    last = len(BASE.files[SECOND]) - 10
    blocks = [rot(store, FIRST, 1000), rot(store, SECOND, last)]
    before = tree(store.layout.snapshot(1))
    fails(store)
    part = part_of(store)
    assert asked_for(part) == chunks_of(*blocks)
    assert fetch(part) < sum(PLAN.block(b).length for b in blocks) + 4 * CHUNK
    lands(store)
    assert tree(store.layout.snapshot(1)) == before  # not through a link
    store.close()


def test_a_chunk_that_straddles_blocks_is_asked_for(store: Store) -> None:
    block = rot(store, FIRST, 2_500_000)
    begins = PLAN.block(block).offset
    assert begins % CHUNK  # the first one has bytes of the block before, too
    fails(store)
    first = TARGET.manifest.chunks_of_file(list(TARGET.files).index(FIRST))[0] + begins // CHUNK
    assert first in asked_for(part_of(store))
    assert first - 1 not in asked_for(part_of(store))
    fetch(part_of(store))
    lands(store)
    store.close()


def test_the_next_process_goes_on(tmp_path: Path, store: Store) -> None:
    block = rot(store, FIRST, 2_500_000)
    fails(store)
    held = part_of(store)
    for page in TARGET.pages[:2]:
        held.put_page(page)
    assert held.ledger.held
    abandon(store)
    again = Store.open(tmp_path / "store")
    held = part_of(again)
    assert not held.ledger.held
    held.recover()
    per_page = TARGET.manifest.chunks_per_page
    expected = chunks_of(block)
    assert held.ledger.held == RangeSet(RangeSet(expected).missing(0, 2 * per_page))
    assert asked_for(held) == expected
    fetch(held)
    lands(again)
    again.close()


def test_a_page_log_that_was_lost_costs_nothing(tmp_path: Path, store: Store) -> None:
    """A power failure: the journal is there, the pages are not. Also of an object that was only received."""
    held = receive(store, TARGET, range(40))
    held.flush()
    abandon(store)
    store.layout.object(TARGET.object_id).pages.write_bytes(b"")
    again = Store.open(tmp_path / "store")
    held = part_of(again)
    held.recover()
    assert (len(held.ledger.held), asked_for(held).ranges()[0][0]) == (0, 40)
    assert fetch(held) == sum(len(d) for _, d in TARGET.chunks(range(40, TARGET.manifest.chunks_total)))
    lands(again)
    again.close()


def test_killed_at_every_step(tmp_path: Path) -> None:
    """Whatever is there then, the version lands, and the base is what it was."""

    def run(store: Store) -> None:
        receive(store, DELTA)
        try:
            store.land(DELTA.object_id, 2, TARGET.root)
        except DeltaError:
            fetch(part_of(store))
            store.land(TARGET.object_id, 2, TARGET.root)

    counting = FaultyDisk()
    store = with_base(tmp_path / "counting", counting)
    rot(store, SECOND, 1_000_000)
    before, start = tree(store.layout.snapshot(1)), len(counting.operations)
    run(store)
    total = len(counting.operations) - start
    store.close()
    assert total > 100
    outcomes = set()
    for number, at in enumerate(range(3, total, max(1, total // 30))):
        home, disk = tmp_path / f"s{number}", FaultyDisk()
        store = with_base(home, disk)
        rot(store, SECOND, 1_000_000)
        disk.crash_at = len(disk.operations) + at
        with pytest.raises((CrashError, StoreError)):
            run(store)
        store._appliers.close()
        abandon(store)
        again = Store.open(home)
        for held in again.objects().values():
            held.recover()
        outcomes.add((again.get(TARGET.object_id) is not None, again.landed(2) is not None))
        if again.landed(2) is None and again.get(TARGET.object_id) is None:
            delta = again.get(DELTA.object_id) or receive(again, DELTA)
            if delta.manifest is None:
                delta.put_header(DELTA.header)
            for page in DELTA.pages[delta.pages_held :]:
                delta.put_page(page)
            delta.put_chunks(DELTA.chunks())
            fails(again)
        if again.landed(2) is None:
            part = part_of(again)
            fetch(part, TARGET.pages[part.pages_held :])
            again.land(TARGET.object_id, 2, TARGET.root)
        assert tree(again.layout.snapshot(2)) == TARGET.files
        assert tree(again.layout.snapshot(1)) == before
        again.close()
    assert {(False, False), (True, False)} <= outcomes


def test_another_base_altogether_keeps_nothing(store: Store) -> None:
    for path in (FIRST, SECOND, "z.safetensors"):
        for offset in range(1000, len(BASE.files[path]), 1_000_000):
            rot(store, path, offset)
    why = fails(store)
    assert "are fetched" not in why
    assert store.get(TARGET.object_id) is None
    assert not (store.layout.object(DELTA.object_id).root / "applied").exists()
    store.close()


def test_pages_that_say_otherwise_are_believed(store: Store) -> None:
    """The delta led to other bytes in a block, and said that they were right; its root was the right one."""
    other = dict(TARGET.files)
    data = bytearray(other[FIRST])
    data[100_000:100_003] = b"\x01\x02\x03"
    other[FIRST] = bytes(data)
    lying = delta_model(BASE, full_model(other, TARGET.object_id), DELTA.object_id, closing_root=TARGET.root).delta
    wrong = rot(store, SECOND, 1_000_000)
    receive(store, lying)
    fails(store)
    part = part_of(store)
    assert asked_for(part) == chunks_of(wrong)
    for page in TARGET.pages:
        part.put_page(page)
    changed = TARGET.manifest.chunks_of_file(list(TARGET.files).index(FIRST))[0] + 100_000 // CHUNK
    assert changed in asked_for(part)  # and nobody was served it
    assert changed not in part.ledger.held
    fetch(part, [])
    lands(store)
    store.close()


def test_what_rots_before_it_lands_is_found(store: Store) -> None:
    rot(store, FIRST, 2_500_000)
    fails(store)
    part = part_of(store)
    path = store.layout.object(TARGET.object_id).files / FIRST
    with path.open("r+b") as file:
        file.seek(5 * CHUNK)
        file.write(bytes(9))
    fetch(part)
    chunk = TARGET.manifest.chunks_of_file(list(TARGET.files).index(FIRST))[0] + 5
    assert part.recheck(range(TARGET.manifest.chunks_total)) == [chunk]
    fetch(part, [])
    lands(store)
    store.close()


def test_an_object_that_is_on_its_way_is_left_alone(store: Store) -> None:
    held = receive(store, TARGET, range(3))
    rot(store, FIRST, 2_500_000)
    error = failure(store)
    assert "are fetched" not in str(error)
    assert error.part == ""
    assert store.get(TARGET.object_id) is held
    held.put_chunks(TARGET.chunks())
    lands(store)
    store.close()


def test_retention_takes_what_nobody_asks_for(store: Store) -> None:
    rot(store, FIRST, 2_500_000)
    error = failure(store)
    assert error.part == TARGET.object_id
    assert store.retain([DELTA.object_id, error.part], [1]).objects == ()
    assert store.retain([DELTA.object_id], [1]).objects == (TARGET.object_id,)
    assert store.get(TARGET.object_id) is None
    assert not store.layout.object(TARGET.object_id).root.exists()
    store.close()


def test_leaves_of_what_is_kept_are_not_read_again(store: Store) -> None:
    block = PLAN.block(rot(store, FIRST, 2_500_000))
    fails(store)
    part = part_of(store)
    assert part._rooting is not None
    leaves = part._rooting.leaves
    file = list(TARGET.files).index(FIRST)
    lacking = range(block.offset // LEAF_BYTES, (block.offset + block.length - 1) // LEAF_BYTES + 1)
    assert leaves.missing(file) == [leaf * LEAF_BYTES for leaf in lacking]
    assert leaves.missing(list(TARGET.files).index(SECOND)) == []
    store.close()


def test_a_model_is_large_enough_for_this() -> None:
    assert isinstance(TARGET, Model)
    assert PLAN.blocks_total >= 6


def test_no_file_of_a_snapshot_is_taken_for_a_copy(tmp_path: Path) -> None:
    """A sidecar whose name is another file's and something more; files that do not change are links until then."""
    more = {f"z.safetensors.{end}": end.encode() * 9000 for end in ("own", "tmp")}
    base, target = (
        full_model(dict(sorted((of | more).items(), key=lambda file: file[0].endswith(".safetensors"))), object_id)
        for of, object_id in ((files(), BASE.object_id), (files(30), TARGET.object_id))
    )
    delta = delta_model(base, target, DELTA.object_id).delta
    store = Store.open(tmp_path / "store")
    receive(store, base)
    store.land(base.object_id, 1, base.root)
    rot(store, FIRST, 2_500_000)
    receive(store, delta)
    with pytest.raises(DeltaError, match="are fetched"):
        store.land(delta.object_id, 2, target.root)
    fetch(part_of(store), target.pages, target)
    assert tree(store.land(target.object_id, 2, target.root).path) == target.files
    assert tree(store.layout.snapshot(1)).keys() == base.files.keys()
    store.close()
