from __future__ import annotations

import pytest

from chappe.planning.errors import PlanInputError
from chappe.planning.staleness import admits, kappa_of, plan_staleness, staleness_of


def test_kappa_is_one_less_than_staleness() -> None:
    assert kappa_of(3) == 2
    assert staleness_of(2) == 3
    assert all(kappa_of(staleness_of(kappa)) == kappa for kappa in range(2, 20))


@pytest.mark.parametrize("staleness", [2, 0, -1])
def test_the_smallest_staleness_is_three(staleness: int) -> None:
    with pytest.raises(PlanInputError, match="staleness S must be a whole number of 3 or more"):
        kappa_of(staleness)


def test_kappa_one_has_no_staleness() -> None:
    with pytest.raises(PlanInputError, match="kappa"):
        staleness_of(1)


def test_admission_is_inclusive() -> None:
    assert [admits(v, 12, 3) for v in (8, 9, 12, 13)] == [False, True, True, True]


def test_the_envelope_is_a_warning_with_its_source() -> None:
    assert [plan_staleness(s).envelope for s in (3, 6, 7, 10, 11, 20)] == [
        *("stable", "stable", "unknown", "unknown", "diverged", "diverged")
    ]
    assert plan_staleness(6).warning == ""
    assert "ECHO-2" in plan_staleness(7).warning
    assert "GRPO" in plan_staleness(7).warning
    assert "diverge" in plan_staleness(11).warning
