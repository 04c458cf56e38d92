"""What one child is still to get, dealt to its data connections: each takes the next chunk when it has room for it.

    course ──▶ lane with room ──▶ chunk ──▶ its socket ──▶ acknowledged: done with
       ▲                                        └── breaks: what is not acknowledged goes back, before all else
       └────────────────────────────────────────────────────┘

A lane says that all is sent only when no other is still at something that might come back: what is acknowledged later
than that, and lost all the same, the child asks for anew. A lane whose segments nobody answers while another lane's
are, time after time, is broken off; the last one is never.

The child takes a chunk that comes twice, once: its host may have had it when the acknowledgement was lost.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from chappe.core.manifest import Manifest
from chappe.hop.course import Carry, Course, Dry, Ended, Mark, Step, Track
from chappe.hop.signal import Bell
from chappe.hop.tcp_send import TcpOutlet
from chappe.hop.turns import Share, Turns
from chappe.v1.relay_pb2 import EndReason

UNANSWERED_MAX = 4
"""Timeouts in a row after which a lane is broken off: one segment in 10^8 at a loss of 1 %."""
UNANSWERED_MORE = 2
"""Of them since another was answered: when a path comes back, lanes hear of it one after the other."""
_LOOK_S = 0.5
_WAIT_S = 0.5


@dataclass(eq=False, slots=True)
class Lane:
    """One data connection. `dealt`: chunks, and behind which byte of the connection each ended (None: not yet)."""

    outlet: TcpOutlet
    track: Track
    share: Share | None = None
    bell: Bell = field(default_factory=Bell)
    silent_at: int | None = None
    """Its timeouts in a row when another that was answered first saw that it has any."""
    busy: bool = False
    """With chunks that it was dealt; until it asks for more."""
    dealt: deque[tuple[int, int | None]] = field(default_factory=deque)


class Deal:
    """Of one FetchRequest, whose `course` is used through it. From any thread, except where it says."""

    def __init__(self, course: Course, turns: Turns | None = None, *, most: int = 1) -> None:
        """`turns`: of several stripes that leave this node, each sends chunks when it is its turn. There will be `most`
        lanes at most: for one, nothing is kept of what it was dealt; see `allow`."""
        stripe = course.stripe()
        self._course, self._most = course, most
        self._stripe = stripe
        self.turns = None if stripe is None else turns
        self._lanes: list[Lane] = []
        self._doubted: set[int] = set()  # chunks of lanes that broke, until they have been looked at
        self._ended = False  # a lane has said that all is sent
        self._looked_s = -math.inf
        self._lock = threading.RLock()

    @property
    def lanes(self) -> int:
        return max(1, len(self._lanes))

    def allow(self, most: int) -> None:
        """More lanes than there were to be. What the first was dealt before is not kept: should it break soon, the
        child asks for what is missing when the others are at their end."""
        with self._lock:
            self._most = max(self._most, most)

    def join(self, outlet: TcpOutlet) -> Lane:
        with self._lock:
            lane = Lane(outlet, self._course.track())
            if self.turns is not None and self._stripe is not None:
                others = [other.share for other in self._lanes if other.share is not None]
                lane.share = self.turns.join_beside(others[0]) if others else self.turns.join(*self._stripe)
            self._lanes.append(lane)
            return lane

    def leave(self, lane: Lane) -> None:
        """It is over, well or not. Once or often."""
        with self._lock:
            if self.turns is not None and lane.share is not None:
                self.turns.leave(lane.share)
            if lane in self._lanes:
                self._lanes.remove(lane)
            lane.busy = False
            self._ring()

    def next(self, lane: Lane, now: float, chunks_max: Callable[[Manifest], int]) -> Step:
        """See `Course.next`."""
        with self._lock:
            lane.busy = False
            if self._most > 1 and now - self._looked_s >= _LOOK_S:
                self._looked_s = now
                self._break_off_silent(lane)
            step = self._course.next(now, chunks_max, lane.track)
            match step:
                case Carry(_, chunks):
                    lane.busy = True
                    if self._most > 1:
                        self._forget_acknowledged(lane)
                        lane.dealt.extend((chunk, None) for chunk in chunks)
                case Ended(EndReason.END_REASON_COMPLETE):
                    if self._doubted or any(other.busy for other in self._lanes):
                        return Dry(now + _WAIT_S)
                    if not self._ended:
                        self._ended = True
                        self._ring()
            return step

    def mark(self, lane: Lane, now: float, unsent: int = 0) -> Mark:
        return self._course.mark(now, lane.track, unsent)

    def idle(self, lane: Lane) -> bool:
        """No other lane is at anything."""
        with self._lock:
            return not any(other.busy for other in self._lanes if other is not lane)

    def written(self, lane: Lane, chunk: int) -> None:
        """The kernel has all of it."""
        if self._most == 1:
            return
        with self._lock:
            at = next((i for i, (dealt, _) in enumerate(lane.dealt) if dealt == chunk), None)
            if at is not None:
                lane.dealt[at] = chunk, lane.outlet.given_bytes()

    def unreadable(self, lane: Lane, chunks: Iterable[int]) -> None:
        """They were not sent, and are no lane's."""
        gone = set(chunks)
        with self._lock:
            lane.dealt = deque(entry for entry in lane.dealt if entry[0] not in gone)

    def broke(self, lane: Lane, doubted: int | None) -> bool:
        """Its connection is gone. True: others go on, with what it had, except for the chunk that is `doubted`: see
        `looked_at`. In its thread, while its socket is there."""
        with self._lock:
            self._forget_acknowledged(lane)
            others = [other for other in self._lanes if other is not lane]
            if not others or self._ended:
                return False
            self._course.give_back(chunk for chunk, _ in lane.dealt if chunk != doubted)
            lane.dealt.clear()
            if doubted is not None:
                self._doubted.add(doubted)
            self.leave(lane)
            return True

    def looked_at(self, chunk: int) -> None:
        """A doubted one: it goes again, once it is held."""
        with self._lock:
            self._doubted.discard(chunk)
            self._course.give_back([chunk])
            self._ring()

    def _forget_acknowledged(self, lane: Lane) -> None:
        acknowledged = lane.outlet.acknowledged_bytes() if lane.dealt else 0
        while lane.dealt and (end := lane.dealt[0][1]) is not None and end <= acknowledged:
            lane.dealt.popleft()

    def _break_off_silent(self, lane: Lane) -> None:
        if lane.outlet.unanswered():
            return  # perhaps it is the path
        for other in self._lanes:
            unanswered = other.outlet.unanswered()
            if not unanswered:
                other.silent_at = None
            elif other.silent_at is None:
                other.silent_at = unanswered
            elif unanswered >= max(UNANSWERED_MAX, other.silent_at + UNANSWERED_MORE):
                other.outlet.break_off()

    def _ring(self) -> None:
        for lane in self._lanes:
            lane.bell.ring()
