"""Broadcasts without faults take as long as the closed form says."""

from __future__ import annotations

import math
from random import Random

import pytest

from chappe.planning.fluid import Host, completion_times
from chappe.sim.process import Line
from chappe.sim.scenario import MBIT, Run, Scenario, simulate

PAYLOAD = 16_400_000_000
FLOOR_S = PAYLOAD / (100 * MBIT)
HOP_S = 0.01 + 131072 / (100 * MBIT)
"""A chunk's time and the latency."""


def expected_s(relays: int, chains: int = 3) -> float:
    """Until the last one of the longest chain has all: the floor, and the fill of every hop."""
    return FLOOR_S + math.ceil(relays / chains) * HOP_S


@pytest.mark.parametrize("relays", [10, 100, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
def test_equal_links(relays: int) -> None:
    result = simulate(Scenario(1, relays, PAYLOAD), Random(1))
    assert result.ok
    assert result.floor_s == FLOOR_S
    assert result.t_bcast["1.0"] == pytest.approx(expected_s(relays), abs=1.0)


def test_1_000_relays() -> None:
    result = simulate(Scenario(1, 1000, PAYLOAD), Random(1))
    assert result.ok
    assert result.t_bcast["0.5"] is not None
    assert result.t_bcast["0.5"] < (result.t_bcast["1.0"] or 0.0)
    assert result.t_bcast["1.0"] == pytest.approx(expected_s(1000), abs=1.0)


@pytest.mark.parametrize("relays", [80, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
def test_a_large_fleet_in_trouble(relays: int) -> None:
    kinds = ("kill", "outage", "reset", "joins", "leaves")
    scenario = Scenario(1, relays, 2_000_000_000, faults=kinds, faults_most=30)
    result = simulate(scenario, Random(1))
    assert result.ok, result.broken
    assert sum(result.faults.values()) > 5


@pytest.mark.parametrize("seed", range(8))
def test_unequal_links_follow_the_fluid_model(seed: int) -> None:
    rng = Random(seed)
    scenario = Scenario(seed, rng.randint(2, 12), 2_000_000_000, latency_s=0.002)
    run = Run(scenario, rng)
    hosts = {}
    for relay in run.world.relays:
        relay.line = line = Line(rng.uniform(20, 200) * MBIT, rng.uniform(50, 200) * MBIT, 0.001)
        relay.uplink_bytes_per_s, relay.downlink_bytes_per_s = line.uplink_bytes_per_s, line.downlink_bytes_per_s
        hosts[relay.worker_id] = Host(relay.name, line.uplink_bytes_per_s, line.downlink_bytes_per_s)
    result = run.play()
    assert result.ok, result.broken
    (publication,) = run.world.coordinator.fleet.state.publications.values()
    chains = [[hosts[member] for member in chain.members] for chain in publication.layout.chains if chain.members]
    times = completion_times(scenario.payload_bytes, scenario.origin_uplink_bytes_per_s, chains)
    assert result.t_bcast["1.0"] == pytest.approx(max(t for row in times for t in row), rel=0.02, abs=1.0)
