"""What a run asks of its fleet: section `[training]` of the coordinator's configuration. Without it nothing is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chappe.planning.errors import PlanInputError, at_least, positive
from chappe.planning.staleness import STALENESS_MIN, kappa_of


class Mode(StrEnum):
    """Who decides when a version is published."""

    PERIODIC = "periodic"  # the trainer, every kappa steps
    SEQUENTIAL = "sequential"  # the same; requests carry the learner's version, and workers refresh before they answer
    ASYNCHRONOUS = (
        "asynchronous"  # the coordinator asks for one when the fleet is delta_max versions behind the learner
    )


class Verdict(StrEnum):
    """On a fleet, from good to bad; a closed set, also the label of a metric."""

    UNKNOWN = "unknown"  # something is not known yet
    ENOUGH = "enough"  # gamma times what is required
    DRIFTING = "drifting"  # enough now; as it drifts, not for long
    THIN = "thin"  # what is required, without the margin: the next fault will be felt
    SHORT = "short"  # the learner waits
    INFEASIBLE = "infeasible"  # the broadcast alone fills the period


SEVERITY = {verdict: i for i, verdict in enumerate(Verdict)}


@dataclass(frozen=True, slots=True)
class Standing:
    """The verdict that was said last."""

    verdict: Verdict
    reason: str


FRACTIONS = {0.5: "0.5", 0.9: "0.9", 1.0: "1.0"}
"""The target fractions at which a broadcast is measured, and their keys."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Raises PlanInputError naming what is wrong.

    `kappa` training steps for each publication, `batch` (R) rollouts for each step. `gamma` is the margin that absorbs
    a single fault. `fraction` is the share of workers whose installation ends a broadcast. `t_train_s`: seconds of a
    step, None to measure it. `delta_max` belongs to asynchronous mode: learner's version minus the fleet's. With
    `activation` workers that are not needed stand by.
    """

    kappa: int
    batch: float
    gamma: float = 1.1
    fraction: float = 1.0
    staleness: int | None = None
    t_train_s: float | None = None
    mode: Mode = Mode.PERIODIC
    delta_max: int | None = None
    activation: bool = True

    def __post_init__(self) -> None:
        at_least("kappa", self.kappa, 1)
        positive("batch", self.batch)
        if positive("gamma", self.gamma) < 1:
            raise PlanInputError(f"gamma must be 1 or more, not {self.gamma:g}: it is the margin over what is required")
        if self.fraction not in FRACTIONS:
            raise PlanInputError(f"fraction must be one of {', '.join(FRACTIONS.values())}, not {self.fraction:g}")
        if self.t_train_s is not None:
            positive("t_train", self.t_train_s)
        if self.staleness is not None and self.kappa > kappa_of(self.staleness):
            raise PlanInputError(
                f"kappa {self.kappa} is more than staleness {self.staleness} allows ({kappa_of(self.staleness)}): the "
                "last rollouts of every period would be too old; lower kappa, or raise staleness"
            )
        if self.delta_max is not None:
            at_least("delta_max", self.delta_max, 1)
        if (self.mode is Mode.ASYNCHRONOUS) is not (self.delta_max is not None):
            raise PlanInputError("delta_max belongs to mode asynchronous, and that needs it: give both or neither")

    @classmethod
    def of(
        cls, *, kappa: int | None, staleness: int | None, batch: float | None, **rest: object
    ) -> TrainingConfig | None:
        """From settings of which kappa follows from staleness (S - 1) when it is not given; None when nothing is."""
        given = [name for name, value in rest.items() if value is not None]
        if kappa is None and staleness is None and batch is None and not given:
            return None
        if batch is None or (kappa is None and staleness is None):
            missing = "batch" if batch is None else f"kappa (or staleness, {STALENESS_MIN} or more)"
            raise PlanInputError(f"[training] needs batch and kappa: {missing} is missing")
        steps = kappa if kappa is not None else kappa_of(staleness or 0)
        return cls(steps, batch, staleness=staleness, **{name: rest[name] for name in given})  # type: ignore[arg-type]

    @property
    def key(self) -> str:
        """Of T_bcast at the target fraction."""
        return FRACTIONS[self.fraction]
