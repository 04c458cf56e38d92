"""When a hop counts as slow: a real change soon, noise and hiccups never."""

from __future__ import annotations

import random

import pytest
from fleet_script import Script

from chappe.core.evidence import COMMON_S, SLOW_S, UNCLEAR_S, Evidence

RATE = 1e6
REPORT_S = 0.5


def settled() -> Evidence:
    """A hop that has carried RATE for ten seconds."""
    hop = Evidence("parent")
    for _ in range(20):
        hop.take(RATE, REPORT_S, None, False, 0.0)
    return hop


def is_slow(hop: Evidence) -> bool:
    return any(hop.slowness(None, needed_s) is not None for needed_s in (SLOW_S, UNCLEAR_S))


def seconds_until_slow(hop: Evidence, rates: list[float], busy_s: float = REPORT_S) -> float | None:
    for i, rate in enumerate(rates, start=1):
        hop.take(rate, busy_s, None, False, 0.0)
        if is_slow(hop):
            return i * busy_s
    return None


@pytest.mark.parametrize("seed", range(20))
def test_half_of_the_rate_is_seen_soon_whatever_the_noise(seed: int) -> None:
    dice = random.Random(seed)
    took = seconds_until_slow(settled(), [RATE / 2 * dice.uniform(0.8, 1.2) for _ in range(20)])
    assert took is not None
    assert took <= UNCLEAR_S + 2 * REPORT_S


@pytest.mark.parametrize("seed", range(20))
def test_noise_around_the_usual_rate_is_never_slow(seed: int) -> None:
    dice = random.Random(seed)
    assert seconds_until_slow(settled(), [RATE * dice.uniform(0.6, 1.4) for _ in range(2000)]) is None


@pytest.mark.parametrize("seed", range(20))
def test_pauses_of_a_busy_processor_are_never_slow(seed: int) -> None:
    """It stands still for up to three seconds, then what has piled up comes at once; every few seconds again."""
    dice, hop = random.Random(seed), settled()
    for _ in range(200):
        pause_s = dice.uniform(0.2, 3.0)
        samples = [(RATE * 0.05, pause_s), (RATE * dice.uniform(0.9, 2.0), REPORT_S)]
        samples += [(RATE * dice.uniform(0.7, 1.3), REPORT_S) for _ in range(dice.randint(0, 8))]
        for rate, busy_s in samples:
            hop.take(rate, busy_s, None, False, 0.0)
            assert not is_slow(hop)


def test_one_that_keeps_up_is_not_slow() -> None:
    """Starved in between: whatever it carries then, it was not the limit."""
    hop = settled()
    for _ in range(20):
        hop.take(RATE / 4, REPORT_S, None, False, 0.0)
        hop.take(RATE / 4, REPORT_S, None, False, 0.0)
        hop.take(0.0, 0.0, None, False, 0.0)
        assert not is_slow(hop)


def test_a_change_within_a_run_counts_from_when_it_came() -> None:
    hop = settled()
    assert seconds_until_slow(hop, [0.7 * RATE] * 30) is None
    assert seconds_until_slow(hop, [0.3 * RATE] * 10) == pytest.approx(SLOW_S, abs=REPORT_S)


def test_without_any_idea_of_what_it_should_carry_nothing_is_slow() -> None:
    assert seconds_until_slow(Evidence("parent"), [1.0] * 100) is None


def test_half_of_what_its_links_are_known_for_is_slow_from_the_start() -> None:
    hop = Evidence("parent")
    for _ in range(4):
        hop.take(RATE / 2, REPORT_S, RATE, False, 0.0)
    slowness = hop.slowness(RATE, SLOW_S)
    assert slowness is not None
    assert (slowness.bytes_per_s, slowness.expected_bytes_per_s) == (RATE / 2, RATE)


@pytest.mark.parametrize(("contradicted", "expected"), [([1, 1, 0, 1], True), ([0, 1, 0, 0], False)])
def test_a_contradiction_holds_for_most_of_the_time(contradicted: list[int], expected: bool) -> None:
    hop = settled()
    for said_more in contradicted:
        hop.take(RATE / 2, REPORT_S, None, bool(said_more), 0.0)
    slowness = hop.slowness(None, SLOW_S)
    assert slowness is not None
    assert slowness.contradicted is expected


def two_chains() -> Script:
    """a c e and b d f, all of 100 Mbit/s, half of it sent."""
    script = Script()
    script.play(
        "relay a b c d e f\norigin o up=200mbit\npublish o v=1\noffer o 1 bytes=1000000000\n"
        "receiving 1 a b chunks=40\nreceiving 1 c d chunks=30\nreceiving 1 e f chunks=20\n"
    )
    return script


HOPS = [("o", "a"), ("a", "c"), ("c", "e"), ("o", "b"), ("b", "d"), ("d", "f")]


def report(script: Script, slow: set[tuple[str, str]], seconds: float) -> float | None:
    """All hops are reported twice a second; when the first case was opened."""
    begun = script.now
    while script.now - begun < seconds:
        script.do_wait(str(REPORT_S))
        for parent, child in HOPS:
            rate = "40mbit" if (parent, child) in slow else "95mbit"
            options = {"busy": str(REPORT_S), "streams": "2" if parent == "o" else "1"}
            script.links(parent, (child, True, rate), options)
            script.links(child, (parent, False, rate), options)
        if script.fleet.state.publications["o1"].cases:
            return script.now - begun
    return None


def test_one_slow_hop_is_answered_in_two_seconds() -> None:
    script = two_chains()
    assert report(script, set(), 5.0) is None
    assert report(script, {("c", "e")}, 10.0) == pytest.approx(SLOW_S, abs=REPORT_S)


def test_when_most_hops_are_slow_at_once_it_takes_longer() -> None:
    slow = {("a", "c"), ("c", "e"), ("b", "d"), ("d", "f")}
    script = two_chains()
    assert report(script, set(), 5.0) is None
    assert report(script, slow, COMMON_S - REPORT_S) is None, "a hiccup of what they share"
    assert report(script, set(), 5.0) is None
    took = report(script, slow, 2 * COMMON_S)
    assert took is not None
    assert took >= COMMON_S
