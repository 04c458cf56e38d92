"""Small fleets on unequal links, where publications get stripes, in trouble: what each is like is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from chappe.core.events import Topology
from chappe.sim.faults import STRIPED
from chappe.sim.scenario import MBIT, WARM_UP_S, Scenario

UPLINKS_MBIT: tuple[tuple[float, ...], ...] = (
    (30, 30, 8, 8),
    (30, 20, 20, 15, 10, 6),
    (30, 15, 15, 10, 6),
    (30, 30, 20, 15, 10, 10),
    (10,),
)
"""As in fleets of rented and lent hosts that were measured; the last one are consumers' lines."""


def striped(seed: int, rng: Random, kinds: Sequence[str] = STRIPED) -> Scenario:
    relays = rng.randint(3, 9)
    uplinks = rng.choice(UPLINKS_MBIT)
    typical = sum(uplinks) / len(uplinks)
    return Scenario(
        seed,
        relays,
        payload_bytes=rng.choice([20, 40, 80]) * 10**6,
        uplink_bytes_per_s=typical * MBIT,
        uplinks_bytes_per_s=tuple(up * MBIT for up in uplinks),
        downlink_bytes_per_s=rng.choice([30, 60]) * MBIT,
        origin_uplink_bytes_per_s=rng.choice([60, 90]) * MBIT,
        faults=tuple(kinds),
        publications=rng.choice([1, 1, 2, 3]),
        varied=True,
        latency_s=rng.choice([0.001, 0.01, 0.05]),
        natted_share=rng.choice([0.0, 0.0, 0.3, 0.5]),
        warm_up_s=rng.choice([WARM_UP_S, WARM_UP_S, 6.0]),
        topologies=(Topology.STRIPED,) * 7 + (Topology.CHAINS,),
    )
