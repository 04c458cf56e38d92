"""Striped publications in the simulator: as fast as planned, right whatever happens, and planted bugs are caught.

A failing seed replays with `simulate(striped(seed, rng), rng)` and `rng = Random(seed)`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from planted import Bug
from planted_stripes import BUGS

from chappe.core import laying, restriping
from chappe.core.events import Topology
from chappe.core.manifest import CHUNK_BYTES_MIN
from chappe.planning import striping
from chappe.planning.fluid import Host
from chappe.planning.stripes import striped_rate
from chappe.sim.faults import STRIPED
from chappe.sim.scenario import MBIT, Run, Scenario, simulate
from chappe.sim.striped import UPLINKS_MBIT, striped

BLOCK = 5
SEEDS = 100
FOUND = (619,)
"""619: a slower sender did not say so before its next report was due, and its word stood against its child's."""


def play(seeds: range) -> Counter[str]:
    """The faults that were injected, how many runs had stripes, and how often a rest was laid anew."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        rng = Random(seed)
        run = Run(striped(seed, rng), rng)
        result = run.play()
        assert result.ok, "\n".join([*result.trail, f"seed {seed}", *result.broken])
        seen.update(result.faults)
        seen["stripes"] += run.world.counts["striped"] > 0
        seen["restriped"] += run.world.counts["restriped"]
    return seen


def lay_anew_at_every_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only when it is worth it: whatever else happens then happens in the middle of it."""
    for name, value in {
        "WORTH_S": -1e9,
        "WORTH_SHARE": -1e9,
        "LATE": 0.0,
        "PLAN_S": 0.0,
        "COOL_S": 1.0,
        "LOOKS": 1,
    }.items():
        monkeypatch.setattr(restriping, name, value)


@pytest.mark.parametrize("block", range(3))
def test_15_seeds(block: int) -> None:
    seen = play(range(block * BLOCK, (block + 1) * BLOCK))
    assert seen["stripes"] >= BLOCK // 3
    assert len(seen) >= 6


def test_6_seeds_in_which_the_rest_is_laid_anew_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lay_anew_at_every_chance(monkeypatch)
    assert play(range(6))["restriped"] >= 12


@pytest.mark.soak
@pytest.mark.parametrize("block", range(10))
def test_500_seeds_in_which_the_rest_is_laid_anew_again_and_again(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_anew_at_every_chance(monkeypatch)
    assert play(range(block * 50, (block + 1) * 50))["restriped"] >= 100


@pytest.mark.parametrize("seed", FOUND)
def test_what_seeds_have_found_stays_mended(seed: int) -> None:
    play(range(seed, seed + 1))


@pytest.mark.soak
@pytest.mark.parametrize("block", range(40))
def test_2_000_seeds(block: int) -> None:
    missing = set(STRIPED) - set(play(range(block * 50, (block + 1) * 50)))
    assert len(missing) <= 4, f"of fifty runs none had {missing}"


@pytest.mark.parametrize("kind", STRIPED)
def test_every_kind_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that need another one before them: a ghost needs a relay that has started twice."""
    if kind == "poison":  # pages run ahead of chunks: only of small ones are there some to come
        monkeypatch.setattr(laying, "CHUNK_BYTES_PLAIN", CHUNK_BYTES_MIN)
        monkeypatch.setattr(striping, "CHUNK_BYTES_PLAIN", CHUNK_BYTES_MIN)
    seen: Counter[str] = Counter()
    kinds = (kind, "restart") if kind == "ghost" else (kind,)
    for seed in range(20):
        if seed >= 2 and seen[kind] and seen["stripes"]:
            break
        rng = Random(f"{kind} {seed}")
        scenario = striped(seed, rng, kinds)
        if kind == "poison":  # finds nobody to harm mostly
            scenario = replace(scenario, faults_most=40)
        run = Run(scenario, rng)
        result = run.play()
        assert result.ok, "\n".join([*result.trail, f"{kind} {seed}", *result.broken])
        seen.update(result.faults)
        seen["stripes"] += run.world.counts["striped"] > 0
    assert seen[kind]
    assert seen["stripes"]


@pytest.mark.parametrize("uplinks", UPLINKS_MBIT, ids=lambda ups: "-".join(f"{up:g}" for up in ups))
def test_a_calm_broadcast_takes_what_the_bound_says(uplinks: tuple[float, ...]) -> None:
    """Whole stripes cost a part of 1/K, the fill of the pipelines some more; plain chains take up to four times it."""
    times: dict[Topology, float] = {}
    ups = tuple(up * MBIT for up in uplinks)
    size, b0, down = 240_000_000, 60 * MBIT, 30 * MBIT
    for topology in (Topology.STRIPED, Topology.CHAINS):
        scenario = Scenario(
            1,
            9,
            size,
            uplinks_bytes_per_s=ups,
            downlink_bytes_per_s=down,
            origin_uplink_bytes_per_s=b0,
            latency_s=0.002,
            topologies=(topology,),
        )
        result = simulate(scenario, Random(1))
        assert result.ok, result.broken
        assert result.t_bcast["1.0"] is not None
        times[topology] = result.t_bcast["1.0"]
    hosts = [Host(f"w{i}", ups[i % len(ups)], down) for i in range(9)]
    bound_s = size / striped_rate(b0, hosts)
    assert times[Topology.STRIPED] <= 1.15 * bound_s
    assert times[Topology.CHAINS] >= 1.05 * times[Topology.STRIPED]


def test_equal_links_are_played_as_plain_chains() -> None:
    scenarios = [Scenario(1, 9, 500_000_000, topologies=(t,)) for t in (Topology.STRIPED, Topology.CHAINS)]
    runs = [simulate(scenario, Random(1)) for scenario in scenarios]
    assert runs[0] == runs[1]


def test_a_seed_replays() -> None:
    runs = []
    for _ in range(2):
        rng = Random(7)
        runs.append(simulate(striped(7, rng), rng))
    assert runs[0] == runs[1]
    assert runs[0].faults


def test_there_are_enough_bugs() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 10


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(bug.first, bug.first + SEEDS):
        rng = Random(seed)
        scenario = striped(seed, rng, bug.kinds)
        changed = replace(scenario, faults_most=bug.most, payload_bytes=bug.scale * scenario.payload_bytes)
        result = simulate(changed, rng)
        if result.broken and re.search(bug.caught, result.broken[0]):
            assert result.trail
            return
    pytest.fail(f"{bug.name} shows in none of {SEEDS} seeds")
