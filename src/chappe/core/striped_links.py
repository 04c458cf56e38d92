"""What the hops of stripes say about links: sums, for they share links, and one slow hop is no evidence.

    carried    bytes of all hops of a node in one direction over the time since its last report, of each hop what both
               ends agree on: at least that much the link carries, and a figure that is less is raised
    sender     all its hops are slow, to two receivers or more, for SLOW_S busy seconds: what they carry together is its
               uplink. Who it feeds loses time by it: `rebalance` moves them
    receiver   all its hops are slow, and two of its parents or more send well to somebody else meanwhile: what arrives
               is its downlink. It is a tail from then on, for it would throttle whoever is behind it

Slow is below SLOW_SHARE of what the plan gives the hop, with something to send: a hop that keeps up says
nothing. A node can lower only itself; what it says to raise itself counts as far as its peers say the same. The
next plan starts from the new figures.

  l1  a sender that says less than it sends       its uplink is believed to be less: it is given less to send
  l2  a sender or receiver that says more         the other end does not: nothing is raised
  l3  a single receiver, or a single parent       could as well be the limit itself: no evidence
  l4  a hop that is well, or is not heard         no evidence, begins anew; unless it is a small part of all
  l5  a parent with no other child                cannot be cleared: a receiver of such parents alone is not judged
  l6  two versions on their way                   share the links: no evidence
  l7  reports are late                            a claim older than CLAIM_S is none
  l8  the coordinator restarts                    the seconds are gone, the figures are stored
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from chappe.core.chain import SOURCE
from chappe.core.context import Context
from chappe.core.events import LinkSample, Role
from chappe.core.placement import Placement
from chappe.core.publication import Publication
from chappe.core.rates import downlink, uplink
from chappe.core.reasons import RebuildReason
from chappe.core.striped import describe, hop_bytes_per_s
from chappe.core.workers import Worker
from chappe.units import format_rate

SLOW_SHARE = 0.7
SLOW_S = 4.0
PEERS_MIN = 2
SMALL_SHARE = 0.15
"""Of what all hops of a node should carry: whole chunks of a small stripe are too few to say how fast it is."""
CLAIM_S = 5.0
WALL_MIN_S, WALL_MAX_S = 1.0, 5.0
"""Between two reports: shorter ones come in bursts, before a longer one the node was silent."""
RAISED = 1.05


@dataclass(slots=True)
class _Seen:
    bytes: float = 0.0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Claim:
    """Of one end of a hop. `bytes_per_s` is over the time since the report before; None: nobody knows how long."""

    bytes_per_s: float | None
    well: bool  # not slow, with something to send
    time_s: float


class StripedLinks:
    def __init__(self, context: Context, placement: Placement) -> None:
        self._context = context
        self._placement = placement
        self._seen: dict[tuple[str, str, bool], _Seen] = {}  # object, worker, sending
        self._claims: dict[tuple[str, str, bool], _Claim] = {}  # worker, peer, sending
        self._told_s: dict[str, float] = {}  # worker: its last report
        self._parts: dict[str, list[LinkSample]] = {}  # worker: what it has said since

    def measured(self, worker: Worker, samples: Iterable[LinkSample]) -> None:
        """What a node says of its hops since its last report. Short reports are taken together."""
        now, key = self._context.now, worker.worker_id
        flowing = [p for p in self._context.active() if self._takes_part(p, worker)]
        if len(flowing) != 1 or flowing[0].stripes.plain:
            self._parts.pop(key, None)
            return  # none, or two at once, which share the link
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
            streams, wanted = self._hops(publication, worker, sending=sending)
            self._note(worker, mine, streams, wanted, wall_s)
            if worker.role is Role.RELAY:  # an origin's are summed by `measuring`
                self._raise(worker, mine, sending=sending)
                self._judge(publication, worker, mine, streams, wanted, sending=sending)
        if len(self._claims) > 64 * (1 + len(self._context.state.workers)):
            now = self._context.now
            self._claims = {key: claim for key, claim in self._claims.items() if now - claim.time_s <= CLAIM_S}

    @staticmethod
    def _takes_part(publication: Publication, worker: Worker) -> bool:
        here = worker.worker_id in publication.layout or worker.worker_id == publication.origin_id
        return here and any(publication.members[w].level == 0 for w in publication.layout.workers())

    @staticmethod
    def _hops(publication: Publication, worker: Worker, *, sending: bool) -> tuple[Counter[str], Counter[str]]:
        """By peer: streams to children that still lack something, or from parents, and what they should carry."""
        layout = publication.layout
        found: list[tuple[str, int]] = []
        if sending and worker.role is Role.ORIGIN:
            found = [(c.members[0], c.stripe) for c in layout.chains if c.members and not c.rooted]
        for place in layout.places(worker.worker_id):
            if sending:
                child = layout.child(place)
                found += [] if child is None else [(child, place.chain.stripe)]
            else:
                above = layout.ancestors(place, 1)
                found += [(publication.origin_id if p == SOURCE else p, place.chain.stripe) for p in above]
        if sending:
            found = [(peer, stripe) for peer, stripe in found if publication.members[peer].level == 0]
        streams: Counter[str] = Counter()
        wanted: Counter[str] = Counter()
        for peer, stripe in found:
            streams[peer] += 1
            wanted[peer] += round(hop_bytes_per_s(publication, stripe))
        return streams, wanted

    # ---- what is said ----

    def _note(
        self, worker: Worker, samples: list[LinkSample], streams: Counter[str], wanted: Counter[str], wall_s: float
    ) -> None:
        for s in samples:
            well = s.bytes_per_s > 0 and s.bytes_per_s * streams[s.peer] >= SLOW_SHARE * wanted[s.peer]
            over = s.bytes / wall_s if wall_s else None
            self._claims[worker.worker_id, s.peer, s.sending] = _Claim(over, well, self._context.now)

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

    def _judge(
        self,
        publication: Publication,
        worker: Worker,
        samples: list[LinkSample],
        streams: Counter[str],
        wanted: Counter[str],
        *,
        sending: bool,
    ) -> None:
        key = (publication.object_id, worker.worker_id, sending)
        heard = {s.peer: s for s in samples if s.peer in streams and s.bytes_per_s > 0}
        slow = {p: s for p, s in heard.items() if s.bytes_per_s * streams[p] < SLOW_SHARE * wanted[p]}
        others = sum(share for peer, share in wanted.items() if peer not in slow)
        busy_s = min((s.busy_s / streams[peer] for peer, s in slow.items()), default=0.0)
        told = len(slow) >= PEERS_MIN and others <= SMALL_SHARE * wanted.total()
        if not (told and busy_s > 0) or not (sending or self._cleared(slow, worker)):
            self._seen.pop(key, None)
            return
        seen = self._seen.setdefault(key, _Seen())
        seen.bytes += busy_s * sum(s.bytes_per_s * streams[peer] for peer, s in heard.items())
        seen.busy_s += busy_s
        if seen.busy_s >= SLOW_S:
            del self._seen[key]
            self._settle(publication, worker, seen.bytes / seen.busy_s, sending=sending)

    def _cleared(self, parents: Iterable[str], child: Worker) -> bool:
        """So many of them send well to somebody else that they are not the limit."""
        cleared = 0
        for parent in parents:
            others = (peer for sender, peer, sending in self._claims if sender == parent and sending)
            claims = [self._fresh(parent, peer, sending=True) for peer in others if peer != child.worker_id]
            cleared += any(claim is not None and claim.well for claim in claims)
        return cleared >= PEERS_MIN

    def _settle(self, publication: Publication, worker: Worker, bytes_per_s: float, *, sending: bool) -> None:
        (worker.links.up if sending else worker.links.down).settle(bytes_per_s, self._context.now)
        self._context.persist_worker(worker)
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
