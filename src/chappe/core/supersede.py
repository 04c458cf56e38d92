"""A newer version meets an older one that is not installed everywhere yet: host by host, who drops the old one.

Newest wins, but no host is superseded twice in a row without an install, and one whose remaining time is under half of
the new version's finishes first (over the same link, times compare as bytes). When the newer version comes to nothing,
those it took come back to the older one.

    for each host of the older publication:  has all of it ──▶ keeps it, takes the newer one too
                                             finishes first ─▶ deferred in the newer one, placed there when done
                                             else ───────────▶ superseded: drops what it has of the older one
"""

from __future__ import annotations

from chappe.core.bases import FINISH_SHARE_OF_BASE
from chappe.core.bridging import cut_off
from chappe.core.chain import Place
from chappe.core.context import Context
from chappe.core.events import ObjectState
from chappe.core.lanes import enter, lanes_of, of_version
from chappe.core.placement import Placement
from chappe.core.publication import LIVE, RECEIVED, Member, Phase, Publication
from chappe.core.reasons import RebuildReason
from chappe.core.workers import Worker, chunks_held

FINISH_SHARE = 0.5


def remaining_bytes(publication: Publication, worker: Worker) -> float:
    if not publication.chunks_total:
        return 0.0
    held = chunks_held(worker.holdings.get(publication.object_id), publication.chunks_total)
    return publication.payload_bytes * (1 - held / publication.chunks_total)


def is_base(old: Publication, new: Publication) -> bool:
    """Whoever has the older version gets the newer one as a delta."""
    return old.burned and old.root in new.deltas.values()


def finishes_first(old: Publication, new: Publication, worker: Worker) -> bool:
    share = FINISH_SHARE_OF_BASE if is_base(old, new) else FINISH_SHARE
    return worker.superseded or remaining_bytes(old, worker) < share * new.payload_bytes


class Supersession:
    def __init__(self, context: Context, placement: Placement) -> None:
        self._context = context
        self._placement = placement

    def is_finishing(self, publication: Publication, member: Member, worker: Worker | None) -> bool:
        """The worker is here and on its way to this version: it is fed, and does not wait for room on its disk."""
        if worker is None or not (publication.active and worker.present and member.counted):
            return False
        if member.level >= RECEIVED or member.failed or member.superseded or member.deferred:
            return False
        holding = worker.holdings.get(publication.object_id)
        if holding is not None and holding.state is ObjectState.DISK_FULL:
            return False
        places = publication.layout.places(worker.worker_id)
        return bool(places) and all(self._reached(publication, place) for place in places)

    def _reached(self, publication: Publication, place: Place) -> bool:
        """There is a source, and the hop has a side that can dial: whoever stood in between may have gone on."""
        undialable = self._context.undialable
        able = publication.origin_id not in undialable
        cut = cut_off(place.chain, place.position, undialable, source_dialable=able)
        return self._placement.fed(publication, place.chain) and not cut

    def older(self, new: Publication) -> list[Publication]:
        return [p for p in self._context.state.publications.values() if p.version < new.version and p is not new]

    def take_over(self, new: Publication) -> list[Publication]:
        """The newer one is offered. Marks who is deferred in it; returns the older ones that are superseded by it: a
        version as a whole, whichever of its objects somebody was taken from."""
        state = self._context.state
        taken = {(old.main or old.object_id) for old in self.older(new) if self._take_from(old, new)}
        mains = [main for main in map(state.publications.get, taken) if main is not None]
        every = [p for main in sorted(mains, key=lambda p: p.version) for p in of_version(state, main)]
        return [p for p in every if p.phase in LIVE]

    def _take_from(self, old: Publication, new: Publication) -> bool:
        if old.phase is Phase.OPENING:
            return True
        if old.phase not in (Phase.OPEN, Phase.SUPERSEDED) or old.retired:
            return False
        taken = False
        for worker_id, member in old.members.items():
            if worker_id in new.members and self._is_landing(old, new, worker_id):
                self._defer(old, new, worker_id)
            if member.level >= RECEIVED or member.superseded:
                continue
            if member.via in self._context.state.publications:
                continue  # it is in the lane that it is finished, or not
            worker = self._context.state.workers.get(worker_id)
            if self.is_finishing(old, member, worker) and worker is not None and finishes_first(old, new, worker):
                if worker_id in new.members:
                    self._defer(old, new, worker_id)
                continue
            taken |= member.counted
            self._supersede(old, member, worker)
        return taken and old.phase is Phase.OPEN

    def _defer(self, old: Publication, new: Publication, worker_id: str) -> None:
        member = new.members[worker_id]
        member.deferred, member.why = True, f"finishes version {old.version} first"
        self._context.log("finishes_first", "", version=old.version, relay=member.name, newer=new.version)

    def _is_landing(self, old: Publication, new: Publication, worker_id: str) -> bool:
        """It has all of the older version and is about to hold a base of the newer one: then a delta will do."""
        member, worker = old.members.get(worker_id), self._context.state.workers.get(worker_id)
        if member is None or worker is None or not (is_base(old, new) and old.active and worker.connected):
            return False
        holding = worker.holdings.get(member.via or old.object_id)
        full = holding is not None and holding.state is ObjectState.DISK_FULL
        return member.level == RECEIVED and not (member.failed or member.superseded or full)

    def _supersede(self, old: Publication, member: Member, worker: Worker | None) -> None:
        started = not member.deferred
        member.superseded, member.deferred = True, False
        self._context.update(old)
        main = self._context.state.publications.get(old.main) if old.main else None
        if main is not None and worker is not None and worker.worker_id in main.members:
            main.members[worker.worker_id].superseded = True
            self._context.update(main)
        if worker is None:
            return
        if worker.worker_id in old.layout:
            self._placement.take_from(old, worker, RebuildReason.SUPERSEDED)
        self._context.dirty[worker.worker_id] = None
        if started and worker.present:
            worker.superseded = True
            self._context.persist_worker(worker)

    def promote(self, worker: Worker) -> None:
        """Nothing older is on its way to this worker any more: it gets the place that was deferred."""
        active = self._context.active()
        for publication in active:
            member = publication.members.get(worker.worker_id)
            if member is None or not member.deferred:
                continue
            busy = any(
                old.version < publication.version
                and worker.worker_id in old.members
                and (
                    self.is_finishing(old, old.members[worker.worker_id], worker)
                    or self._is_landing(old, publication, worker.worker_id)
                )
                for old in active
            )
            if not busy:
                member.deferred = False
                self._context.update(publication)
                self._context.dirty[worker.worker_id] = None
                carrier = enter(self._context.state, publication, worker)
                if worker.placeable and carrier is not None:
                    self._placement.append(carrier, worker, RebuildReason.FINISHED_OLDER)

    def promote_all(self) -> None:
        """Whatever was in the way of deferred places may have ended."""
        deferred = {w for p in self._context.active() for w, member in p.members.items() if member.deferred}
        for worker in self._context.state.relays:
            if worker.worker_id in deferred:
                self.promote(worker)

    def restore(self, failed: Publication) -> None:
        """What this one had superseded goes on, with those that it took. A lane that was retired does not: its object
        was dropped everywhere, and the full one is the way for those that lack it."""
        for old in self.older(failed):
            if old.phase is not Phase.SUPERSEDED or old.superseded_by != failed.version:
                continue
            if old.main and old.retired:
                continue
            if failed.superseded_by:  # that one stands
                old.superseded_by = failed.superseded_by
            elif not old.chunks_total:  # never offered: there is nothing to go on with, and its caller was told
                old.retired = True
                self._context.touch_all(old)
            else:
                old.phase, old.reason, old.ended_s, old.superseded_by = Phase.OPEN, "", None, 0
                old.unretire()
                self._context.log("restored", RebuildReason.RESTORED.value, version=old.version)
                for member in old.members.values():
                    member.superseded = False
                self._context.touch_all(old)

    def retire(self) -> None:
        """Older publications that nobody is on the way to any more, once a newer one is a version. A main after its
        lanes: its publisher lets go of all objects of a version that is not wanted."""
        current = self._context.state.current
        if current is None:
            return
        workers = self._context.state.workers
        for old in sorted(self.older(current), key=lambda p: not p.main):
            if not old.active or any(self._waits(old, m, workers.get(w)) for w, m in old.members.items()):
                continue
            if any(lane.active for lane in lanes_of(self._context.state, old)):
                continue
            if old.phase in LIVE:
                old.end(Phase.SUPERSEDED, f"version {current.version} took over", self._context.now)
                old.superseded_by = current.version
            old.retired = True
            self._placement.dismiss(old)
            self._context.log("retired", RebuildReason.SUPERSEDED.value, version=old.version, newer=current.version)

    def _waits(self, old: Publication, member: Member, worker: Worker | None) -> bool:
        """For chunks, or with all of them for its landing."""
        if self.is_finishing(old, member, worker):
            return True
        landing = member.counted and member.level == RECEIVED and not (member.failed or member.superseded)
        return landing and worker is not None and worker.present and worker.verified < old.version
