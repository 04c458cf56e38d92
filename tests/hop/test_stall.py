from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.hop.stall import CHUNK_TIMES, PATIENCE_S_MAX, STALL_FLOOR_S, StallRule, stall_timeout_s


def test_a_fast_hop_has_the_floor() -> None:
    assert stall_timeout_s(2.0, 1 << 20, 125e6) == 2.0
    assert stall_timeout_s(2.0, 1 << 16, None) == 2.0


def test_a_slow_hop_has_a_few_chunk_times() -> None:
    assert stall_timeout_s(2.0, 1 << 20, 1e6) == pytest.approx(CHUNK_TIMES * (1 << 20) / 1e6)


@given(
    floor_s=st.floats(0.1, 600),
    chunk_bytes=st.integers(1, 2 << 20),
    rates=st.tuples(st.floats(1, 1e12), st.floats(1, 1e12)),
)
def test_never_under_the_floor_and_never_shorter_for_a_slower_hop(
    floor_s: float, chunk_bytes: int, rates: tuple[float, float]
) -> None:
    slow, fast = (stall_timeout_s(floor_s, chunk_bytes, rate) for rate in sorted(rates))
    assert floor_s <= fast <= slow <= max(floor_s, PATIENCE_S_MAX)


def test_each_stall_in_a_row_doubles_the_patience_with_that_parent_only() -> None:
    rule = StallRule()
    for expected_s in (2.0, 4.0, 8.0):
        assert rule.floor_for("p") == expected_s
        rule.ended("p", stalled=True, progressed=False)
    assert rule.floor_for("q") == STALL_FLOOR_S
    for _ in range(40):
        rule.ended("p", stalled=True, progressed=False)
    assert rule.floor_for("p") == PATIENCE_S_MAX


@pytest.mark.parametrize(("stalled", "progressed"), [(True, True), (False, False), (False, True)])
def test_anything_else_ends_the_row(stalled: bool, progressed: bool) -> None:
    rule = StallRule(3.0)
    rule.ended("p", stalled=True, progressed=False)
    rule.ended("p", stalled=stalled, progressed=progressed)
    assert rule.floor_for("p") == 3.0
