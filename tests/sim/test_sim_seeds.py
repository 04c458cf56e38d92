"""Mixed faults on small fleets, from seeds: nothing breaks, and everybody who can ends with the exact bytes.

A failing seed replays with `simulate(mixed(seed, rng), rng)` and `rng = Random(seed)`.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from chappe.sim.faults import MIXED
from chappe.sim.scenario import mixed, simulate

BLOCK = 30


def play(seeds: range) -> Counter[str]:
    """The faults that were injected. Fails with the seed, the last part of its event log, and the invariant."""
    injected: Counter[str] = Counter()
    for seed in seeds:
        rng = Random(seed)
        result = simulate(mixed(seed, rng), rng)
        assert result.ok, "\n".join([*result.trail, f"seed {seed}", *result.broken])
        injected.update(result.faults)
    return injected


@pytest.mark.parametrize("block", range(4))
def test_120_seeds(block: int) -> None:
    assert len(play(range(block * BLOCK, (block + 1) * BLOCK))) >= 12


@pytest.mark.soak
@pytest.mark.parametrize("block", range(100))
def test_10_000_seeds(block: int) -> None:
    missing = set(MIXED) - set(play(range(block * 100, (block + 1) * 100)))
    assert len(missing) <= 2, f"of a hundred runs none had {missing}"


@pytest.mark.parametrize("kind", MIXED)
def test_every_kind_alone(kind: str) -> None:
    """Also those that need another one before them: a ghost needs a relay that has started twice."""
    injected: Counter[str] = Counter()
    kinds = (kind, "restart") if kind == "ghost" else (kind,)
    for seed in range(20):
        if seed >= 3 and injected[kind]:
            break
        rng = Random(f"{kind} {seed}")
        result = simulate(mixed(seed, rng, kinds), rng)
        assert result.ok, "\n".join([*result.trail, f"{kind} {seed}", *result.broken])
        injected.update(result.faults)
    assert injected[kind]


def test_a_seed_replays() -> None:
    runs = []
    for _ in range(2):
        rng = Random(7)
        runs.append(simulate(mixed(7, rng), rng))
    assert runs[0] == runs[1]
    assert runs[0].faults
