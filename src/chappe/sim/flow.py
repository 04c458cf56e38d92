"""Payload as a fluid: a transfer is a position that moves along a list of ranges, at a rate that changes now and then.

A child sees its parent as it was one hop earlier (latency and the time of one chunk). While it has all that it can see,
it moves as the parent did; while there is more, it moves at the hop's capacity. So a whole broadcast is a few events
per relay, however many chunks there are:

    parent's rate changes ──one hop later──▶ child follows, or has a backlog ──one hop later──▶ its children

    ends: everything wanted has come (complete), a chunk that does not match its page (corrupt), or somebody ends it

What a child takes in which order is its plan (`plans`), where it is on that its track (`tracks`). It decides nothing
about who fetches from whom: hosts open and end streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.ranges import Range, RangeSet
from chappe.core.reasons import ParentLossReason
from chappe.core.stripemap import PLAIN, StripeMap
from chappe.sim.clock import Agenda, Entry
from chappe.sim.copies import WHOLE, Copy
from chappe.sim.pace import Pace
from chappe.sim.plans import NOTHING, plan_of
from chappe.sim.stripes import sound, view_of
from chappe.sim.tracks import EPSILON, Track, View

if TYPE_CHECKING:
    from chappe.hop.guard import Ticket
    from chappe.sim.node import Node


def announce(agenda: Agenda, copy: Copy, stripe: int, *, replanned: bool) -> None:
    """The children in this stripe see the change one hop later."""
    children = [s for s in copy.children if stripe in (s.stripe, WHOLE)]
    if not children:
        return
    now = agenda.now
    if replanned:
        copy.settle(now)
        for stream in children:
            agenda.after(stream.delay_s, stream.see, view_of(copy, stream.stripe, now))
        return
    track = copy.tracks[stripe]
    for stream in children:
        agenda.after(stream.delay_s, stream.see_rate, track.plan, track.at(now), track.rate)


class Stream:
    """One child served by one parent, from its admission to its end."""

    def __init__(
        self,
        agenda: Agenda,
        fetch: int,
        child: Node,
        parent: Node,
        copies: tuple[Copy, Copy],
        ticket: Ticket,
        latency_s: float,
        verify: bool,
        stripes: StripeMap = PLAIN,
    ) -> None:
        self.agenda = agenda
        self.fetch = fetch
        self.child, self.parent = child, parent
        self.child_life = child.life
        self.before = (0, False)  # chunks and header of the child, at the beginning
        self.took = 0  # chunks
        self.orphaned = False  # its parent's end is gone, and cannot say so
        self.copy, self.source = copies  # the child's, the parent's
        self.ticket = ticket
        self.stripes, self.stripe = stripes, ticket.slot[1]
        weights = stripes.weights
        self.weight = weights[self.stripe] * len(weights) / sum(weights) if self.stripe < len(weights) else 1.0
        """Of its part of an uplink: senders serve stripes in turns (`chappe.hop.turns`)."""
        self.latency_s = latency_s
        self.delay_s = latency_s
        self.verify = verify
        self.capacity = 0.0  # chunks per second
        self.blocked_s: float | None = None  # since when nothing passes
        self.spoiled: int | None = None  # a chunk that goes wrong on the way
        self.view: View | None = None
        self.track = Track([], agenda.now, self._take)
        self.begun = self.ended = False  # for the child
        self.wanted = RangeSet()
        self._plan = NOTHING
        self._limit = 0.0
        self._bad: int | None = None
        self._next: Entry | None = None
        self.pace = Pace(self.source.object.chunk_bytes)

    # ---- the child's side of its beginning and end -----------------------------------------------------------------

    def begin(self, view: View) -> None:
        """The first message came: from here on data flows. A child that was paused has more to read than that."""
        self.begun = True
        self.copy.settle(self.agenda.now)
        total = self.copy.object.chunks_total
        lacking = RangeSet(self.copy.held.missing(0, total))
        for start, stop in self.copy.expected:
            lacking.discard(start, stop)
        self.wanted = self.stripes.restrict(self.stripe, lacking, total)
        self.copy.stripes = self.stripes
        self.copy.tracks[self.stripe], self.copy.upstreams[self.stripe] = self.track, self.source
        self.see(self.view if self.view is not None else view)

    def stop(self) -> None:
        """Nothing moves any more."""
        if self.ended:
            return
        self.ended = True
        if self._next is not None:
            self._next.cancel()
        self.measure()
        self.track.settle(self.agenda.now)
        if self.copy.tracks.get(self.stripe) is self.track:
            del self.copy.tracks[self.stripe], self.copy.upstreams[self.stripe]
            announce(self.agenda, self.copy, self.stripe, replanned=True)

    # ---- what the child sees of its parent -------------------------------------------------------------------------

    def see(self, view: View) -> None:
        if self.ended:
            return
        self.view = view
        if not self.begun:
            return
        if view.header and not self.copy.header:
            self.copy.header = True
            self.child.progress(self.copy)
            announce(self.agenda, self.copy, WHOLE, replanned=True)
        if self.copy.expected:
            false = {chunk for chunk in self.source.page_tags if self.source.page(chunk)}
            if self.copy.prove(view.pages, false):
                announce(self.agenda, self.copy, WHOLE, replanned=True)
        self.replan()
        self.move()

    def see_rate(self, plan: list[Range], position: float, rate: float) -> None:
        view = self.view
        if self.ended or view is None or view.plan is not plan:
            return
        view.position, view.since_s, view.rate = position, self.agenda.now, rate
        if self.begun:
            self.move()

    def replan(self) -> None:
        """What to take in which order, by what the parent has and gets now."""
        view, now = self.view, self.agenda.now
        assert view is not None
        self.measure()
        self.track.settle(now)
        self._plan = plan = plan_of(view, self.wanted, striped=not self.stripes.plain)
        if plan.ranges != self.track.left():
            self.track = Track(plan.ranges, now, self._take)
            self.pace.begin()
            self.copy.tracks[self.stripe] = self.track
            announce(self.agenda, self.copy, self.stripe, replanned=True)
        else:  # positions are counted from the beginning of the plan that goes on
            self._plan = plan.after(self.track.total - plan.total)
        self._set_limit()

    def _set_limit(self) -> None:
        """The position of the first chunk that will not match its page."""
        bad = self.copy.mismatches(self.source) if self.verify and self.child.world.odd else []
        if self.spoiled is not None:
            bad = [*bad, self.spoiled]
        self._limit, self._bad = float(self.track.total), None
        begun = int(self.track.at(self.agenda.now) + EPSILON)  # also the one that is half here can still go wrong
        for chunk in bad:
            position = self.track.position_of(chunk, begun)
            if position is not None and position < self._limit:
                self._limit, self._bad = float(position), chunk

    def replan_soon(self) -> None:
        """Something about the parent's chunks has changed that does not show in what it holds."""
        if self.view is not None and not self.ended:
            self._set_limit()
            self.move()

    def spoil(self) -> None:
        """The next chunk goes wrong on the way."""
        left = self.wanted
        self.track.settle(self.agenda.now)
        for start, _ in left:
            if self.verify:
                self.spoiled = next(iter(self.track.left()), (start, 0))[0]
                self._set_limit()
                self.move()
            return

    # ---- moving ----------------------------------------------------------------------------------------------------

    def move(self) -> None:
        """Set the rate for now, and the moment when it changes by itself."""
        view, now, track = self.view, self.agenda.now, self.track
        if self.ended or view is None:
            return
        if self._next is not None:
            self._next.cancel()
            self._next = None
        self.measure()
        x = track.at(now)
        stop = min(self._limit, float(track.total))
        if x >= stop - EPSILON:
            self.pace.turn(self.agenda.now, busy=False)
            self._turn(0.0)
            self._reached()
            return
        if self.blocked_s is not None or self.capacity <= 0:
            self._turn(0.0)
            return
        seen = view.at(now)
        available, slope, boundary = self._plan.available(seen, view.rate)
        ahead = available - x
        waits: list[float] = []
        if ahead > EPSILON:
            rate = self.capacity
            if rate > slope:
                waits.append(ahead / (rate - slope))
        elif ahead < -EPSILON:
            rate = 0.0
            if slope > 0:
                waits.append(-ahead / slope)
        else:
            rate = min(self.capacity, slope)
        self.pace.turn(now, busy=rate >= self.capacity)
        if rate > 0:
            waits.append((stop - x) / rate)
        if view.rate > 0 and boundary < float("inf"):
            waits.append((boundary - seen) / view.rate)
        self._turn(rate)
        if waits:
            self._next = self.agenda.after(max(min(waits), 1e-9), self.move)

    def measure(self) -> None:
        """Put what has passed since the last time on the meters of both ends."""
        self.pace.measure(self.track.at(self.agenda.now), self.agenda.now)

    def _turn(self, rate: float) -> None:
        now = self.agenda.now
        if rate != self.track.rate:
            self.track.turn(now, rate)
            announce(self.agenda, self.copy, self.stripe, replanned=False)

    def _reached(self) -> None:
        if self._bad is not None:
            bad, self.spoiled = self._bad, None
            self.child.stream_over(self, ParentLossReason.CORRUPT, (bad,))
            return
        self.track.settle(self.agenda.now)
        view = self.view
        if not self.wanted and not self.copy.expected and view is not None and self.copy.header:
            self.child.stream_over(self, None, ())

    def _take(self, ranges: list[Range]) -> None:
        odd = self.child.world.odd
        if odd and self.verify and not self.stripes.plain:
            ranges, bad = sound(self, ranges)
            if bad is not None:
                self.agenda.after(0.0, self._unsound, bad)
        for start, stop in ranges:
            self.wanted.discard(start, stop)
        new = self.copy.store(ranges, self.source if odd else None, self.stripe)
        self.took += new
        self.child.stored(self, ranges, new)

    def _unsound(self, chunk: int) -> None:
        """Another stripe's parent has brought a page that says otherwise of it."""
        if not self.ended:
            self.child.stream_over(self, ParentLossReason.CORRUPT, (chunk,))

    # ---- capacity and cuts -----------------------------------------------------------------------------------------

    def set_capacity(self, chunks_per_s: float) -> None:
        if abs(chunks_per_s - self.capacity) > EPSILON * chunks_per_s:
            slower, self.capacity = chunks_per_s < self.capacity, chunks_per_s
            self.move()
            if slower:
                self.child.hops.notice()
                self.parent.hops.notice()

    def block(self) -> None:
        if self.blocked_s is None:
            self.blocked_s = self.agenda.now
            self.move()

    def unblock(self) -> None:
        if self.blocked_s is not None:
            self.blocked_s = None
            self.move()
