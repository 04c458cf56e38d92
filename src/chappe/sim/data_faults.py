"""What can go wrong with bytes: on the way, at rest, with their pages, and for want of room."""

from __future__ import annotations

from chappe.sim.victims import Victims


def corrupt(v: Victims) -> float | None:
    """What a node sends is wrong now and then, for a while; what it holds is right."""
    streams = [s for r in v.relays() for s in r.streams.values() if s.blocked_s is None]
    if not streams:
        return None
    parent = v.random.choice(streams).parent
    end_s = v.agenda.now + v.random.choice([0.0, v.random.uniform(0.5, 8.0)])
    _spoil(v, parent.worker_id, end_s)
    return end_s


def _spoil(v: Victims, parent_id: str, end_s: float) -> None:
    for relay in v.relays():
        for stream in list(relay.streams.values()):
            if stream.parent.worker_id == parent_id and stream.blocked_s is None:
                stream.spoil()
    if v.agenda.now < end_s:
        v.agenda.after(v.random.uniform(0.1, 1.5), _spoil, v, parent_id, end_s)


def rot(v: Victims) -> float | None:
    """Bytes on a disk change."""
    found = v.holder()
    if found is None:
        return None
    _, copy = found
    copy.settle(v.agenda.now)
    held = [c for start, stop in copy.held for c in (v.random.randrange(start, stop),)]
    chunk = v.random.choice(held)
    for stream in copy.children:
        stream.track.settle(v.agenda.now)  # what is past has arrived whole
    copy.rot(chunk)
    v.world.content_changed()
    return v.agenda.now


def forge(v: Victims) -> float | None:
    """A page and its chunk that are wrong in the same way come down one hop, to the last of a chain."""
    found = [
        (s.copy, s)
        for r in v.relays()
        for s in r.streams.values()
        if not s.copy.children and s.track.left() and s.view is not None and s.copy.forged is None
    ]
    if not found:
        return None
    copy, stream = v.random.choice(found)
    stream.track.settle(v.agenda.now)
    left = [(a, b) for a, b in stream.track.left() if b > copy.pages_upto]
    if not left:
        return None
    a, b = left[-1]
    copy.forged = v.random.randrange(max(a, copy.pages_upto), b)
    if not stream.stripes.plain:
        copy.false_page = (copy.forged, stream.stripe)
    v.world.forged = True
    v.world.content_changed()
    return v.agenda.now


def disk(v: Victims) -> float | None:
    relay = v.relay()
    if relay is None or relay.disk_full:
        return None
    relay.fill_disk()

    def free() -> None:
        relay.disk_full = False

    return v.later(0.5, 15.0, free)
