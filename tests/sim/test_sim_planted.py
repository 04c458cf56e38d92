"""The simulator finds bugs: each planted one is caught by some seed, by the invariant that is there for it."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest
from planted import BUGS, Bug

from chappe.sim.scenario import mixed, simulate

SEEDS = 200


def test_there_are_enough_of_them() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 10


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(bug.first, bug.first + SEEDS):
        rng = Random(seed)
        scenario = mixed(seed, rng, bug.kinds)
        changed = replace(
            scenario,
            faults_most=bug.most,
            payload_bytes=bug.scale * scenario.payload_bytes,
            latency_s=scenario.latency_s if bug.latency_s is None else bug.latency_s,
        )
        result = simulate(changed, rng)
        if result.broken and re.search(bug.caught, result.broken[0]):
            assert result.trail
            return
    pytest.fail(f"{bug.name} shows in none of {SEEDS} seeds")
