"""The blocks that processes and threads make alike: runs of them, and the leaves that are read for them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from chappe.core.digest import XXH3_128
from chappe.core.manifest import LEAF_BYTES
from chappe.origin import encoder
from chappe.origin.encoder import BlockMaker, LeavesInARow, Task, plan_of, runs_of
from chappe.origin.hashing import SnapshotHasher
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base
from tests.origin.encoderkit import snapshot


@pytest.mark.parametrize("hands", [1, 2, 8, 32])
@pytest.mark.parametrize("total", [0, 1, 7, 64, 500, 10_000])
def test_runs_are_all_blocks_in_order(total: int, hands: int) -> None:
    runs = list(runs_of(total, hands, lambda _: 2 << 20))
    assert [ordinal for run in runs for ordinal in run] == list(range(total))
    assert all(len(run) == 1 for run in runs[: 2 * hands])
    assert all(len(run) <= encoder.RUN_BLOCKS_MAX for run in runs)


def test_runs_are_bounded_by_their_bytes() -> None:
    """Of wide elements as well: what does not get smaller is in memory as it is."""
    sizes = [100, *[8 << 20] * 300, *[4 << 20] * 300, 7, *[40 << 20] * 2, *[1 << 20] * 300]
    runs = list(runs_of(len(sizes), 2, sizes.__getitem__))
    assert [ordinal for run in runs for ordinal in run] == list(range(len(sizes)))
    assert all(len(run) == 1 or sum(sizes[ordinal] for ordinal in run) <= encoder.RUN_BYTES_MAX for run in runs)
    assert {len(run) for run in runs} == {1, 2, 3, 4, 8}


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
