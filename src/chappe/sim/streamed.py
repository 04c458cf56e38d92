"""A mixed fleet from a seed whose deltas leave while they are made, and whose damaged bases give what they can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from chappe.core.events import Payload
from chappe.sim.faults import STREAM_KINDS
from chappe.sim.lanes import LANES_MIXED, lanes
from chappe.sim.scenario import Scenario

STREAMED = (*LANES_MIXED, *STREAM_KINDS, *STREAM_KINDS, "base")


def streamed(seed: int, rng: Random, kinds: Sequence[str] = STREAMED) -> Scenario:
    """As `lanes`, with deltas large enough to be in their middle when something happens."""
    scenario = lanes(seed, rng, kinds)
    payload = Payload.AUTO if scenario.payload is Payload.COMPRESSED else scenario.payload
    return replace(
        scenario,
        payload=payload,
        publications=rng.randint(2, 5),
        changes=rng.choice([(0.05,), (0.05, 0.2, 0.4), (0.2, 0.4)]),
        pause=(0.3, rng.choice([1.5, 3.0])),
        streams=True,
    )
