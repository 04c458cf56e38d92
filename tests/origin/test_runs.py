"""Rows of blocks for those that encode: all blocks, in order, and none too long."""

from __future__ import annotations

import pytest

from chappe.origin.runs import READ_BYTES_MAX, RUN_BLOCKS_MAX, RUN_BYTES_MAX, RUN_S_MAX, Runs

BLOCK = 2 << 20


@pytest.mark.parametrize("share", [0.001, 0.1, 1.01], ids="{} of the bytes".format)
@pytest.mark.parametrize("hands", [1, 2, 8, 32])
@pytest.mark.parametrize("total", [0, 1, 7, 64, 500, 10_000])
def test_they_are_all_blocks_in_order(total: int, hands: int, share: float) -> None:
    runs = Runs(total, hands, lambda _: BLOCK)
    given = []
    for run in runs:
        given.append(run)
        runs.became(len(run) * BLOCK, round(len(run) * BLOCK * share), 0.01)
    assert [ordinal for run in given for ordinal in run] == list(range(total))
    assert all(len(run) == 1 for run in given[: 2 * hands])
    assert all(len(run) <= RUN_BLOCKS_MAX for run in given)
    assert all(len(run) * BLOCK * share <= RUN_BYTES_MAX * 1.01 for run in given)
    assert all(len(run) <= 8 for run in given[-hands:])


def test_they_are_as_long_as_blocks_are_small() -> None:
    """Of a snapshot that changes little first, then much, then little again."""
    runs = Runs(10_000, 2, lambda _: BLOCK)
    longest = []
    for share in (0.01, 1.0, 0.3, 0.01):
        runs.became(BLOCK, round(BLOCK * share), 0.001)
        longest.append(max(len(next(runs)) for _ in range(50 if not longest else 1)))
    assert [length * BLOCK for length in longest] == [READ_BYTES_MAX, RUN_BYTES_MAX, 13 * BLOCK, READ_BYTES_MAX]


def test_they_are_bounded_by_their_bytes() -> None:
    """Of wide elements as well: what does not get smaller is in memory as it is."""
    sizes = [100, *[8 << 20] * 300, *[4 << 20] * 300, 7, *[40 << 20] * 2, *[1 << 20] * 300]
    runs = list(Runs(len(sizes), 2, sizes.__getitem__))
    assert [ordinal for run in runs for ordinal in run] == list(range(len(sizes)))
    assert all(len(run) == 1 or sum(sizes[ordinal] for ordinal in run) <= RUN_BYTES_MAX for run in runs)
    assert {len(run) for run in runs} >= {1, 2, 4, 16}


def test_blocks_that_have_vanished() -> None:
    """What does not change at all has no bytes."""
    runs = Runs(1000, 1, lambda _: BLOCK)
    for _ in range(20):
        runs.became(len(next(runs)) * BLOCK, 0, 0.0)
    assert len(next(runs)) == RUN_BLOCKS_MAX


def test_they_stay_short_where_reading_takes_long() -> None:
    runs = Runs(10_000, 1, lambda _: BLOCK)
    for _ in range(20):
        runs.became(len(next(runs)) * BLOCK, 1, 0.001)
    lengths = []
    for took_s in (1.0, RUN_S_MAX * 32 / 20, 0.001):
        runs.became(32 * BLOCK, 1, took_s)
        lengths.append(len(next(runs)))
    assert lengths == [RUN_BYTES_MAX // BLOCK, 20, 32]


@pytest.mark.parametrize("hands", [1, 2, 32])
def test_the_rest_of_one_is_for_all_hands(hands: int) -> None:
    runs = Runs(10_000, hands, lambda ordinal: (9 << 20) if ordinal == 105 else BLOCK)
    rest = list(runs.again(range(100, 124)))
    assert [ordinal for run in rest for ordinal in run] == list(range(100, 124))
    assert all(len(run) <= max(1, 24 // (2 * hands)) for run in rest)
    assert all(len(run) * BLOCK + (7 << 20) * (105 in run) <= RUN_BYTES_MAX for run in rest)
    assert list(runs.again(range(0))) == []
    assert next(runs) == range(1)
