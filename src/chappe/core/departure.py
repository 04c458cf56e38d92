"""Who goes on purpose: leaving, drained, forgotten; and who is lost to a publication.

A relay that goes is taken out of its chains at once, so that its child moves while it still serves; it is let go when
the child has moved, has everything, or three seconds are over.

    LeaveRequested / DrainRequested ──▶ out of its chains ──children moved──▶ Release
    ForgetRequested ──▶ only of one that is gone: its record is dropped, its name is free
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.effects import PublishErrorKind, Release, RequestDone, RequestRefused
from chappe.core.events import DrainRequested, ForgetRequested, LeaveRequested, Role
from chappe.core.placement import Placement
from chappe.core.reasons import LostReason, RebuildReason
from chappe.core.repair import Repair
from chappe.core.workers import Worker


@dataclass(slots=True)
class Leaving:
    """A relay that may go when its children have moved, or when it has waited long enough."""

    until_s: float
    pending: set[tuple[str, int, str]]  # object, stripe, child
    requests: list[int] = field(default_factory=list)


class Departure:
    def __init__(self, context: Context, placement: Placement, repair: Repair, deadlines: Deadlines) -> None:
        self._context = context
        self._placement = placement
        self._repair = repair
        self._deadlines = deadlines
        self._leaving: dict[str, Leaving] = {}
        self._waits_for: dict[str, set[str]] = {}  # by child: who leaves when it has moved

    def stays(self, worker: Worker) -> None:
        """It has joined anew: with its old place its children have moved, too."""
        leaving = self._gone(worker.worker_id)
        for request in leaving.requests if leaving is not None else ():
            self._context.send(RequestDone(request))
        if worker.drained:  # the same process: it was away when it was let go
            self._leaving[worker.worker_id] = Leaving(self._context.now, set())

    def lose(self, worker: Worker, reason: LostReason) -> None:
        for publication in self._context.active():
            if publication.lose(worker.worker_id, reason):
                self._context.log("lost", reason.value, version=publication.version, relay=worker.name)
                self._context.update(publication)

    def leave(self, event: LeaveRequested) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is None:
            return
        worker.leaving = True
        self._repair.origin_out(worker)
        self._move_out(worker, None)

    def drain(self, event: DrainRequested) -> None:
        worker = self._named(event.name)
        if worker is None or worker.role is not Role.RELAY:
            self._no_such(event.request, "no relay named", event.name)
            return
        worker.drained = True
        self._context.persist_worker(worker)
        self.lose(worker, LostReason.DRAINED)
        self._move_out(worker, event.request)

    def _move_out(self, worker: Worker, request: int | None) -> None:
        self._context.dirty[worker.worker_id] = None
        moved = set(self._placement.take_out(worker, RebuildReason.DRAINED))
        until_s = self._context.now + self._context.config.drain_s
        leaving = self._leaving.setdefault(worker.worker_id, Leaving(until_s, set()))
        leaving.pending |= moved
        for _, _, child in moved:
            self._waits_for.setdefault(child, set()).add(worker.worker_id)
        if request is not None:
            leaving.requests.append(request)
        self._deadlines.at(f"leave {worker.worker_id}", leaving.until_s)

    def release(self, worker_id: str = "") -> None:
        """Let go whose children have moved. Called at the end of every event, with whom it was about: only who leaves,
        or waits for that one, is looked at. Without: all are, as the time for some has come."""
        if not self._leaving:
            return
        about = self._waits_for.get(worker_id, set()) | {worker_id} if worker_id else self._leaving.keys()
        for leaver in [w for w in self._leaving if w in about]:
            self._release(leaver, self._leaving[leaver])

    def _release(self, worker_id: str, leaving: Leaving) -> None:
        waiting = any(self._still_fed_by(worker_id, *key) for key in leaving.pending)
        if waiting and self._context.now < leaving.until_s:
            return
        self._gone(worker_id)
        worker = self._context.state.workers.get(worker_id)
        if worker is not None and worker.session is not None:
            self._context.send(Release(worker_id, worker.session))
        for request in leaving.requests:
            self._context.send(RequestDone(request))

    def _gone(self, worker_id: str) -> Leaving | None:
        leaving = self._leaving.pop(worker_id, None)
        for _, _, child in leaving.pending if leaving is not None else ():
            waits = self._waits_for.get(child, set())
            waits.discard(worker_id)
            if not waits:
                self._waits_for.pop(child, None)
        return leaving

    def _still_fed_by(self, parent_id: str, object_id: str, stripe: int, child_id: str) -> bool:
        child = self._context.state.workers.get(child_id)
        if child is None or not child.connected or child.holds_all(object_id):
            return False
        edge = child.edges.get((object_id, stripe))
        return edge is None or edge.parent == parent_id

    def forget_requested(self, event: ForgetRequested) -> None:
        """Of publishers each process is another one, and they may have one name: those that are gone are forgotten."""
        named = [w for w in self._context.state.workers.values() if w.name == event.name]
        gone = [w for w in named if not w.connected]
        if not named:
            self._no_such(event.request, "nobody named", event.name)
        elif not gone:
            drain = ", or drain it" if any(w.role is Role.RELAY for w in named) else ""
            message = f"{event.name} is connected: stop it first{drain}"
            self._context.send(RequestRefused(event.request, PublishErrorKind.CONFLICT, message))
        else:
            for worker in gone:
                self.forget(worker)
            self._context.send(RequestDone(event.request))

    def forget(self, worker: Worker) -> None:
        self._placement.take_out(worker, RebuildReason.FORGOTTEN)
        self.lose(worker, LostReason.FORGOTTEN)
        self._repair.origin_out(worker)
        self._context.drop_worker(worker)
        self._context.log("forgotten", RebuildReason.FORGOTTEN.value, relay=worker.name)

    def _named(self, name: str) -> Worker | None:
        named = [w for w in self._context.state.workers.values() if w.name == name]
        return min(named, key=lambda w: w.role is not Role.RELAY, default=None)

    def _no_such(self, request: int, whom: str, name: str) -> None:
        message = f"{whom} {name} is known: see `chappe status`"
        self._context.send(RequestRefused(request, PublishErrorKind.NOT_FOUND, message))
