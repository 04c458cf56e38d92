"""What goes wrong while an object is still being made, or while a relay fetches what its damaged base did not give.

Such moments are short. A fault sets a trap: it strikes at the next one, a part of the way into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chappe.core.relay_events import Assigned
from chappe.sim.relay import Relay
from chappe.sim.victims import Victims

if TYPE_CHECKING:
    from chappe.sim.copies import Copy
    from chappe.sim.encoding import Encoded
    from chappe.sim.origin import Job

AGAIN_S, TRIES = 0.05, 60
"""What is to be harmed may not be there yet: the rest is asked for a round trip later."""

Strike = Callable[["Encoded"], float | None]


def _while_open(v: Victims, strike: Strike, what: str) -> float:
    def sprung(job: Job, one: Encoded) -> None:
        v.agenda.after(v.random.uniform(0.05, 1.0) * job.encode_s, struck, one)

    def struck(one: Encoded) -> None:
        if not one.closed and not one.failed and (end_s := strike(one)) is not None:
            v.struck(what, end_s)
            v.world.counts[what] += 1

    v.world.traps.setdefault("open", []).append(sprung)
    return v.agenda.now


def outgrows(v: Victims) -> float | None:
    """It has more than it may have: everybody gets the full object."""

    def strike(one: Encoded) -> float | None:
        origin = v.world.origin
        if origin is None or not origin.running or origin.paused or not origin.encoder.serves(one):
            return None
        origin.encoder.fail(one, "it has more bytes than it may have")
        return v.agenda.now

    return _while_open(v, strike, "outgrown")


def publisher_open(v: Victims) -> float | None:
    """Its publisher dies in the middle of it."""

    def strike(_: Encoded) -> float | None:
        origin = v.world.origin
        if origin is None or not origin.running:
            return None
        origin.kill()
        return v.later(0.5, 12.0, v.run.publisher_returns)

    return _while_open(v, strike, "its publisher dies")


def joins_open(v: Victims) -> float | None:
    """Somebody joins, and somebody starts again, in the middle of it."""

    def strike(_: Encoded) -> float | None:
        v.world.add_relay(v.run.line()).start()
        gone = [relay for relay in v.world.relays if not relay.running and relay.current and relay.returns_s is None]
        for relay in gone[:1]:
            relay.start()
        return v.agenda.now

    return _while_open(v, strike, "somebody joins")


def parent_open(v: Victims) -> float | None:
    """A parent dies in the middle of it."""

    def strike(one: Encoded) -> float | None:
        parents = [r for r in v.relays() if any(s.source.object.object_id == one.object_id for s in r.serving)]
        if not parents:
            return None
        victim = v.random.choice(parents)
        victim.kill()
        return v.later(0.3, 8.0, victim.start)

    return _while_open(v, strike, "a parent dies")


def _while_salvaged(v: Victims, within_s: float, strike: Callable[[Relay, Copy], float | None], what: str) -> float:
    def sprung(relay: Relay, part: Copy) -> None:
        v.agenda.after(v.random.uniform(0.0, within_s), struck, relay, part, TRIES)

    def struck(relay: Relay, part: Copy, tries: int) -> None:
        if not relay.running or part.version or relay.copies.get(part.object.object_id) is not part:
            return
        end_s = strike(relay, part)
        if end_s is not None:
            v.struck(what, end_s)
            v.world.counts[what] += 1
        elif tries:
            v.agenda.after(AGAIN_S, struck, relay, part, tries - 1)

    v.world.traps.setdefault("part", []).append(sprung)
    return v.agenda.now


def salvage_source(v: Victims) -> float | None:
    """Whoever is to bring the rest dies, or what it sends is wrong."""

    def strike(relay: Relay, part: Copy) -> float | None:
        streams = [s for s in relay.streams.values() if s.copy is part and s.blocked_s is None]
        if not streams:
            return None
        stream = v.random.choice(streams)
        if v.random.random() < 0.4:
            stream.spoil()
            return v.agenda.now
        if isinstance(stream.parent, Relay):
            stream.parent.kill()
            return v.later(0.3, 8.0, stream.parent.start)
        stream.parent.kill()
        return v.later(0.5, 12.0, v.run.publisher_returns)

    return _while_salvaged(v, 0.5, strike, "its source fails")


def salvage_killed(v: Victims) -> float | None:
    """The relay itself dies."""

    def strike(relay: Relay, _: Copy) -> float | None:
        relay.kill()
        return v.later(0.2, 5.0, relay.start)

    return _while_salvaged(v, 1.0, strike, "its relay dies")


def salvage_assigned(v: Victims) -> float | None:
    """An assignment that was on its way when the delta failed comes: the coordinator has not heard of it yet."""

    def strike(relay: Relay, _: Copy) -> float | None:
        if relay.assigned is None:
            return None
        relay.run(relay.life, relay.handle, Assigned(relay.assigned))
        return v.agenda.now

    return _while_salvaged(v, 0.0, strike, "another assignment comes")
