"""The published comparisons, reproduced from their inputs."""

from __future__ import annotations

import pytest

from chappe.planning.cost import (
    HostGroup,
    break_even_fleet,
    compare,
    egress_per_hour,
    hourly,
    largest_cheaper_fleet,
    longest_affordable_step_s,
    per_step,
)
from chappe.planning.errors import PlanInputError

A100_8 = [HostGroup("A100", 8, 3.06)]
MIXED = [HostGroup("A100", 4, 3.06), HostGroup("RTX-5090", 8, 0.35)]
H100_18 = [HostGroup("H100", 18, 2.90)]


def h100_and(workers: int) -> float:
    return hourly([HostGroup("H100", 8, 2.90), HostGroup("RTX-5090", workers, 0.35)])


def test_eight_a100_against_four_and_eight_5090() -> None:
    assert hourly(A100_8) == pytest.approx(24.48)
    assert hourly(MIXED) == pytest.approx(15.04)
    found = compare(hourly(A100_8), 1508.2, hourly(MIXED), 1631.2)
    assert found.baseline_per_step == pytest.approx(10.26, abs=5e-3)
    assert found.candidate_per_step == pytest.approx(6.81, abs=6e-3)
    assert found.saving == pytest.approx(0.336, abs=5e-4)
    assert found.step_ratio == pytest.approx(1.082, abs=5e-4)
    assert found.break_even_step_s == pytest.approx(2455, abs=0.5)
    assert longest_affordable_step_s(per_step(24.48, 1508.2), 15.04) == found.break_even_step_s


def test_eighteen_h100_against_eight_and_seventysix_5090() -> None:
    hours = 36.6667
    assert hourly(H100_18) == pytest.approx(52.20)
    assert h100_and(76) == pytest.approx(49.80)
    assert hourly(H100_18) * hours == pytest.approx(1914, abs=0.5)
    assert h100_and(76) * hours == pytest.approx(1826, abs=0.5)
    same_step = compare(52.20, 100, h100_and(76), 100)
    assert same_step.saving == pytest.approx(0.046, abs=5e-4)
    assert compare(52.20, 100, h100_and(76), 105).saving == pytest.approx(-0.002, abs=5e-4)
    assert compare(52.20, 100, h100_and(76), 110).saving == pytest.approx(-0.049, abs=5e-4)


def test_the_fleet_at_which_cheap_hosts_stop_being_cheap() -> None:
    assert break_even_fleet(52.20, 8 * 2.90, 0.35) == pytest.approx(82.86, abs=5e-3)
    assert largest_cheaper_fleet(52.20, 8 * 2.90, 0.35) == 82
    assert compare(52.20, 100, h100_and(83), 100).saving == pytest.approx(-0.001, abs=5e-4)
    assert compare(52.20, 100, h100_and(84), 100).saving == pytest.approx(-0.008, abs=5e-4)


def test_egress_is_priced_by_what_leaves() -> None:
    assert egress_per_hour(16.4e9, 3, 3600, 0.09) == pytest.approx(16.4 * 3 * 0.09)
    assert hourly(A100_8, egress_per_hour=1.0) == pytest.approx(25.48)


def test_bad_input_is_named() -> None:
    with pytest.raises(PlanInputError, match="price_per_hour of 'A100'"):
        HostGroup("A100", 1, -1)
    with pytest.raises(PlanInputError, match="count of 'A100'"):
        HostGroup("A100", -1, 1)
    with pytest.raises(PlanInputError, match="step_s"):
        per_step(1, 0)
