"""The planner's formula against the fluid that plays its plan, which shares no code with it."""

from __future__ import annotations

import pytest

from bench.striping import compare, played
from bench.unequal import KNOWN, MBIT
from chappe.planning.fluid import Host
from chappe.planning.stripes import ACK_SHARE, HEADER_SHARE, Stripe


@pytest.mark.parametrize("fleet", KNOWN[:5], ids=lambda fleet: fleet.name)
def test_the_issues_fleets_take_what_the_planner_says(fleet: object) -> None:
    row = compare(fleet)  # type: ignore[arg-type]
    bound_s, expected_s, striped_s, plain_s = (
        float(row[key]) for key in ("bound_s", "expected_s", "striped_s", "plain_s")
    )
    assert striped_s == pytest.approx(expected_s, rel=0.04)
    assert striped_s <= 1.3 * bound_s
    assert striped_s < 0.9 * plain_s


def test_one_chain_takes_the_slowest_inner_uplink_and_its_fill() -> None:
    size_bytes = 32 << 20
    hosts = [Host("a", 30 * MBIT, 30 * MBIT), Host("b", 10 * MBIT, 30 * MBIT), Host("c", 1 * MBIT, 30 * MBIT)]
    times = played(size_bytes, 90 * MBIT, hosts, [Stripe(1, (("a", "b", "c"),))])
    first_s = size_bytes * (1 + HEADER_SHARE) / (30 * MBIT)
    assert times["a"] == pytest.approx(first_s, rel=0.01)
    acknowledged = 1 + ACK_SHARE  # what b receives takes this much of what it sends
    assert times["c"] == pytest.approx(acknowledged * size_bytes * (1 + HEADER_SHARE) / (10 * MBIT), rel=0.01)
    assert times["b"] == pytest.approx(first_s * acknowledged, rel=0.01)
