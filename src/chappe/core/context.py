"""What the parts of the fleet machine share within one `handle` call: the state, the time, and what is to be done.

    handler ──▶ changes the state, marks what changed ──▶ flush: persist, then messages, then assignments

It decides nothing. Marks are kept in the order in which they were made, so that the same events give the same effects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from chappe.core.chain import SOURCE
from chappe.core.effects import Count, Effect, ForgetWorker, Log, PersistEpoch, PersistPublication, PersistWorker
from chappe.core.publication import Publication
from chappe.core.state import FleetConfig, FleetState
from chappe.core.workers import Worker

EPOCH_BLOCK = 1024
_EPOCH_JUMP_MAX = 1 << 40  # what a worker may claim beyond ours: enough for any lost state, never an overflow


class Context:
    def __init__(self, config: FleetConfig, state: FleetState) -> None:
        self.config = config
        self.state = state
        self.now = 0.0
        self.epoch = state.reserved_epoch
        self.messages: list[Effect] = []
        self.dirty: dict[str, None] = {}  # workers whose assignment may differ
        self.undialable = {w.worker_id for w in state.workers.values() if w.dialable is False}
        self.changed: dict[str, None] = {}  # publications whose fractions or phase may differ
        self._persist: dict[Effect, None] = {}

    # ---- epochs ----

    def next_epoch(self) -> int:
        self.epoch += 1
        self._reserve()
        return self.epoch

    def outrank(self, seen: int) -> None:
        """A worker has seen this epoch: ours go on from there, also when our own record of them was lost."""
        if self.epoch < seen <= self.epoch + _EPOCH_JUMP_MAX:
            self.epoch = seen
            self._reserve()

    def _reserve(self) -> None:
        if self.epoch > self.state.reserved_epoch:
            self.state.reserved_epoch = EPOCH_BLOCK * math.ceil((self.epoch + 1) / EPOCH_BLOCK)
            self._persist[PersistEpoch(self.state.reserved_epoch)] = None

    # ---- marks ----

    def send(self, effect: Effect) -> None:
        self.messages.append(effect)

    def log(self, event: str, reason: str = "", **fields: str | int | float | list[str]) -> None:
        self.messages.append(Log(event, reason, fields))

    def warn(self, event: str, reason: str, **fields: str | int | float | list[str]) -> None:
        """Somebody should look at it."""
        self.messages.append(Log(event, reason, fields, warning=True))

    def count(self, name: str, **labels: str) -> None:
        self.messages.append(Count(name, tuple(labels.items())))

    def persist(self, publication: Publication) -> None:
        self._persist[PersistPublication(publication.object_id)] = None

    def persist_worker(self, worker: Worker) -> None:
        self._persist[PersistWorker(worker.worker_id)] = None

    def drop_worker(self, worker: Worker) -> None:
        del self.state.workers[worker.worker_id]
        self.undialable.discard(worker.worker_id)  # it may come back as another one
        self._persist.pop(PersistWorker(worker.worker_id), None)
        self._persist[ForgetWorker(worker.worker_id)] = None

    def touch(self, publication: Publication, near: Iterable[str]) -> None:
        """The edges of these workers (`SOURCE` for the origin) may differ, and with them what is to be stored."""
        for worker_id in sorted(near):
            self.dirty[publication.origin_id if worker_id == SOURCE else worker_id] = None
        self.update(publication)

    def touch_all(self, publication: Publication) -> None:
        """Something that every member is told has changed."""
        self.touch(publication, [SOURCE, *publication.members])

    def update(self, publication: Publication) -> None:
        self.persist(publication)
        self.changed[publication.object_id] = None

    # ---- reading ----

    def name(self, worker_id: str) -> str:
        worker = self.state.workers.get(worker_id)
        return worker_id if worker is None else worker.name

    def active(self) -> list[Publication]:
        return [p for p in self.state.publications.values() if p.active]

    def of_session(self, worker_id: str, session: int) -> Worker | None:
        """The worker, if this is its present stream: what an older one says is stale."""
        worker = self.state.workers.get(worker_id)
        return worker if worker is not None and worker.session == session else None

    # ---- ending a call ----

    @property
    def stirred(self) -> bool:
        """Something is to be said or written down."""
        return bool(self._persist or self.messages)

    def take(self) -> list[Effect]:
        effects: list[Effect] = [*self._persist, *self.messages]
        if self._persist:
            self.state.saved_s = self.now
        self._persist, self.messages = {}, []
        return effects
