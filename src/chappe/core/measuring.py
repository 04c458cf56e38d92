"""What the reports of hops say about links: who was the limit.

    LinksMeasured ─▶ is there such a hop? ─▶ what arrived ─▶ too slow? `slow` finds out who is to blame, by a repair
                                                    └─ else ─▶ the limit is ...

A hop carries what the lesser of two links can: the sender's uplink (its share of it) and the receiver's downlink. The
limit is exact evidence, the other link is at least as fast. Who it was:

    the rate reaches what is known of a link       that link (both, when it reaches both)
    it is below both, and one is only assumed      the one that is assumed; the sender's, when both are
    it is below both, and both are known           the sender's: uplinks are the weaker ones (far below: `slow` decides)

The rate is what the receiver says, at most what the sender says of the same time: nobody's word about itself raises
anything. A hop whose end shares its link with another one (two versions at once) says nothing. B0 is the sum over the
origin's concurrent hops; which sums are evidence is `origin_uplink`'s. Of much less than was sent the two ends speak of
different seconds (a chain's head has come or gone, and each end reports when it does), or one does not tell the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from chappe.core.chain import SOURCE, Place
from chappe.core.context import Context
from chappe.core.demotion import Demotions
from chappe.core.events import LinkSample, LinksMeasured, Role, Topology
from chappe.core.origin_uplink import EXPLAINED, SHORT_S, SPELL_S, Carried, UplinkEvidence
from chappe.core.publication import Publication
from chappe.core.rates import Figure, downlink, uplink
from chappe.core.slow import SLOW_SHARE, HopSample, Slow
from chappe.core.striped_links import StripedLinks
from chappe.core.workers import Worker

CLAIM_S = 5.0
"""Two reports of one hop within this time speak of the same seconds: they are sent every 2 s, or more often."""
REPORT_S = (
    2.0  # the longest time between two reports (`chappe.hop.reports`): an end may not have told the last news yet
)
CONTRADICTED = 1.5
SAVE_SHARE = 0.05  # a change of more than this is written down at once, any other after a minute
SAVE_S = 60.0


@dataclass(frozen=True, slots=True)
class Claim:
    sample: LinkSample
    time_s: float


class Measuring:
    def __init__(self, context: Context, demotions: Demotions, slow: Slow, striped: StripedLinks) -> None:
        self._context = context
        self._demotions = demotions
        self._slow = slow
        self._striped = striped
        self._sent: dict[tuple[str, str], Claim] = {}  # sender, receiver: what the sender said last
        self._got: dict[tuple[str, str], Claim] = {}  # and the receiver
        self._shared: dict[tuple[str, bool], float] = {}  # worker, sending: when it had several streams last
        self._uplinks: dict[str, UplinkEvidence] = {}  # by origin
        self._saved: dict[str, tuple[float, float, float]] = {}  # worker: up, down, when

    def links_measured(self, event: LinksMeasured) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is None:
            return
        for sample in event.samples:
            if sample.streams > 1:
                self._shared[worker.worker_id, sample.sending] = self._context.now
            if sample.sending and _measured(sample):
                self._sent[worker.worker_id, sample.peer] = Claim(sample, self._context.now)
            elif not sample.sending:
                self._received(worker, sample)
        self._striped.measured(worker, event.samples)
        if worker.role is Role.ORIGIN:
            # of one that has become slow there are two
            newest = {s.peer: s for s in event.samples if s.sending and _measured(s)}
            self._origin_sent(worker, list(newest.values()))
        if len(self._sent) + len(self._got) > 8 * len(self._context.state.workers) + 64:
            self._sent = {key: claim for key, claim in self._sent.items() if self._fresh(claim)}
            self._got = {key: claim for key, claim in self._got.items() if self._fresh(claim)}
            self._uplinks = {w: one for w, one in self._uplinks.items() if w in self._context.state.workers}
            self._shared = {w: s for w, s in self._shared.items() if self._context.now - s <= SAVE_S}

    def _fresh(self, claim: Claim | None) -> bool:
        return claim is not None and self._context.now - claim.time_s <= CLAIM_S

    def _hop(self, parent: str, child: str) -> tuple[Publication, Place] | None:
        """The newest publication in which this hop is assigned. While its stream is still that of another one, with
        other chains beside it, what it carries says nothing of this one."""
        worker = self._context.state.workers.get(child)
        for publication in reversed(self._context.active()):
            for place in publication.layout.places(child):
                above = publication.layout.ancestors(place, 1)
                if not above or parent != (publication.origin_id if above[0] == SOURCE else above[0]):
                    continue
                if worker is None or not _fed_for_another(worker, parent, publication.object_id):
                    return publication, place
        return None

    def _received(self, child: Worker, sample: LinkSample) -> None:
        parent = self._context.state.workers.get(sample.peer)
        hop = self._hop(sample.peer, child.worker_id)
        if parent is None or hop is None:
            return
        child.over_tcp[parent.worker_id] = sample.tcp
        if not _measured(sample):
            return
        self._got[parent.worker_id, child.worker_id] = Claim(sample, self._context.now)
        claim = self._sent.get((parent.worker_id, child.worker_id))
        said = claim.sample if claim is not None and self._fresh(claim) else None
        if not hop[0].stripes.plain:
            return  # its rate is its stripe's, of links that several share
        told = self._shared_by(child, sample, sample.busy_s, sending=False)
        told = told or (parent.role is Role.RELAY and self._shared_by(parent, said, sample.busy_s, sending=True))
        if told or self._busy_twice(parent, sending=True) or self._busy_twice(child, sending=False):
            return
        rate = sample.bytes_per_s if said is None else min(sample.bytes_per_s, said.bytes_per_s)
        streams = 1 if parent.role is Role.RELAY else self._streams(hop[0], said)
        up, down = self._up(parent, streams), self._down(child)
        contradicted = said is not None and said.bytes_per_s > CONTRADICTED * sample.bytes_per_s
        known = min(up.known, down.known) if up.known and down.known else None
        judged = hop[0].topology is not Topology.STAR  # the hops of a star share one uplink, and nobody can be moved
        if judged and self._slow.judge(*hop, HopSample(parent, child, rate, sample.busy_s, known, contradicted)):
            return
        self._attribute(parent, child, rate, sample.busy_s, up, down)
        if parent.role is Role.RELAY:
            self._demotions.sent(parent, sample.bytes_per_s, sample.busy_s)

    def _shared_by(self, worker: Worker, said: LinkSample | None, busy_s: float, *, sending: bool) -> bool:
        """It says that it has several streams, or had them in the time that the samples of both ends tell of."""
        shared_s = self._shared.get((worker.worker_id, sending))
        within = shared_s is not None and self._context.now - shared_s <= busy_s + REPORT_S
        return within or (said is not None and said.streams > 1)

    def _busy_twice(self, worker: Worker, *, sending: bool) -> bool:
        """It has two versions to carry at once: how they share its link says nothing about the link."""
        return sum(self._carries(p, worker, sending=sending) for p in self._context.active()) > 1

    @staticmethod
    def _carries(publication: Publication, worker: Worker, *, sending: bool) -> bool:
        layout, places = publication.layout, publication.layout.places(worker.worker_id)
        receivers: list[str | None] = [worker.worker_id for _ in places]
        if sending:
            receivers = [layout.child(place) for place in places]
        if publication.origin_id == worker.worker_id:
            receivers = [chain.members[0] for chain in layout.chains if chain.members and not chain.rooted]
        return any(receiver is not None and publication.members[receiver].level == 0 for receiver in receivers)

    @staticmethod
    def _streams(publication: Publication, said: LinkSample | None) -> int:
        return max(1, said.streams if said is not None else len(publication.layout.chains))

    def _up(self, worker: Worker, streams: int) -> Figure:
        figure = uplink(worker, self._context.config.assumed_bytes_per_s, self._context.now)
        return Figure(figure.bytes_per_s / streams, figure.source, figure.age_s)

    def _down(self, worker: Worker) -> Figure:
        return downlink(worker, self._context.config.assumed_bytes_per_s, self._context.now)

    def _attribute(self, parent: Worker, child: Worker, rate: float, busy_s: float, up: Figure, down: Figure) -> None:
        now = self._context.now
        by_sender = up.known is not None and rate >= EXPLAINED * up.known
        by_receiver = down.known is not None and rate >= EXPLAINED * down.known
        blamed_sender = not by_receiver and (up.known is None or down.known is not None)
        blamed_receiver = not by_sender and not by_receiver and up.known is not None and down.known is None
        if parent.role is Role.RELAY and (rate >= up.bytes_per_s or by_sender or blamed_sender):
            parent.links.up.exact(rate, busy_s, now, parent.uplink_bytes_per_s)
            self._save(parent)
        if rate >= down.bytes_per_s or by_receiver or blamed_receiver:
            child.links.down.exact(rate, busy_s, now, child.downlink_bytes_per_s)
            self._save(child)

    def probed(self, sender: Worker, receiver: Worker, rate: float, busy_s: float) -> None:
        """A probe carried this, with nothing else on either link."""
        self._attribute(sender, receiver, rate, busy_s, self._up(sender, 1), self._down(receiver))

    def _origin_sent(self, origin: Worker, samples: list[LinkSample]) -> None:
        figure, now = self._up(origin, 1), self._context.now
        hops = [s for s in samples if s.peer in self._context.state.workers]
        found = [(s, hop[0]) for s in hops if (hop := self._hop(origin.worker_id, s.peer)) is not None]
        if not found:
            return
        carried = self._carried(origin, [sample for sample, _ in found], figure)
        striped = any(not p.stripes.plain for p in self._context.active() if p.origin_id == origin.worker_id)
        said = origin.uplink_bytes_per_s is not None or origin.links.up.weight_s >= SPELL_S
        if said and not striped and carried.busy_s < SHORT_S:
            return
        evidence: Carried | None = None
        if not striped and self._all_heads(origin, found, figure):
            evidence = self._uplinks.setdefault(origin.worker_id, UplinkEvidence()).take(carried, figure, now)
        elif carried.bytes_per_s >= figure.bytes_per_s:
            evidence = carried  # some of its hops alone have carried more
        if evidence is not None:
            origin.links.up.exact(evidence.bytes_per_s, evidence.busy_s, now, origin.uplink_bytes_per_s)
            self._save(origin)

    def _got_by(self, origin: Worker, sample: LinkSample) -> float:
        """What the head says, as far as it has said anything lately."""
        got = self._got.get((origin.worker_id, sample.peer))
        return got.sample.bytes_per_s if got is not None and self._fresh(got) else sample.bytes_per_s

    def _carried(self, origin: Worker, samples: list[LinkSample], figure: Figure) -> Carried:
        sent = got = takes = 0.0
        for sample in samples:
            arrived = min(sample.bytes_per_s, self._got_by(origin, sample))
            known = self._down(self._context.state.workers[sample.peer]).known
            unknown = math.inf if figure.known is None else arrived / EXPLAINED
            sent, got = sent + sample.bytes_per_s, got + self._got_by(origin, sample)
            takes += unknown if known is None else known
        return Carried(min(sample.busy_s for sample in samples), sent, got, takes)

    def _all_heads(self, origin: Worker, hops: list[tuple[LinkSample, Publication]], figure: Figure) -> bool:
        """Everybody whom it is to feed got something, and none of them much less than it could while others did not:
        that may be this one's. What is missing would be missing in the sum. Not of stripes: heads share links."""
        fed = {sample.peer for sample, _ in hops}
        laid = {c.members[0] for _, p in hops for c in p.layout.chains if c.members and not c.rooted}
        if not laid <= fed or any(sample.streams > len(hops) for sample, _ in hops):
            return False
        slow = 0
        for sample, _ in hops:
            down = self._down(self._context.state.workers[sample.peer]).known
            if down is not None:
                share = (figure.known or down) / max(1, sample.streams)
                arrived = min(sample.bytes_per_s, self._got_by(origin, sample))
                slow += arrived < SLOW_SHARE * min(share, down)
        return not slow or (slow == len(hops) > 1)

    def _save(self, worker: Worker) -> None:
        now, up, down = self._context.now, worker.links.up.bytes_per_s, worker.links.down.bytes_per_s
        saved = self._saved.get(worker.worker_id)
        if saved is not None and now - saved[2] < SAVE_S:
            near = all(abs(a - b) <= SAVE_SHARE * max(a, b) for a, b in ((up, saved[0]), (down, saved[1])))
            if near:
                return
        self._saved[worker.worker_id] = (up, down, now)
        self._context.persist_worker(worker)


def _measured(sample: LinkSample) -> bool:
    """The others come from hops that kept up with their source. They say what carries a hop, and nothing of its links,
    also not that what was said before is over: a slow link has such moments (seeds 645, 7832, 8463)."""
    return sample.busy_s > 0 and sample.bytes_per_s > 0


def _fed_for_another(worker: Worker, parent: str, object_id: str) -> bool:
    """It has a stream from this parent, and none of them is for this object."""
    objects = [edge_object for (edge_object, _), edge in worker.edges.items() if edge.parent == parent]
    return bool(objects) and object_id not in objects
