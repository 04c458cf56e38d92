"""What a fleet costs per hour, per step, and where a cheaper one stops being cheaper.

Prices are the user's input, per hour, in any one currency; none is built in. Times in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chappe.planning.errors import at_least, not_negative, positive

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class HostGroup:
    """`count` hosts (or GPUs) of one kind at one price."""

    name: str
    count: int
    price_per_hour: float

    def __post_init__(self) -> None:
        at_least(f"count of {self.name!r}", self.count, 0)
        not_negative(f"price_per_hour of {self.name!r}", self.price_per_hour)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate fleet beside a baseline that does the same steps. Savings are fractions of the baseline's cost."""

    baseline_per_step: float
    candidate_per_step: float
    saving: float
    step_ratio: float  # candidate step / baseline step
    break_even_step_s: float  # the candidate's step may take this long before it costs as much


def hourly(groups: Sequence[HostGroup], *, egress_per_hour: float = 0.0) -> float:
    """Price of the fleet per hour, egress included."""
    return sum(g.count * g.price_per_hour for g in groups) + not_negative("egress_per_hour", egress_per_hour)


def egress_per_hour(payload_bytes: float, copies_paid: float, period_s: float, price_per_gb: float) -> float:
    """What leaving a provider costs per hour: `copies_paid` payloads (10^9-byte GB) every `period_s`."""
    volume_gb = not_negative("payload_bytes", payload_bytes) * not_negative("copies_paid", copies_paid) / 1e9
    return volume_gb * not_negative("price_per_gb", price_per_gb) * SECONDS_PER_HOUR / positive("period_s", period_s)


def per_step(price_per_hour: float, step_s: float) -> float:
    """Price of one training step."""
    return not_negative("price_per_hour", price_per_hour) * positive("step_s", step_s) / SECONDS_PER_HOUR


def compare(baseline_per_hour: float, baseline_step_s: float, candidate_per_hour: float, step_s: float) -> Comparison:
    """A candidate against a baseline, step by step."""
    before = per_step(positive("baseline_per_hour", baseline_per_hour), baseline_step_s)
    after = per_step(positive("candidate_per_hour", candidate_per_hour), step_s)
    return Comparison(
        before,
        after,
        1 - after / before,
        step_s / baseline_step_s,
        longest_affordable_step_s(before, candidate_per_hour),
    )


def longest_affordable_step_s(budget_per_step: float, price_per_hour: float) -> float:
    """How long a step may take on a fleet of this price before it costs more than the budget."""
    return positive("budget_per_step", budget_per_step) * SECONDS_PER_HOUR / positive("price_per_hour", price_per_hour)


def break_even_fleet(baseline_per_hour: float, fixed_per_hour: float, price_per_worker_hour: float) -> float:
    """The (real) number of workers at which fixed part + workers cost as much per hour as the baseline."""
    spare = positive("baseline_per_hour", baseline_per_hour) - not_negative("fixed_per_hour", fixed_per_hour)
    return spare / positive("price_per_worker_hour", price_per_worker_hour)


def largest_cheaper_fleet(baseline_per_hour: float, fixed_per_hour: float, price_per_worker_hour: float) -> int:
    """The most workers that still cost no more than the baseline; below zero the fixed part alone is dearer."""
    return math.floor(break_even_fleet(baseline_per_hour, fixed_per_hour, price_per_worker_hour) + 1e-9)
