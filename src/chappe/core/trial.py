"""Open cases: what is heard of the watched hop, and the verdict.

             watched hop is 1.3 times as fast             it is not
    ASIDE    the parent's uplink: demoted                 the child's downlink: it is a tail already
    UP       the parent's uplink: demoted                 the child's downlink: it goes to the end
    WITNESS  the accuser was wrong, or its downlink is it the parent's uplink: demoted
    SWAP     the old head's downlink                      the origin's uplink: B0 is that

A case ends without a verdict when anybody in it is gone, has moved, or nothing is heard for 10 s. When one is opened,
and how the repair that is its test is chosen, says `slow`.
"""

from __future__ import annotations

from chappe.core.blame import Case, Mode
from chappe.core.chain import Chain, Place
from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.demotion import Demotions
from chappe.core.placement import Placement
from chappe.core.publication import Publication
from chappe.core.reasons import RebuildReason
from chappe.core.workers import Worker, chunks_held
from chappe.units import format_rate

FASTER = 1.3
HEARD_S = 0.7  # of busy time: enough to call a hop faster
NOT_FASTER_S = 2.0  # a new connection over a long link takes a second to get up to speed
LOOK_S = 4.0  # a child that has caught up by then has nothing to measure any more
CASE_S = 10.0
COOL_S = 30.0  # before the same child can open another case
COOL_WRONG_S = 300.0


def held(publication: Publication, worker: Worker) -> int:
    """Chunks."""
    return chunks_held(worker.holdings.get(publication.object_id), publication.chunks_total)


class Trial:
    def __init__(self, context: Context, placement: Placement, demotions: Demotions, deadlines: Deadlines) -> None:
        self._context = context
        self._placement = placement
        self._demotions = demotions
        self._deadlines = deadlines
        self._cool: dict[str, float] = {}  # child: until when it opens no case

    def restored(self) -> None:
        """The coordinator has started anew: everybody in a case has its time again, to come back in."""
        for publication in self._context.state.publications.values():
            for case in publication.cases.values():
                case.since_s = self._context.now
                self._deadlines.at(f"case {case.watched}", self._context.now + CASE_S)

    # ---- opening ----

    def cool(self, child: Worker) -> bool:
        """It may open a case: it has opened none of late."""
        return self._cool.get(child.worker_id, 0.0) <= self._context.now

    def warm(self, child: Worker, for_s: float = COOL_S) -> None:
        self._cool[child.worker_id] = self._context.now + for_s

    @staticmethod
    def held_in(publication: Publication, chain: Chain) -> bool:
        """A case is tried in this chain: a second one would spoil both."""
        return any(c.stripe == chain.stripe and chain.slot in c.slots for c in publication.cases.values())

    def open(self, publication: Publication, case: Case) -> None:
        publication.cases[case.watched] = case
        self._context.persist(publication)
        self._deadlines.at(f"case {case.watched}", self._context.now + LOOK_S)
        self._context.log(
            "slow_hop",
            case.mode.value,
            version=publication.version,
            accused=self._context.name(case.accused),
            watched=self._context.name(case.watched),
            rate=format_rate(case.before_bytes_per_s),
        )

    # ---- hearing ----

    def _place(self, publication: Publication, case: Case) -> Place | None:
        """Where the watched hop is; None when the case has come apart."""
        if not publication.active:
            return None
        place = publication.layout.place(case.stripe, case.watched)
        workers = self._context.state.workers
        watched, accused = workers.get(case.watched), workers.get(case.accused)
        if place is None or watched is None or accused is None or not (watched.present and accused.present):
            return None
        above = publication.layout.ancestors(place, 1)
        return place if above and above[0] == case.parent else None

    def testimony(self, publication: Publication, case: Case, place: Place, bytes_per_s: float, busy_s: float) -> None:
        """The watched hop has carried this."""
        if self._place(publication, case) is None:
            self._drop(publication, case, "somebody in it is gone or has moved")
            return
        case.busy_s += busy_s
        case.bytes += bytes_per_s * busy_s
        mean = case.mean_bytes_per_s
        if case.busy_s >= HEARD_S and mean >= FASTER * case.before_bytes_per_s:
            self._verdict(case, publication, place, faster=True)
        elif case.busy_s >= NOT_FASTER_S:
            self._verdict(case, publication, place, faster=False)

    def review(self, watched: str) -> None:
        """The time of a case has come: has the child caught up, or was nothing heard?"""
        for publication in list(self._context.state.publications.values()):
            case = publication.cases.get(watched)
            if case is not None:
                self._review(publication, case)

    def _review(self, publication: Publication, case: Case) -> None:
        place = self._place(publication, case)
        if place is None:
            self._drop(publication, case, "somebody in it is gone or has moved")
        elif self._caught_up(publication, case):
            self._verdict(case, publication, place, faster=True)
        elif self._context.now - case.since_s >= CASE_S - 1e-9:
            self._drop(publication, case, "nothing was heard of the hop")
        else:
            self._deadlines.at(f"case {case.watched}", case.since_s + CASE_S)

    def _caught_up(self, publication: Publication, case: Case) -> bool:
        parent, child = (self._context.state.workers.get(w) for w in (case.parent, case.watched))
        if case.mode not in (Mode.UP, Mode.ASIDE) or parent is None or child is None:
            return False
        if not all(publication.object_id in w.holdings for w in (parent, child)):
            return False  # one of them has not told yet what it holds
        behind = held(publication, parent) - held(publication, child)
        return behind <= max(1, publication.chunks_total // 100)

    def _drop(self, publication: Publication, case: Case, why: str) -> None:
        del publication.cases[case.watched]
        self._context.persist(publication)
        self._context.log("case_dropped", why, mode=case.mode.value, accused=self._context.name(case.accused))

    # ---- deciding ----

    def _verdict(self, case: Case, publication: Publication, place: Place, *, faster: bool) -> None:
        del publication.cases[case.watched]
        self._context.persist(publication)
        workers, now = self._context.state.workers, self._context.now
        accused, watched = workers[case.accused], workers[case.watched]
        before = case.before_bytes_per_s
        match case.mode, faster:
            case (Mode.ASIDE, True) if case.contradicted:
                # One word against another, and no witness: the accused is where it cannot harm anybody.
                self._context.log("unproven", "", relay=accused.name, accuser=watched.name)
            case (Mode.UP | Mode.ASIDE, True) | (Mode.WITNESS, False):
                accused.links.up.settle(before, now)
                self._demotions.demote(accused, before)
                for at in publication.layout.places(accused.worker_id):
                    self._placement.move_to_end(publication, at, RebuildReason.SLOW_SENDER)
            case (Mode.UP | Mode.ASIDE, False):
                member = publication.members.get(accused.worker_id)
                if member is not None:
                    member.why = f"cleared: the downlink of {watched.name} was the limit"
                self.receiver(publication, watched, case.mean_bytes_per_s)
            case (Mode.SWAP, True):
                accused.links.down.settle(before, now)
                self._context.persist_worker(accused)
                self._told(accused, before)
            case (Mode.SWAP, False):
                origin = workers.get(publication.origin_id)
                if origin is not None:
                    origin.links.up.settle(case.mean_bytes_per_s, now)
                    self._context.persist_worker(origin)
                    rate = format_rate(case.mean_bytes_per_s)
                    self._context.log("slow_origin", "", version=publication.version, uplink=rate)
            case (Mode.WITNESS, True):
                accuser = place.chain.members[-1]
                self._cool[accuser] = now + COOL_WRONG_S
                self._context.log("accuser_wrong", "", relay=accused.name, accuser=self._context.name(accuser))

    def receiver(self, publication: Publication, child: Worker, bytes_per_s: float) -> None:
        """Its downlink is the limit, whoever sends."""
        child.links.down.settle(bytes_per_s, self._context.now)
        self._context.persist_worker(child)
        self._told(child, bytes_per_s)
        for at in publication.layout.places(child.worker_id):
            self._placement.move_to_end(publication, at, RebuildReason.SLOW_RECEIVER)

    def _told(self, worker: Worker, bytes_per_s: float) -> None:
        reason = RebuildReason.SLOW_RECEIVER.value
        self._context.log("slow_receiver", reason, relay=worker.name, downlink=format_rate(bytes_per_s))
