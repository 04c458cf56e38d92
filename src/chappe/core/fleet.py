"""The fleet machine: the one door through which the coordinator's state changes.

    shell ──event, now──▶ Fleet.handle ──▶ [Persist..., messages, Assign..., WakeAt] ──▶ shell carries them out
                             │
                             ├─ membership   who is there, departure ├─ placement    who stands where, who feeds whom
                             ├─ publishing   versions asked for      ├─ repair       complaints about parents
                             ├─ progress     how far each is         ├─ supersession which version a host finishes
                             ├─ measuring    what links carry        ├─ slow, trial  whose fault a slow hop is
                             ├─ dialling     who can be dialled      ├─ probing      hosts without history
                             ├─ offering     chains, roots           ├─ ending       what comes to nothing
                             ├─ lanes        who gets a delta        │
                             ├─ training     does it keep the learner busy
                             └─ assignments  desired state, derived at the end from all of it

The machine must not know sockets, clocks, threads or databases. The same events in the same order with the same times
give the same effects. It runs with `handle(Tick(), now)` at the time of the last `WakeAt` at the latest.
"""

from __future__ import annotations

from chappe.core.assign import Assignments
from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.demotion import Demotions
from chappe.core.departure import Departure
from chappe.core.dialling import Dialling
from chappe.core.effects import Edge, Effect, Target, WakeAt
from chappe.core.ending import Ending
from chappe.core.events import (
    Acknowledged,
    CancelRequested,
    DialedBack,
    DrainRequested,
    Event,
    ForgetRequested,
    Heard,
    Hello,
    Holding,
    HoldingChanged,
    LearnerMoved,
    LeaveRequested,
    LinksMeasured,
    ObjectState,
    Offered,
    ParentConnected,
    ParentLost,
    ProbeEnded,
    PublishRequested,
    PublishWatcherLeft,
    RolloutsReported,
    RootAnnounced,
    SessionLost,
    SourceFailed,
    StoodStill,
    Tick,
)
from chappe.core.lanes import Lanes
from chappe.core.laying import Laying
from chappe.core.measuring import Measuring
from chappe.core.membership import Membership
from chappe.core.offering import Offering
from chappe.core.paces import Paces
from chappe.core.placement import Placement
from chappe.core.probing import KEY as PROBE_KEY
from chappe.core.probing import Probing
from chappe.core.progress import Progress
from chappe.core.publishing import Publishing
from chappe.core.reasons import RebuildReason
from chappe.core.rebalance import KEY as REBALANCE_KEY
from chappe.core.rebalance import Rebalance
from chappe.core.repair import Repair
from chappe.core.slow import Slow
from chappe.core.state import FleetConfig, FleetState
from chappe.core.striped_links import StripedLinks
from chappe.core.supersede import Supersession
from chappe.core.training import KEY as TRAINING_KEY
from chappe.core.training import Training
from chappe.core.trial import Trial
from chappe.core.workers import Worker

__all__ = ["Fleet", "FleetConfig", "FleetState"]


class Fleet:
    """Owned by one runner. `state` and `config` may be read between calls (see `chappe.core.status`)."""

    def __init__(self, config: FleetConfig, state: FleetState | None = None) -> None:
        self.config = config
        self.state = FleetState() if state is None else state
        self._context = Context(config, self.state)
        self._deadlines = Deadlines(config.wake_grain_s)
        self._assignments = Assignments(self._context)
        self._placement = Placement(self._context)
        self._lanes = Lanes(self._context, self._placement)
        self._progress = Progress(self._context, self._placement, self._lanes)
        self._dialling = Dialling(self._context, self._placement)
        self._demotions = Demotions(self._context)
        self._trial = Trial(self._context, self._placement, self._demotions, self._deadlines)
        self._slow = Slow(self._context, self._placement, self._trial)
        paces = Paces()
        self._measuring = Measuring(
            self._context, self._demotions, self._slow, StripedLinks(self._context, self._placement, paces)
        )
        self._probing = Probing(self._context, self._measuring, self._demotions, self._deadlines)
        laying = Laying(self._context)
        self._rebalance = Rebalance(self._context, self._placement, laying, self._deadlines, paces)
        self._training = Training(self._context, self._deadlines)
        self._repair = Repair(self._context, self._placement, self._assignments, self._dialling)
        self._supersession = Supersession(self._context, self._placement)
        self._departure = Departure(self._context, self._placement, self._repair, self._deadlines)
        self._membership = Membership(
            self._context,
            self._placement,
            self._progress,
            self._repair,
            self._supersession,
            self._departure,
            self._assignments,
            self._deadlines,
            self._dialling,
        )
        self._ending = Ending(
            self._context, self._placement, self._supersession, self._membership, self._lanes, self._deadlines
        )
        self._offering = Offering(
            self._context,
            self._placement,
            self._supersession,
            self._membership,
            self._demotions,
            self._lanes,
            laying,
            self._ending,
        )
        self._publishing = Publishing(self._context, laying, self._ending)
        self._begun = False
        self._wake_s: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one fact; `now` never goes back between calls. The only thing that changes the state."""
        self._context.now = now
        if not self._begun:
            self._begin()
        self._dispatch(event)
        self._settle()
        if self._demotions.news:
            self._demotions.news = False
            self._probing.wake()
        self._departure.release(getattr(event, "worker_id", ""))
        self._assignments.flush()
        if self._context.stirred or isinstance(event, RolloutsReported | LearnerMoved):
            self._training.note()
        effects = self._context.take()
        if self._deadlines.next_s not in (None, self._wake_s):
            self._wake_s = self._deadlines.next_s
            assert self._wake_s is not None
            effects.append(WakeAt(self._wake_s))
        return effects

    def assignment(self, worker_id: str) -> tuple[tuple[Target, ...], tuple[Edge, ...]] | None:
        """What a connected worker has been told last: targets and edges."""
        return self._assignments.content(worker_id)

    def _begin(self) -> None:
        self._begun = True
        behind_s = self.state.saved_s - self._context.now
        if behind_s > 0:  # the host has booted since: its clock started anew
            for worker in self.state.workers.values():
                worker.links.shift(behind_s)
                if worker.demotion is not None:
                    worker.demotion.since_s -= behind_s
            for publication in self.state.publications.values():
                publication.started_s -= behind_s
                if publication.ended_s is not None:
                    publication.ended_s -= behind_s
        self._membership.restored()
        self._ending.restored()
        self._trial.restored()
        self._training.restored()

    def _dispatch(self, event: Event) -> None:
        match event:
            case Heard():
                self._heard(event.worker_id, event.session)
            case HoldingChanged():
                self._holding_changed(event)
            case Acknowledged():
                worker = self._context.of_session(event.worker_id, event.session)
                if worker is not None:
                    worker.acknowledged_epoch = event.epoch
            case LinksMeasured():
                self._measuring.links_measured(event)
            case ProbeEnded():
                self._probing.ended(event)
            case DialedBack():
                self._dialling.dialed_back(event)
            case RolloutsReported():
                self._training.rollouts_reported(event)
            case LearnerMoved():
                self._training.learner_moved(event)
            case Hello():
                self._membership.hello(event)
                self._probing.wake()
            case SessionLost():
                self._session_lost(event)
            case ParentConnected():
                self._repair.parent_connected(event)
            case ParentLost():
                self._repair.parent_lost(event)
            case LeaveRequested():
                self._leave(event)
            case Offered():
                for worker in self._offering.offered(event):
                    self._take_holding(worker, worker.holdings[event.object_id])
            case RootAnnounced():
                self._offering.root_announced(event)
            case SourceFailed():
                self._ending.source_failed(event)
            case PublishRequested():
                self._publishing.requested(event)
            case PublishWatcherLeft():
                self._publishing.watcher_left(event)
            case CancelRequested():
                self._ending.cancel(event)
            case DrainRequested():
                self._departure.drain(event)
            case ForgetRequested():
                self._departure.forget_requested(event)
            case StoodStill():
                self._membership.forgive()
            case Tick():
                self._tick()

    def _session_lost(self, event: SessionLost) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        self._membership.session_lost(event)
        if worker is not None:
            self._ending.origin_ended(worker)

    def _leave(self, event: LeaveRequested) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        self._departure.leave(event)
        if worker is not None:
            self._ending.origin_gone(worker)

    def _heard(self, worker_id: str, session: int) -> None:
        worker = self._context.of_session(worker_id, session)
        if worker is not None:
            worker.heard_s = self._context.now

    def _holding_changed(self, event: HoldingChanged) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is not None:
            self._take_holding(worker, event.holding)

    def _take_holding(self, worker: Worker, holding: Holding) -> None:
        publication = self._progress.take_holding(worker, holding)
        told = self.state.publications.get(holding.object_id)
        if told is not None:
            self._rebalance.holding(told, worker)
        if publication is None:
            return
        if worker.holdings[holding.object_id].state is ObjectState.DISK_FULL:
            for place in publication.layout.places(worker.worker_id):
                self._placement.move_to_end(publication, place, RebuildReason.DISK_FULL)
        rooted = any(chain.rooted for chain in publication.layout.chains_of(worker.worker_id))
        if publication.origin_out or publication.spare_origin or rooted or worker.dialable is False:
            self._placement.heal(publication)
        self._supersession.promote(worker)

    def _tick(self) -> None:
        late_s = 0.0 if self._wake_s is None else self._context.now - self._wake_s
        self._wake_s = None
        if late_s > self.config.session_grace_s:
            self._context.log("coordinator_stalled", "leases start anew", late_s=round(late_s, 3))
            self._membership.forgive()
        for key in self._deadlines.pop(self._context.now):
            kind, _, worker_id = key.partition(" ")
            worker = self.state.workers.get(worker_id)
            if key == PROBE_KEY:
                self._probing.look()
            elif key == REBALANCE_KEY:
                self._rebalance.look()
            elif key == TRAINING_KEY:
                self._training.look()
            elif kind == "case":
                self._trial.review(worker_id)
            elif kind == "worker" and worker is not None:
                self._membership.review(worker)
                self._ending.origin_lapsed(worker)
            elif kind == "origin" and worker is not None:
                self._ending.origin_lapsed(worker)

    def _settle(self) -> None:
        """Fractions, callers, and versions that are over, until nothing changes any more."""
        while self._context.changed:
            object_ids = list(self._context.changed)
            self._context.changed.clear()
            for object_id in object_ids:
                publication = self.state.publications.get(object_id)
                if publication is None:
                    continue
                self._lanes.review(publication)
                self._progress.settle(publication)
            if len(self._context.active()) > 1:
                self._supersession.retire()
                self._supersession.promote_all()
            self._ending.forget_lapsed()
