"""Sets and a ledger that threads use at the same time: no step of another thread is ever seen half done."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from chappe.core.ledger import Cursor
from chappe.core.ranges import RangeSet
from chappe.hop.shared import SharedLedger, SharedRanges

CHUNKS = 2000


@pytest.fixture(autouse=True)
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  told below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_ranges_are_read_whole_while_they_change() -> None:
    ranges = SharedRanges()
    done = threading.Event()

    def change(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(3000):
            at = numbers.randrange(CHUNKS)
            (ranges.add if numbers.random() < 0.6 else ranges.discard)(at, at + numbers.randrange(1, 20))
        done.set()

    def read() -> None:
        while not done.is_set():
            found = ranges.ranges()
            assert all(a < b for a, b in found)
            assert all(before[1] < after[0] for before, after in itertools.pairwise(found))
            assert all(10 <= a < b <= 900 for a, b in ranges.within(10, 900))
            assert (5 in ranges) in (True, False)
            ranges.covers(3, 40)

    together(lambda: change(1), lambda: change(2), read)
    assert len(ranges) == sum(b - a for a, b in ranges)
    assert ranges == RangeSet(ranges.ranges())


def test_every_chunk_reaches_every_reader_once_in_the_order_of_arrival() -> None:
    ledger = SharedLedger(CHUNKS)
    order = list(range(CHUNKS))
    random.Random(3).shuffle(order)
    arrived: list[int] = []

    def add(chunks: list[int]) -> None:
        arrived.extend(chunk for chunk in chunks if ledger.add(chunk, chunk + 1))

    taken: list[list[int]] = [[], []]

    def take(into: list[int]) -> None:
        cursor, wanted = Cursor(), RangeSet([(0, CHUNKS)])
        while wanted:
            into.extend(ledger.take(cursor, wanted, 7))

    # Two parents bring all of it, partly the same: three stripes of which one comes twice.
    together(lambda: add(order[:1500]), lambda: add(order[1000:]), lambda: take(taken[0]), lambda: take(taken[1]))
    assert ledger.complete
    assert sorted(arrived) == list(range(CHUNKS))
    for found in taken:
        assert sorted(found) == list(range(CHUNKS))
    assert taken[0] == taken[1]
