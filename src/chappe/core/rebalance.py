"""Idle uplinks serve laggards: a segment that would end last is moved behind somebody who has everything already.

A striped plan is as good as the rates that it was made of. Once a second, while holdings are told:

    the limited hop with the latest end, far from the usual one ──▶ the place in its stripe where it would end first
          ──▶ moved, if that is sooner by more than `WORTH_S`, by `WORTH_SHARE` of the broadcast, and if what is sent
              twice by it is still within `TWICE_SHARE` of all that is sent

One child in each stripe stays, and a list has no cycles. A segment is moved once in `COOL_S`; a look moves `MOVES_MAX`
at most, and touches nobody twice. So neither noise nor a liar can keep a fleet moving.

What happens when somebody dies, stalls, restarts or lies (each row is a test in tests/core/test_rebalance.py):

  m1  the new parent dies just after           repair moves the child up, as for any parent
  m2  two laggards want the same parent        the later end gets it; the other one another, or waits for the next look
  m3  a worker lies that it holds everything   one segment in a look goes there and stalls, until two have failed
  m4  a worker lies that it is far behind      it is moved until two moves have not helped; not at all if nothing comes
  m5  reports are late, or there are none      no pace: neither moved nor a parent
  m6  a worker has lost chunks, or restarts    its pace begins anew
  m7  the origin is gone                       its slots are no places; those behind a rooted head are
  m8  the coordinator restarts                 paces and coolness are gone: it looks again when it has heard for a while
  m9  nobody has anything to offer             nothing happens
  m10 the child's downlink is the limit        a move promises nothing
  m11 two that cannot dial each other          no place for it
  m12 two versions are on their way            they share the links: nothing is moved
  m13 the child waits for room on its disk     it is left alone, and nobody is put behind it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.laggards import MOVE_S, Hop, Move, View
from chappe.core.laying import Laying
from chappe.core.paces import Paces
from chappe.core.placement import Placement
from chappe.core.publication import Phase, Publication
from chappe.core.reasons import RebuildReason
from chappe.core.restriping import Restriping
from chappe.core.workers import Worker

KEY = "rebalance"
LOOK_S = 1.0
WORTH_S, WORTH_SHARE = 2.0, 0.1
LATE = 1.3
"""Times what the middle one of all hops has left: streams that share links differ by as much without a reason."""
COOL_S = 6.0
MOVES_MAX = 4
LATE_MAX = 16
"""So many of the latest hops are tried in a look: what a large fleet may cost."""
TWICE_SHARE = 0.01
EARLY_SHARE = 0.3
"""Of that, what may be spent at once; the rest as the broadcast gets on: at its end there is most to gain."""
IN_FLIGHT_BYTES = 128 << 10
"""Of a stream that ends, at most: what waits in the kernel (`chappe.hop.tcp_sockets`) and a little on the link. A child
that has dialled a data connection takes it before it goes, one on gRPC or dialled by its parent does not. Without any
ration the same segments are moved in all runs of `python -m bench adapting`, also with a sixth of its payloads."""
KEPT_SHARE = 0.5
"""Of what a new parent was expected to carry: less, and it has failed."""
JUDGED_S = 4.0
FAILED_MAX = 2
"""With so many others, and it is neither moved nor a parent any more."""


@dataclass(slots=True)
class _Promise:
    parent: str
    bytes_per_s: float
    moved_s: float
    lacked: int
    judged: bool = False


@dataclass(slots=True)
class _Kept:
    """Of one publication; gone when the coordinator restarts."""

    promises: dict[tuple[int, str], _Promise] = field(default_factory=dict)  # by stripe and child
    failed: set[tuple[str, str]] = field(default_factory=set)  # parents and children of promises that came to nothing
    twice_bytes: float = 0.0

    def barred(self, end: int) -> set[str]:
        """With how many others it has failed: parents (0) or children (1)."""
        counts = Counter(pair[end] for pair in self.failed)
        return {worker_id for worker_id, count in counts.items() if count >= FAILED_MAX}


class Rebalance:
    def __init__(
        self, context: Context, placement: Placement, laying: Laying, deadlines: Deadlines, paces: Paces
    ) -> None:
        self._context = context
        self._placement = placement
        self._deadlines = deadlines
        self._restriping = Restriping(context, placement, laying)
        self._paces = paces
        self._of: dict[str, _Kept] = {}  # by object

    def holding(self, publication: Publication, worker: Worker) -> None:
        """A worker has said what it holds."""
        told = publication.active and worker.worker_id in publication.layout
        if publication.stripes.plain or publication.open_end or not told:  # with an open end nobody knows what it lacks
            return
        self._paces.note(publication, worker, self._context.now)
        if publication.phase is Phase.OPEN:
            self._deadlines.at(KEY, self._context.now + LOOK_S)

    def look(self) -> None:
        """The time has come to see who lags."""
        context = self._context
        on_the_way = [p for p in context.active() if any(p.members[w].level == 0 for w in p.layout.workers())]
        if len(on_the_way) == 1:
            (publication,) = on_the_way
            if not (publication.stripes.plain or publication.open_end) and publication.phase is Phase.OPEN:
                self._look(publication)
        active = {p.object_id for p in context.active()}
        self._of = {object_id: kept for object_id, kept in self._of.items() if object_id in active}
        self._restriping.keep(active)
        self._paces.keep(active)

    def _look(self, publication: Publication) -> None:
        kept = self._of.setdefault(publication.object_id, _Kept())
        view = View(self._context, self._placement, publication, self._paces)
        if self._restriping.look(publication, view):
            kept.promises.clear()  # they were of other hops
            return
        self._judge(kept, view)
        touched: set[str] = set()
        for _ in range(MOVES_MAX):
            move = self._best(kept, view, touched)
            if move is None:
                return
            touched |= {move.parent, move.hop.parent}
            self._carry_out(kept, publication, view, move)
            view = View(self._context, self._placement, publication, self._paces)

    def _judge(self, kept: _Kept, view: View) -> None:
        """A promise that came to nothing by far: one of the two is not what it said. Who it was shows with others."""
        for (stripe, child), promise in kept.promises.items():
            after_s = self._context.now - promise.moved_s
            hop = view.hops.get((stripe, child))
            if promise.judged or after_s < JUDGED_S or hop is None:
                continue
            promise.judged = True
            expected = (after_s - LOOK_S - MOVE_S) * promise.bytes_per_s / view.chunk_bytes
            if promise.lacked - hop.lacks < KEPT_SHARE * min(promise.lacked, expected):
                kept.failed.add((promise.parent, child))

    def _best(self, kept: _Kept, view: View, touched: set[str]) -> Move | None:
        elapsed_s = self._context.now - view.publication.started_s
        usual_s = view.usual_s()
        tried, parents, children = 0, kept.barred(0) | touched, kept.barred(1)
        for hop in view.late():
            worth_s = max(WORTH_S, WORTH_SHARE * (elapsed_s + min(hop.end_s, elapsed_s)))
            if hop.end_s <= max(LATE * usual_s, MOVE_S) + worth_s or tried >= LATE_MAX:
                return None
            if self._cool(kept, hop) or hop.parent in touched or hop.child in children:
                continue
            tried += 1
            move = view.best(hop, parents, hop.end_s - worth_s)
            if move is not None and self._affordable(kept, view, move):
                return move
        return None

    def _cool(self, kept: _Kept, hop: Hop) -> bool:
        promise = kept.promises.get((hop.place.chain.stripe, hop.child))
        return promise is not None and self._context.now - promise.moved_s < COOL_S

    @staticmethod
    def _twice_bytes(view: View, move: Move) -> float:
        return min(IN_FLIGHT_BYTES, move.hop.per_s * view.chunk_bytes) + view.chunk_bytes / 2

    def _affordable(self, kept: _Kept, view: View, move: Move) -> bool:
        publication = view.publication
        most = TWICE_SHARE * publication.payload_bytes * len(publication.members)
        by_now = EARLY_SHARE + (1 - EARLY_SHARE) * view.progress
        return kept.twice_bytes + self._twice_bytes(view, move) <= most * by_now

    def _carry_out(self, kept: _Kept, publication: Publication, view: View, move: Move) -> None:
        hop = move.hop
        kept.twice_bytes += self._twice_bytes(view, move)
        kept.promises[hop.place.chain.stripe, hop.child] = _Promise(
            move.parent, move.bytes_per_s, self._context.now, hop.lacks
        )
        self._placement.transplant(publication, hop.place, move.onto, move.at, RebuildReason.LAGGARD)
