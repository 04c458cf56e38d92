"""Hops that stay under what they should carry, although the parent has more to give: whose fault is it?

Neither end can tell: TCP shows the same to both. So the repair is the test, and the repair is chosen so that nobody
waits for the verdict. One case in each chain at a time:

    slow (`evidence`) ─┬─ one of the origin's hops ─────▶          its receiver is the limit: it goes to the end
                       ├─ the origin's only hop ────────▶ SWAP     the head goes to the end, the next head says
                       ├─ the parent says the contrary ─▶ WITNESS  the accuser goes to the end, the next one says
                       ├─ another chain's tail is ahead ▶ ASIDE    the child moves behind it, the parent to the end
                       └─ there is none ────────────────▶ UP       the child moves up, the parent to the end

Who stands where after ASIDE harms nobody, whichever it was: those behind the child are fed by who fed the parent, and
both suspects are tails. A tail that is slow by itself moves alone. UP costs those behind a slow child two seconds.

The verdict is `trial`'s. When all hops of an origin are slow at once, it is the origin: nobody is moved for that. When
others are slow at the same time, it takes three times as long to open a case: it may be what they share.
"""

from __future__ import annotations

from dataclasses import dataclass

from chappe.core.blame import Case, Mode
from chappe.core.chain import SOURCE, Chain, Place
from chappe.core.context import Context
from chappe.core.evidence import CALM_SHARE, COMMON_S, SLOW_S, SLOW_SHARE, UNCLEAR_S, Evidence, Slowness
from chappe.core.placement import Placement
from chappe.core.publication import Publication
from chappe.core.rates import link_of, uplink
from chappe.core.reasons import RebuildReason
from chappe.core.trial import FASTER, Trial, held
from chappe.core.workers import Worker

__all__ = ["SLOW_SHARE", "HopSample", "Slow"]

FRESH_S = 6.0
WORTH_S = 5.0  # a hop that is done by then is left alone
AHEAD_S = 1.0  # of what the slow hop carries: less to give, and the parent starves
COMMON_MIN = 2
COMMON_FRESH_S = 3.0
COMMON_LOOK_S = 0.25  # thousands of hops are not counted for each sample

Key = tuple[str, int, str]  # object, stripe, child


@dataclass(frozen=True, slots=True)
class HopSample:
    """What one hop carried. `known` is the least of what is known of its two links, None where one is only assumed."""

    parent: Worker
    child: Worker
    bytes_per_s: float
    busy_s: float
    known_bytes_per_s: float | None
    contradicted: bool  # the sender says much more


class Slow:
    def __init__(self, context: Context, placement: Placement, trial: Trial) -> None:
        self._context = context
        self._placement = placement
        self._trial = trial
        self._hops: dict[Key, Evidence] = {}
        self._seen: dict[str, tuple[float, int, int]] = {}  # object: when, hops heard, slow ones

    # ---- seeing ----

    def judge(self, publication: Publication, place: Place, sample: HopSample) -> bool:
        """True when the sample must not count as evidence about links: it belongs to a case, or may open one."""
        case = publication.cases.get(sample.child.worker_id)
        if case is not None and case.stripe == place.chain.stripe:
            self._trial.testimony(publication, case, place, sample.bytes_per_s, sample.busy_s)
            return True
        key = (publication.object_id, place.chain.stripe, sample.child.worker_id)
        hop = self._hops.get(key)
        if hop is None or hop.parent != sample.parent.worker_id:
            hop = self._hops[key] = Evidence(sample.parent.worker_id)
            self._forget_old()
        known = sample.known_bytes_per_s
        hop.take(sample.bytes_per_s, sample.busy_s, known, sample.contradicted, self._context.now)
        slowness = hop.slowness(known, SLOW_S) or hop.slowness(known, UNCLEAR_S)
        if slowness is not None and self._common(publication):
            slowness = hop.slowness(known, COMMON_S)
        if slowness is not None and self._may_open(publication, place, sample):
            hop.calm()
            self._open(publication, place, sample, slowness)
        return hop.slow

    def _forget_old(self) -> None:
        if len(self._hops) > 4 * len(self._context.state.workers) + 64:
            active = {p.object_id for p in self._context.active()}
            self._hops = {key: hop for key, hop in self._hops.items() if key[0] in active}

    def _common(self, publication: Publication) -> bool:
        """At least half of the other hops that carry something are slow, too."""
        now = self._context.now
        seen = self._seen.get(publication.object_id)
        if seen is None or now - seen[0] > COMMON_LOOK_S:
            heard = [
                hop.low
                for key, hop in self._hops.items()
                if key[0] == publication.object_id and now - hop.heard_s <= COMMON_FRESH_S
            ]
            seen = (now, len(heard), heard.count(True))
            self._seen = {publication.object_id: seen}
        others, slow = seen[1] - 1, seen[2] - 1  # this one is among them
        return slow >= max(COMMON_MIN, others / 2)

    def _may_open(self, publication: Publication, place: Place, sample: HopSample) -> bool:
        if not self._trial.cool(sample.child) or self._trial.held_in(publication, place.chain):
            return False
        lacks_s = (publication.chunks_total - held(publication, sample.child)) * self._chunk_s(publication, sample)
        if lacks_s < WORTH_S:
            return False
        if place.position == 0:
            return lacks_s >= AHEAD_S
        return self._ahead_s(publication, sample.parent, sample) >= AHEAD_S

    @staticmethod
    def _chunk_s(publication: Publication, sample: HopSample) -> float:
        """What a chunk takes at the sample's rate."""
        return publication.payload_bytes / max(1, publication.chunks_total) / max(1.0, sample.bytes_per_s)

    def _ahead_s(self, publication: Publication, sender: Worker, sample: HopSample) -> float:
        ahead = held(publication, sender) - held(publication, sample.child)
        return ahead * self._chunk_s(publication, sample)

    # ---- opening ----

    def _open(self, publication: Publication, place: Place, sample: HopSample, slowness: Slowness) -> None:
        chain, child = place.chain, sample.child
        self._trial.warm(child)
        if place.position == 0:
            self._open_at_origin(publication, place, child, slowness)
            return
        behind = publication.layout.child(place)
        parent = sample.parent.worker_id
        if slowness.contradicted and behind is not None:
            self._begin(Mode.WITNESS, publication, (chain,), behind, parent, parent, slowness)
            self._placement.move_to_end(publication, place, RebuildReason.SLOW_RECEIVER)
            return
        accused = Place(chain, place.position - 1)
        aside = self._aside(publication, place, sample, slowness)
        if aside is not None:
            self._begin(Mode.ASIDE, publication, (chain, aside), child.worker_id, aside.members[-1], parent, slowness)
            self._placement.move_aside(publication, place, aside, RebuildReason.SLOW_SENDER)
        else:
            above = chain.members[place.position - 2] if place.position >= 2 else SOURCE
            self._begin(Mode.UP, publication, (chain,), child.worker_id, above, parent, slowness)
        self._placement.move_to_end(publication, accused, RebuildReason.SLOW_SENDER)

    def _aside(self, publication: Publication, place: Place, sample: HopSample, slowness: Slowness) -> Chain | None:
        """Another chain whose tail can show what the child can take: it is ahead, and its links are fast enough."""
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        enough = max(CALM_SHARE * slowness.expected_bytes_per_s, FASTER * slowness.bytes_per_s)
        best: tuple[tuple[bool, int, int], Chain] | None = None
        for chain in publication.layout.of_stripe(place.chain.stripe):
            if chain is place.chain or not chain.members or self._trial.held_in(publication, chain):
                continue
            tail = self._context.state.workers.get(chain.members[-1])
            if tail is None or not tail.connected or not self._placement.takes(publication, chain, sample.child):
                continue
            if link_of(tail, assumed, now).hop_bytes_per_s < enough:
                continue
            if self._ahead_s(publication, tail, sample) < AHEAD_S:
                continue
            score = (uplink(tail, assumed, now).known is None, len(chain.members), chain.slot)
            if best is None or score < best[0]:
                best = (score, chain)
        return None if best is None else best[1]

    def _open_at_origin(self, publication: Publication, place: Place, head: Worker, slowness: Slowness) -> None:
        chain = place.chain
        others = [
            c for c in publication.layout.of_stripe(chain.stripe) if c.members and not c.rooted and c is not chain
        ]
        if not others:
            if len(chain.members) > 1:
                self._begin(Mode.SWAP, publication, (chain,), chain.members[1], SOURCE, head.worker_id, slowness)
                self._placement.move_to_end(publication, place, RebuildReason.SLOW_RECEIVER)
            return
        hops = [self._hops.get((publication.object_id, chain.stripe, c.members[0])) for c in others]
        heard = [hop for hop in hops if hop is not None and self._context.now - hop.heard_s <= FRESH_S]
        if any(not hop.slow for hop in heard):
            self._trial.receiver(publication, head, slowness.bytes_per_s)

    def _begin(
        self,
        mode: Mode,
        publication: Publication,
        chains: tuple[Chain, ...],
        watched: str,
        parent: str,
        accused: str,
        slowness: Slowness,
    ) -> None:
        case = Case(
            mode,
            chains[0].stripe,
            watched,
            parent,
            accused,
            slowness.bytes_per_s,
            self._context.now,
            tuple(chain.slot for chain in chains),
            slowness.contradicted,
        )
        self._trial.open(publication, case)
