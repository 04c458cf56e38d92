"""The blocks that processes and threads make alike, and the leaves that are read for them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from chappe.core.digest import XXH3_128
from chappe.core.manifest import LEAF_BYTES
from chappe.origin import encoder
from chappe.origin.encoder import BlockMaker, LeavesInARow, Task, plan_of
from chappe.origin.hashing import SnapshotHasher
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base
from tests.origin.encoderkit import snapshot


def test_leaves_of_what_is_read_in_a_row(tmp_path: Path) -> None:
    source = snapshot(tmp_path / "one")
    with SnapshotHasher(source) as hasher:
        results = [future.result() for future in hasher.results()]
    digests = [[leaf for r in results if r.span.file == file for leaf in r.leaves] for file in range(2)]
    sizes = [file.size_bytes for file in source.files]
    data = [file.location.read_bytes() for file in source.files]
    row = LeavesInARow(XXH3_128, sizes)
    asked = [(0, 0, 100), (0, 100, 3 * LEAF_BYTES), (0, 5 * LEAF_BYTES - 7, LEAF_BYTES), (0, 6 * LEAF_BYTES - 7, 7)]
    asked += [(1, 9, sizes[1] - 9), (0, sizes[0] - sizes[0] % LEAF_BYTES, sizes[0] % LEAF_BYTES), (0, 0, LEAF_BYTES)]
    for file, offset, length in asked:
        row.feed(file, offset, memoryview(data[file])[offset : offset + length])
    whole = [(0, 0), (0, 1), (0, 2), (0, 5), *((1, i) for i in range(1, len(digests[1]))), (0, len(digests[0]) - 1)]
    assert row.leaves == [(file, leaf, digests[file][leaf]) for file, leaf in [*whole, (0, 0)]]


def test_a_maker_and_its_task(two: tuple[Base, Snapshot]) -> None:
    base, target = two
    plan = plan_of(base.snapshot, target)
    with closing(BlockMaker(Task(base.snapshot, target, "xxh3_128", "xxh3_128"))) as maker:
        made = maker.encode(range(plan.blocks_total))
    assert [block.ordinal for block in made.blocks] == list(range(plan.blocks_total))
    assert sum(block.changed for block in made.blocks) > 50_000
    assert len(made.leaves) == sum(-(-file.size_bytes // LEAF_BYTES) for file in base.snapshot.files)


def test_a_run_ends_when_it_has_become_large(two: tuple[Base, Snapshot], monkeypatch: pytest.MonkeyPatch) -> None:
    base, target = two
    with closing(BlockMaker(Task(base.snapshot, target, "xxh3_128"))) as maker:
        whole = maker.encode(range(8)).blocks
        monkeypatch.setattr(encoder, "RUN_BYTES_MAX", sum(block.piece_bytes for block in whole[:3]) - 1)
        assert maker.encode(range(8)).blocks == whole[:3]
        monkeypatch.setattr(encoder, "RUN_BYTES_MAX", 0)
        assert maker.encode(range(4, 8)).blocks == whole[4:5]
