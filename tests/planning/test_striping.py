"""When a fleet gets stripes, and what it says of each worker."""

from __future__ import annotations

import random

import pytest

from chappe.core.manifest import CHUNK_BYTES_PLAIN
from chappe.planning.stripes import ORIGIN_STREAMS_MAX, STRIPES_MAX
from chappe.planning.striping import WORTH, judge_striping, plan_striping, striped_chunk_bytes
from chappe.planning.topology import Link, plan_chains
from chappe.units import format_rate

MBIT = 1e6 / 8
MIB = 1 << 20


def links_of(*ups: float, down: float = 30) -> list[Link]:
    return [Link(f"id{i}", f"w{i}", up * MBIT, down * MBIT, "declared") for i, up in enumerate(ups)]


@pytest.mark.parametrize(("b0", "workers", "chains"), [(90, 9, 3), (60, 20, 2), (300, 9, 9), (30, 1, 1)])
def test_equal_links_get_no_stripes_and_the_chains_they_always_got(b0: float, workers: int, chains: int) -> None:
    links = links_of(*[30.0] * workers)
    assert plan_striping(b0 * MBIT, links, payload_bytes=64 * MIB) is None
    assert plan_chains(b0 * MBIT, links, payload_bytes=64 * MIB).chains == chains


def test_equal_uplinks_under_equal_downlinks_are_striped() -> None:
    """Consumer lines: chains of them are as slow as their uplinks, whoever stands where."""
    links = links_of(*[10.0] * 8, down=60)
    striping = plan_striping(90 * MBIT, links, payload_bytes=24 * MIB)
    assert striping is not None
    assert striping.plan.rate_bytes_per_s > 1.8 * 10 * MBIT


def test_the_issues_fleet_gets_stripes_and_everybody_is_told_why() -> None:
    links = links_of(30, 30, 30, 30, 30, 8, 8, 8, 8)
    striping = plan_striping(90 * MBIT, links, payload_bytes=32 * MIB)
    assert striping is not None
    plan = striping.plan
    assert striping.why.startswith(
        f"{len(plan.stripes)} stripes, together {format_rate(plan.rate_bytes_per_s)}, for 9 "
    )
    assert striping.whys["id0"].startswith(f"inner in all {len(plan.stripes)} stripes: uplink 30 Mbit/s of 2")
    inner = sum(all(chain[-1] != "id8" for chain in stripe.chains) for stripe in plan.stripes)
    sends = format_rate(plan.rate_bytes_per_s * (1 - plan.tails["id8"] / plan.parts))
    assert striping.whys["id8"].startswith(f"inner in {inner} of {len(plan.stripes)} stripes, sends {sends}: uplink 8 ")
    assert 0 < inner < len(plan.stripes)


@pytest.mark.parametrize(("size", "chunk"), [(1 << 24, 1 << 16), (1 << 34, 1 << 20)])
def test_chunks_are_as_large_as_the_fill_allows(size: int, chunk: int) -> None:
    links = links_of(30, 20, 20, 20, 15, 10, 6, 6)
    striping = plan_striping(60 * MBIT, links, payload_bytes=size, chunk_bytes=CHUNK_BYTES_PLAIN)
    assert striping is not None
    assert striped_chunk_bytes(striping, 1 << 20) == chunk


def test_who_throttles_or_is_demoted_is_told_so() -> None:
    links = [*links_of(20, 20, 15, 10, 10), Link("slow", "slow", 50 * MBIT, 2 * MBIT, "measured")]
    links.append(Link("bad", "bad", 50 * MBIT, 30 * MBIT, "measured", demoted=True))
    striping = plan_striping(60 * MBIT, links, payload_bytes=256 * MIB, fraction=0.8)
    assert striping is not None
    assert "downlink 2 Mbit/s of" in striping.whys["slow"]
    assert striping.whys["bad"].endswith("demoted")


@pytest.mark.parametrize("seed", range(5))
def test_stripes_are_laid_only_where_they_promise_enough(seed: int) -> None:
    dice = random.Random(seed)
    laid = 0
    for _ in range(20):
        links = links_of(*(dice.choice([5.0, 8.0, 10.0, 15.0, 20.0, 30.0]) for _ in range(dice.randint(1, 10))))
        striping = plan_striping(dice.choice([30, 60, 90]) * MBIT, links, payload_bytes=64 * MIB)
        if striping is not None:
            laid += 1
            assert len(striping.plan.stripes) >= 2
            assert set(striping.whys) == {k.worker_id for k in links}
    assert laid >= 5
    assert WORTH > 1


def large(b0: float) -> tuple[float, list[Link]]:
    rng = random.Random(7)
    return b0 * MBIT, links_of(*[rng.uniform(50, 100) for _ in range(200)], down=100)


@pytest.mark.parametrize("b0", [300, 1000, 2500, 10000])
def test_what_many_stripes_cost_is_bounded_in_a_large_fleet(b0: float) -> None:
    """ARCHITECTURE has the figures: these are the limits that they stay within."""
    origin, links = large(b0)
    judged = judge_striping(origin, links, payload_bytes=200e6)
    if judged.striping is None:
        assert b0 == 10000  # so many chains are short: nobody passes on much
        return
    plan = judged.striping.plan
    assert 2 <= len(plan.stripes) <= STRIPES_MAX
    assert sum(len(stripe.chains) for stripe in plan.stripes) <= ORIGIN_STREAMS_MAX
    places = [name for stripe in plan.stripes for chain in stripe.chains for name in chain]
    assert len(places) == len(plan.stripes) * len(links)
    assert plan.fill_s < 0.1 * plan.t_all_s


@pytest.mark.parametrize("b0", [300, 1000])
def test_small_payloads_take_the_stripes_that_their_size_justifies(b0: float) -> None:
    origin, links = large(b0)
    counts = []
    for size in (1e6, 1e7, 1e8, 1e10):
        judged = judge_striping(origin, links, payload_bytes=size)
        counts.append(1 if judged.striping is None else len(judged.striping.plan.stripes))
    assert counts[0] == 1, "of a megabyte the fill of a chain of stripes is more than it saves"
    assert counts == sorted(counts)
    assert counts[-1] >= 8
    small = judge_striping(origin, links, payload_bytes=1e6)
    assert small.why.startswith("plain: not worth stripes, T(1) ")
    assert small.striped_s is not None
    assert small.plain_s is not None
    assert small.plain_s <= WORTH * small.striped_s
