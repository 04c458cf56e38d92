"""What a child says of its parent, and what is done about it by the simplest sound means.

    ParentLost ── parent's own stream is gone too ─────▶ its place is given away at once
               ├─ token outranked (stale, evicted) ────▶ a new epoch for the same edge, at most one a second
               └─ parent is alive: a strike; the second within 10 s ──▶ parent to the end of its chain
                                                     (of the origin: the head goes to the end, another one tries)
    ParentConnected ── to its assigned parent ─────────▶ strikes are forgotten
                    └─ to an ancestor, by the fallback in force ──▶ adopted: who stood between goes to the end

It keeps complaints, and moves nobody itself: `placement` does.
"""

from __future__ import annotations

from chappe.core.assign import Assignments
from chappe.core.chain import SOURCE, Place
from chappe.core.context import Context
from chappe.core.dialling import Dialling
from chappe.core.events import HeldEdge, ParentConnected, ParentLost
from chappe.core.placement import Placement
from chappe.core.publication import Phase, Publication
from chappe.core.reasons import ParentLossReason, RebuildReason
from chappe.core.workers import Worker

OUTRANKED = frozenset({ParentLossReason.STALE, ParentLossReason.EVICTED, ParentLossReason.BAD_TOKEN})
MISSING = frozenset({ParentLossReason.UNKNOWN_OBJECT, ParentLossReason.DROPPED})
STRIKES = 2
_SETTLE_S = 2.0  # how long a parent may not know yet what it was assigned
_NEVER_S = -1e9


class Repair:
    def __init__(self, context: Context, placement: Placement, assignments: Assignments, dialling: Dialling) -> None:
        self._context = context
        self._dialling = dialling
        self._placement = placement
        self._assignments = assignments
        self._strikes: dict[tuple[str, int, str], tuple[str, list[float]]] = {}  # edge of a child: parent, when
        self._renewed: dict[tuple[str, int, str], float] = {}
        self._turned: dict[tuple[str, int, str], float] = {}

    # ---- losing a parent ----

    def parent_lost(self, event: ParentLost) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        publication = self._context.state.publications.get(event.edge.object_id)
        if worker is None:
            return
        key = (event.edge.object_id, event.edge.stripe)
        if key in worker.edges and worker.edges[key].parent == event.edge.parent:
            del worker.edges[key]
        place = None if publication is None else publication.layout.place(event.edge.stripe, worker.worker_id)
        if publication is None or place is None:
            return
        self._context.log(
            "parent_lost",
            event.reason.value,
            version=publication.version,
            relay=worker.name,
            parent=self._context.name(event.edge.parent),
        )
        if self._parent_id(publication, place) != event.edge.parent:
            return  # old news: it has been given another one meanwhile
        if event.reason in OUTRANKED:
            self._renew(publication, place, event.edge)
        elif self._is_strike(event):
            self._strike(publication, place, event)

    @staticmethod
    def _parent_id(publication: Publication, place: Place) -> str | None:
        above = publication.layout.ancestors(place, 1)
        if not above:
            return None
        return publication.origin_id if above[0] == SOURCE else above[0]

    def _renew(self, publication: Publication, place: Place, edge: HeldEdge) -> None:
        """The parent knows of a newer epoch for this slot than the one in force: outrank it."""
        child = place.chain.members[place.position]
        issued = publication.edges.main.get((edge.stripe, child))
        key = (publication.object_id, edge.stripe, child)
        due = self._renewed.get(key, _NEVER_S) + self._context.config.renew_pause_s
        if issued is None or issued.epoch != edge.epoch or self._context.now < due:
            return
        self._renewed[key] = self._context.now
        publication.edges.renew(edge.stripe, child)
        self._context.touch(publication, publication.layout.near(child))
        self._context.log("epoch_renewed", "", version=publication.version, relay=self._context.name(child))

    def _is_strike(self, event: ParentLost) -> bool:
        if event.reason is ParentLossReason.BUSY:
            return False
        if event.reason not in MISSING:
            return True
        parent, sent = self._context.state.workers.get(event.edge.parent), self._assignments.sent(event.edge.parent)
        if parent is None or not parent.connected or sent is None:
            return True
        epoch, when = sent  # it has carried out an assignment that names the object, and still has none of it
        return parent.acknowledged_epoch >= epoch and self._context.now - when > _SETTLE_S

    def _strike(self, publication: Publication, place: Place, event: ParentLost) -> None:
        child = place.chain.members[place.position]
        key = (publication.object_id, event.edge.stripe, child)
        parent, times = self._strikes.get(key, ("", []))
        since = self._context.now - self._context.config.strike_window_s
        times = [t for t in times if t > since] if parent == event.edge.parent else []
        times.append(self._context.now)
        self._strikes[key] = (event.edge.parent, times)
        accused = self._context.state.workers.get(event.edge.parent)
        if accused is None or accused.restored:
            return  # the coordinator is new here: who comes back within its lease keeps its place
        if not accused.connected:
            self.gone_both_ways(accused)
        elif len(times) >= STRIKES:
            del self._strikes[key]
            reason = RebuildReason.PARENT_UNREACHABLE
            if event.reason is ParentLossReason.CORRUPT:
                reason = RebuildReason.CORRUPT
            self._move_accused(publication, place, reason)

    def _move_accused(self, publication: Publication, place: Place, reason: RebuildReason) -> None:
        if place.position > 0:
            self._placement.move_to_end(publication, Place(place.chain, place.position - 1), reason)
            return
        key = (publication.object_id, place.chain.stripe, place.chain.members[0])
        if self._context.now >= self._turned.get(key, _NEVER_S) + 3 * self._context.config.strike_window_s:
            self._turned[key] = self._context.now
            self._placement.move_to_end(publication, place, reason)

    def complained_of(self, worker: Worker) -> bool:
        """A child of this worker has lost it a moment ago: when its own stream breaks too, it is gone."""
        since = self._context.now - self._context.config.session_grace_s
        return any(parent == worker.worker_id and times[-1] >= since for parent, times in self._strikes.values())

    def gone_both_ways(self, worker: Worker) -> None:
        """Neither its child nor the coordinator has a stream to it: no grace."""
        self._placement.take_out(worker, RebuildReason.SESSION_LOST)
        self.origin_out(worker)

    def origin_out(self, worker: Worker) -> None:
        """If it is one: what it fed needs another source, where there is one."""
        for publication in self._context.active():
            if publication.origin_id == worker.worker_id and not publication.origin_out:
                publication.origin_out = True
                if publication.phase is not Phase.CLOSED:
                    self._context.log("origin_lost", RebuildReason.ORIGIN_LOST.value, version=publication.version)
                self._context.update(publication)
                self._placement.heal(publication)

    # ---- having one ----

    def parent_connected(self, event: ParentConnected) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is not None:
            self.adopt(worker, event.edge)

    def adopt(self, worker: Worker, edge: HeldEdge) -> None:
        """A stream that is really there."""
        worker.edges[edge.object_id, edge.stripe] = edge
        publication = self._context.state.publications.get(edge.object_id)
        place = None if publication is None else publication.layout.place(edge.stripe, worker.worker_id)
        if publication is None or place is None:
            return
        self._strikes.pop((edge.object_id, edge.stripe, worker.worker_id), None)
        parent = self._context.state.workers.get(edge.parent)
        if parent is not None and parent.connected:
            self._dialling.proved(parent)
        if self._parent_id(publication, place) == edge.parent:
            return
        above = publication.layout.ancestors(place, place.position + 1)
        ids = [publication.origin_id if a == SOURCE else a for a in above]
        if edge.parent not in ids or not publication.edges.adopt(
            edge.stripe, worker.worker_id, edge.parent, edge.epoch
        ):
            return
        between = above[: ids.index(edge.parent)]
        for other in reversed(between):  # nearest to the new parent first: they keep their order at the end
            at = publication.layout.place(edge.stripe, other)
            if at is not None:
                self._placement.move_to_end(publication, at, RebuildReason.FALLBACK)
        self._context.touch(publication, publication.layout.near(worker.worker_id))
