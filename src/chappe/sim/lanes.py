"""A mixed fleet from a seed: several versions in a row, as deltas, folded deltas, compressed and full objects."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from chappe.core.events import Payload
from chappe.sim.faults import LANE_KINDS, MIXED
from chappe.sim.scenario import MBIT, WARM_UP_S, Scenario

LANES_MIXED = (*MIXED, *LANE_KINDS, "absent", "joins")
"""Who was away and who is new is what lanes are for."""


def lanes(seed: int, rng: Random, kinds: Sequence[str] = LANES_MIXED) -> Scenario:
    """A small fleet in trouble, whose hosts hold different versions when the next one comes."""
    return Scenario(
        seed,
        relays=rng.randint(1, 9),
        payload_bytes=rng.choice([60, 120, 250]) * 10**6,
        origin_uplink_bytes_per_s=rng.choice([100, 200, 300]) * MBIT,
        faults=tuple(kinds),
        faults_most=rng.choice([6, 12]),
        publications=rng.randint(2, 6),
        varied=True,
        latency_s=rng.choice([0.001, 0.01, 0.05]),
        natted_share=rng.choice([0.0, 0.0, 0.3, 0.5]),
        warm_up_s=rng.choice([WARM_UP_S, WARM_UP_S, 6.0]),
        pause=(0.1, rng.choice([1.5, 3.0])),
        payload=rng.choice([Payload.AUTO, Payload.AUTO, Payload.AUTO, Payload.DELTA, Payload.COMPRESSED]),
        changes=rng.choice([(0.01,), (0.01, 0.05, 0.3), (0.3, 0.6)]),
        compresses=rng.random() < 0.5,
    )
