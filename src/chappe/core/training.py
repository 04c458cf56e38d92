"""The coordinator watches the run: looks at what has changed, says so when the verdict changes, and why.

    anything but heartbeats ──note──▶ at most once a second: assess ──▶ another verdict? one log line
                                                                   └──▶ a broadcast is on its way: look again

A verdict gets worse at once, and better only with a little to spare (hysteresis), so that a pool at the border is not a
line a second. All it needs is in the stored state: after a restart it says where it stands once, and goes on.
"""

from __future__ import annotations

from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.duty import Duties
from chappe.core.effects import AskPublication
from chappe.core.events import LearnerMoved, RolloutsReported
from chappe.core.learner import fleet_version, learner_of
from chappe.core.overlap import Assessment, assess
from chappe.core.publication import LIVE, Phase
from chappe.core.training_config import SEVERITY, Mode, Standing, TrainingConfig

KEY = "training"
LOOK_S = 1.0
LOOK_SHARE = 0.02
"""Of the time that a broadcast is on its way: until it is looked at again, when nothing happens."""
SPARE = 1.02
"""A verdict gets better when it would with this much less of a pool, too."""
SAVE_SHARE = 0.05  # a change of a reported rate by more than this is written down


class Training:
    def __init__(self, context: Context, deadlines: Deadlines) -> None:
        self._context = context
        self._deadlines = deadlines
        self._duties = Duties(context)
        self._due = False
        self._asked = (0, 0, 0)  # the session, the fleet's version, and the learner's

    def note(self) -> None:
        """Something may have changed: look soon. Costs nothing where no training is configured."""
        if self._context.config.training is not None and not self._due:
            self._due = True
            self._deadlines.at(KEY, self._context.now + LOOK_S)

    def restored(self) -> None:
        """The coordinator has started: who stands by for a run that nobody asks about any more is to generate."""
        training = self._context.config.training
        if training is None or not training.activation:
            for worker in self._context.state.workers.values():
                worker.standby, worker.duty_reason = False, ""
        self.note()

    def rollouts_reported(self, event: RolloutsReported) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is None:
            return
        before, worker.reported_rollouts_per_s = worker.reported_rollouts_per_s, event.rollouts_per_s or None
        if before is None or abs(event.rollouts_per_s - before) > SAVE_SHARE * before:
            self._context.persist_worker(worker)

    def learner_moved(self, event: LearnerMoved) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is not None:
            worker.learner_version = event.version
            worker.admitted, worker.discarded = event.admitted, event.discarded

    def look(self) -> None:
        self._due = False
        state, training = self._context.state, self._context.config.training
        if training is None:
            return
        found = assess(state, self._context.config, training, self._context.now)
        self._judge(found)
        self._duties.review(found, training)
        self._ask(training)
        started = [p.started_s for p in state.in_phase(Phase.OPEN)]
        if started:  # its end is foretold from its start: seldom enough in one that takes hours
            self._deadlines.at(KEY, self._context.now + max(LOOK_S, LOOK_SHARE * (self._context.now - max(started))))

    def _judge(self, found: Assessment) -> None:
        state, training = self._context.state, self._context.config.training
        assert training is not None
        before = state.standing
        if before is not None and SEVERITY[found.verdict] < SEVERITY[before.verdict]:
            surer = assess(state, self._context.config, training, self._context.now, SPARE)
            if SEVERITY[surer.verdict] >= SEVERITY[before.verdict]:
                return
        if before is not None and before.verdict is found.verdict:
            return
        state.standing = Standing(found.verdict, found.reason)
        fields = {
            "verdict": found.verdict.value,
            "before": "none" if before is None else before.verdict.value,
            "slack_s": found.slack_s,
            "required_rollouts_per_s": found.required_per_s,
            "pool_rollouts_per_s": found.pool_per_s,
            "required_workers": found.required_workers,
        }
        self._context.log("training_verdict", found.reason, **{k: v for k, v in fields.items() if v is not None})

    def _ask(self, training: TrainingConfig) -> None:
        """Asynchronous mode: the learner is too far ahead of what the fleet has, or is being given."""
        state = self._context.state
        learner = learner_of(state)
        if training.mode is not Mode.ASYNCHRONOUS or training.delta_max is None:
            return
        if learner is None or learner.session is None:
            return
        fleet = fleet_version(state, training)
        coming = max((p.version for p in state.in_phase(*LIVE)), default=0)
        behind = learner.learner_version - max(fleet, coming)
        if behind <= training.delta_max:
            return
        session, asked_fleet, asked_learner = self._asked
        again = learner.learner_version >= asked_learner + training.delta_max
        if (session, asked_fleet) == (learner.session, fleet) and not again:
            return
        self._asked = (learner.session, fleet, learner.learner_version)
        reason = f"the learner is {behind} versions ahead of the fleet, delta_max is {training.delta_max}"
        self._context.send(AskPublication(learner.worker_id, learner.session, learner.learner_version, fleet, reason))
        self._context.log("publication_wanted", reason, learner=learner.learner_version, fleet=fleet)
