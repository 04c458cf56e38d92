from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chappe.hop.ordered import OrderedMap


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
