"""The published example (T_train 1500 s, T_bcast 1437 s, R 2048) and the formula's own properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.planning.capacity import (
    bubble_ratio,
    largest_t_bcast_s,
    min_pool_throughput,
    slack_s,
    smallest_fleet,
    smallest_kappa,
    workers_needed,
)
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


shares = st.one_of(st.floats(0.1, 0.99), st.floats(1.01, 5))


@given(st.floats(1, 1e4), st.floats(0, 1e4), st.floats(1, 1e5), shares)
def test_the_smallest_kappa_is_the_smallest(t: float, b: float, r: float, share: float) -> None:
    mu = share * r / t
    found = smallest_kappa(t, b, r, mu_pool=mu)
    if share < 1:
        assert found is None
        assert bubble_ratio(t, b, 1000, r, mu_pool=mu) > 0
        return
    assert found is not None
    assert bubble_ratio(t, b, found, r, mu_pool=mu) == pytest.approx(0, abs=1e-6)
    if found > 1:
        assert largest_t_bcast_s(t, found - 1, r, mu_pool=mu) <= b * (1 + 1e-9)


def test_the_longest_broadcast_that_a_pool_hides() -> None:
    longest = largest_t_bcast_s(T_TRAIN, 2, R, mu_pool=2.621)
    assert longest == pytest.approx(T_BCAST, abs=0.5)
    assert min_pool_throughput(T_TRAIN, longest, 2, R) == pytest.approx(2.621)
    assert largest_t_bcast_s(T_TRAIN, 2, R, mu_pool=1.0) < 0


def test_the_smallest_fleet_bears_its_own_broadcast() -> None:
    """A star at 300 Mbit/s needs more workers, and each takes longer to reach: only a long period has such a fleet."""

    def star(workers: int) -> float:
        return max(1312.0, workers * 437.3)

    with pytest.raises(Infeasible):
        smallest_fleet(T_TRAIN, star, 2, R, mu_worker=MU)
    found = smallest_fleet(T_TRAIN, star, 8, R, mu_worker=MU)
    enough = [
        n for n in range(1, 27) if workers_needed(T_TRAIN, star(n), 8, R, mu_worker=MU) <= n
    ]  # the star takes less than the period up to there
    assert found == min(enough)
    assert smallest_fleet(T_TRAIN, lambda _: T_BCAST, 2, R, mu_worker=MU) == 9


def test_a_fleet_without_end_is_refused() -> None:
    with pytest.raises(Infeasible, match="more than 50 workers"):
        smallest_fleet(T_TRAIN, lambda _: 2999.9, 2, R, mu_worker=MU, workers_max=50)
