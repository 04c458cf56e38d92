"""Hops that stay under what they should carry, although the parent has more to give: whose fault is it?

Neither end can tell: TCP shows the same to both. So the repair is the test. One case in each chain at a time:

    slow for 3 busy seconds ─┬─ the parent says the same ─────▶ UP       the child moves up, the parent to the end
                             ├─ it says the contrary ─────────▶ WITNESS  the accuser goes to the end, the next one says
                             ├─ one of the origin's hops ─────▶          its receiver is the limit: it goes to the end
                             └─ the origin's only hop ────────▶ SWAP     the head goes to the end, the next head says

             watched hop is 1.3 times as fast             it is not
    UP       the parent's uplink: demoted                 the child's downlink: it goes to the end
    WITNESS  the accuser was wrong, or its downlink is it the parent's uplink: demoted
    SWAP     the old head's downlink                      the origin's uplink: B0 is that

A case ends without a verdict when anybody in it is gone, has moved, or nothing is heard for 10 s. It is not kept over
a restart of the coordinator: a verdict that is lost costs another test. When all hops of an origin are slow at once, it
is the origin: nobody is moved for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from chappe.core.chain import SOURCE, Chain, Place
from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.demotion import Demotions
from chappe.core.links import Estimate
from chappe.core.placement import Placement
from chappe.core.publication import Publication
from chappe.core.reasons import RebuildReason
from chappe.core.workers import Worker, chunks_held
from chappe.units import format_rate

SLOW_SHARE = 0.6  # of the expected rate: half of it, and the noise of measuring
SLOW_S = 3.0
USUAL_S = 3.0  # a hop that has run for less has no usual rate yet
FASTER = 1.3
HEARD_S = 1.0  # of busy time: enough to call a hop faster
NOT_FASTER_S = 3.0
LOOK_S = 4.0  # a child that has caught up by then has nothing to measure any more
CASE_S = 10.0
COOL_S = 30.0  # before the same child can open another case
COOL_WRONG_S = 300.0
FRESH_S = 6.0
WORTH_S = 5.0  # a hop that is done by then is left alone

Key = tuple[str, int, str]  # object, stripe, child


class Mode(StrEnum):
    UP = "up"
    WITNESS = "witness"
    SWAP = "swap"


@dataclass(frozen=True, slots=True)
class HopSample:
    """What one hop carried. `known` is the least of what is known of its two links, None where one is only assumed."""

    parent: Worker
    child: Worker
    bytes_per_s: float
    busy_s: float
    known_bytes_per_s: float | None
    contradicted: bool  # the sender says much more


@dataclass(slots=True)
class Hop:
    parent: str
    usual: Estimate = field(default_factory=Estimate)
    slow_s: float = 0.0
    slow_bytes: float = 0.0
    heard_s: float = 0.0
    slow: bool = False


@dataclass(slots=True)
class Case:
    mode: Mode
    key: Key  # of the watched hop
    parent: str  # whose child the watched one is now; "" for the origin
    accused: str
    before_bytes_per_s: float
    since_s: float
    slot: int
    busy_s: float = 0.0
    bytes: float = 0.0


class Slow:
    def __init__(self, context: Context, placement: Placement, demotions: Demotions, deadlines: Deadlines) -> None:
        self._context = context
        self._placement = placement
        self._demotions = demotions
        self._deadlines = deadlines
        self._hops: dict[Key, Hop] = {}
        self._cases: dict[str, Case] = {}  # by watched child
        self._cool: dict[str, float] = {}  # child: until when it opens no case

    # ---- seeing ----

    def judge(self, publication: Publication, place: Place, sample: HopSample) -> bool:
        """True when the sample must not count as evidence about links: it belongs to a case, or may open one."""
        key = (publication.object_id, place.chain.stripe, sample.child.worker_id)
        case = self._cases.get(sample.child.worker_id)
        if case is not None and case.key == key:
            self._testimony(case, publication, place, sample)
            return True
        hop = self._hops.get(key)
        if hop is None or hop.parent != sample.parent.worker_id:
            hop = self._hops[key] = Hop(sample.parent.worker_id)
            self._forget_old()
        hop.heard_s = self._context.now
        usual = hop.usual.bytes_per_s if hop.usual.weight_s >= USUAL_S else 0.0
        expected = max(usual, sample.known_bytes_per_s or 0.0)
        hop.slow = sample.bytes_per_s < SLOW_SHARE * expected
        if not hop.slow:
            hop.slow_s = hop.slow_bytes = 0.0
            hop.usual.exact(sample.bytes_per_s, sample.busy_s, self._context.now)
            return False
        hop.slow_s += sample.busy_s
        hop.slow_bytes += sample.bytes_per_s * sample.busy_s
        if hop.slow_s >= SLOW_S and self._may_open(publication, place, sample):
            before = hop.slow_bytes / hop.slow_s
            hop.slow_s = hop.slow_bytes = 0.0
            self._open(publication, place, sample, before)
        return True

    def _forget_old(self) -> None:
        if len(self._hops) > 4 * len(self._context.state.workers) + 64:
            active = {p.object_id for p in self._context.active()}
            self._hops = {key: hop for key, hop in self._hops.items() if key[0] in active}

    def _may_open(self, publication: Publication, place: Place, sample: HopSample) -> bool:
        now = self._context.now
        if self._cool.get(sample.child.worker_id, 0.0) > now:
            return False
        if any(
            c.key[:2] == (publication.object_id, place.chain.stripe) and c.slot == place.chain.slot
            for c in self._cases.values()
        ):
            return False
        chunk = publication.payload_bytes / max(1, publication.chunks_total)
        lacks = publication.chunks_total - self._held(publication, sample.child)
        if lacks * chunk < WORTH_S * sample.bytes_per_s:
            return False
        ahead = (
            lacks
            if place.position == 0
            else lacks - (publication.chunks_total - self._held(publication, sample.parent))
        )
        return ahead * chunk >= sample.bytes_per_s  # a second of it: it is not the parent that starves

    @staticmethod
    def _held(publication: Publication, worker: Worker) -> int:
        return chunks_held(worker.holdings.get(publication.object_id), publication.chunks_total)

    # ---- opening ----

    def _open(self, publication: Publication, place: Place, sample: HopSample, before: float) -> None:
        chain, child = place.chain, sample.child
        self._cool[child.worker_id] = self._context.now + COOL_S
        if place.position == 0:
            self._open_at_origin(publication, place, child, before)
            return
        behind = publication.layout.child(place)
        if sample.contradicted and behind is not None:
            self._begin(Mode.WITNESS, publication, chain, behind, sample.parent.worker_id, sample.parent, before)
            self._placement.move_to_end(publication, place, RebuildReason.SLOW_RECEIVER)
        else:
            above = chain.members[place.position - 2] if place.position >= 2 else SOURCE
            self._begin(Mode.UP, publication, chain, child.worker_id, above, sample.parent, before)
            accused = Place(chain, place.position - 1)
            self._placement.move_to_end(publication, accused, RebuildReason.SLOW_SENDER)

    def _open_at_origin(self, publication: Publication, place: Place, head: Worker, before: float) -> None:
        chain = place.chain
        others = [
            c for c in publication.layout.of_stripe(chain.stripe) if c.members and not c.rooted and c is not chain
        ]
        if not others:
            if len(chain.members) > 1:
                self._begin(Mode.SWAP, publication, chain, chain.members[1], SOURCE, head, before)
                self._placement.move_to_end(publication, place, RebuildReason.SLOW_RECEIVER)
            return
        hops = [self._hops.get((publication.object_id, chain.stripe, c.members[0])) for c in others]
        heard = [hop for hop in hops if hop is not None and self._context.now - hop.heard_s <= FRESH_S]
        if any(not hop.slow for hop in heard):
            self._receiver(publication, head, before)

    def _begin(
        self,
        mode: Mode,
        publication: Publication,
        chain: Chain,
        watched: str,
        parent: str,
        accused: Worker,
        before: float,
    ) -> None:
        key = (publication.object_id, chain.stripe, watched)
        self._cases[watched] = Case(mode, key, parent, accused.worker_id, before, self._context.now, chain.slot)
        self._deadlines.at(f"case {watched}", self._context.now + LOOK_S)
        self._context.log(
            "slow_hop",
            mode.value,
            version=publication.version,
            accused=accused.name,
            watched=self._context.name(watched),
            rate=format_rate(before),
        )

    # ---- hearing ----

    def _place(self, case: Case) -> tuple[Publication, Place] | None:
        """Where the watched hop is; None when the case has come apart."""
        publication = self._context.state.publications.get(case.key[0])
        if publication is None or not publication.active:
            return None
        place = publication.layout.place(case.key[1], case.key[2])
        workers = self._context.state.workers
        watched, accused = workers.get(case.key[2]), workers.get(case.accused)
        if place is None or watched is None or accused is None or not (watched.connected and accused.connected):
            return None
        above = publication.layout.ancestors(place, 1)
        return (publication, place) if above and above[0] == case.parent else None

    def _testimony(self, case: Case, publication: Publication, place: Place, sample: HopSample) -> None:
        if self._place(case) is None:
            self._drop(case, "somebody in it is gone or has moved")
            return
        case.busy_s += sample.busy_s
        case.bytes += sample.bytes_per_s * sample.busy_s
        mean = case.bytes / case.busy_s
        if case.busy_s >= HEARD_S and mean >= FASTER * case.before_bytes_per_s:
            self._verdict(case, publication, place, mean, faster=True)
        elif case.busy_s >= NOT_FASTER_S:
            self._verdict(case, publication, place, mean, faster=False)

    def review(self, watched: str) -> None:
        """The time of a case has come: has the child caught up, or was nothing heard?"""
        case = self._cases.get(watched)
        if case is None:
            return
        found = self._place(case)
        if found is None:
            self._drop(case, "somebody in it is gone or has moved")
            return
        publication, place = found
        parent = self._context.state.workers.get(case.parent)
        child = self._context.state.workers[watched]
        if case.mode is Mode.UP and parent is not None:
            behind = self._held(publication, parent) - self._held(publication, child)
            if behind <= max(1, publication.chunks_total // 100):
                self._verdict(case, publication, place, FASTER * case.before_bytes_per_s, faster=True)
                return
        if self._context.now - case.since_s >= CASE_S - 1e-9:
            self._drop(case, "nothing was heard of the hop")
        else:
            self._deadlines.at(f"case {watched}", case.since_s + CASE_S)

    def _drop(self, case: Case, why: str) -> None:
        del self._cases[case.key[2]]
        self._context.log("case_dropped", why, mode=case.mode.value, accused=self._context.name(case.accused))

    # ---- deciding ----

    def _verdict(self, case: Case, publication: Publication, place: Place, mean: float, *, faster: bool) -> None:
        del self._cases[case.key[2]]
        workers, now = self._context.state.workers, self._context.now
        accused, watched = workers[case.accused], workers[case.key[2]]
        before = case.before_bytes_per_s
        match case.mode, faster:
            case (Mode.UP, True) | (Mode.WITNESS, False):
                accused.links.up.settle(before, now)
                self._demotions.demote(accused, before)
                for at in publication.layout.places(accused.worker_id):
                    self._placement.move_to_end(publication, at, RebuildReason.SLOW_SENDER)
            case (Mode.UP, False):
                publication.members[accused.worker_id].why = f"cleared: the downlink of {watched.name} was the limit"
                self._receiver(publication, watched, mean)
            case (Mode.SWAP, True):
                accused.links.down.settle(before, now)
                self._context.persist_worker(accused)
                self._told(accused, before)
            case (Mode.SWAP, False):
                origin = workers.get(publication.origin_id)
                if origin is not None:
                    origin.links.up.settle(mean, now)
                    self._context.persist_worker(origin)
                    self._context.log("slow_origin", "", version=publication.version, uplink=format_rate(mean))
            case (Mode.WITNESS, True):
                accuser = place.chain.members[-1]
                self._cool[accuser] = now + COOL_WRONG_S
                self._context.log("accuser_wrong", "", relay=accused.name, accuser=self._context.name(accuser))

    def _receiver(self, publication: Publication, child: Worker, bytes_per_s: float) -> None:
        """Its downlink is the limit, whoever sends."""
        child.links.down.settle(bytes_per_s, self._context.now)
        self._context.persist_worker(child)
        self._told(child, bytes_per_s)
        for at in publication.layout.places(child.worker_id):
            self._placement.move_to_end(publication, at, RebuildReason.SLOW_RECEIVER)

    def _told(self, worker: Worker, bytes_per_s: float) -> None:
        reason = RebuildReason.SLOW_RECEIVER.value
        self._context.log("slow_receiver", reason, relay=worker.name, downlink=format_rate(bytes_per_s))
