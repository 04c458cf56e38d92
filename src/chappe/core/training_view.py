"""The run as people see it: a plain view that mirrors the protocol's TrainingStatus. Reads, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from chappe.core.learner import fleet_version, learner_of, trajectories
from chappe.core.overlap import assess
from chappe.core.state import FleetConfig, FleetState


@dataclass(frozen=True, slots=True)
class TrainingView:
    """None where it is not known. The verdict is the one that was said last; the figures are those of now."""

    verdict: str
    reason: str
    kappa: int
    batch: float
    gamma: float
    fraction: float
    t_train_s: float | None = None
    t_train_source: str = ""
    t_bcast_s: float | None = None
    tail_s: float | None = None
    t_bcast_source: str = ""
    slack_s: float | None = None
    required_rollouts_per_s: float | None = None
    pool_rollouts_per_s: float | None = None
    required_workers: int | None = None
    active_workers: int = 0
    bubble: float | None = None
    learner_version: int = 0  # 0: nobody has told
    fleet_version: int = 0
    admitted: int = 0  # trajectories, as the learner tells
    discarded: int = 0


def training_view(state: FleetState, config: FleetConfig, now: float) -> TrainingView | None:
    """None where no training is configured."""
    training = config.training
    if training is None:
        return None
    found = assess(state, config, training, now)
    learner, (admitted, discarded) = learner_of(state), trajectories(state.workers.values())
    standing = state.standing
    said = (found.verdict, found.reason)
    if standing is not None and standing.verdict is not found.verdict:
        said = (standing.verdict, standing.reason)
    return TrainingView(
        verdict=said[0].value,
        reason=said[1],
        kappa=training.kappa,
        batch=training.batch,
        gamma=training.gamma,
        fraction=training.fraction,
        t_train_s=None if found.t_train is None else found.t_train.seconds,
        t_train_source="" if found.t_train is None else found.t_train.source,
        t_bcast_s=None if found.broadcast is None else found.broadcast.at_target_s,
        tail_s=None if found.broadcast is None else found.broadcast.tail_s,
        t_bcast_source="" if found.broadcast is None else found.broadcast.source,
        slack_s=found.slack_s,
        required_rollouts_per_s=found.required_per_s,
        pool_rollouts_per_s=found.pool_per_s,
        required_workers=found.required_workers,
        active_workers=found.active,
        bubble=found.bubble,
        learner_version=0 if learner is None else learner.learner_version,
        fleet_version=fleet_version(state, training),
        admitted=admitted,
        discarded=discarded,
    )
