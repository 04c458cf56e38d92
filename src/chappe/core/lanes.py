"""Which workers get a version as which object: a delta to those that prove a base, the full snapshot to the others,
compressed where that pays.

A version has one main publication (the full object), which speaks for it: members, fractions, callers, T_bcast.
Beside it there may be lanes (deltas, each from another base; the snapshot compressed, which begins at nothing),
publications of their own to everything that lays, heals and measures chains. A member of the main that gets the
version by a lane has `via` set: it has no place in the main's chains, and what it reports of the lane's object counts
in the main, too. Nobody waits for another kind.

Where deltas were insisted on, a worker without a base (it joined after the request was accepted) is not waited for: it
gets the full object from somebody who has made it, and the origin's uplink is left alone. One that was promised a delta
and cannot take it is waited for, and the origin serves it if nobody else can.

Which lanes: each takes its share of the origin's uplink, so there are a few at most. The delta from what was published
last comes first where anybody can take it, then those that most workers need, who cannot take one of the others; what
is left goes to those that are away and may come back with what they had. Whoever is still receiving or landing a base
finishes that first, and takes the delta then (see `supersede`).

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
from chappe.core.bases import NOTHING, takes
from chappe.core.bridging import cut_off
from chappe.core.context import Context
from chappe.core.events import Offered
from chappe.core.placement import Placement
from chappe.core.publication import ENDED, RECEIVED, VERIFIED, Member, Phase, Publication
from chappe.core.reasons import RebuildReason
from chappe.core.state import FleetState
from chappe.core.workers import Worker

DELTA, COMPRESSED = "delta", "full-compressed"


def lanes_of(state: FleetState, main: Publication) -> list[Publication]:
    """The lanes that are open or were: not those whose object is not offered yet."""
    found = map(state.publications.get, main.deltas)
    return [lane for lane in found if lane is not None]


def of_version(state: FleetState, main: Publication) -> list[Publication]:
    """Main and lanes."""
    return [main, *lanes_of(state, main)]


def waits_for_lane(state: FleetState, main: Publication) -> bool:
    """Somebody was promised a delta that is not offered yet."""
    due = main.deltas.keys() - state.publications.keys()
    return bool(due) and any(m.via in due and m.counted and m.level == 0 for m in main.members.values())


def is_still_made(state: FleetState, main: Publication) -> bool:
    """The end of an object is not known yet, and its origin will tell it."""
    return any(p.open_end and p.phase not in ENDED and not _cannot_be_served(state, p) for p in lanes_of(state, main))


def _cannot_be_served(state: FleetState, lane: Publication) -> bool:
    """Its origin is gone for good, or cannot go on with it."""
    origin = state.workers.get(lane.origin_id)
    return lane.source_failed or origin is None or origin.lapsed or origin.leaving


def lane_for(state: FleetState, main: Publication, worker: Worker) -> str:
    """The object by which it gets the version: where it stands, what it was promised, else the first whose base it
    proves; empty for the full one."""
    before = main.members[worker.worker_id].via
    offered = {lane.object_id: lane for lane in lanes_of(state, main)}
    open_ids = [i for i in main.deltas if i not in offered or offered[i].active]
    able = [i for i in open_ids if takes(worker, main.deltas[i])]
    stands = before in open_ids and before in offered and worker.worker_id in offered[before].layout
    if stands or before in able:
        return before
    return able[0] if able else ""


def enter(state: FleetState, publication: Publication, worker: Worker) -> Publication | None:
    """Where a member is to be placed: here, in a lane (entered now), or nowhere yet (None)."""
    member = publication.members[worker.worker_id]
    has_it = member.level >= (VERIFIED if member.via else RECEIVED)  # all of a delta is not the version yet
    if publication.main or not publication.deltas or member.full_only or has_it:
        return publication
    member.via = lane_for(state, publication, worker)
    if not member.via:
        return publication
    lane = state.publications.get(member.via)
    if lane is not None and worker.worker_id not in lane.members:
        lane.enlist(worker.worker_id, Member(member.name, targeted=member.targeted))
    return lane


class Lanes:
    def __init__(self, context: Context, placement: Placement) -> None:
        self._context = context
        self._placement = placement
        self._withdrawn: set[str] = set()  # mains to be looked at before this call is over

    def promised_by(self, object_id: str, origin_id: str) -> Publication | None:
        """The main publication that this object was announced for by its origin."""
        publications = self._context.state.publications.values()
        mains = (p for p in publications if object_id in p.deltas and p.origin_id == origin_id)
        return next(mains, None)

    def open(self, main: Publication, event: Offered) -> Publication | None:
        """The delta is offered. Returns the lane with its members, to be laid out; None when it is not wanted."""
        self._context.dirty[event.worker_id] = None
        due = COMPRESSED if main.deltas[event.object_id] == NOTHING else DELTA
        if not main.active or event.version != main.version or event.kind != due:
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
            open_end=event.open_end,
            root=main.root,
            main=main.object_id,
            base_root=main.deltas[event.object_id],
        )
        if not event.open_end:
            self._note_density(lane, event)
        self._context.state.publications[lane.object_id] = lane
        for worker_id, member in main.members.items():
            worker = self._context.state.workers.get(worker_id)
            if member.via == lane.object_id and worker is not None and not (member.superseded or member.deferred):
                lane.enlist(worker_id, Member(member.name, targeted=member.targeted, lost=member.lost))
        self._context.update(lane)
        return lane

    def close_end(self, lane: Publication, event: Offered) -> list[Worker]:
        """All of it has been made: what it has is known now. Returns those whose word of it can be judged only now."""
        lane.open_end = False
        lane.payload_bytes, lane.chunks_total = event.payload_bytes, event.chunks_total
        self._note_density(lane, event)
        self._context.update(lane)
        return [w for w in self._context.state.relays if lane.object_id in w.holdings]

    def _note_density(self, lane: Publication, event: Offered) -> None:
        before = self._density_before() if self._is_one_step(lane) else None
        lane.changed_elements, lane.compared_elements = event.changed_elements, event.compared_elements
        size = event.changed_bytes or event.payload_bytes  # a publisher of an older release tells the sum only
        lane.alarm = alarm_of(lane.changed_elements, lane.compared_elements, size, before)
        if lane.alarm:
            self._context.warn("delta_alarm", lane.alarm, version=lane.version)

    def _is_one_step(self, lane: Publication) -> bool:
        """It begins at the version before: what changes in two or three steps at once says nothing of one."""
        older = (p for p in self._context.state.mains if p.burned and p.version < lane.version)
        previous = max(older, key=lambda p: p.version, default=None)
        return previous is not None and previous.root == lane.base_root

    def _density_before(self) -> float | None:
        lanes = [p for p in self._context.state.publications.values() if p.compared_elements and self._is_one_step(p)]
        last = max(lanes, key=lambda p: p.version, default=None)
        return None if last is None else last.changed_elements / last.compared_elements

    def withdrawn(self, main: Publication, object_id: str, reason: str) -> None:
        """A delta that was promised does not come."""
        del main.deltas[object_id]
        self._withdrawn.add(main.object_id)
        if not main.deltas:
            main.payload_reason = reason
        self._context.log("no_delta", reason, version=main.version)
        self._context.update(main)

    def broke_off(self, lane: Publication, reason: str) -> None:
        """Its publisher cannot go on with it: that is why it goes in full to those that hold the base."""
        main = self._context.state.publications.get(lane.main)
        if main is not None and lane.phase is Phase.OPEN and reason not in main.payload_reason:
            main.payload_reason = "; ".join(filter(None, (main.payload_reason, reason)))
            self._context.update(main)

    def reported(self, lane: Publication, worker: Worker, level: int) -> None:
        """How far a worker is with the lane's object counts for the version."""
        main = self._context.state.publications.get(lane.main)
        if main is None or worker.worker_id not in main.members:
            return
        if main.advance(worker.worker_id, level, main.members[worker.worker_id].failed):
            self._context.update(main)

    def end(self, main: Publication, phase: Phase, reason: str) -> None:
        """The lanes end with their main."""
        for lane in lanes_of(self._context.state, main):
            if lane.phase not in ENDED:
                lane.end(phase, reason, self._context.now)
                self._placement.dismiss(lane)
                self._context.update(lane)

    # ---- what follows from what is so now --------------------------------------------------------------------------

    def review(self, publication: Publication) -> None:
        if publication.main:
            main = self._context.state.publications.get(publication.main)
            if main is not None and publication.active and main.active:
                self._review_lane(main, publication)
        else:
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
            elif member.level < RECEIVED and self._walled_in(main, lane, worker_id):
                self._to_full(
                    main, lane, worker_id, "nobody with the delta can reach it, somebody with the snapshot can"
                )

    def _has_no_source(self, lane: Publication) -> bool:
        """Its origin does not serve it any more, and nobody holds all of it."""
        gone = _cannot_be_served(self._context.state, lane)
        return gone and any(c.members and not self._placement.fed(lane, c) for c in lane.layout.chains)

    def _walled_in(self, main: Publication, lane: Publication, worker_id: str) -> bool:
        """Neither it nor its parent can dial, and the lane has no better place: somebody who can has all of the full
        object."""
        undialable = self._context.undialable
        if worker_id not in undialable:
            return False
        able = lane.origin_id not in undialable
        places = lane.layout.places(worker_id)
        if not any(cut_off(p.chain, p.position, undialable, source_dialable=able) for p in places):
            return False
        if able and self._placement.origin_usable(main) and not self._placement.origin_usable(lane):
            return True
        return any(w not in undialable and self._placement.holds_all(main, w) for w in main.members)

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
        member.full_only, member.via = True, ""
        if member.counted:  # it is waited for
            main.spare_origin = False
        if member.level < VERIFIED:
            main.advance(worker_id, 0, afresh=True)
        self._place(main, worker, member)
        member.why = member.why.replace(RebuildReason.DELTA_FAILED.value, f"in full, {reason}")

    def _review_main(self, main: Publication) -> None:
        state = self._context.state
        if main.active and main.deltas and self._context.undialable:
            for lane in lanes_of(state, main):
                if lane.active:
                    self._review_lane(main, lane)
            self._placement.feed_unreached(main)
        origin = state.workers.get(main.origin_id)
        if origin is None or origin.lapsed or origin.leaving or main.source_failed:
            for object_id in main.deltas.keys() - state.publications.keys():
                self.withdrawn(main, object_id, "the publisher went away before the delta was made")
        if main.object_id not in self._withdrawn and all(self._is_open(main, object_id) for object_id in main.deltas):
            return
        self._withdrawn.discard(main.object_id)
        for worker_id, member in main.members.items():
            worker = state.workers.get(worker_id)
            waits = bool(member.via) and member.level < RECEIVED
            if waits and worker is not None and not self._is_open(main, member.via):
                self._place(main, worker, member)

    def _is_open(self, main: Publication, object_id: str) -> bool:
        lane = self._context.state.publications.get(object_id)
        return object_id in main.deltas and (lane is None or lane.active)

    def _place(self, main: Publication, worker: Worker, member: Member) -> None:
        """It does not get the version as it was to: by another lane, or in full."""
        state = self._context.state
        self._context.dirty[worker.worker_id] = None
        self._context.update(main)
        carrier = enter(state, main, worker)
        here = worker.placeable and worker.connected and not (member.superseded or member.deferred)
        if here and main.active and carrier is not None and worker.worker_id not in carrier.layout:
            self._placement.append(carrier, worker, RebuildReason.DELTA_FAILED)
