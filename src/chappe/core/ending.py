"""Ends what cannot become a version: cancelled, without its source, or without its publisher."""

from __future__ import annotations

from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.effects import PublishErrorKind, RequestDone, RequestRefused
from chappe.core.events import CancelRequested, Role, SourceFailed
from chappe.core.lanes import Lanes
from chappe.core.membership import Membership
from chappe.core.placement import Placement
from chappe.core.publication import ENDED, LIVE, Phase, Publication
from chappe.core.reasons import RebuildReason
from chappe.core.supersede import Supersession
from chappe.core.workers import Worker


class Ending:
    def __init__(
        self,
        context: Context,
        placement: Placement,
        supersession: Supersession,
        membership: Membership,
        lanes: Lanes,
        deadlines: Deadlines,
    ) -> None:
        self._context = context
        self._placement = placement
        self._supersession = supersession
        self._membership = membership
        self._lanes = lanes
        self._deadlines = deadlines
        self._lapsed: set[str] = set()  # origins that are gone, and still known because something waits for them

    def of_origin(self, worker_id: str, session: int, object_id: str) -> Publication | None:
        worker = self._context.of_session(worker_id, session)
        publication = self._context.state.publications.get(object_id)
        if worker is None or publication is None or publication.origin_id != worker_id:
            return None
        return publication

    def source_failed(self, event: SourceFailed) -> None:
        publication = self.of_origin(event.worker_id, event.session, event.object_id)
        main = self._lanes.promised_by(event.object_id, event.worker_id)
        if publication is None and main is not None:
            self._lanes.withdrawn(main, event.object_id, event.reason)
            if main.delta_only and self._unfinished(main):
                self.end(main, Phase.FAILED, f"payload delta: {event.reason}; publish with payload auto")
        if publication is None or publication.phase in ENDED:
            return
        what = "source_left" if publication.phase is Phase.CLOSED else "source_failed"  # then nobody misses it
        self._context.log(what, event.reason, version=publication.version)
        self._lanes.broke_off(publication, event.reason)
        publication.source_failed = publication.origin_out = True
        self._context.touch_all(publication)
        if publication.burned:
            self._placement.heal(publication)
        fed = all(self._placement.fed(publication, c) for c in publication.layout.chains if c.members)
        carried_on = publication.burned and publication.layout and fed
        if self._unfinished(publication) and not carried_on and not publication.main:
            self.end(publication, Phase.FAILED, event.reason)

    @staticmethod
    def _unfinished(publication: Publication) -> bool:
        return publication.phase in LIVE or (publication.phase is Phase.SUPERSEDED and not publication.retired)

    def cancel(self, event: CancelRequested) -> None:
        versions = [p for p in self._context.state.mains if p.version == event.version]
        running = [p for p in versions if self._unfinished(p)]
        if running:
            for publication in running:
                self.end(publication, Phase.CANCELLED, "on request")
            self._context.send(RequestDone(event.request))
        elif not versions:
            message = f"no publication of version {event.version} is known"
            self._context.send(RequestRefused(event.request, PublishErrorKind.NOT_FOUND, message))
        else:
            message = f"version {event.version} is {versions[-1].phase.value} already: there is nothing to stop"
            self._context.send(RequestRefused(event.request, PublishErrorKind.CONFLICT, message))

    def end(self, publication: Publication, phase: Phase, reason: str) -> None:
        """It does not become what was asked for: callers are told, hosts go back to what there was before."""
        publication.end(phase, reason, self._context.now)
        self._context.update(publication)
        self._context.log("ended", reason, version=publication.version, phase=phase.value)
        self._lanes.end(publication, phase, reason)
        self._placement.dismiss(publication)
        self._supersession.restore(publication)
        self._supersession.promote_all()
        self._membership.place_all(RebuildReason.RESTORED)

    def origin_ended(self, origin: Worker) -> None:
        """Its stream has ended. One that has said that it leaves does not come back: nobody waits for its lease."""
        if origin.role is not Role.ORIGIN or not origin.leaving:
            return
        origin.lapsed = True
        self._context.persist_worker(origin)
        self.origin_lapsed(origin)

    def forget_lapsed(self) -> None:
        """Those that something waited for until now."""
        for worker_id in sorted(self._lapsed):
            origin = self._context.state.workers.get(worker_id)
            if origin is None or not origin.lapsed:
                self._lapsed.discard(worker_id)
            else:
                self.origin_lapsed(origin)

    def restored(self) -> None:
        for worker in list(self._context.state.workers.values()):
            self.origin_lapsed(worker)

    def origin_lapsed(self, origin: Worker) -> None:
        """What it had not announced comes to nothing; it is forgotten once nothing waits for it, or it has been gone
        for long: who finishes its version then is somebody new."""
        if origin.role is not Role.ORIGIN or not origin.lapsed:
            return
        mine = self.origin_gone(origin)
        forget_at_s = origin.heard_s + self._context.config.forget_origin_s
        waits = any(p.phase is Phase.OPEN or (p.phase is Phase.SUPERSEDED and not p.retired) for p in mine)
        if waits and self._context.now + 1e-9 < forget_at_s:
            self._lapsed.add(origin.worker_id)
            self._deadlines.at(f"origin {origin.worker_id}", forget_at_s)
            return
        self._lapsed.discard(origin.worker_id)
        self._context.drop_worker(origin)
        for publication in mine:
            if publication.layout:
                self._placement.heal(publication)
                self._context.touch(publication, {c.members[0] for c in publication.layout.chains if c.members})

    def origin_gone(self, origin: Worker) -> list[Publication]:
        """It has left or lapsed: what it had not announced comes to nothing. Returns all that it ever published."""
        mine = [p for p in self._context.state.publications.values() if p.origin_id == origin.worker_id]
        for publication in mine:
            if self._unfinished(publication) and not publication.burned and not publication.main:
                self.end(publication, Phase.FAILED, "its publisher went away before the root was announced")
            self._lanes.review(publication)
        return mine
