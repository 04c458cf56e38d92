"""What can go wrong with deltas, with what they begin at, and with those who are not there when it is published."""

from __future__ import annotations

from chappe.sim.victims import Victims


def absent(v: Victims) -> float | None:
    """A host is away while versions are published, and comes back with an old one."""
    relay = v.relay()
    if relay is None or not relay.current:
        return None
    expected_s = v.run.expected_s
    if v.random.random() < 0.5:
        relay.kill()
        return v.later(0.5 * expected_s, 4 * expected_s, relay.start)
    back_s = v.random.uniform(0.5 * expected_s, 4 * expected_s)
    relay.terminate(back_s)
    return v.agenda.now + 4.0 + back_s


def base(v: Victims) -> float | None:
    """Bytes of a landed version change: no delta can begin there any more."""
    found = [(r, c) for r in v.relays() for c in r.copies.values() if c.version and c.held]
    if not found:
        return None
    _, copy = v.random.choice(found)
    copy.settle(v.agenda.now)
    for stream in copy.children:
        stream.track.settle(v.agenda.now)
    start, stop = v.random.choice(list(copy.held))
    copy.rot(v.random.randrange(start, stop))
    v.world.content_changed()
    return v.agenda.now


def no_delta(v: Victims) -> float | None:
    """The publisher cannot make a delta that was promised, or cannot read one any more that it serves."""
    origin = v.world.origin
    if origin is None or not origin.running or origin.paused:
        return None
    found = [one for job in origin.jobs if not job.stopped for one in job.wanted if not one.failed]
    if not found:
        return None
    origin.encoder.fail(v.random.choice(found), "its file cannot be read")
    return v.agenda.now


def wrong_delta(v: Victims) -> float | None:
    """The publisher makes deltas that lead to other bytes: nobody can land them."""
    trainer = v.world.trainer
    if trainer is None or not v.run.to_publish:
        return None
    trainer.spoils = True
    return v.agenda.now


def lost_base(v: Victims) -> float | None:
    """What the publisher keeps is damaged: the base, or the steps that lead to it."""
    trainer = v.world.trainer
    if trainer is None or not trainer.steps:
        return None
    trainer.steps = [] if v.random.random() < 0.5 else trainer.steps[-1:]
    return v.agenda.now
