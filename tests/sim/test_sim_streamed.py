"""Deltas that leave while they are made, and damaged bases that give what they can: from seeds, under faults.

| in the middle of an open object      | in the middle of a salvage                    |
|--------------------------------------|-----------------------------------------------|
| it outgrows its bound: withdrawn     | whoever brings the rest dies, or sends it wrong |
| its publisher dies                   | the relay dies                                |
| a parent dies, somebody joins        | another assignment comes, that knows of nothing |

A failing seed replays with `simulate(streamed(seed, rng), rng)` and `rng = Random(seed)`.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from planted import Bug
from planted_streamed import STREAM_BUGS

from chappe.core.events import Payload
from chappe.sim.faults import STREAM_KINDS
from chappe.sim.salvage import lacking
from chappe.sim.scenario import Run, Scenario, simulate
from chappe.sim.streamed import STREAMED, streamed

BLOCK = 12
SEEDS = 60
STRUCK = {
    "outgrows": "outgrown",
    "openpublisher": "its publisher dies",
    "openjoins": "somebody joins",
    "openparent": "a parent dies",
    "partsource": "its source fails",
    "partkilled": "its relay dies",
    "partassigned": "another assignment comes",
}


def play(seeds: range) -> Counter[str]:
    """What was exercised. Fails with the seed, its event log, and the invariant."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        rng = Random(seed)
        run = Run(streamed(seed, rng), rng)
        result = run.play()
        assert result.ok, "\n".join([*result.trail, f"seed {seed}", *result.broken])
        counts += run.world.counts
    return counts


@pytest.mark.parametrize("block", range(2))
def test_24_seeds(block: int) -> None:
    counts = play(range(block * BLOCK, (block + 1) * BLOCK))
    for what in ("opened", "delta landed", "full_instead"):
        assert counts[what], what


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
def test_2_000_seeds(block: int) -> None:
    counts = play(range(block * 100, (block + 1) * 100))
    missing = {what for what in (*STRUCK.values(), "salvaged", "folded landed") if not counts[what]}
    assert len(missing) <= 1, missing


@pytest.mark.parametrize("kind", STREAM_KINDS)
def test_every_kind_alone(kind: str) -> None:
    kinds = (kind, "base", "base", "base") if kind.startswith("part") else (kind,)
    struck = 0
    for seed in range(40):
        if seed >= 3 and struck:
            break
        rng = Random(f"{kind} {seed}")
        run = Run(streamed(seed, rng, kinds), rng)
        result = run.play()
        assert result.ok, "\n".join([*result.trail, f"{kind} {seed}", *result.broken])
        struck += run.world.counts[STRUCK[kind]]
    assert struck


def test_a_seed_replays() -> None:
    runs = []
    for _ in range(2):
        rng = Random(11)
        runs.append(simulate(streamed(11, rng), rng))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("bug", STREAM_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(bug.first, bug.first + SEEDS):
        rng = Random(seed)
        result = simulate(streamed(seed, rng, bug.kinds), rng)
        if result.broken and re.search(bug.caught, result.broken[0]):
            assert result.trail
            return
    pytest.fail(f"{bug.name} shows in none of {SEEDS} seeds")


def two_versions(seed: int = 1) -> Run:
    scenario = Scenario(
        seed, 5, 250_000_000, publications=2, pause=(1.2, 1.3), payload=Payload.AUTO, changes=(0.2,), streams=True
    )
    return Run(scenario, Random(seed))


def test_chunks_are_there_before_the_end_is_known() -> None:
    run = two_versions()
    world = run.world
    early: list[int] = []

    def look() -> None:
        for relay in world.relays:
            for copy in relay.copies.values():
                if copy.object.open_end and copy.object.object_id not in world.closed and copy.held:
                    assert copy.total is None
                    early.append(len(copy.held))
        world.agenda.after(0.1, look)

    look()
    result = run.play()
    assert result.ok, result.broken
    assert world.counts["delta landed"] == 5
    assert max(early, default=0) > 100


def test_a_damaged_base_costs_the_blocks_that_are_damaged() -> None:
    run = two_versions()
    world = run.world
    costs: list[int] = []

    def damage() -> None:
        relay = world.relays[2]
        base = next((copy for copy in relay.copies.values() if copy.version == 1), None)
        if base is None:
            world.agenda.after(0.2, damage)
            return
        base.rot(7)
        base.rot(100)
        world.content_changed()
        costs.append(len(lacking(base, base.object)))

    world.agenda.after(0.2, damage)
    result = run.play()
    assert result.ok, result.broken
    assert world.counts["delta landed"] == 4
    assert world.counts["full_instead"] == world.counts["salvaged"] == 1
    assert costs
    assert world.counts["fetched of parts"] == costs[0]


def test_the_kinds_are_drawn() -> None:
    assert set(STREAM_KINDS) == STRUCK.keys() < set(STREAMED)
