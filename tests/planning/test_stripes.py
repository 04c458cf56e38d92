"""Striped plans: what must hold for each, and the rates against two oracles that share no code with the planner."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, linprog, milp

from chappe.planning.errors import PlanInputError
from chappe.planning.fluid import Host
from chappe.planning.stripes import (
    ACK_SHARE,
    HEADER_SHARE,
    ORIGIN_STREAMS_MAX,
    StripedPlan,
    plan_stripes,
    striped_rate,
)

MBIT = 1e6 / 8
MIB = 1 << 20


def hosts_of(ups: Sequence[float], down: float) -> list[Host]:
    return [Host(f"w{i}", up * MBIT, down * MBIT) for i, up in enumerate(ups)]


def drawn(dice: random.Random, workers: int, *, equal_downlinks: bool = False) -> tuple[float, list[Host]]:
    def rate() -> float:
        return dice.choice([5, 8, 10, 20, 30, 50, 100]) * dice.uniform(0.9, 1.1) * MBIT

    down = rate()
    hosts = [Host(f"w{i}", rate(), down if equal_downlinks else rate()) for i in range(workers)]
    return dice.choice([20, 60, 90, 300]) * MBIT, hosts


def check(plan: StripedPlan, b0: float, hosts: Sequence[Host], *, origin_dialable: bool = True) -> None:
    """Everything that a plan promises, recounted from its chains alone."""
    by_name = {h.name: h for h in hosts}
    whole = sum(stripe.weight for stripe in plan.stripes)
    sent = dict.fromkeys(by_name, 0.0)
    ends: Counter[str] = Counter()
    origin = 0.0
    for stripe in plan.stripes:
        rate = plan.rate_bytes_per_s * stripe.weight / whole
        members = [name for chain in stripe.chains for name in chain]
        assert sorted(members) == sorted(by_name), "every worker once in every stripe"
        assert all(stripe.chains), "no chain is empty"
        lengths = [len(chain) for chain in stripe.chains]
        assert max(lengths) - min(lengths) <= 1 or not all(h.dialable for h in hosts)
        origin += rate * len(stripe.chains)
        for chain in stripe.chains:
            ends[chain[-1]] += stripe.weight
            for above, below in itertools.pairwise(chain):
                sent[above] += min(rate, by_name[below].downlink_bytes_per_s)
                assert by_name[above].dialable or by_name[below].dialable
            assert by_name[chain[0]].dialable or origin_dialable
    assert origin <= b0 * (1 + 1e-6)
    for name, host in by_name.items():
        assert ends[name] == plan.tails[name]
        acks = ACK_SHARE * min(plan.rate_bytes_per_s, host.downlink_bytes_per_s)
        if sent[name]:
            assert sent[name] + acks <= host.uplink_bytes_per_s * (1 + 1e-6), name
            assert host.downlink_bytes_per_s >= plan.rate_bytes_per_s * (1 - 1e-9), "nobody who passes on throttles"


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_fleets_keep_every_promise_and_come_within_one_stripe_of_the_bound(seed: int) -> None:
    dice = random.Random(seed)
    striped = 0
    for _ in range(100):
        b0, hosts = drawn(dice, dice.randint(2, 16))
        plan = plan_stripes(64 * MIB, b0, hosts)
        bound = striped_rate(b0, hosts)
        shares = [1 + ACK_SHARE - h.uplink_bytes_per_s / bound for h in hosts]
        assert plan is not None
        striped += len(plan.stripes) > 1
        check(plan, b0, hosts)
        partly = max(1, sum(0 < share < 1 for share in shares))
        for count in (2, 5, 16):  # whole numbers cost each of these less than one stripe's rate, and the origin, too
            rate = striped_rate(b0, hosts, count=count)
            assert rate <= bound * (1 + 1e-6)
            assert rate * (1 + (1 + 1 / partly) / count) >= bound * (1 - 1e-6)
        most = 64 * MIB * (1 + HEADER_SHARE) / rate + len(hosts) * (1 << 16) * 16 / rate  # 16 stripes in one chain
        assert plan.t_all_s <= 1.01 * most
    assert striped >= 5, "most of these have a downlink that plain chains fill"


def best_rate(b0: float, hosts: Sequence[Host]) -> float:
    """By linear programming over every set of tails: how long each is in use, in units of 1/R."""
    sets = [s for n in range(1, len(hosts) + 1) for s in itertools.combinations(range(len(hosts)), n)]
    cost = np.zeros(len(sets) + 1)
    cost[-1] = 1.0  # 1/R
    rows = [[*(float(i not in s) for s in sets), -h.uplink_bytes_per_s] for i, h in enumerate(hosts)]
    rows.append([*(float(len(s)) for s in sets), -b0])
    limits = [*([-ACK_SHARE] * len(hosts)), 0.0]
    slowest = min([b0, *(h.downlink_bytes_per_s for h in hosts)])
    # Who cannot even acknowledge what it receives sends nothing else: its row only asks that it is always a tail.
    for i in range(len(hosts)):
        rows[i], limits[i] = _always_or(rows[i], limits[i], hosts[i].uplink_bytes_per_s, slowest)
    found = linprog(
        cost,
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.array([[1.0] * len(sets) + [0.0]]),
        b_eq=np.array([1.0]),
        bounds=[(0, None)] * len(sets) + [(1 / slowest, None)],
    )
    assert found.success, found.message
    return 1 / float(found.x[-1])


def _always_or(row: list[float], limit: float, uplink: float, fastest: float) -> tuple[list[float], float]:
    return ([*row[:-1], 0.0], 0.0) if uplink <= ACK_SHARE * fastest else (row, limit)


@pytest.mark.parametrize("seed", range(3))
def test_the_rate_is_that_of_a_linear_program_over_every_set_of_tails(seed: int) -> None:
    dice = random.Random(100 + seed)
    for _ in range(15):
        b0, hosts = drawn(dice, dice.randint(2, 7), equal_downlinks=True)
        assert striped_rate(b0, hosts) == pytest.approx(best_rate(b0, hosts), rel=1e-6)


def best_whole_rate(b0: float, hosts: Sequence[Host], count: int) -> float:
    """By integer programming: is worker i tail in stripe k, so that 1/R is least."""
    n = len(hosts)
    size = n * count + 1
    rows: list[np.ndarray] = []
    low: list[float] = []
    high: list[float] = []

    def add(row: np.ndarray, least: float, most: float) -> None:
        rows.append(row)
        low.append(least)
        high.append(most)

    for i, host in enumerate(hosts):
        row = np.zeros(size)
        row[i * count : (i + 1) * count] = -1 / count
        row[-1] = -host.uplink_bytes_per_s
        add(row, -np.inf, -1 - ACK_SHARE)
    row = np.zeros(size)
    row[:-1], row[-1] = 1 / count, -b0
    add(row, -np.inf, 0.0)
    for k in range(count):
        row = np.zeros(size)
        row[k : n * count : count] = 1.0
        add(row, 1.0, np.inf)
    slowest = min([b0, *(h.downlink_bytes_per_s for h in hosts)])
    scale = b0  # 1/R in units that the solver likes
    matrix = np.array(rows)
    matrix[:, -1] /= scale
    cost = np.zeros(size)
    cost[-1] = 1.0
    integrality = np.ones(size)
    integrality[-1] = 0
    least = np.zeros(size)
    most = np.ones(size)
    least[-1], most[-1] = scale / slowest, np.inf
    found = milp(
        cost,
        constraints=LinearConstraint(matrix, low, high),
        integrality=integrality,
        bounds=(least, most),
    )
    assert found.success, found.message
    return scale / float(found.x[-1])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_whole_stripes_are_as_fast_as_integer_programming_finds_them(count: int) -> None:
    dice = random.Random(count)
    for _ in range(12):
        b0, hosts = drawn(dice, dice.randint(2, 5), equal_downlinks=True)
        assert striped_rate(b0, hosts, count=count) == pytest.approx(best_whole_rate(b0, hosts, count), rel=1e-5)


def test_without_acks_and_fast_uplinks_the_rate_is_the_physical_bound() -> None:
    b0, hosts = 60 * MBIT, hosts_of([20, 20, 15, 10, 6, 6], 300)
    assert striped_rate(b0, hosts, ack_share=0.0) == pytest.approx((60 + 77) * MBIT / 6, rel=1e-6)


def test_a_slow_downlink_is_a_tail_everywhere_and_holds_nobody_up() -> None:
    hosts = [*hosts_of([20, 20, 15, 10, 10, 10], 40), Host("slow", 100 * MBIT, 2 * MBIT)]
    plan = plan_stripes(64 * MIB, 60 * MBIT, hosts, fraction=0.8)
    assert plan is not None
    check(plan, 60 * MBIT, hosts)
    assert plan.tails["slow"] == plan.parts
    assert plan.rate_bytes_per_s > 8 * MBIT
    assert plan.t_all_s > 4 * plan.t_target_s


def test_who_is_demoted_sends_nothing() -> None:
    hosts = hosts_of([30, 30, 20, 20, 10], 30)
    plan = plan_stripes(64 * MIB, 60 * MBIT, hosts, demoted=frozenset({"w0"}))
    assert plan is not None
    check(plan, 60 * MBIT, hosts)
    assert plan.tails["w0"] == plan.parts


def test_small_payloads_get_fewer_stripes() -> None:
    hosts = hosts_of([30, 20, 20, 20, 15, 10, 6, 6], 30)
    small, large = (plan_stripes(size, 60 * MBIT, hosts) for size in (MIB, 4096 * MIB))
    assert small is not None
    assert large is not None
    assert len(small.stripes) < len(large.stripes)


@pytest.mark.parametrize("seed", range(4))
def test_whoever_cannot_be_dialled_stands_next_to_somebody_who_can(seed: int) -> None:
    dice = random.Random(seed)
    laid = 0
    for _ in range(50):
        b0, hosts = drawn(dice, dice.randint(3, 16))
        hosts = [
            Host(h.name, h.uplink_bytes_per_s, h.downlink_bytes_per_s, dialable=dice.random() > 0.25) for h in hosts
        ]
        origin_dialable = dice.random() > 0.2
        plan = plan_stripes(64 * MIB, b0, hosts, origin_dialable=origin_dialable)
        if plan is not None:
            laid += 1
            check(plan, b0, hosts, origin_dialable=origin_dialable)
    assert laid > 30


def test_nobody_reachable_is_no_plan() -> None:
    hosts = [Host(f"w{i}", 10 * MBIT, 30 * MBIT, dialable=False) for i in range(4)]
    assert plan_stripes(MIB, 20 * MBIT, hosts, origin_dialable=False) is None
    assert plan_stripes(MIB, 20 * MBIT, hosts[:1]) is None


def test_a_thousand_workers_are_planned_with_bounded_streams() -> None:
    b0, hosts = drawn(random.Random(5), 1000)
    plan = plan_stripes(16_000 * MIB, b0, hosts)
    assert plan is not None
    check(plan, b0, hosts)
    assert len(plan.stripes) <= 16
    assert sum(len(stripe.chains) for stripe in plan.stripes) <= max(ORIGIN_STREAMS_MAX, 2 * 1000)


def test_parts_with_the_same_tails_are_one_stripe() -> None:
    """However fine the parts, there are no more stripes than shifts of tails end: hardly more than workers."""
    dice = random.Random(11)
    finer = 0
    for _ in range(60):
        b0, hosts = drawn(dice, dice.randint(3, 12), equal_downlinks=True)
        plan = plan_stripes(1024 * MIB, b0, hosts)
        assert plan is not None
        sets = [frozenset(chain[-1] for chain in stripe.chains) for stripe in plan.stripes]
        assert len(set(sets)) == len(sets) <= len(hosts) + 1
        finer += plan.parts > len(sets)
        best = striped_rate(b0, hosts)
        assert plan.rate_bytes_per_s >= 0.94 * best
    assert finer > 30


def test_small_chunks_fill_sooner() -> None:
    hosts = hosts_of([30, 20, 20, 20, 15, 10, 6, 6], 30)
    large, small = (plan_stripes(24 * MIB, 60 * MBIT, hosts, chunk_bytes=size) for size in (1 << 16, 1 << 14))
    assert large is not None
    assert small is not None
    assert 0 < small.fill_s < large.fill_s
    assert small.t_all_s < large.t_all_s


def test_the_order_of_the_workers_does_not_matter() -> None:
    b0, hosts = drawn(random.Random(3), 12)
    turned = list(hosts)
    random.Random(1).shuffle(turned)
    assert plan_stripes(64 * MIB, b0, hosts) == plan_stripes(64 * MIB, b0, turned)


@pytest.mark.parametrize(
    ("b0", "up", "name"), [(0.0, 1.0, "b0_bytes_per_s"), (math.nan, 1.0, "b0_bytes_per_s"), (1.0, -1.0, "uplink of")]
)
def test_rates_that_are_none_are_refused_by_name(b0: float, up: float, name: str) -> None:
    with pytest.raises(PlanInputError, match=name):
        plan_stripes(MIB, b0, [Host("a", up, 1.0), Host("b", 1.0, 1.0)])
