"""Who lags in the stripes of one publication, and where its segment would end sooner. Judgement only: nothing changes.

    limited   a hop whose parent is more than a second ahead of its child: the hop is what is slow, not its source
    end       of a limited hop: what the child lacks at its present pace; of any other one: its parent's end
    offer     of a node that has everything, or of the origin, with no limited hop below it: what is known of its uplink
              less what the hops that it has will need. Of anybody else: nothing

A segment can go behind a tail, or between two neighbours of whom the second has all of the stripe: nobody else loses by
it. (To take from those who are on their way themselves gains more in a fluid, and lost time on real links.)

    new end = what the child lacks, at the offer and within its downlink

Ends are in seconds from now. They count what workers say of themselves: see `rebalance` for what a lie can do.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from chappe.core.chain import SOURCE, Chain, Place
from chappe.core.context import Context
from chappe.core.events import ObjectState
from chappe.core.paces import WINDOW_S, Pace, Paces
from chappe.core.placement import Placement
from chappe.core.publication import Publication
from chappe.core.rates import downlink, uplink
from chappe.core.workers import Worker
from chappe.planning.stripes import ACK_SHARE, HEADER_SHARE

AHEAD_S, AHEAD_CHUNKS = 1.0, 2
"""By so much a parent is ahead of the child of a limited hop: a report is a second old."""
MOVE_S = 0.5
"""To be told, to dial, and to get up to speed."""
FULL_SHARE = 0.9
_HELD_UP = frozenset({ObjectState.DISK_FULL, ObjectState.FAILED})


@dataclass(slots=True)
class Hop:
    """`parent` is SOURCE for the origin; `lacks` and `per_s` are chunks of the stripe."""

    place: Place
    parent: str
    child: str
    lacks: int
    per_s: float
    limited: bool
    end_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Move:
    """The segment that begins with the child of this hop, to this position of `onto`."""

    hop: Hop
    parent: str
    onto: Chain
    at: int
    end_s: float
    bytes_per_s: float


class View:
    """One publication as its workers' reports tell it. A snapshot: made anew after every change of the layout."""

    def __init__(self, context: Context, placement: Placement, publication: Publication, paces: Paces) -> None:
        self.publication = publication
        self._context, self._placement = context, placement
        total = publication.chunks_total
        self.sizes = publication.stripes.counts([(0, total)], total)
        self.chunk_bytes = publication.payload_bytes / max(1, total)
        self._paces: dict[str, Pace] = {}
        for worker_id in publication.layout.workers():
            if placement.holds_all(publication, worker_id):
                self._paces[worker_id] = Pace(self.sizes, [0.0] * len(self.sizes))
            elif (pace := paces.of(publication, worker_id, context.now)) is not None:
                self._paces[worker_id] = pace
        self.hops: dict[tuple[int, str], Hop] = {}
        self._below: dict[str, list[Hop]] = {}
        for chain in publication.layout.chains:
            self._take(chain)

    # ---- what is so ----

    def _take(self, chain: Chain) -> None:
        above_s = 0.0
        for position, child in enumerate(chain.members):
            pace = self._paces.get(child)
            if pace is None or (position == 0 and not self._from_origin(chain)):
                continue
            parent = chain.members[position - 1] if position else SOURCE
            lacks, per_s = self.sizes[chain.stripe] - pace.held[chain.stripe], pace.per_s[chain.stripe]
            ahead = (self.held(parent, chain.stripe) or 0) - pace.held[chain.stripe]
            limited = lacks > 0 and ahead > max(AHEAD_CHUNKS, AHEAD_S * per_s)
            hop = Hop(Place(chain, position), parent, child, lacks, per_s, limited)
            if lacks <= 0:
                hop.end_s = 0.0
            elif limited:
                hop.end_s = max(above_s, lacks / per_s if per_s > 0 else math.inf)
            else:
                hop.end_s = above_s
            above_s = hop.end_s
            self.hops[chain.stripe, child] = hop
            if lacks > 0:
                self._below.setdefault(parent, []).append(hop)

    def _from_origin(self, chain: Chain) -> bool:
        return not chain.rooted and self._placement.origin_usable(self.publication)

    def late(self) -> list[Hop]:
        """The limited hops, the latest end first. Who gets nothing at all has not a slow link: that is a stall."""
        limited = [
            hop for hop in self.hops.values() if hop.limited and self._receives(hop.child) > 0 and self.works(hop.child)
        ]
        return sorted(limited, key=lambda hop: (-hop.end_s, hop.place.chain.stripe, hop.child))

    def usual_s(self) -> float:
        """The end of the middle one of all hops; those that have everything have ended."""
        ends = sorted(hop.end_s for hop in self.hops.values())
        return ends[len(ends) // 2] if ends else 0.0

    def end_s(self) -> float | None:
        """When the last one will have everything, at the least: a pace is of whole chunks, and may be one more in its
        window. None while somebody's pace is not known, or somebody gets nothing."""
        if any(worker_id not in self._paces for worker_id in self.publication.layout.workers()):
            return None
        limited = [hop for hop in self.hops.values() if hop.limited]
        if any(hop.per_s <= 0 for hop in limited):
            return None
        return max((hop.lacks / (hop.per_s + 1 / WINDOW_S) for hop in limited), default=0.0)

    def rest_bytes(self) -> float:
        """What the one that lacks the most still lacks."""
        total = sum(self.sizes)
        return self.chunk_bytes * max((total - sum(pace.held) for pace in self._paces.values()), default=0)

    def uplink_seen(self, member: str) -> float | None:
        """Bytes per second, with headers and ACKs; None unless it is what limits all that are fed from here."""
        hops = self._below.get(member, [])
        if not hops or not all(hop.limited and self._room(hop.child) > 0 for hop in hops):
            return None
        sends = self.chunk_bytes * sum(hop.per_s for hop in hops)
        return sends * (1 + HEADER_SHARE) + ACK_SHARE * self._receives(member)

    @property
    def progress(self) -> float:
        """The share of all that is to arrive that has."""
        held = sum(sum(pace.held) for pace in self._paces.values())
        return held / max(1, sum(self.sizes) * len(list(self.publication.layout.workers())))

    def held(self, member: str, stripe: int) -> int | None:
        if member == SOURCE:
            return self.sizes[stripe]
        pace = self._paces.get(member)
        return None if pace is None else pace.held[stripe]

    def _worker(self, member: str) -> Worker | None:
        return self._context.state.workers.get(self.publication.origin_id if member == SOURCE else member)

    def works(self, member: str) -> bool:
        """It is here, and neither on its way out nor waiting for room on its disk."""
        worker = self._worker(member)
        if worker is None or not worker.connected or worker.leaving or worker.drained:
            return False
        holding = worker.holdings.get(self.publication.object_id)
        return holding is None or holding.state not in _HELD_UP

    def _receives(self, member: str) -> float:
        pace = self._paces.get(member)
        return 0.0 if pace is None else self.chunk_bytes * sum(pace.per_s)

    # ---- what could be ----

    def _room(self, member: str) -> float:
        """Bytes per second that its downlink has left."""
        worker = self._worker(member)
        if worker is None:
            return 0.0
        known = downlink(worker, self._context.config.assumed_bytes_per_s, self._context.now).bytes_per_s
        return max(0.0, FULL_SHARE * known - self._receives(member))

    def _offer(self, member: str) -> float:
        """What its uplink would carry of one more hop, bytes per second."""
        worker = self._worker(member)
        whole = member == SOURCE or self._placement.holds_all(self.publication, member)
        if worker is None or worker.demoted or not whole or not self.works(member):
            return 0.0
        hops = self._below.get(member, [])
        if any(hop.limited and self._room(hop.child) > 0 for hop in hops):
            return 0.0
        known = uplink(worker, self._context.config.assumed_bytes_per_s, self._context.now).bytes_per_s
        needed = sum(max(h.per_s, h.lacks / h.end_s if h.end_s > 0 else 0.0) for h in hops)
        return max(0.0, known - self.chunk_bytes * needed)

    def best(self, hop: Hop, barred: Collection[str], within_s: float) -> Move | None:
        """Where the segment would end first, if that is before `within_s`. Nobody who is barred is its parent."""
        moves = (move for move in self._moves(hop) if move.parent not in barred and move.end_s < within_s)
        return min(moves, key=lambda m: (m.end_s, -m.bytes_per_s, m.onto.slot, m.at), default=None)

    def _moves(self, hop: Hop) -> Iterator[Move]:
        chain = hop.place.chain
        for onto in self.publication.layout.of_stripe(chain.stripe):
            if not self._placement.fed(self.publication, onto):
                continue
            last = hop.place.position - 1 if onto is chain else len(onto.members)
            for at in range(int(onto.rooted), last + 1):
                move = self._move(hop, onto, at)
                if move is not None:
                    yield move

    def _move(self, hop: Hop, onto: Chain, at: int) -> Move | None:
        stripe, size_bytes = onto.stripe, self.chunk_bytes
        parent, tail = (onto.members[at - 1] if at else SOURCE), hop.place.chain.members[-1]
        held = self.held(parent, stripe)
        if parent == hop.parent or held is None or held <= self.sizes[stripe] - hop.lacks:
            return None
        behind = onto.members[at] if at < len(onto.members) else None
        if not self._meet(parent, hop.child) or (behind is not None and not self._meet(tail, behind)):
            return None
        if behind is not None and ((hop_behind := self.hops.get((stripe, behind))) is None or hop_behind.lacks > 0):
            return None  # it is fed from here, or nobody knows
        rate = min(self._offer(parent), self._room(hop.child) + size_bytes * hop.per_s)
        if rate <= 0:
            return None
        return Move(hop, parent, onto, at, MOVE_S + hop.lacks * size_bytes / rate, rate)

    def _meet(self, parent: str, child: str) -> bool:
        """One of the two can dial the other."""
        ends = (self._worker(parent), self._worker(child))
        return any(worker is not None and worker.dialable is not False for worker in ends)
