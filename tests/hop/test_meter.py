from __future__ import annotations

import pytest

from chappe.hop.meter import HopMeter


def test_nothing_measured_is_not_zero() -> None:
    meter = HopMeter()
    assert meter.goodput_bytes_per_s() is None
    assert meter.current_bytes_per_s(10.0) == 0.0


def test_a_steady_stream() -> None:
    meter = HopMeter()
    for i in range(101):
        meter.record(1000, i * 0.1)
    assert meter.bytes_total == 101_000
    assert meter.goodput_bytes_per_s() == pytest.approx(10_000, rel=0.02)


def test_waiting_for_data_says_nothing_about_the_link() -> None:
    meter = HopMeter()
    now = 0.0
    for _ in range(50):
        meter.start(now)
        now += 0.1
        meter.record(1000, now)
        meter.idle(now)
        now += 0.9
    assert meter.goodput_bytes_per_s() == pytest.approx(10_000, rel=0.02)


def test_the_estimate_follows_the_link() -> None:
    meter = HopMeter()
    now = 0.0
    for step_s in (0.1, 0.5):
        for _ in range(int(30 / step_s)):
            now += step_s
            meter.record(1000, now)
    assert meter.goodput_bytes_per_s() == pytest.approx(2000, rel=0.05)


def test_the_gauge_falls_to_zero_when_nothing_flows() -> None:
    meter = HopMeter()
    meter.start(0.0)
    meter.record(1000, 1.0)
    assert meter.current_bytes_per_s(2.0) == pytest.approx(1000, rel=0.2)
    assert meter.current_bytes_per_s(5.0) == 0.0
