"""Chains against object storage: worked by hand at the published point, then against counting and scanning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.planning.errors import PlanInputError
from chappe.planning.objectstore import (
    Dissemination,
    Prices,
    break_even_period_s,
    break_even_store_price,
    chains_per_hour,
    chains_per_publication,
    fleet_crossovers,
    storage_per_hour,
    store_per_hour,
    store_per_publication,
    store_time_s,
    upload_that_ties_bytes_per_s,
)

MBIT = 1e6 / 8
WHAT = Dissemination(16.4e9, workers=9, chains=3, period_s=3000)
PRICES = Prices(store_egress_per_gb=0.09, origin_egress_per_gb=0.09)


def test_the_published_point_by_hand() -> None:
    assert store_per_publication(WHAT, PRICES) == pytest.approx(16.4 * 0.09 * 10)
    assert chains_per_publication(WHAT, PRICES) == pytest.approx(16.4 * 0.09 * 3)
    assert store_per_hour(WHAT, PRICES) == pytest.approx(17.712)
    assert chains_per_hour(WHAT, PRICES) == pytest.approx(5.3136)
    assert store_time_s(16.4e9, 300 * MBIT, 100 * MBIT) == pytest.approx(16.4e9 / 37.5e6 + 1312)


def test_peers_that_pay_for_egress() -> None:
    paid = Prices(0.09, 0.05, 0.01)
    assert chains_per_publication(WHAT, paid) == pytest.approx(16.4 * (3 * 0.05 + 6 * 0.01))
    assert chains_per_publication(replace(WHAT, workers=2), paid) == pytest.approx(16.4 * 2 * 0.05)


def test_storage_is_paid_by_the_month() -> None:
    assert storage_per_hour(16.4e9, 2, 0.023) == pytest.approx(16.4 * 2 * 0.023 / 730)
    with_storage = replace(PRICES, store_per_hour=0.5, chains_per_hour=0.25)
    assert store_per_hour(WHAT, with_storage) == pytest.approx(18.212)
    assert chains_per_hour(WHAT, with_storage) == pytest.approx(5.5636)


@given(st.floats(1, 100), st.floats(0.1, 20), st.floats(0.1, 20), st.integers(1, 40))
def test_parts_are_the_two_stage_pipeline(size: float, upload: float, down: float, parts: int) -> None:
    """Part by part: each is uploaded after the one before, and fetched when it is there and the line is free."""
    part = size / parts
    uploaded = fetched = 0.0
    for _ in range(parts):
        uploaded += part / upload
        fetched = max(fetched, uploaded) + part / down
    assert store_time_s(size, upload, down, part_bytes=part) == pytest.approx(fetched)
    assert store_time_s(size, upload, down, part_bytes=part) <= store_time_s(size, upload, down) * (1 + 1e-9)


prices = st.builds(
    Prices, *(st.sampled_from([0.0, 0.01, 0.05, 0.09, 0.12]) for _ in range(3)),
    st.sampled_from([0.0, 0.1]), st.sampled_from([0.0, 0.5, 2.0]),
)  # fmt: skip
spreads = st.builds(Dissemination, st.floats(1e8, 1e11), st.integers(1, 60), st.integers(1, 12), st.floats(60, 1e5))


@given(spreads, prices)
def test_crossovers_are_where_a_scan_over_fleets_changes_its_mind(what: Dissemination, price: Prices) -> None:
    def dearer(workers: int) -> float:
        """Chains minus store, as a part of both."""
        one = replace(what, workers=workers)
        a, b = chains_per_hour(one, price), store_per_hour(one, price)
        return (a - b) / (a + b) if a + b else 0.0

    found = fleet_crossovers(what, price)
    assert [c.workers for c in found] == sorted(c.workers for c in found)
    for n in range(1, 300):
        before, after = dearer(n), dearer(n + 1)
        if abs(before) < 1e-9 or abs(after) < 1e-9:
            continue
        between = [c for c in found if n <= c.workers <= n + 1]
        if (before > 0) != (after > 0):
            assert [c.winner for c in between] == ["store" if after > 0 else "chains"]


@given(spreads, prices)
def test_at_the_break_even_price_and_period_both_cost_the_same(what: Dissemination, price: Prices) -> None:
    tie = break_even_store_price(what, price)
    if tie >= 0:
        tied = replace(price, store_egress_per_gb=tie)
        assert store_per_hour(what, tied) == pytest.approx(chains_per_hour(what, tied), rel=1e-6, abs=1e-9)
    period = break_even_period_s(what, price)
    if period is not None:
        tied_what = replace(what, period_s=period)
        assert store_per_hour(tied_what, price) == pytest.approx(chains_per_hour(tied_what, price), rel=1e-6)


def test_the_period_matters_only_where_something_stands_still_at_a_price() -> None:
    assert break_even_period_s(WHAT, PRICES) is None
    found = break_even_period_s(WHAT, replace(PRICES, chains_per_hour=1.0))
    assert found == pytest.approx(3600 * 16.4 * 0.09 * 7)
    assert break_even_period_s(WHAT, replace(PRICES, store_per_hour=1.0)) is None


def test_the_upload_that_makes_the_store_as_fast() -> None:
    """Uplinks of 30 Mbit/s behind downlinks of 100: chains take 3.3 times as long, and a fast upload beats them."""
    chains_s = 16.4e9 / (30 * MBIT)
    tie = upload_that_ties_bytes_per_s(16.4e9, chains_s, 100 * MBIT)
    assert tie is not None
    assert store_time_s(16.4e9, tie, 100 * MBIT) == pytest.approx(chains_s)
    assert upload_that_ties_bytes_per_s(16.4e9, 1312.02, 100 * MBIT) is None


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (lambda: Prices(-0.1), "store_egress_per_gb"),
        (lambda: Prices(0.1, worker_egress_per_gb=float("nan")), "worker_egress_per_gb"),
        (lambda: replace(WHAT, period_s=0), "period_s"),
        (lambda: replace(WHAT, workers=0), "workers"),
        (lambda: replace(WHAT, chains=0), "chains"),
        (lambda: store_time_s(1, 0, 1), "upload"),
        (lambda: store_time_s(1, 1, 1, part_bytes=0), "part_bytes"),
    ],
)
def test_bad_input_is_named(bad: object, named: str) -> None:
    with pytest.raises(PlanInputError, match=named):
        bad()  # type: ignore[operator]
