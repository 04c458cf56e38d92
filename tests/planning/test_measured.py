from __future__ import annotations

import pytest

from chappe.planning.errors import PlanInputError
from chappe.planning.measured import Measured, expected_t_bcast_s, usual_overhead


def test_the_published_broadcast() -> None:
    published = Measured(1, 1437.0, 1312.0)
    assert published.overhead == pytest.approx(1.095, abs=5e-4)
    assert expected_t_bcast_s(1312.0, [published]) == pytest.approx(1437.0)
    assert expected_t_bcast_s(9.05, [published]) == pytest.approx(9.91, abs=0.01), "a delta over the same links"


def test_one_fault_says_little_about_the_next() -> None:
    usual = [Measured(v, 110.0, 100.0) for v in range(1, 5)]
    assert usual_overhead([*usual, Measured(5, 400.0, 100.0)]) == pytest.approx(1.1)


def test_the_newest_five_count_in_any_order() -> None:
    old = [Measured(v, 300.0, 100.0) for v in range(1, 20)]
    new = [Measured(v, 120.0, 100.0) for v in range(20, 25)]
    assert usual_overhead([*new, *old]) == pytest.approx(1.2)
    assert usual_overhead([*old, *new[:1]]) == pytest.approx(3.0)


def test_nothing_measured_is_nothing_expected() -> None:
    assert usual_overhead([]) is None
    assert expected_t_bcast_s(100.0, []) is None


@pytest.mark.parametrize(("t_bcast", "floor"), [(0.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_bad_input_is_named(t_bcast: float, floor: float) -> None:
    with pytest.raises(PlanInputError, match=r"t_bcast_s|floor_s"):
        Measured(1, t_bcast, floor)
