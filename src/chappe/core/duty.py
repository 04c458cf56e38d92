"""Who generates and who stands by: the cheapest workers that clear gamma times what is required, and why.

    nobody decided yet          ──▶ the cheapest sufficient set is active, the rest stands by
    pool < required             ──▶ standbys are called at once, cheapest first, up to gamma times
    required <= pool < gamma x  ──▶ a fault is absorbed; lasts it a period, the margin is restored in the same way
    another set is 10 % cheaper ──▶ lasts it a period, that set is active

Decides about rollouts only: a worker on standby is given every version all the same (it stands last in its chains, and
nobody waits for it), so that it generates from its first moment. A worker whose rate nobody knows is active: it costs
nothing that is known of. Undeclared prices count as nothing where others are declared, and as equal where none is.
What is decided is stored with the workers. The order of activation is `planning.activation`'s (rho, ECHO-2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from chappe.core.context import Context
from chappe.core.overlap import Assessment, rollouts_of, usable
from chappe.core.publication import Phase
from chappe.core.training_config import TrainingConfig
from chappe.core.workers import Worker
from chappe.planning.activation import Candidate, by_rho, cheapest_prefix
from chappe.planning.errors import Infeasible

SAVING = 0.1
"""A set that is cheaper by less is not worth a change: rates are measured, and moving costs a worker its momentum."""
EPSILON = 1e-9


class Duties:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._thin_since_s: float | None = None
        self._dearer_since_s: float | None = None

    def review(self, found: Assessment, training: TrainingConfig) -> None:
        """Decide from what is so now; before a broadcast was measured and rates are known everything stays as it is."""
        workers = usable(self._context.state)
        if not training.activation or found.required_per_s is None or found.t_train is None:
            return
        if found.broadcast is None or not found.broadcast.measured:
            return
        known = {w.worker_id: w for w in workers if rollouts_of(w)}
        if not known:
            return
        for worker in workers:
            if worker.worker_id not in known:
                self._set(worker, standby=False, reason="what it makes is not known")
        required, period_s = found.required_per_s, training.kappa * found.t_train.seconds
        fresh = [w for w in known.values() if not w.duty_reason]
        if len(fresh) == len(known):
            self._adopt(known, required, training, "first decision")
            return
        self._newcomers(fresh, known, required, training)
        pool = _pool(w for w in known.values() if not w.standby)
        if pool < required * (1 - EPSILON):
            self._thin_since_s = None
            self._call(known, required, training, f"the pool of {pool:.4g} is short of the {required:.4g} rollouts/s")
        elif self._lasts("_thin_since_s", pool < training.gamma * required * (1 - EPSILON), period_s):
            self._call(known, required, training, "a fault has lasted a period: the margin is restored")
        cheaper = self._cheaper(known, required, training)
        if self._lasts("_dearer_since_s", cheaper is not None, period_s) and cheaper is not None:
            self._adopt(known, required, training, cheaper)

    def _lasts(self, since: str, so: bool, period_s: float) -> bool:
        """Whether it has been so for a period; counts anew once that has been acted on."""
        began: float | None = getattr(self, since)
        if not so or began is None:
            setattr(self, since, self._context.now if so else None)
            return False
        if self._context.now - began < period_s:
            return False
        setattr(self, since, None)
        return True

    def _newcomers(
        self, fresh: list[Worker], known: dict[str, Worker], required: float, training: TrainingConfig
    ) -> None:
        """Who has joined since stands by where the pool is enough without it; a cheaper set is looked for elsewhere."""
        before = _pool(w for w in known.values() if w.duty_reason and not w.standby)
        for worker in sorted(fresh, key=lambda w: (w.name, w.worker_id)):
            enough = before >= training.gamma * required * (1 - EPSILON)
            self._set(worker, standby=enough, reason="the pool is enough without it" if enough else "it is needed")
            before += 0.0 if enough else rollouts_of(worker) or 0.0

    def _call(self, known: dict[str, Worker], required: float, training: TrainingConfig, why: str) -> None:
        """Standbys become active, the cheapest first, until the margin is there."""
        pool = _pool(w for w in known.values() if not w.standby)
        for candidate in by_rho(_candidates(w for w in known.values() if w.standby)):
            if pool >= training.gamma * required * (1 - EPSILON):
                return
            self._set(known[candidate.name], standby=False, reason=f"called: {why}")
            pool += candidate.rollouts_per_s

    def _cheaper(self, known: dict[str, Worker], required: float, training: TrainingConfig) -> str | None:
        """Why another set should take over, if it should."""
        candidates = {c.name: c for c in _candidates(known.values())}
        active = [candidates[w.worker_id] for w in known.values() if not w.standby]
        try:
            best = cheapest_prefix(list(candidates.values()), required, gamma=training.gamma)
        except Infeasible:
            return None
        price = sum(c.price_per_hour for c in active)
        if best.price_per_hour > (1 - SAVING) * price + EPSILON or price <= 0:
            return None
        return f"{best.price_per_hour:.4g} instead of {price:.4g} an hour"

    def _adopt(self, known: dict[str, Worker], required: float, training: TrainingConfig, why: str) -> None:
        """The cheapest sufficient set is active. When all together fall short, all are."""
        try:
            best = cheapest_prefix(_candidates(known.values()), required, gamma=training.gamma)
            names = set(best.names)
            whole = f"{len(names)} of {len(known)} workers make {best.rollouts_per_s:.4g} rollouts/s"
            whole += f", {training.gamma:g} x {required:.4g} are wanted"
        except Infeasible:
            names, whole = set(known), f"all workers are short of {training.gamma:g} x {required:.4g} rollouts/s"
        self._thin_since_s = self._dearer_since_s = None
        for worker_id, worker in known.items():
            self._set(worker, standby=worker_id not in names, reason=f"{why}: {whole}")

    def _set(self, worker: Worker, *, standby: bool, reason: str) -> None:
        """The reason stays that of the last change."""
        if worker.duty_reason and worker.standby is standby:
            return
        worker.standby, worker.duty_reason = standby, reason
        self._context.persist_worker(worker)
        self._context.dirty[worker.worker_id] = None
        self._context.log("duty", reason, relay=worker.name, duty="standby" if standby else "active")
        if not standby:
            self._count(worker)

    def _count(self, worker: Worker) -> None:
        """What is on its way to it is waited for from now on."""
        for publication in self._context.state.in_phase(Phase.OPEN):
            member = publication.members.get(worker.worker_id)
            if member is not None and not member.targeted:
                publication.enlist(worker.worker_id, replace(member, targeted=True))
                self._context.update(publication)


def _pool(workers: Iterable[Worker]) -> float:
    return sum(rollouts_of(w) or 0.0 for w in workers)


def _candidates(workers: Iterable[Worker]) -> list[Candidate]:
    """Named by worker id. Of equal price where nobody has declared one."""
    listed = list(workers)
    priced = any(w.price_per_hour for w in listed)
    return [
        Candidate(w.worker_id, (w.price_per_hour or 0.0) if priced else 1.0, rate)
        for w in listed
        if (rate := rollouts_of(w))
    ]
