"""Links are measured, probed, pushed over and judged in simulated fleets: the proof that it happens at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from chappe.core.slow import SLOW_SHARE
from chappe.sim.node import Node
from chappe.sim.scenario import MBIT, Run, Scenario, mixed

FLEET = Scenario(0, 6, 1_000_000_000, origin_uplink_bytes_per_s=100 * MBIT, warm_up_s=10.0)
"""One chain of equal hosts that do not say how fast they are, with time to probe them first."""


def undeclared(scenario: Scenario, seed: int = 1) -> Run:
    run = Run(scenario, Random(seed))
    run.world.config = replace(run.world.config, declared=False)
    return run


def play(run: Run) -> Counter[str]:
    result = run.play()
    assert result.ok, "\n".join([*result.trail, *result.broken])
    return run.world.counts


def test_an_idle_fleet_is_probed_and_a_busy_one_measures_itself() -> None:
    run = undeclared(FLEET)
    counts = play(run)
    assert counts["probes"] >= 3
    assert counts["reports"] > 100
    for worker in run.world.coordinator.fleet.state.relays:
        assert worker.links.down.bytes_per_s == pytest.approx(100 * MBIT, rel=0.05)


def test_hosts_behind_nat_are_pushed_to_and_push() -> None:
    scenario = replace(FLEET, natted_share=0.5)
    seeds = [undeclared(scenario, seed) for seed in range(4)]
    assert any(node.natted for run in seeds for node in run.world.relays)
    assert sum(play(run)["pushes"] for run in seeds) > 0


@pytest.mark.parametrize("position", [0, 2])
def test_a_sender_whose_uplink_halves_is_demoted_and_earns_its_place_back(position: int) -> None:
    """And its child goes on at its old pace: the broadcast takes a few seconds longer than one without any fault."""
    calm = Run(FLEET, Random(1)).play()
    run = Run(FLEET, Random(1))
    agenda, world = run.world.agenda, run.world
    demoted_s: list[float] = []

    def halve() -> None:
        (publication,) = world.coordinator.fleet.state.publications.values()
        (chain,) = publication.layout.chains
        relay = world.nodes[chain.members[position]]
        share = (SLOW_SHARE - 0.1, 1.0)
        relay.slowed.append(share)
        relay.relink()
        agenda.after(1.0, look, agenda.now)
        agenda.after(30.0, mend, relay, share)

    def look(since_s: float) -> None:
        if world.counts["demotions"]:
            demoted_s.append(agenda.now - since_s)
        else:
            agenda.after(0.5, look, since_s)

    def mend(relay: Node, share: tuple[float, float]) -> None:
        relay.slowed.remove(share)
        relay.relink()

    agenda.at(40.0, halve)
    result = run.play()
    assert result.ok, "\n".join([*result.trail, *result.broken])
    assert world.counts["demotions"] == world.counts["trusted_again"] == 1
    assert demoted_s[0] < 12.0  # of simulated time
    assert result.t_bcast["1.0"] is not None
    assert calm.t_bcast["1.0"] is not None
    assert result.t_bcast["1.0"] < calm.t_bcast["1.0"] + 15.0


def test_a_hook_that_fails_is_no_installed_version() -> None:
    counts: Counter[str] = Counter()
    for seed in range(6):
        rng = Random(seed)
        counts += play(Run(mixed(seed, rng, ("hook",)), rng))
    assert counts["failed hooks"] > 0
