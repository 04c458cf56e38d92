"""The planner against every possible set of chains, N <= 7; and the oracle against an even simpler one."""

from __future__ import annotations

import itertools
import random

import pytest

from bench.layout import PAYLOAD, Fleet, draw, planned_time, run
from bench.oracle import Worker, best_time, bound

SLACK = 1.002  # layouts are compared in steps of 0.1 %


@pytest.mark.parametrize(("fraction", "mean", "largest"), [(1.0, 1.005, 1.1), (0.9, 1.005, 1.1), (0.5, 1.01, 1.35)])
def test_close_to_the_best_of_all_chains(fraction: float, mean: float, largest: float) -> None:
    dice = random.Random(11)
    fleets = [draw(dice, n) for n in (1, 2, 3, 4, 5, 6, 7) for _ in range(4)]
    ratios = [planned_time(f, fraction) / best_time(PAYLOAD, f.b0, f.workers, fraction) for f in fleets]
    assert min(ratios) > 1 / SLACK, "better than all chains: one of the two is wrong"
    assert sum(ratios) / len(ratios) < mean
    assert max(ratios) < largest


@pytest.mark.parametrize("seed", range(20))
def test_no_chains_are_faster_than_the_bound(seed: int) -> None:
    fleet = draw(random.Random(seed), 5)
    for fraction in (1.0, 0.6):
        best = best_time(PAYLOAD, fleet.b0, fleet.workers, fraction)
        assert best >= bound(PAYLOAD, fleet.b0, fleet.workers, fraction) / SLACK


def stepped_best(fleet: Fleet, steps: int) -> float:
    """T(1.0) by trying all chains and moving bytes in small steps: slow, rough, and obvious."""
    workers = fleet.workers
    best = float("inf")
    for order in itertools.permutations(range(len(workers))):
        for cut in itertools.product([False, True], repeat=len(order) - 1):
            chains: list[list[int]] = [[order[0]]]
            for i, new in zip(order[1:], cut, strict=True):
                if new:
                    chains.append([i])
                else:
                    chains[-1].append(i)
            if all(workers[a].dialable or workers[b].dialable for c in chains for a, b in itertools.pairwise(c)):
                best = min(best, _stepped(fleet, chains, steps, best))
    return best


def _stepped(fleet: Fleet, chains: list[list[int]], steps: int, limit: float) -> float:
    workers, held = fleet.workers, [0.0] * len(fleet.workers)
    step_s = bound(PAYLOAD, fleet.b0, workers) / steps
    now = 0.0
    while min(held) < PAYLOAD * 0.9999 and now < limit:
        now += step_s
        left = fleet.b0 * step_s
        wanting = sorted((c[0] for c in chains if held[c[0]] < PAYLOAD), key=lambda h: workers[h].down)
        for k, head in enumerate(wanting):
            part = min(left / (len(wanting) - k), workers[head].down * step_s, PAYLOAD - held[head])
            held[head] += part
            left -= part
        for chain in chains:
            for up, down in itertools.pairwise(chain):
                rate = min(workers[up].up, workers[down].down)
                held[down] += min(rate * step_s, held[up] - held[down])
    return now


@pytest.mark.parametrize("seed", range(6))
def test_the_oracle_agrees_with_small_steps(seed: int) -> None:
    fleet = draw(random.Random(seed), 3)
    assert best_time(PAYLOAD, fleet.b0, fleet.workers) == pytest.approx(stepped_best(fleet, 400), rel=0.02)


def test_known_fleets() -> None:
    equal = tuple(Worker(100.0, 100.0) for _ in range(6))
    assert best_time(1000.0, 300.0, equal) == pytest.approx(10.0)
    assert best_time(1000.0, 50.0, equal) == pytest.approx(20.0)
    weak = (Worker(100.0, 100.0), Worker(10.0, 100.0), Worker(10.0, 100.0))
    assert best_time(1000.0, 100.0, weak) == pytest.approx(20.0)  # two chains: both weak ones are tails


def test_the_table_has_a_row_for_each_fraction_and_reference() -> None:
    rows = run(3, 1)
    assert len(rows) == 9
    assert all(row["mean"] <= row["largest"] for row in rows.values())
