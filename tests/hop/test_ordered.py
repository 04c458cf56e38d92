from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chappe.hop.ordered import BRIEF_ELEMENTS, OrderedMap, one_at_a_time


def test_results_are_in_order_and_work_is_bounded() -> None:
    taken = []

    def items() -> Iterator[int]:
        for i in range(50):
            taken.append(i)
            yield i

    with ThreadPoolExecutor(3) as pool:
        results = OrderedMap(pool, 4)(lambda i: i * i, items())
        assert next(results) == 0
        assert len(taken) == 5
        assert list(results) == [i * i for i in range(1, 50)]


def test_an_error_is_raised_in_its_place() -> None:
    with ThreadPoolExecutor(2) as pool:
        results = OrderedMap(pool, 2)(lambda i: 6 // (3 - i), range(9))
        assert [next(results) for _ in range(3)] == [2, 3, 6]
        with pytest.raises(ZeroDivisionError):
            next(results)


def test_short_rows_are_one_at_a_time_and_long_ones_are_not() -> None:
    inside = most = 0
    counting = threading.Lock()

    def enter(elements: int) -> None:
        nonlocal inside, most
        for _ in range(20):
            with one_at_a_time(elements):
                with counting:
                    inside += 1
                    most = max(most, inside)
                if elements >= BRIEF_ELEMENTS:
                    together.wait(60)
                with counting:
                    inside -= 1

    together = threading.Barrier(3)
    for elements, expected in ((100, 1), (BRIEF_ELEMENTS, 3)):
        most = 0
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(enter, [elements] * 3))
        assert most == expected
