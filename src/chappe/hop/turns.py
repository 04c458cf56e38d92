"""A node's stripes share its uplink chunk by chunk: a few at a time, whoever is furthest behind its share first.

TCP shares a link evenly among connections, whatever they should carry, and a chunk of every stripe is on its way all
the time: with K of them each takes K times as long as alone, and a relay can pass on nothing before a chunk is whole.
In turns a chunk takes about as long as on a plain hop, and stripes get what their weights say (start-time fair
queueing).

    chunk to send ──▶ a turn free? ── yes ──▶ written to its socket ──▶ turn over: the next one, least `served` first
                          └── no: waits             └── takes far longer than turns do: keeps nobody waiting,
                                                        nor do its next ones until it is quick again

`served` is what a stream's child holds of its stripe, over the stripe's share of the payload: whoever had nothing to
send for a while is brought up to the others first, a newcomer for `LAG_CHUNKS` of it. Three turns keep a slow link busy
while one of them changes; a fast one, or a long path, has as many as it carries meanwhile. Knows no rates.

Streams call from threads of their own; a stream that has sent keeps its turn until it asks for the next or rests, so
that it is compared with those that wait.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from chappe.clock import boot_now

TURNS = 3
CHANGE_S = 0.015
"""From the end of a turn until the next one's bytes are there, on a busy machine."""
LAG_CHUNKS = 256
"""Of the whole payload: what a newcomer may be behind the others and still be brought up to them first. More than the
streams of a publication begin one after the other, and a second or two of a link at most."""
PATIENCE = 4.0
"""So many times as long as turns take may one of them take."""
PATIENCE_S_MIN = 0.1
_FIRST_S = 0.25  # how long a turn takes, before that is known
_SMOOTHING = 0.1
_EPSILON = 1e-6
_MEANWHILE_S = 0.5


@dataclass(eq=False, slots=True)
class Share:
    """What one stream has had. `part` is its share of the payload, 0 to 1; of several connections of one stream each
    has a share, and all of `beside` have the stream's part together."""

    part: float
    served: float  # chunks, over `part`
    slow: bool = False
    on_way_chunks: float = 0.0
    began_s: float = 0.0
    ready: threading.Event = field(default_factory=threading.Event)
    gone: bool = False
    beside: list[Share] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.beside = self.beside or [self]


def _split(part: float, shares: list[Share]) -> None:
    for share in shares:
        share.part = part / len(shares)


class Turns:
    """One per node. All methods from any thread."""

    def __init__(self, turns: int = TURNS) -> None:
        self._turns = turns
        self._lock = threading.Lock()
        self._until_s: dict[Share, float] = {}  # whoever has a turn that counts, and for how long it does
        self._most_served = 0.0  # of anybody who got a turn
        self._on_way_chunks = 0.0
        self._queue: list[tuple[float, int, Share]] = []
        self._waiting: set[Share] = set()
        self._number = count()
        self._lasts_s = _FIRST_S

    def join(self, part: float, held_chunks: int) -> Share:
        """A stream of this part of the payload, to a child that holds so much of that. `leave` when it is over."""
        with self._lock:
            return Share(part, max(held_chunks / part, self._most_served - LAG_CHUNKS))

    def join_beside(self, share: Share) -> Share:
        """Another connection of the same stream: they have its part together from now on."""
        with self._lock:
            shares, part = share.beside, share.part * len(share.beside)
            shares.append(another := Share(part, share.served, beside=shares))
            _split(part, shares)
            return another

    def leave(self, share: Share) -> None:
        """Whoever waits in `take` for this stream returns False."""
        with self._lock:
            share.gone = True
            if len(share.beside) > 1 and share in share.beside:
                part = share.part * len(share.beside)
                share.beside.remove(share)
                _split(part, share.beside)
            self._waiting.discard(share)
            share.ready.set()
            self._on_way_chunks -= share.on_way_chunks
            share.on_way_chunks = 0.0
            self._until_s.pop(share, None)
            self._grant()

    def take(self, share: Share, chunks: int, meanwhile: Callable[[], None]) -> bool:
        """Wait for a turn to send so many chunks; False when the stream has left. `sent` is called when they are.

        `meanwhile` is called twice a second in a long wait. Raises what it raises; the stream waits no longer then.
        """
        with self._lock:
            self._until_s.pop(share, None)
            share.ready.clear()
            if share.gone:
                return False
            if not share.slow:
                heapq.heappush(self._queue, (share.served, next(self._number), share))
                self._waiting.add(share)
            self._grant()
        marked_s = boot_now()
        try:
            while not share.slow and not share.ready.wait(self._patience_left_s()):
                with self._lock:
                    self._grant()
                if (now := boot_now()) - marked_s >= _MEANWHILE_S:
                    marked_s = now
                    meanwhile()
        finally:
            with self._lock:
                self._waiting.discard(share)
        with self._lock:
            self._most_served = max(self._most_served, share.served)
            share.served += chunks / share.part
            share.began_s = boot_now()
            return not share.gone

    def sent(self, share: Share, on_way_chunks: float) -> None:
        """`on_way_chunks`: what this stream carries, at its pace, in `CHANGE_S` and its path's round trips."""
        with self._lock:
            if share.gone:
                return
            lasted_s, patience_s = boot_now() - share.began_s, self._patience_s()
            self._on_way_chunks += on_way_chunks - share.on_way_chunks
            share.on_way_chunks = on_way_chunks
            share.slow = lasted_s > patience_s
            self._lasts_s += _SMOOTHING * (min(lasted_s, patience_s) - self._lasts_s)  # a link may have become slower
            if share.slow:
                self._until_s.pop(share, None)
                self._grant()

    def rest(self, share: Share) -> None:
        """It has nothing to send now."""
        with self._lock:
            if self._until_s.pop(share, None) is not None:
                self._grant()

    def _grant(self) -> None:
        now = boot_now()
        for share in [share for share, until_s in self._until_s.items() if until_s <= now]:
            del self._until_s[share]  # it keeps nobody waiting any more
        while self._queue and len(self._until_s) < self._most():
            _, _, share = heapq.heappop(self._queue)
            if share in self._waiting:
                self._waiting.discard(share)
                self._until_s[share] = now + self._patience_s()
                share.ready.set()

    def _patience_left_s(self) -> float:
        """Until somebody's turn does not count any more, at most half a second."""
        with self._lock:
            first_s = min(self._until_s.values(), default=math.inf)
        return max(0.001, min(_MEANWHILE_S, first_s - boot_now()))

    def _most(self) -> int:
        return max(self._turns, math.ceil(self._on_way_chunks - _EPSILON))

    def _patience_s(self) -> float:
        return max(PATIENCE_S_MIN, PATIENCE * self._lasts_s)
