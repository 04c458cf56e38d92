"""Mixed fleets from seeds: versions in a row as deltas, folded deltas, compressed and full objects, under faults.

A failing seed replays with `simulate(lanes(seed, rng), rng)` and `rng = Random(seed)`.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from planted import Bug
from planted_lanes import LANE_BUGS

from chappe.core.events import Payload
from chappe.sim.faults import LANE_KINDS
from chappe.sim.lanes import LANES_MIXED, lanes
from chappe.sim.scenario import MBIT, Run, Scenario, simulate

BLOCK = 20
SEEDS = 60


def play(seeds: range) -> tuple[Counter[str], Counter[str]]:
    """The faults that were injected, and what was exercised. Fails with the seed, its event log, and the invariant."""
    injected: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for seed in seeds:
        rng = Random(seed)
        run = Run(lanes(seed, rng), rng)
        result = run.play()
        assert result.ok, "\n".join([*result.trail, f"seed {seed}", *result.broken])
        injected.update(result.faults)
        counts += run.world.counts
    return injected, counts


@pytest.mark.parametrize("block", range(3))
def test_60_seeds(block: int) -> None:
    injected, counts = play(range(block * BLOCK, (block + 1) * BLOCK))
    assert len(injected) >= 12
    for what in ("delta landed", "full-compressed landed", "full_instead", "finishes_first", "no_delta"):
        assert counts[what], what


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
def test_2_000_seeds(block: int) -> None:
    injected, counts = play(range(block * 100, (block + 1) * 100))
    assert len(set(LANES_MIXED) - set(injected)) <= 2
    assert counts["folded landed"]
    assert counts["recruited"]


@pytest.mark.parametrize("kind", LANE_KINDS)
def test_every_kind_alone(kind: str) -> None:
    injected: Counter[str] = Counter()
    for seed in range(20):
        if seed >= 3 and injected[kind]:
            break
        rng = Random(f"{kind} {seed}")
        result = simulate(lanes(seed, rng, (kind,)), rng)
        assert result.ok, "\n".join([*result.trail, f"{kind} {seed}", *result.broken])
        injected.update(result.faults)
    assert injected[kind]


def test_a_seed_replays() -> None:
    runs = []
    for _ in range(2):
        rng = Random(11)
        runs.append(simulate(lanes(11, rng), rng))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("bug", LANE_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(bug.first, bug.first + SEEDS):
        rng = Random(seed)
        result = simulate(lanes(seed, rng, bug.kinds), rng)
        if result.broken and re.search(bug.caught, result.broken[0]):
            assert result.trail
            return
    pytest.fail(f"{bug.name} shows in none of {SEEDS} seeds")


def test_a_calm_fleet_takes_deltas_in_a_share_of_the_time() -> None:
    """The second version is 2 % of the first one's bytes, and of its time but for making it and landing it."""
    size = 2_000_000_000
    scenario = Scenario(1, 6, size, publications=2, pause=(1.2, 1.3), payload=Payload.AUTO, changes=(0.02,))
    run = Run(scenario, Random(1))
    result = run.play()
    assert result.ok, result.broken
    assert run.world.counts["delta landed"] == 6
    assert run.world.counts["full_instead"] == 0
    full_s = size / (100 * MBIT)
    assert result.t_bcast["1.0"] is not None
    assert 0.02 * full_s < result.t_bcast["1.0"] < 0.1 * full_s


def test_a_newcomer_is_fed_by_peers_where_only_deltas_leave_the_publisher() -> None:
    scenario = Scenario(3, 4, 500_000_000, publications=2, pause=(1.2, 1.3), payload=Payload.DELTA, changes=(0.3,))
    run = Run(scenario, Random(3))
    world, agenda = run.world, run.world.agenda
    served_full: list[str] = []

    def join() -> None:
        if run.snapshot == 2 and any(p.version == 2 for p in world.coordinator.fleet.state.publications.values()):
            world.add_relay(run.line()).start()
            agenda.after(0.5, look)
        else:
            agenda.after(0.5, join)

    def look() -> None:
        assert world.origin is not None
        served_full.extend(
            s.child.name
            for s in world.origin.serving
            if s.source.object.version == 2 and s.source.object.kind == "full"
        )
        agenda.after(0.5, look)

    agenda.at(20.0, join)
    result = run.play()
    assert result.ok, result.broken
    newcomer = world.relays[-1]
    assert newcomer.name == "r5"
    assert newcomer.current == 2
    assert served_full == []
    assert world.counts["recruited"]
