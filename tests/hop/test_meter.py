from __future__ import annotations

import pytest

from chappe.hop.meter import FILL_S, HopMeter, HopMeters


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


def test_what_goes_into_buffers_says_nothing_about_the_link() -> None:
    meter = HopMeter()
    meter.start(0.0)
    meter.record(1_000_000, 0.001)  # as fast as memory
    assert meter.linked_bytes_per_s() is None
    for i in range(1, 31):
        meter.record(1000, FILL_S + i * 0.1)
    assert meter.linked_bytes_per_s() == pytest.approx(10_000, rel=0.05)
    assert meter.linked_s == pytest.approx(3.0, rel=0.05)


def test_a_hop_that_always_catches_up_measures_nothing() -> None:
    meter = HopMeter()
    for i in range(100):
        meter.start(i * 0.1)
        meter.record(1000, i * 0.1 + 0.001)
        meter.idle(i * 0.1 + 0.001)
    assert meter.bytes_total == 100_000
    assert meter.linked_bytes_per_s() is None


def test_a_message_that_is_long_on_its_way_counts_by_its_share() -> None:
    meter = HopMeter()
    meter.start(0.0)
    meter.record(4000, 4 * FILL_S)
    assert meter.linked_bytes == 3000
    assert meter.linked_bytes_per_s() == pytest.approx(4000 / (4 * FILL_S))


def test_the_pace_is_the_links_whatever_its_buffers_take_at_first() -> None:
    meter = HopMeter()
    meter.start(0.0)
    for i in range(100):
        meter.record(65_536, i * 1e-4)
    assert meter.paced_bytes_per_s() == 0.0
    assert (meter.goodput_bytes_per_s() or 0.0) > 1e8
    for i in range(1, 101):
        meter.record(65_536, FILL_S + i * 0.05)
        assert meter.paced_bytes_per_s() <= 65_536 / 0.05
    assert meter.paced_bytes_per_s() == pytest.approx(65_536 / 0.05, rel=0.1)


def test_the_pace_of_a_hop_that_always_catches_up_is_its_sources() -> None:
    meter = HopMeter()
    for i in range(1000):
        meter.start(i * 0.01)
        meter.record(1_000_000, i * 0.01 + 1e-4)
        meter.idle(i * 0.01 + 1e-4)
    assert meter.paced_bytes_per_s() == pytest.approx(1e8, rel=0.1)


def test_a_first_message_that_is_long_on_its_way_counts_for_the_pace_by_its_share() -> None:
    meter = HopMeter()
    meter.start(0.0)
    meter.record(4000, 4 * FILL_S)
    assert meter.paced_bytes_per_s() == pytest.approx(3000 / (4 * FILL_S))


def _busy(meter: HopMeter, begin_s: float, seconds: float, bytes_per_s: int) -> None:
    meter.start(begin_s)
    for i in range(1, int(seconds * 10) + 1):
        meter.record(bytes_per_s // 10, begin_s + i / 10)


def test_samples_tell_what_has_moved_since_the_last_ones() -> None:
    meters = HopMeters(sending=True)
    assert meters.take_samples() == []
    assert not meters.flowing
    with meters.measure("w1", HopMeter()) as one, meters.measure("w2", HopMeter()) as two:
        assert meters.flowing
        assert meters.take_samples() == []  # nothing has flowed
        _busy(one, 0.0, 2.0, 5000)
        _busy(two, 0.0, 2.0, 1000)
        samples = {sample.peer: sample for sample in meters.take_samples()}
        assert set(samples) == {"w1", "w2"}
        assert samples["w1"].bytes_per_s == pytest.approx(5000, rel=0.05)
        assert samples["w1"].bytes == 10_000
        assert samples["w1"].busy_s == pytest.approx(2.0 - FILL_S, rel=0.05)
        assert {(s.streams, s.sending) for s in samples.values()} == {(2, True)}
        _busy(two, 2.0, 2.0, 3000)
        (sample,) = meters.take_samples()
        assert (sample.peer, sample.streams, sample.bytes) == ("w2", 1, 6000)
        assert sample.bytes_per_s == pytest.approx(3000, rel=0.01)
        one.record(7, 4.1)
    (last,) = meters.take_samples()  # of a stream that has ended meanwhile
    assert (last.peer, last.bytes) == ("w1", 7)
    assert meters.take_samples() == []
    assert meters.bytes_total == 10_000 + 2000 + 6000 + 7
    assert not meters.flowing


def test_two_streams_of_one_peer_are_one_hop() -> None:
    meters = HopMeters(sending=False)
    for begin_s in (0.0, 10.0):
        with meters.measure("w1", HopMeter()) as meter:
            _busy(meter, begin_s, 1.0, 1000)
    (sample,) = meters.take_samples()
    assert (sample.peer, sample.sending, sample.bytes) == ("w1", False, 2000)
    assert sample.busy_s == pytest.approx(2 * (1.0 - FILL_S))
    assert sample.bytes_per_s == pytest.approx(1000, rel=0.05)


def test_a_hop_that_becomes_slow_is_news_and_its_two_rates_are_kept_apart() -> None:
    meters = HopMeters(sending=False)
    with meters.measure("parent", HopMeter()) as meter:
        now = 0.0

        def carry(bytes_per_s: int, seconds: float) -> None:
            nonlocal now
            meter.start(now)
            for _ in range(round(seconds * 10)):
                now += 0.1
                meter.record(bytes_per_s // 10, now)

        carry(1000, 2.25)
        assert not meters.look(now), "nothing has been said of it yet"
        (first,) = meters.take_samples()
        assert first.bytes_per_s == pytest.approx(1000, rel=0.1)
        carry(1000, 0.5)
        assert not meters.look(now)
        carry(500, 0.5)
        assert meters.look(now)
        before, after = meters.take_samples()
        assert (before.bytes_per_s, after.bytes_per_s) == (pytest.approx(1000), pytest.approx(500))
        assert (before.bytes, after.bytes) == (500, 250)
        assert before.streams == after.streams == 1
        carry(500, 0.5)
        assert not meters.look(now), "it is what was said of it"
        carry(2000, 0.5)
        assert not meters.look(now), "more is no news"
    assert meters.look(now), "an end is"
    assert not meters.look(now)


def test_a_hop_that_keeps_up_is_no_news() -> None:
    meters = HopMeters(sending=True)
    with meters.measure("child", HopMeter()) as meter:
        for i in range(40):
            meter.record(1000, float(i))
            meter.idle(i + 0.01)
            assert not meters.look(float(i))
            (sample,) = meters.take_samples()
            assert (sample.bytes_per_s, sample.busy_s, sample.bytes) == (0.0, 0.0, 1000)


def test_one_that_kept_up_with_its_source_and_does_not_any_more_is_news() -> None:
    """No rate was ever said of it."""
    meters = HopMeters(sending=False)
    now = 0.0
    with meters.measure("parent", HopMeter()) as meter:

        def carry(bytes_per_s: int, seconds: float, *, behind: bool) -> None:
            nonlocal now
            for _ in range(round(seconds * 10)):
                if behind:
                    meter.start(now)
                now += 0.1
                meter.record(bytes_per_s // 10, now)
                if not behind:
                    meter.idle(now)

        for _ in range(4):
            carry(1000, 0.5, behind=False)
            assert not meters.look(now)
        meter.start(now)
        meter.record(15, now + 0.3)  # a regular report comes just as it begins: too little to have been told
        assert not meters.look(now + 0.3)
        assert meters.take_samples()
        now += 0.3
        carry(500, 0.5, behind=True)
        assert meters.look(now)
        (sample,) = meters.take_samples()
        assert (sample.bytes_per_s, sample.bytes) == (pytest.approx(500), 250)
        carry(500, 0.5, behind=True)
        assert not meters.look(now), "it is what was said of it"


def test_one_whose_source_has_become_slower_for_long_is_not_held_against_the_old_rate() -> None:
    meters = HopMeters(sending=False)
    now = 0.0
    with meters.measure("parent", HopMeter()) as meter:
        for rate in [1000] * 4 + [500] * 20:
            for _ in range(5):
                now += 0.1
                meter.record(rate // 10, now)
                meter.idle(now)
            assert not meters.look(now)
        meter.start(now)
        for _ in range(5):
            now += 0.1
            meter.record(50, now)
        assert not meters.look(now)


def test_a_sample_says_what_carried_the_payload() -> None:
    meters = HopMeters(sending=False)
    first, second = HopMeter(), HopMeter()
    with meters.measure("a", first):
        with meters.measure("b", second):
            second.switched_to_tcp()
            for meter in (first, second):
                meter.record(100, 1.0)
            assert {s.peer: s.tcp for s in meters.take_samples()} == {"a": False, "b": True}
            second.record(100, 2.0)
        first.record(100, 2.0)
        assert {s.peer: s.tcp for s in meters.take_samples()} == {"a": False, "b": True}  # the one that has ended, too
        first.record(100, 3.0)
        assert [s.tcp for s in meters.take_samples()] == [False]
