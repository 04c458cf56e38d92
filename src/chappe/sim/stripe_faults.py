"""What can go wrong with stripes beyond what can go wrong with any hop: they share links, and a ledger."""

from __future__ import annotations

from chappe.sim.link_faults import impair
from chappe.sim.victims import Victims


def tail(v: Victims) -> float | None:
    """The downlink of somebody who passes on the least halves, for long: its parents in all stripes have more to give
    than it takes."""
    relays = [r for r in v.relays() if r.streams]
    if not relays:
        return None
    least = min(len(r.serving) for r in relays)
    relay = v.random.choice([r for r in relays if len(r.serving) == least])
    return impair(v, relay, (1.0, v.random.uniform(0.25, 0.5)), 15.0, 60.0)


def poison(v: Victims) -> float | None:
    """A parent in one stripe brings a false page for a chunk of another one: whoever sends that chunk looks false."""
    found = [
        s
        for r in v.relays()
        for s in r.streams.values()
        if not s.stripes.plain and not s.copy.children and s.track.left() and s.copy.false_page is None
    ]
    if not found:
        return None
    stream = v.random.choice(found)
    copy = stream.copy
    copy.settle(v.agenda.now)
    left = [
        chunk
        for start, stop in copy.held.missing(copy.pages_upto, copy.object.chunks_total)
        for chunk in range(start, stop)
        if stream.stripes.stripe_of(chunk) != stream.stripe
    ]
    if not left:
        return None
    copy.false_page = (v.random.choice(left), stream.stripe)
    v.world.forged = True
    v.world.content_changed()
    return v.agenda.now
