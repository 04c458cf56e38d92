"""Publications from their origin's offer to the burned version.

Lays the chains when the origin offers the object, supersedes what the new version takes over from, and burns the
version when the root is announced.
"""

from __future__ import annotations

from chappe.core.bases import takers
from chappe.core.context import Context
from chappe.core.demotion import Demotions
from chappe.core.effects import PublishErrorKind, RequestRefused
from chappe.core.ending import Ending
from chappe.core.events import Offered, RootAnnounced
from chappe.core.lanes import Lanes, lane_for, lanes_of
from chappe.core.laying import Laying
from chappe.core.membership import Membership
from chappe.core.placement import Placement
from chappe.core.publication import ENDED, Member, Phase, Publication
from chappe.core.rates import link_of
from chappe.core.reasons import RebuildReason
from chappe.core.supersede import Supersession
from chappe.core.workers import Worker


class Offering:
    def __init__(
        self,
        context: Context,
        placement: Placement,
        supersession: Supersession,
        membership: Membership,
        demotions: Demotions,
        lanes: Lanes,
        laying: Laying,
        ending: Ending,
    ) -> None:
        self._context = context
        self._placement = placement
        self._supersession = supersession
        self._membership = membership
        self._demotions = demotions
        self._lanes = lanes
        self._laying = laying
        self._ending = ending

    def offered(self, event: Offered) -> list[Worker]:
        """Returns those whose word of the object can be judged only now, because its end has become known."""
        publication = self._ending.of_origin(event.worker_id, event.session, event.object_id)
        if publication is None:
            self._delta_offered(event)
            return []
        self._context.dirty[event.worker_id] = None
        if publication.phase in ENDED or publication.retired:
            return []  # its assignment does not name the object: it may let go of it
        judged: list[Worker] = []
        if publication.open_end and not event.open_end:
            judged = self._lanes.close_end(publication, event)
        if publication.phase is Phase.OPENING:
            self._open(publication, event)
        elif _what_is_offered(event) != _what_is_offered(publication):
            self._context.log("offer_differs", "not what was offered before", version=publication.version)
            return []
        elif publication.burned and event.root != publication.root and publication.origin_out and not publication.main:
            self._refuse_root(publication, event)
            return []
        elif publication.origin_out or publication.source_failed:
            publication.source_failed = False
            self._membership.origin_returned(publication)
        if event.root and publication.phase not in ENDED and not publication.main:
            self._burn(publication, event.root)
        return judged

    def _delta_offered(self, event: Offered) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        main = None if worker is None else self._lanes.promised_by(event.object_id, event.worker_id)
        lane = None if main is None else self._lanes.open(main, event)
        if main is None or lane is None:
            self._context.log("unknown_offer", "nobody asked for this object", object=event.object_id)
            return
        workers = map(self._context.state.workers.get, lane.members)
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        self._laying.lay(lane, [link_of(w, assumed, now) for w in workers if w is not None and w.placeable])
        self._context.touch_all(lane)
        self._context.update(main)

    def _refuse_root(self, publication: Publication, event: Offered) -> None:
        """Whoever comes back to a burned version has to show its root: relays have parts of those very bytes."""
        self._context.log("offer_differs", "not the root that was announced", version=publication.version)
        if not event.root:
            return
        message = (
            f"version {publication.version} was announced with root {publication.root}, "
            f"this snapshot has {event.root}: publish it as a newer version"
        )
        for request in publication.watchers:
            self._context.send(RequestRefused(request, PublishErrorKind.CONFLICT, message))
        publication.watchers.clear()
        publication.origin_id = ""  # whoever has the right bytes may resume it
        self._context.touch_all(publication)

    def _open(self, publication: Publication, event: Offered) -> None:
        if event.version != publication.version:
            self._ending.end(publication, Phase.FAILED, f"its origin offered version {event.version}")
            return
        newer = [
            p.version
            for p in self._context.state.publications.values()
            if p.version > publication.version and p.phase is not Phase.OPENING and p.phase not in ENDED
        ]
        if newer:
            self._superseded(publication, max(newer))
            return
        if publication.delta_only and not takers(self._context.state, publication.deltas.values()):
            self._ending.end(publication, Phase.FAILED, "payload delta: nobody who holds a base is here any more")
            return
        publication.phase = Phase.OPEN
        publication.kind, publication.snapshot_bytes = event.kind, event.snapshot_bytes
        publication.payload_bytes, publication.chunks_total = event.payload_bytes, event.chunks_total
        for worker in self._context.state.relays:
            self._demotions.review(worker)
        links = self._laying.links()
        spared = not all(link.standby for link in links)  # with nobody active there is nobody else to wait for
        for link in links:
            publication.enlist(link.worker_id, Member(link.name, targeted=not (link.standby and spared)))
        superseded = self._supersession.take_over(publication)
        for link in links if publication.deltas else ():
            member = publication.members[link.worker_id]
            if not member.deferred:
                member.via = lane_for(self._context.state, publication, self._context.state.workers[link.worker_id])
            if publication.delta_only and not (member.via or member.deferred):
                publication.enlist(link.worker_id, Member(link.name, targeted=False))
        for old in superseded:
            self._superseded(old, publication.version)
        self._laying.lay(publication, [link for link in links if not publication.members[link.worker_id].via])
        self._placement.heal(publication)  # who is deferred has left a gap: nobody is to be cut off by it
        self._context.touch_all(publication)

    def _superseded(self, old: Publication, version: int) -> None:
        old.end(Phase.SUPERSEDED, f"version {version} took over", self._context.now)
        old.superseded_by = version
        self._context.update(old)
        self._context.log("superseded", RebuildReason.SUPERSEDED.value, version=old.version, newer=version)

    def root_announced(self, event: RootAnnounced) -> None:
        publication = self._ending.of_origin(event.worker_id, event.session, event.object_id)
        if publication is None or publication.phase in ENDED or publication.phase is Phase.OPENING:
            self._context.log("unknown_root", "of an object that is not being published", object=event.object_id)
            return
        self._burn(publication, event.root)

    def _burn(self, publication: Publication, root: str) -> None:
        if publication.root == root:
            return
        if publication.root or ":" not in root:
            self._context.log("bad_root", "refused", version=publication.version, root=root, known=publication.root)
            return
        publication.root = root
        for lane in lanes_of(self._context.state, publication):
            lane.root = root
            self._context.touch_all(lane)
        for worker_id, member in publication.members.items():
            worker = self._context.state.workers.get(worker_id)
            if member.level and worker is not None and worker.received < publication.version:
                worker.received = publication.version
                self._context.persist_worker(worker)
        self._context.touch_all(publication)
        self._context.log("root_announced", "", version=publication.version, root=root)
        for worker in self._context.state.relays:  # keep_versions is told to everybody
            self._context.dirty[worker.worker_id] = None


def _what_is_offered(one: Offered | Publication) -> tuple[int, int, bool]:
    return one.payload_bytes, one.chunks_total, one.open_end
