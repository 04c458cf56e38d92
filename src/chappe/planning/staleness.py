"""How old a trajectory may be, and what that leaves for the period between publications.

With staleness S a learner at version v_t admits trajectories of version v >= v_t - S. A fleet that publishes every
kappa steps generates with weights up to kappa steps old and one more while the next version travels, so kappa = S - 1
(ECHO-2); kappa >= 2 is the smallest period that hides a broadcast, so S = 3 is the smallest staleness.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chappe.planning.errors import at_least, not_negative

STALENESS_MIN = 3
STABLE_STALENESS_MAX = 6
DIVERGED_STALENESS = 11
ENVELOPE_SOURCE = "ECHO-2, unmodified GRPO: S <= 6 within about 5 % of the synchronous reward, S = 11 diverged"


class Envelope(StrEnum):
    """What is published about a staleness."""

    STABLE = "stable"
    UNKNOWN = "unknown"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True)
class StalenessPlan:
    """`warning` is empty inside the published envelope; it states its source and conditions otherwise."""

    staleness: int
    kappa: int
    envelope: Envelope
    warning: str


def kappa_of(staleness: int) -> int:
    """kappa = S - 1. Raises PlanInputError below S = 3."""
    return at_least("staleness S", staleness, STALENESS_MIN) - 1


def staleness_of(kappa: int) -> int:
    """S = kappa + 1. Raises PlanInputError below kappa = 2."""
    return at_least("kappa (where S = kappa + 1 is asked for)", kappa, STALENESS_MIN - 1) + 1


def admits(trajectory_version: int, learner_version: int, staleness: int) -> bool:
    """Admission at the learner: v >= v_t - S. A version from the future is admitted (the learner was restored)."""
    not_negative("staleness S", staleness)
    return trajectory_version >= learner_version - staleness


def plan_staleness(staleness: int) -> StalenessPlan:
    """kappa for a staleness, with a warning outside the published stability envelope."""
    kappa = kappa_of(staleness)
    envelope, warning = Envelope.STABLE, ""
    if staleness >= DIVERGED_STALENESS:
        envelope = Envelope.DIVERGED
        warning = f"S = {staleness} is where training was published to diverge ({ENVELOPE_SOURCE})"
    elif staleness > STABLE_STALENESS_MAX:
        envelope = Envelope.UNKNOWN
        warning = f"S = {staleness} is beyond what was published as stable ({ENVELOPE_SOURCE}): watch the reward"
    return StalenessPlan(staleness, kappa, envelope, warning)
