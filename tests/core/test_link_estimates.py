"""Estimates of links: they follow, they forget, and a lower bound never lowers them."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.links import AGE_HALF_LIFE_S, HALF_LIFE_S, Estimate, Links

rates = st.floats(1e3, 1e10)
busy = st.floats(0.01, 60)


def measured(rate: float, now: float = 0.0) -> Estimate:
    estimate = Estimate()
    estimate.settle(rate, now)
    return estimate


def test_nothing_is_known_before_something_is_measured() -> None:
    estimate = Estimate()
    assert not estimate.known(0.0)
    estimate.exact(5e6, 1.0, 10.0)
    assert estimate.known(10.0)
    assert estimate.bytes_per_s == pytest.approx(5e6)


def test_half_of_the_way_in_a_half_life_of_busy_time() -> None:
    estimate = measured(10e6)
    estimate.exact(20e6, HALF_LIFE_S, 0.0)
    assert estimate.bytes_per_s == pytest.approx(15e6)


def test_many_short_samples_are_one_long_one() -> None:
    one, many = measured(10e6), measured(10e6)
    one.exact(20e6, 6.0, 0.0)
    for _ in range(60):
        many.exact(20e6, 0.1, 0.0)
    assert many.bytes_per_s == pytest.approx(one.bytes_per_s)


def test_an_old_figure_gives_way_sooner_and_is_forgotten_in_the_end() -> None:
    fresh, old = measured(10e6), measured(10e6)
    fresh.exact(20e6, 1.0, 0.0)
    old.exact(20e6, 1.0, 2 * AGE_HALF_LIFE_S)
    assert old.bytes_per_s > fresh.bytes_per_s
    assert measured(10e6).known(5 * AGE_HALF_LIFE_S)
    assert not measured(10e6).known(9 * AGE_HALF_LIFE_S)


@given(st.lists(st.tuples(rates, busy), min_size=1, max_size=20))
def test_an_estimate_stays_within_what_was_measured(samples: list[tuple[float, float]]) -> None:
    estimate = Estimate()
    for i, (rate, seconds) in enumerate(samples):
        estimate.exact(rate, seconds, float(i))
    low, high = min(r for r, _ in samples), max(r for r, _ in samples)
    assert low * (1 - 1e-9) <= estimate.bytes_per_s <= high * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "seconds"), [(0.0, 1.0), (-1.0, 1.0), (1e6, 0.0)])
def test_nothing_moved_is_no_evidence(rate: float, seconds: float) -> None:
    estimate = measured(10e6)
    estimate.exact(rate, seconds, 5.0)
    assert asdict(estimate) == asdict(measured(10e6))


def test_failures_lower_the_success_rate_and_are_forgotten() -> None:
    links = Links()
    assert links.success_rate(0.0) == 1.0
    links.note(False, 0.0)
    assert links.success_rate(0.0) == pytest.approx(0.8)
    links.note(False, 0.0)
    assert links.success_rate(0.0) == pytest.approx(0.64)
    links.note(True, 0.0)
    assert 0.64 < links.success_rate(0.0) < 0.8
    assert links.success_rate(10 * AGE_HALF_LIFE_S) > 0.999


def test_links_survive_being_stored_and_a_clock_that_starts_anew() -> None:
    links = Links()
    links.up.exact(5e6, 2.0, 100.0)
    links.note(False, 100.0)
    again = Links.from_json(json.loads(json.dumps(links.to_json())))
    assert again == links
    again.shift(97.0)
    assert again.up.known(3.0)
    assert again.success_rate(3.0) == pytest.approx(links.success_rate(100.0))
    assert Links.from_json(None) == Links()
