"""Section `[training]` of the coordinator's configuration: what the run asks of its fleet. Without it nothing is."""

from __future__ import annotations

from typing import Literal

from chappe.cli.settings import Duration, Settings
from chappe.core.training_config import Mode, TrainingConfig


class TrainingSettings(Settings):
    """Names and meanings are those of `chappe plan`. `batch` and `kappa` (or `staleness`) switch it on."""

    kappa: int | None = None
    """Training steps for each publication; staleness - 1 when only that is given."""
    batch: float | None = None
    """Rollouts for each training step (R)."""
    gamma: float | None = None
    """How much more than required the pool should make, to absorb a fault; 1.1 when not given."""
    fraction: float | None = None
    """The share of the workers whose installation ends a broadcast: 0.5, 0.9, or 1.0 (when not given)."""
    staleness: int | None = None
    """Versions that a trajectory may be old (S): kappa is at most S - 1."""
    t_train: Duration | None = None
    """Seconds of a training step. Measured when neither this is given nor the trainer tells it."""
    mode: Literal["periodic", "sequential", "asynchronous"] | None = None
    """periodic (when not given): the trainer publishes every kappa steps. sequential: the same, workers refresh before
    they answer a request. asynchronous: the coordinator asks for a version when the fleet is --delta-max behind."""
    delta_max: int | None = None
    """Versions that the fleet may be behind the learner, in mode asynchronous."""
    activation: bool | None = None
    """Let workers that are not needed stand by (when not given, too). They receive every version all the same."""

    def config(self) -> TrainingConfig | None:
        """Checked; None when nothing is given. Raises PlanInputError."""
        return TrainingConfig.of(
            kappa=self.kappa,
            staleness=self.staleness,
            batch=self.batch,
            gamma=self.gamma,
            fraction=self.fraction,
            t_train_s=self.t_train,
            mode=None if self.mode is None else Mode(self.mode),
            delta_max=self.delta_max,
            activation=self.activation,
        )


NO_TRAINING = TrainingSettings()
