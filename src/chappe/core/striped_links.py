"""What the hops of stripes say about links: sums, for they share links, and one slow hop is no evidence.

    carried    bytes of all hops of a node in one direction over the time since its last report, of each hop what both
               ends agree on: at least that much the link carries, and a figure that is less is raised
    sender     all its hops are slow, to two receivers or more, that get on well with their other parents: what it
               carries together is its uplink. Who it feeds loses time by it: `rebalance` moves them
    receiver   all its hops are slow, from two parents or more, and most of what it should get is from such as send well
               to everybody else: what arrives is its downlink. It is a tail from then on, for it would throttle whoever
               is behind it

What slow is, and for how long, is `carried`'s: below what the plan gives the hops, with something to send; a hop that
keeps up says nothing. Slow ones lower only the node that says so itself; what it says to raise itself counts as far as
its peers say the same. The next plan starts from the new figures. A verdict that is wrong costs that plan, one that
comes late hardly anything, since nobody is moved by an uplink's: so who might as well be the limit is no evidence.

  l1  a sender that says less than it sends       its uplink is believed to be less: it is given less to send
  l2  a sender or receiver that says more         the other end does not: nothing is raised
  l3  a single receiver, or a single parent       could as well be the limit itself: no evidence
  l4  a hop that is well, or is not heard         no evidence, unless it is a small part of all
  l5  a peer without another one, or with others  cannot be cleared: it does not count, as when all of its hops are
      of which it says nothing                    slow. What comes through whoever is judged is left out
  l6  two versions on their way                   share the links: no evidence
  l7  reports are late                            begins anew; a claim older than CLAIM_S is none
  l8  the coordinator restarts                    the seconds are gone, the figures are stored
  l9  a node pauses, or its source comes and goes one slow report, or a quick pace: no evidence
  l10 everything is slow at once                  nobody can be cleared: no evidence
  l11 an uplink is full, and delays the ACKs of   so it receives slowly: after a verdict on its uplink there is none
      all that its owner receives                 on its downlink
  l12 receivers say that they lack what they have their parent would have to carry little, by its own word: its
                                                  figure is what it carries then
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chappe.core.carried import PEERS_MIN, Carried
from chappe.core.chain import SOURCE, Place
from chappe.core.context import Context
from chappe.core.events import LinkSample, Role
from chappe.core.paces import Paces
from chappe.core.placement import Placement
from chappe.core.publication import Publication
from chappe.core.rates import downlink, uplink
from chappe.core.reasons import RebuildReason
from chappe.core.striped import describe, hop_bytes_per_s
from chappe.core.workers import Worker
from chappe.units import format_rate

CLAIM_S = 5.0
WALL_MIN_S, WALL_MAX_S = 1.0, 5.0
"""Between two reports: shorter ones come in bursts, before a longer one the node was silent."""
RAISED = 1.05
SAME_SHARE = 0.15
"""Of what is known: a verdict that says it again is not news."""
CLEARED_SHARE = 0.5
APART_SHARE = 0.8
"""Of what a peer should carry: the rest comes through whoever is judged."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """Of one end of a hop. `bytes_per_s` is over the time since the report before; None: nobody knows how long."""

    bytes_per_s: float | None
    time_s: float


class StripedLinks:
    def __init__(self, context: Context, placement: Placement, paces: Paces) -> None:
        self._context = context
        self._placement = placement
        self._paces = paces
        self._carried: dict[tuple[str, str, bool], Carried] = {}  # object, worker, sending
        self._claims: dict[tuple[str, str, bool], _Claim] = {}  # worker, peer, sending
        self._short_up: set[tuple[str, str]] = set()  # object, worker
        self._told_s: dict[str, float] = {}  # worker: its last report
        self._parts: dict[str, list[LinkSample]] = {}  # worker: what it has said since

    def measured(self, worker: Worker, samples: Iterable[LinkSample]) -> None:
        """What a node says of its hops since its last report. Short reports are taken together."""
        now, key = self._context.now, worker.worker_id
        flowing = [p for p in self._context.active() if any(p.members[w].level == 0 for w in p.layout.workers())]
        if len(flowing) != 1 or flowing[0].stripes.plain or not self._takes_part(flowing[0], worker):
            self._parts.pop(key, None)
            self._told_s.pop(key, None)
            return  # none, or two at once, which share the links: perhaps not this one's, but those of its peers
        parts = self._parts.setdefault(key, [])
        parts += samples
        wall_s = now - self._told_s.get(key, -math.inf)
        if wall_s < WALL_MIN_S:
            return
        self._told_s[key], self._parts[key] = now, []
        self._take(flowing[0], worker, _together(parts), wall_s if wall_s <= WALL_MAX_S else 0.0)

    def _take(self, publication: Publication, worker: Worker, samples: list[LinkSample], wall_s: float) -> None:
        for sending in (True, False):
            mine = [s for s in samples if s.sending is sending]
            streams, wanted = self._expected(publication, worker, sending=sending)
            self._note(worker, mine, wall_s)
            carried = self._carried.setdefault((publication.object_id, worker.worker_id, sending), Carried())
            judged = sending and worker.role is Role.RELAY
            behind = self._behind(publication, worker, sending=True) if judged else None
            carried.take(wall_s, mine, streams, wanted, behind, _chunk_bytes(publication))
            if worker.role is Role.RELAY:  # an origin's are summed by `measuring`
                self._raise(worker, mine, sending=sending)
                self._judge(publication, worker, carried, sending=sending)
        if len(self._claims) + len(self._carried) > 64 * (1 + len(self._context.state.workers)):
            now, active = self._context.now, {p.object_id for p in self._context.active()}
            self._claims = {key: claim for key, claim in self._claims.items() if now - claim.time_s <= CLAIM_S}
            self._carried = {key: side for key, side in self._carried.items() if key[0] in active}
            self._short_up = {key for key in self._short_up if key[0] in active}

    @staticmethod
    def _takes_part(publication: Publication, worker: Worker) -> bool:
        return worker.worker_id in publication.layout or worker.worker_id == publication.origin_id

    @staticmethod
    def _hops(publication: Publication, worker: Worker, *, sending: bool) -> list[tuple[str, Place | None, int]]:
        """Peer, own place and stripe: to children that still lack something, or from parents."""
        layout = publication.layout
        found: list[tuple[str, Place | None, int]] = []
        if sending and worker.role is Role.ORIGIN:
            found = [(c.members[0], None, c.stripe) for c in layout.chains if c.members and not c.rooted]
        for place in layout.places(worker.worker_id):
            if sending:
                child = layout.child(place)
                found += [] if child is None else [(child, place, place.chain.stripe)]
            else:
                above = layout.ancestors(place, 1)
                found += [(publication.origin_id if p == SOURCE else p, place, place.chain.stripe) for p in above]
        return [hop for hop in found if not sending or publication.members[hop[0]].level == 0]

    def _expected(
        self, publication: Publication, worker: Worker, *, sending: bool, apart_from: str = ""
    ) -> tuple[Counter[str], Counter[str]]:
        """By peer: streams, and what they should carry; without what comes to `worker` through somebody."""
        streams: Counter[str] = Counter()
        wanted: Counter[str] = Counter()
        for peer, place, stripe in self._hops(publication, worker, sending=sending):
            if place is not None and apart_from in place.chain.members[: place.position]:
                continue
            streams[peer] += 1
            wanted[peer] += round(hop_bytes_per_s(publication, stripe))
        return streams, wanted

    def _behind(self, publication: Publication, worker: Worker, *, sending: bool) -> Counter[str]:
        """By peer, what the child of the hop lacks and its parent has, in the stripes between them: bytes."""
        chunk_bytes = _chunk_bytes(publication)
        behind: Counter[str] = Counter()
        mine = self._held(publication, worker.worker_id)
        for peer, _, stripe in self._hops(publication, worker, sending=sending):
            theirs = self._held(publication, peer)
            if mine is not None and theirs is not None:
                above, below = (mine, theirs) if sending else (theirs, mine)
                behind[peer] += round(chunk_bytes * max(0, above[stripe] - below[stripe]))
        return behind

    def _held(self, publication: Publication, worker_id: str) -> list[int] | None:
        """By stripe."""
        if worker_id == publication.origin_id:
            total = publication.chunks_total
            return publication.stripes.counts([(0, total)], total)
        return self._paces.held(publication, worker_id)

    # ---- what is said ----

    def _note(self, worker: Worker, samples: list[LinkSample], wall_s: float) -> None:
        for s in samples:
            over = s.bytes / wall_s if wall_s else None
            self._claims[worker.worker_id, s.peer, s.sending] = _Claim(over, self._context.now)

    def _fresh(self, worker_id: str, peer: str, *, sending: bool) -> _Claim | None:
        claim = self._claims.get((worker_id, peer, sending))
        return claim if claim is not None and self._context.now - claim.time_s <= CLAIM_S else None

    def _raise(self, worker: Worker, samples: list[LinkSample], *, sending: bool) -> None:
        """At least what all of its hops carried, as both ends say."""
        carried = 0.0
        for peer in {s.peer for s in samples}:
            ours = self._fresh(worker.worker_id, peer, sending=sending)
            theirs = self._fresh(peer, worker.worker_id, sending=not sending)
            if ours is not None and theirs is not None:
                carried += min(ours.bytes_per_s or 0.0, theirs.bytes_per_s or 0.0)
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        known = (uplink if sending else downlink)(worker, assumed, now).bytes_per_s
        if carried > RAISED * known:
            (worker.links.up if sending else worker.links.down).exact(carried, WALL_MIN_S, now)
            self._context.persist_worker(worker)

    # ---- what is less than was believed ----

    def _judge(self, publication: Publication, worker: Worker, carried: Carried, *, sending: bool) -> None:
        short = carried.short()
        if short is None or (not sending and (publication.object_id, worker.worker_id) in self._short_up):
            return
        cleared = [p for p in short.peers if self._clear(publication, p, worker, sending=not sending)]
        most = sum(carried.wanted[p] for p in cleared) >= CLEARED_SHARE * carried.wanted.total()
        if not (most if not sending else len(cleared) >= PEERS_MIN):
            return
        carried.clear()
        if sending:
            self._short_up.add((publication.object_id, worker.worker_id))
        self._settle(publication, worker, short.bytes_per_s, sending=sending)

    def _clear(self, publication: Publication, peer: str, but: Worker, *, sending: bool) -> bool:
        """It gets on well with everybody else, as far as that does not hang on `but`: it is not the limit."""
        side = self._carried.get((publication.object_id, peer, sending))
        worker = self._context.state.workers.get(peer)
        if side is None or worker is None:
            return False
        _, apart = self._expected(publication, worker, sending=sending, apart_from=but.worker_id)
        others = [p for p in apart if p != but.worker_id and apart[p] >= APART_SHARE * side.wanted[p]]
        return side.fine(others, self._behind(publication, worker, sending=sending), _chunk_bytes(publication))

    def _settle(self, publication: Publication, worker: Worker, bytes_per_s: float, *, sending: bool) -> None:
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        known = (uplink if sending else downlink)(worker, assumed, now).bytes_per_s
        (worker.links.up if sending else worker.links.down).settle(bytes_per_s, now)
        self._context.persist_worker(worker)
        if abs(bytes_per_s - known) <= SAME_SHARE * known:
            return  # said before
        reason = RebuildReason.SLOW_SENDER if sending else RebuildReason.SLOW_RECEIVER
        rate, what = format_rate(bytes_per_s), "uplink" if sending else "downlink"
        version = publication.version
        self._context.log(f"{what}_short", reason.value, version=version, relay=worker.name, rate=rate)
        if not sending:
            for place in publication.layout.places(worker.worker_id):
                self._placement.move_to_end(publication, place, reason)
        places = describe(publication.layout, worker.worker_id)
        publication.members[worker.worker_id].why = f"{places}: its {what} carries {rate}"
        self._context.update(publication)


def _chunk_bytes(publication: Publication) -> float:
    return publication.payload_bytes / max(1, publication.chunks_total)


def _together(samples: Iterable[LinkSample]) -> list[LinkSample]:
    """One of each hop: of several that follow each other, the mean over the busy time, and all bytes."""
    found: dict[tuple[str, bool], LinkSample] = {}
    for s in samples:
        had = found.get((s.peer, s.sending))
        if had is not None:
            busy_s = had.busy_s + s.busy_s
            linked = had.bytes_per_s * had.busy_s + s.bytes_per_s * s.busy_s
            rate = linked / busy_s if busy_s > 0 else 0.0
            s = replace(s, bytes_per_s=rate, busy_s=busy_s, bytes=had.bytes + s.bytes)
        found[s.peer, s.sending] = s
    return list(found.values())
