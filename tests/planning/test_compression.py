"""Compressing pays on slow links, and costs on fast ones."""

from __future__ import annotations

import pytest

from chappe.planning.compression import compression_gain


def gain(rate: float, encode: float = 0.7e9, until: float = 1.0) -> tuple[bool, float, float]:
    found = compression_gain(16_400_000_000, 11_300_000_000, encode, 2e9, 3 * rate, [rate] * 9, [rate] * 9, until)
    return found.worth, found.saved_s, found.added_s


def test_at_100_mbit_it_saves_minutes_and_costs_nothing() -> None:
    worth, saved_s, added_s = gain(12.5e6)
    assert worth
    assert saved_s == pytest.approx(5.1e9 / 12.5e6)
    assert added_s == 0  # encoding and decoding keep up


def test_where_encoding_is_slower_than_the_links_it_counts() -> None:
    found = compression_gain(1_000_000_000, 700_000_000, 0.5e9, 4e9, 1e9, [1e9], [1e9])
    assert found.added_s == pytest.approx(2 - 0.7)
    assert not found.worth


def test_on_fast_links_it_costs_more() -> None:
    assert not gain(1.25e9)[0]
    assert gain(1.25e9, encode=50e9)[1] == gain(1.25e9)[1]


def test_decoding_counts_where_it_is_slower_than_the_links() -> None:
    found = compression_gain(1_000_000_000, 700_000_000, 1e9, 0.5e9, 1e9, [1e9], [1e9])
    assert found.added_s == pytest.approx(2 - 0.7)


def test_the_slow_worker_counts_only_where_it_is_needed() -> None:
    def saved(until: float) -> float:
        rates = [10e6] * 9 + [1e6]
        return compression_gain(100_000_000, 70_000_000, 1e9, 1e9, 100e6, rates, rates, until).saved_s

    assert saved(1.0) == pytest.approx(30)
    assert saved(0.9) < 5
