"""Whether the hops of stripes at one side of a node carry what the plan gives them: sums over its last reports.

The stripes of a node share its link, in turns and whole chunks at a time. What a hop carries while it is busy is too
much, times its streams, where some of them had nothing to send; and a report holds a chunk or two of a small stripe.
Judged report by report, an uplink that had halved in the middle of a broadcast was noticed after 13 s or never. So the
reports of a few seconds are taken together:

    carried    bytes over the time between reports, whether or not there was something to send
    waited     the share of that time in which there was: a hop that waits for its own source says nothing
    pace       bytes over the time in which there was: the link carries that at most
    behind     what the peer lacks and could have, by what both say of their holdings. Sockets and queues take a chunk
               or two of each stream before anybody waits: of seven streams, what a halved uplink carries in 2 s

    slow       of a peer: it carried less than PEER_SHARE of what is wanted, although it waited, also of late; or it is
               far behind, and was at the report before
    short      of all of them: none is well but SMALL_SHARE, carried is below SLOW_SHARE, and most of the reports are
               low by themselves (else there was one pause). The source did not come and go: pace is not much above what
               is carried, or who is behind was so before, and the newest report is low
    fine       of some peers: they carried what is wanted, or all that their source has. Whoever says that of others is
               not the limit here

Another time than expected between two reports, and other hops, begin anew. Knows one side of one node.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from chappe.core.events import LinkSample

SLOW_SHARE = 0.7
PEER_SHARE = 0.8
"""Of a single peer: whole chunks of a part of the stripes say less than those of all."""
PACE_SHARE = 0.85
LOW_SHARE, MOST = 0.85, 0.7
WAITED_SHARE = 0.5
PEER_WAITED_SHARE = 0.4
LATELY_WAITED_SHARE = 0.2
"""In the newest report: a peer may have all of its stripe by now."""
RISING = 1.25
BEHIND_S, BEHIND_CHUNKS = 2.0, 2
"""Holdings are a second old, and a chunk of each stream is always on its way."""
SMALL_SHARE = 0.15
"""Of what all hops of a side should carry: whole chunks of a small stripe are too few to say how fast it is."""
FINE_SHARE = 0.8
FLOWS_SHARE = 0.3
"""Of what it should carry: whoever carries less has all, or is waited for in vain, and says nothing."""
MUCH_SHARE = 0.25
"""Of what all hops should carry: on a full link small flows may get what they want all the same."""
COUNTED_S = 1.5
"""Of one report at most: a process that pauses reports once, late, and next to nothing."""
SLOW_S = 4.0
LATELY_S = 3.0
PEERS_MIN = 2


@dataclass(frozen=True, slots=True)
class _Part:
    """One report: seconds since the one before, and of each peer bytes, those at the link's pace, and busy seconds."""

    wall_s: float
    sums: Mapping[str, tuple[int, float, float]]
    far: frozenset[str]  # peers that are far behind

    @property
    def counted_s(self) -> float:
        return min(self.wall_s, COUNTED_S)

    def bytes_of(self, peers: Collection[str]) -> int:
        return sum(self.sums[peer][0] for peer in peers if peer in self.sums)


@dataclass(frozen=True, slots=True)
class Short:
    """`peers` are those that are slow."""

    bytes_per_s: float
    peers: frozenset[str]


@dataclass(slots=True)
class Carried:
    """`streams` are those to or from each peer that are to carry something now, `wanted` what they should together, in
    bytes per second."""

    streams: Counter[str] = field(default_factory=Counter)
    wanted: Counter[str] = field(default_factory=Counter)
    _parts: deque[_Part] = field(default_factory=deque)

    def take(
        self,
        wall_s: float,
        samples: Iterable[LinkSample],
        streams: Counter[str],
        wanted: Counter[str],
        behind: Mapping[str, float] | None = None,
        chunk_bytes: float = 0.0,
    ) -> None:
        """A report. `wall_s`: since the one before, 0 when nobody knows. `behind`: bytes, by peer."""
        if not wall_s or streams != self.streams or wanted != self.wanted:
            self.streams, self.wanted = streams, wanted
            self.clear()
            return
        sums = {s.peer: (s.bytes, s.bytes_per_s * s.busy_s, s.busy_s) for s in samples}
        if not sums:
            return  # there was nothing to carry, or it has not begun
        far = {peer for peer, left in (behind or {}).items() if self._far(peer, left, chunk_bytes)}
        self._parts.appendleft(_Part(wall_s, sums, frozenset(far)))
        while len(self._parts) > 1 and sum(p.counted_s for p in self._parts) - self._parts[-1].counted_s >= SLOW_S:
            self._parts.pop()

    def clear(self) -> None:
        self._parts.clear()

    def fine(self, peers: Collection[str], behind: Mapping[str, float], chunk_bytes: float) -> bool:
        """Most of what these carry, if it is much, is what it should be, or all that its source has."""
        parts = self._last(LATELY_S)
        if not parts:
            return False
        flow = {peer: _bytes_per_s(parts, [peer]) for peer in peers}
        flow = {peer: rate for peer, rate in flow.items() if rate >= FLOWS_SHARE * self.wanted[peer] > 0}
        wanted = sum(self.wanted[peer] for peer in flow)
        fine = sum(
            self.wanted[peer]
            for peer, rate in flow.items()
            if rate >= FINE_SHARE * self.wanted[peer]
            or (peer in behind and not self._far(peer, behind[peer], chunk_bytes))
        )
        return wanted >= MUCH_SHARE * self.wanted.total() > 0 and fine >= FINE_SHARE * wanted

    def _far(self, peer: str, behind: float, chunk_bytes: float) -> bool:
        return behind >= max(BEHIND_S * self.wanted[peer], BEHIND_CHUNKS * chunk_bytes * self.streams[peer])

    def short(self) -> Short | None:
        """All hops that matter have been slow for `SLOW_S`."""
        parts, total = self._last(SLOW_S), self.wanted.total()
        if not parts or not total:
            return None
        slow = {peer for peer in self.wanted if self._slow(peer, parts)}
        well = sum(wanted for peer, wanted in self.wanted.items() if peer not in slow)
        low_s = sum(part.counted_s for part in parts if self._low(part))
        carried = _bytes_per_s(parts, self.wanted)
        if len(slow) < PEERS_MIN or well > SMALL_SHARE * total or carried >= SLOW_SHARE * total:
            return None
        if low_s < MOST * sum(part.counted_s for part in parts) or not (self._behind(parts) or self._waits(parts)):
            return None
        if _bytes_per_s(parts[:1], self.wanted) > RISING * carried:
            return None  # a beginning, or the end of it: what the link carries is not known yet
        lately = _bytes_per_s(self._last(LATELY_S), self.wanted)
        return Short(max(carried, lately), frozenset(slow))

    def _last(self, needed_s: float) -> list[_Part]:
        """The newest reports that count for so much, the newest one first; none if there are not so many."""
        found: list[_Part] = []
        for part in self._parts:
            found.append(part)
            if sum(p.counted_s for p in found) >= needed_s:
                return found
        return []

    def _slow(self, peer: str, parts: list[_Part]) -> bool:
        waited = self._waited(peer, parts) >= PEER_WAITED_SHARE
        waits = waited and self._waited(peer, parts[:1]) >= LATELY_WAITED_SHARE
        return (waits or peer in _far(parts)) and _bytes_per_s(parts, [peer]) < PEER_SHARE * self.wanted[peer]

    def _waits(self, parts: list[_Part]) -> bool:
        total = self.wanted.total()
        waited = sum(wanted * self._waited(peer, parts) for peer, wanted in self.wanted.items())
        pace = sum(self._pace(peer, parts) for peer in self.wanted)
        return waited >= WAITED_SHARE * total and pace < PACE_SHARE * total

    def _behind(self, parts: list[_Part]) -> bool:
        far = sum(self.wanted[peer] for peer in _far(parts) if peer in self.wanted)
        return far >= (1 - SMALL_SHARE) * self.wanted.total() and self._low(parts[0])

    def _waited(self, peer: str, parts: list[_Part]) -> float:
        busy_s = sum(part.sums[peer][2] for part in parts if peer in part.sums)
        return min(1.0, busy_s / (self.streams[peer] * sum(part.wall_s for part in parts)))

    def _pace(self, peer: str, parts: list[_Part]) -> float:
        sums = [part.sums[peer] for part in parts if peer in part.sums]
        busy_s = sum(busy for _, _, busy in sums)
        return self.streams[peer] * sum(linked for _, linked, _ in sums) / busy_s if busy_s else self.wanted[peer]

    def _low(self, part: _Part) -> bool:
        return part.bytes_of(self.wanted) < LOW_SHARE * self.wanted.total() * part.wall_s


def _bytes_per_s(parts: list[_Part], peers: Collection[str]) -> float:
    return sum(part.bytes_of(peers) for part in parts) / sum(part.wall_s for part in parts)


def _far(parts: list[_Part]) -> frozenset[str]:
    """Who is far behind, and was so at the report before: what has come at once is gone by the next one."""
    return parts[0].far & parts[1].far if len(parts) > 1 else frozenset()
