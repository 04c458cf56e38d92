"""Which workers get a version as which object: a delta to those that prove its base, the full snapshot to the others.

A version has one main publication (the full object), which speaks for it: members, fractions, callers, T_bcast.
Beside it there may be one lane (a delta), a publication of its own to everything that lays, heals and measures chains.
A member of the main that gets the version by the lane has `via` set: it has no place in the main's chains, and what it
reports of the lane's object counts in the main, too. Nobody waits for the other kind.

    publish, base proven ──▶ via, promised ──delta offered──▶ in the lane ──▶ landed: holds the full object as well
                                  │                              │
                 it does not come │      cannot apply it, or the lane has no source for good
                                  └──────────────┬───────────────┘
                                                 ▼
                                 a place in the main's chains, for good

`review` looks at the state alone: whatever happened, doing it again changes nothing.
"""

from __future__ import annotations

from chappe.core.alarms import alarm_of
from chappe.core.context import Context
from chappe.core.events import Offered, Payload, PublishRequested
from chappe.core.placement import Placement
from chappe.core.publication import ENDED, RECEIVED, VERIFIED, Member, Phase, Publication
from chappe.core.reasons import RebuildReason
from chappe.core.state import FleetState
from chappe.core.workers import Worker

DELTA = "delta"


def lane_of(state: FleetState, main: Publication) -> Publication | None:
    """The lane that is open or was, None before its object is offered."""
    return state.publications.get(main.delta_id) if main.delta_id else None


def of_version(state: FleetState, main: Publication) -> list[Publication]:
    """Main and lane."""
    lane = lane_of(state, main)
    return [main] if lane is None else [main, lane]


def proves(worker: Worker, root: str) -> bool:
    """It has told of a landed version with this root."""
    return bool(root) and any(h.version and h.root == root for h in worker.holdings.values())


def takers(state: FleetState, base_root: str) -> list[Worker]:
    return [worker for worker in state.relays if worker.placeable and proves(worker, base_root)]


def refusal(state: FleetState, event: PublishRequested) -> str:
    """Why a delta that was insisted on cannot be sent to all; empty when it can, or was not insisted on."""
    if event.payload is not Payload.DELTA:
        return ""
    if not event.base_root:
        return f"payload delta: {event.no_delta or 'the publisher keeps no base'}"
    lacking = sorted(w.name for w in state.relays if w.placeable and not proves(w, event.base_root))
    if not lacking:
        return ""
    return f"payload delta: {', '.join(lacking)} do not hold the base ({event.base_root}): publish with payload auto"


def waits_for_lane(state: FleetState, main: Publication) -> bool:
    """Somebody was promised a delta that is not offered yet."""
    return lane_of(state, main) is None and any(m.via and m.counted and m.level == 0 for m in main.members.values())


def enter(state: FleetState, publication: Publication, worker: Worker) -> Publication | None:
    """Where a member is to be placed: here, in the lane (entered now), or nowhere yet (None)."""
    member = publication.members[worker.worker_id]
    if publication.main or not publication.delta_id or member.full_only or member.level >= RECEIVED:
        return publication
    lane = lane_of(state, publication)
    if (lane is not None and not lane.active) or not proves(worker, publication.base_root):
        member.via = ""
        return publication
    member.via = publication.delta_id
    if lane is not None and worker.worker_id not in lane.members:
        lane.enlist(worker.worker_id, Member(member.name, targeted=member.targeted))
    return lane


class Lanes:
    def __init__(self, context: Context, placement: Placement) -> None:
        self._context = context
        self._placement = placement

    def promised_by(self, object_id: str, origin_id: str) -> Publication | None:
        """The main publication that this object was announced for by its origin."""
        publications = self._context.state.publications.values()
        mains = (p for p in publications if p.delta_id == object_id and p.origin_id == origin_id and not p.main)
        return next(mains, None)

    def open(self, main: Publication, event: Offered) -> Publication | None:
        """The delta is offered. Returns the lane with its members, to be laid out; None when it is not wanted."""
        self._context.dirty[event.worker_id] = None
        if not main.active or event.version != main.version or event.kind != DELTA:
            return None
        lane = Publication(
            object_id=event.object_id,
            version=main.version,
            origin_id=main.origin_id,
            until=main.until,
            topology=main.topology,
            chains_wanted=main.chains_wanted,
            chunk_bytes=main.chunk_bytes,
            snapshot_bytes=event.snapshot_bytes,
            started_s=main.started_s,
            phase=Phase.OPEN,
            kind=event.kind,
            payload_bytes=event.payload_bytes,
            chunks_total=event.chunks_total,
            root=main.root,
            main=main.object_id,
            base_root=main.base_root,
            changed_elements=event.changed_elements,
            compared_elements=event.compared_elements,
        )
        lane.alarm = alarm_of(lane.changed_elements, lane.compared_elements, lane.payload_bytes, self._density_before())
        if lane.alarm:
            self._context.log("delta_alarm", lane.alarm, version=main.version)
        self._context.state.publications[lane.object_id] = lane
        for worker_id, member in main.members.items():
            worker = self._context.state.workers.get(worker_id)
            if member.via == lane.object_id and worker is not None and not (member.superseded or member.deferred):
                lane.enlist(worker_id, Member(member.name, targeted=member.targeted, lost=member.lost))
        self._context.update(lane)
        return lane

    def _density_before(self) -> float | None:
        lanes = [p for p in self._context.state.publications.values() if p.main and p.compared_elements]
        last = max(lanes, key=lambda p: p.version, default=None)
        return None if last is None else last.changed_elements / last.compared_elements

    def withdrawn(self, main: Publication, reason: str) -> None:
        """The delta that was promised does not come."""
        main.delta_id, main.payload_reason = "", reason
        self._context.log("no_delta", reason, version=main.version)
        self._context.update(main)

    def reported(self, lane: Publication, worker: Worker, level: int) -> None:
        """How far a worker is with the lane's object counts for the version."""
        main = self._context.state.publications.get(lane.main)
        if main is None or worker.worker_id not in main.members:
            return
        if main.advance(worker.worker_id, level, main.members[worker.worker_id].failed):
            self._context.update(main)

    def end(self, main: Publication, phase: Phase, reason: str) -> None:
        """The lane ends with its main."""
        lane = lane_of(self._context.state, main)
        if lane is not None and lane.phase not in ENDED:
            lane.end(phase, reason, self._context.now)
            self._placement.dismiss(lane)
            self._context.update(lane)

    # ---- what follows from what is so now --------------------------------------------------------------------------

    def review(self, publication: Publication) -> None:
        if publication.main:
            main = self._context.state.publications.get(publication.main)
            if main is not None and publication.active and main.active:
                self._review_lane(main, publication)
        elif publication.base_root:
            self._review_main(publication)

    def _review_lane(self, main: Publication, lane: Publication) -> None:
        without = self._has_no_source(lane)
        for worker_id, member in list(lane.members.items()):
            if member.level >= VERIFIED or member.superseded:
                continue
            if member.failed:
                self._to_full(main, lane, worker_id, member.failed)
            elif without and member.level < RECEIVED:
                self._to_full(main, lane, worker_id, "the delta has no source any more")
        if not lane.members:
            lane.retired = True
            self._placement.dismiss(lane)

    def _has_no_source(self, lane: Publication) -> bool:
        """Its origin is gone for good, or cannot serve it, and nobody holds all of it."""
        origin = self._context.state.workers.get(lane.origin_id)
        gone = lane.source_failed or origin is None or origin.lapsed or origin.leaving
        return gone and any(c.members and not self._placement.fed(lane, c) for c in lane.layout.chains)

    def _to_full(self, main: Publication, lane: Publication, worker_id: str, reason: str) -> None:
        worker = self._context.state.workers.get(worker_id)
        member = main.members.get(worker_id)
        if worker is not None and worker_id in lane.layout:
            self._placement.take_from(lane, worker, RebuildReason.DELTA_FAILED)
        lane.expel(worker_id)
        self._context.update(lane)
        if member is None or worker is None:
            return
        self._context.log("full_instead", reason, version=main.version, relay=worker.name)
        member.full_only = True
        if member.level < VERIFIED:
            main.advance(worker_id, 0, afresh=True)
        self._place(main, worker, member)

    def _review_main(self, main: Publication) -> None:
        lane = lane_of(self._context.state, main)
        if lane is None and main.delta_id:
            origin = self._context.state.workers.get(main.origin_id)
            if origin is not None and not (origin.lapsed or origin.leaving or main.source_failed):
                return
            self.withdrawn(main, "the publisher went away before the delta was made")
        elif lane is not None and lane.active:
            return
        for worker_id, member in main.members.items():
            worker = self._context.state.workers.get(worker_id)
            if member.via and worker is not None and member.level < RECEIVED:
                self._place(main, worker, member)

    def _place(self, main: Publication, worker: Worker, member: Member) -> None:
        member.via = ""
        self._context.dirty[worker.worker_id] = None
        self._context.update(main)
        here = worker.placeable and worker.connected and worker.worker_id not in main.layout
        if here and main.active and not (member.superseded or member.deferred):
            self._placement.append(main, worker, RebuildReason.DELTA_FAILED)
