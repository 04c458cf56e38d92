"""How far each worker is, what of it may be believed, and what follows for the publication.

A worker's word is taken for what it holds, within what can be true: chunks of this object, a root that was announced.
Fractions, closing and the end of a caller's wait follow from the counts, never from an order of events.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from chappe.core.context import Context
from chappe.core.effects import PublishErrorKind, PublishFinished, PublishProgress, RequestRefused
from chappe.core.events import Holding, ObjectState
from chappe.core.floor import note_shown
from chappe.core.lanes import Lanes, is_still_made, of_version, waits_for_lane
from chappe.core.placement import Placement
from chappe.core.publication import ENDED, INSTALLED, LEVELS, RECEIVED, VERIFIED, Phase, Publication
from chappe.core.workers import Worker, is_complete


def check(publication: Publication, holding: Holding) -> str:
    """Why this cannot be true of the publication's object; empty when it can."""
    total = publication.chunks_total
    if publication.open_end:  # how many there are, its origin will say; until then nobody's word can be compared
        total = max((stop for _, stop in holding.chunks), default=0)
    elif holding.chunks_total is not None and holding.chunks_total != total:
        return f"reports {holding.chunks_total} chunks, the object has {total}"
    if any(start < 0 or stop > total or start >= stop for start, stop in holding.chunks):
        return f"reports chunks outside the object's {total}"
    if any(stop > start for (_, stop), (start, _) in pairwise(holding.chunks)):
        return "reports chunks twice"
    landed = holding.version or holding.state in (ObjectState.VERIFIED, ObjectState.INSTALLED)
    if landed and not publication.burned:
        return "reports a verified copy before the root was announced"
    if landed and holding.root != publication.root:
        return f"reports root {holding.root or 'none'}, announced is {publication.root}"
    if landed and holding.version != publication.version:
        return f"reports version {holding.version} for an object of version {publication.version}"
    return ""


def believable(publication: Publication, holding: Holding) -> Holding:
    """The holding, or one of nothing that says why."""
    lie = check(publication, holding)
    if lie:
        return Holding(holding.object_id, ObjectState.FAILED, reason=lie)
    if publication.open_end:
        return holding
    if holding.chunks_total is None and is_complete(holding) and publication.chunks_total:
        return replace(holding, chunks=((0, publication.chunks_total),), chunks_total=publication.chunks_total)
    return replace(holding, chunks_total=publication.chunks_total)


def level_of(holding: Holding) -> tuple[int, str]:
    """The level that a believable holding stands for, and why the worker will not get further, if it says so."""
    level = LEVELS.get(holding.state)
    if level is None:  # failed, or waits for room: what it still has counts
        level = VERIFIED if holding.version else RECEIVED if is_complete(holding) else 0
    elif level == 0 and is_complete(holding):
        level = RECEIVED
    failed = (holding.reason or "failed") if holding.state is ObjectState.FAILED else ""
    return level, failed


_ENDINGS = {
    Phase.CANCELLED: PublishErrorKind.CANCELLED,
    Phase.FAILED: PublishErrorKind.FAILED,
    Phase.SUPERSEDED: PublishErrorKind.SUPERSEDED,
}


def _stripes_held(publication: Publication, holding: Holding) -> list[bool]:
    """Of which stripes it holds all."""
    stripes, total = publication.stripes, holding.chunks_total
    if stripes.plain or total is None:
        return []
    return [not stripes.lacks(stripe, holding.chunks, total) for stripe in range(len(stripes.weights))]


class Progress:
    def __init__(self, context: Context, placement: Placement, lanes: Lanes) -> None:
        self._context = context
        self._placement = placement
        self._lanes = lanes

    def take_holding(self, worker: Worker, holding: Holding, *, afresh: bool = False) -> Publication | None:
        """Record what a worker says of an object. Returns the publication when level, state or wholeness is news."""
        publication = self._publication_of(holding)
        if holding.nothing and (publication is None or not publication.active):
            worker.holdings.pop(holding.object_id, None)  # no delta begins there any more
            return None
        if publication is None:
            if holding.version:
                worker.holdings[holding.object_id] = holding  # a delta may begin there
            if worker.note_versions(holding):  # landed long ago: versions are all that is left of it
                self._context.persist_worker(worker)
            return None
        if publication.object_id == holding.object_id:
            holding = believable(publication, holding)
        before = worker.holdings.get(holding.object_id)
        worker.holdings[holding.object_id] = holding
        if worker.note_versions(holding) | self._note_received(worker, publication, holding):
            self._context.persist_worker(worker)
        if worker.worker_id not in publication.members:
            return None
        level, failed = level_of(holding)
        afresh = afresh and level < VERIFIED  # what has landed stays; what was on the way may be gone
        if publication.main:
            self._lanes.reported(publication, worker, level)
        if publication.advance(worker.worker_id, level, failed, afresh=afresh):
            self._advanced(worker, publication, level, failed)
            return publication
        self._context.changed[publication.object_id] = None
        if before is None or before.state is not holding.state or is_complete(before) is not is_complete(holding):
            return publication  # also when a copy has rotted: what it fed needs another source
        if worker.dialable is False and _stripes_held(publication, holding) != _stripes_held(publication, before):
            return publication  # it may give way to somebody else who cannot be dialled
        return None

    def _publication_of(self, holding: Holding) -> Publication | None:
        """By object, or by version and root: the same bytes may have come as another object."""
        publications = self._context.state.publications
        publication = publications.get(holding.object_id)
        if publication is None and holding.version and holding.root:
            same = (p for p in self._context.state.mains if (p.version, p.root) == (holding.version, holding.root))
            publication = next(same, None)
        return None if publication is None or publication.phase is Phase.OPENING else publication

    @staticmethod
    def _note_received(worker: Worker, publication: Publication, holding: Holding) -> bool:
        news = is_complete(holding) and publication.burned and publication.version > worker.received
        if news:
            worker.received = publication.version
        return news

    def _advanced(self, worker: Worker, publication: Publication, level: int, failed: str) -> None:
        self._context.update(publication)
        if level == INSTALLED and worker.superseded:
            worker.superseded = False
            self._context.persist_worker(worker)
        if failed:
            self._context.log("relay_failed", failed, version=publication.version, relay=worker.name)

    # ---- what follows ----

    def settle(self, publication: Publication) -> None:
        """Record fractions, close, let callers go. Called once for each publication that a call has changed."""
        if publication.phase is Phase.OPENING:
            return
        if publication.main:
            self._settle_lane(publication)
            return
        if publication.phase in ENDED:
            self._refuse_watchers(publication, _ENDINGS[publication.phase])
            return
        for key in publication.record_fractions(self._context.now):
            self._context.log(
                "fraction_installed", key, version=publication.version, t_bcast_s=publication.t_bcast[key]
            )
            self._context.persist(publication)
            if key == "1.0":
                for changed in note_shown(self._context.state, self._context.config, publication, self._context.now):
                    self._context.persist(changed)
        if publication.phase is Phase.OPEN and publication.reached(1.0):
            publication.end(Phase.CLOSED, "", self._context.now)
            self._placement.note_served(publication)
            self._context.persist(publication)
            self._context.log("closed", "installed", version=publication.version, installed=publication.installed)
        self._finish(publication)
        if publication.phase is Phase.SUPERSEDED:
            self._refuse_watchers(publication, _ENDINGS[publication.phase])
        self._give_up(publication)
        if publication.watchers:
            self._context.send(PublishProgress(publication.object_id, tuple(publication.watchers)))

    def _settle_lane(self, lane: Publication) -> None:
        """Its main has the callers and the fractions."""
        if lane.phase is Phase.OPEN and lane.reached(1.0):
            lane.end(Phase.CLOSED, "", self._context.now)
            self._placement.note_served(lane)
            self._context.persist(lane)
        self._context.changed[lane.main] = None

    def _can_do_without_origin(self, publication: Publication) -> bool:
        state = self._context.state
        if waits_for_lane(state, publication):
            return False
        if is_still_made(state, publication):
            return False  # what was sent is not known before, either
        return all(self._placement.can_do_without_origin(p) for p in of_version(state, publication))

    def _refuse_watchers(self, publication: Publication, kind: PublishErrorKind) -> None:
        what = "failed" if kind is PublishErrorKind.FAILED else f"was {publication.phase.value}"
        message = f"version {publication.version} {what}: {publication.reason}"
        for request in publication.watchers:
            self._context.send(RequestRefused(request, kind, message))
        publication.watchers.clear()

    def _finish(self, publication: Publication) -> None:
        news = not publication.finished and publication.reached(publication.until)
        done = tuple(request for request, until in publication.watchers.items() if publication.reached(until))
        if not (news or done) or not self._can_do_without_origin(publication):
            return
        if news:
            publication.finished = True
            self._context.persist(publication)
        for request in done:
            del publication.watchers[request]
        if done:
            self._context.send(PublishFinished(publication.object_id, done))

    def _give_up(self, publication: Publication) -> None:
        """Nobody is left waiting for what cannot come by itself. The publication stays open: hosts may recover."""
        if not publication.settled or not publication.watchers or publication.phase is Phase.CLOSED:
            return
        failed = [f"{m.name}: {m.failed}" for m in publication.members.values() if m.counted and m.failed]
        hopeless = [r for r, until in publication.watchers.items() if not publication.reached(until)]
        message = (
            f"version {publication.version} is installed on {publication.installed} of {publication.targeted} workers "
            f"and will not get further by itself: {'; '.join(failed)}"
        )
        for request in hopeless:
            del publication.watchers[request]
            self._context.send(RequestRefused(request, PublishErrorKind.FAILED, message))
