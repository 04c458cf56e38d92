"""Where the learner is, and where the fleet: versions, and what became of the trajectories. Reads the state only."""

from __future__ import annotations

import math
from collections.abc import Iterable

from chappe.core.events import Role
from chappe.core.state import FleetState
from chappe.core.training_config import TrainingConfig
from chappe.core.workers import Worker


def learner_of(state: FleetState) -> Worker | None:
    """The origin that tells of a learner: the one that is here, the furthest one where there are several."""
    told = [w for w in state.workers.values() if w.role is Role.ORIGIN and w.learner_version and w.present]
    return max(told, key=lambda w: (w.learner_version, w.worker_id), default=None)


def fleet_version(state: FleetState, training: TrainingConfig) -> int:
    """The newest version that the target fraction of the active workers has installed; 0 for none."""
    installed = sorted((w.installed for w in state.relays if w.placeable and not w.standby), reverse=True)
    return installed[max(1, math.ceil(training.fraction * len(installed) - 1e-9)) - 1] if installed else 0


def trajectories(workers: Iterable[Worker]) -> tuple[int, int]:
    """Admitted and discarded, as all learners have told."""
    told = list(workers)
    return sum(w.admitted for w in told), sum(w.discarded for w in told)
