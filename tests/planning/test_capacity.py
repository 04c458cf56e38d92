"""The published example (T_train 1500 s, T_bcast 1437 s, R 2048) and the formula's own properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.planning.capacity import bubble_ratio, min_pool_throughput, slack_s, workers_needed
from chappe.planning.errors import Infeasible, PlanInputError

T_TRAIN, T_BCAST, R, MU = 1500, 1437, 2048, 0.33


def test_slack_and_requirement_of_the_published_example() -> None:
    assert slack_s(T_TRAIN, T_BCAST, 2) == 1563
    assert min_pool_throughput(T_TRAIN, T_BCAST, 2, R) == pytest.approx(2.621, abs=5e-4)


@pytest.mark.parametrize(("kappa", "rate", "workers"), [(2, 2.621, 9), (3, 2.006, 7), (5, 1.689, 6), (8, 1.551, 6)])
def test_a_longer_period_needs_fewer_workers(kappa: int, rate: float, workers: int) -> None:
    assert min_pool_throughput(T_TRAIN, T_BCAST, kappa, R) == pytest.approx(rate, abs=5e-4)
    assert workers_needed(T_TRAIN, T_BCAST, kappa, R, mu_worker=MU) == workers


def test_gamma_is_headroom() -> None:
    assert workers_needed(T_TRAIN, T_BCAST, 2, R, mu_worker=MU, gamma=1.0) == 8
    assert workers_needed(T_TRAIN, T_BCAST, 2, R, mu_worker=MU, gamma=1.1) == 9


def test_bubble_of_a_pool_at_seventy_percent() -> None:
    required = min_pool_throughput(T_TRAIN, T_BCAST, 2, R)
    assert bubble_ratio(T_TRAIN, T_BCAST, 2, R, mu_pool=0.7 * required) == pytest.approx(0.183, abs=5e-4)


@pytest.mark.parametrize("kappa", [1, 2, 3, 5, 8])
def test_without_a_broadcast_kappa_does_not_matter(kappa: int) -> None:
    assert min_pool_throughput(T_TRAIN, 0, kappa, R) == pytest.approx(1.365, abs=5e-4)


def test_infeasible_names_the_remedies() -> None:
    with pytest.raises(Infeasible) as caught:
        min_pool_throughput(T_TRAIN, 3100, 2, R)
    assert caught.value.kappa_min == 3
    assert caught.value.payload_fraction_max == pytest.approx(3000 / 3100)
    min_pool_throughput(T_TRAIN, 3100, caught.value.kappa_min, R)
    min_pool_throughput(T_TRAIN, 3100 * caught.value.payload_fraction_max * 0.999, 2, R)
    with pytest.raises(Infeasible):
        min_pool_throughput(T_TRAIN, 3000, 2, R)


@given(st.floats(1, 1e4), st.floats(0, 1e4), st.integers(1, 12), st.floats(1, 1e5), st.floats(0.05, 3))
def test_the_bubble_is_zero_exactly_from_the_requirement_on(
    t: float, b: float, kappa: int, r: float, share: float
) -> None:
    if slack_s(t, b, kappa) <= 0:
        with pytest.raises(Infeasible) as refused:
            min_pool_throughput(t, b, kappa, r)
        assert slack_s(t, b, refused.value.kappa_min) > 0
        assert bubble_ratio(t, b, kappa, r, mu_pool=1e12) >= 0
        return
    required = min_pool_throughput(t, b, kappa, r)
    bubble = bubble_ratio(t, b, kappa, r, mu_pool=share * required)
    assert 0 <= bubble < 1
    if share > 1.0001:
        assert bubble == 0
    if share < 0.99:
        assert bubble > 0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"t_train_s": 0}, "t_train_s"),
        ({"t_train_s": float("nan")}, "t_train_s"),
        ({"t_bcast_s": -1}, "t_bcast_s"),
        ({"kappa": 0}, "kappa"),
        ({"kappa": 1.5}, "kappa"),
        ({"batch": float("inf")}, "batch"),
        ({"mu_worker": 0}, "mu_worker"),
        ({"gamma": -1}, "gamma"),
    ],
)
def test_bad_input_is_named(change: dict[str, float], named: str) -> None:
    inputs = {"t_train_s": T_TRAIN, "t_bcast_s": T_BCAST, "kappa": 2, "batch": R, "mu_worker": MU} | change
    with pytest.raises(PlanInputError, match=named):
        workers_needed(**inputs)  # type: ignore[arg-type]
