"""What can go wrong with links: slower for a while, cut in one direction or both, reset, or behind NAT all at once."""

from __future__ import annotations

from chappe.core.reasons import ParentLossReason
from chappe.sim.links import ANYBODY, COORDINATOR
from chappe.sim.relay import Relay
from chappe.sim.victims import Victims


def slow(v: Victims) -> float | None:
    """A dip, as deep as it may be: it is over before anybody needs to do anything."""
    relay = v.relay()
    if relay is None:
        return None
    factor = v.random.uniform(0.1, 0.5)
    return impair(v, relay, (factor, 1.0) if v.random.random() < 0.5 else (1.0, factor), 2.0, 20.0)


def uplink(v: Victims) -> float | None:
    """An uplink halves, and stays so for long: somebody behind it pays."""
    relay = v.sender()
    return None if relay is None else impair(v, relay, (v.random.uniform(0.25, 0.5), 1.0), 15.0, 60.0)


def downlink(v: Victims) -> float | None:
    relay = v.sender()
    return None if relay is None else impair(v, relay, (1.0, v.random.uniform(0.25, 0.5)), 15.0, 60.0)


def impair(v: Victims, relay: Relay, left: tuple[float, float], low_s: float, high_s: float) -> float:
    relay.slowed.append(left)
    relay.relink()

    def undo() -> None:
        relay.slowed.remove(left)
        relay.relink()

    return v.later(low_s, high_s, undo)


def blackhole(v: Victims) -> float | None:
    """One way, no reset: between two nodes, or to or from one of them altogether."""
    relay = v.relay()
    if relay is None:
        return None
    others = [n.worker_id for n in v.world.nodes.values() if n is not relay and n.running]
    other = v.random.choice([*others, COORDINATOR, ANYBODY])
    pair = (relay.worker_id, other) if v.random.random() < 0.5 else (other, relay.worker_id)
    v.world.network.cut(*pair)
    return v.later(0.5, 25.0, lambda: v.world.network.mend(*pair))


def partition(v: Victims) -> float | None:
    """Some relays on one side, with the publisher or without; the coordinator on the other."""
    nodes = [n.worker_id for n in v.world.nodes.values() if n.running]
    away = [n for n in nodes if v.random.random() < 0.4]
    if not away:
        return None
    number = v.world.network.part(away)
    return v.later(0.5, 20.0, lambda: v.world.network.join(away, number))


def reset(v: Victims) -> float | None:
    """A connection is lost: a relay's to the coordinator, or one that payload comes down on."""
    relay = v.relay()
    if relay is None:
        return None
    streams = [s for s in relay.streams.values() if s in s.parent.serving]
    if streams and v.random.random() < 0.5:
        stream = v.random.choice(streams)
        stream.parent.end_stream(stream, ParentLossReason.BROKEN)
    elif relay.session is not None:
        relay.session_over()
    else:
        return None
    return v.agenda.now


def nat(v: Victims) -> float | None:
    """A host that could be dialled cannot be any more, and does not know: what is open stays open."""
    relay = v.relay()
    if relay is None or relay.natted:
        return None
    relay.natted = True

    def undo() -> None:
        relay.natted = relay.line.natted

    return v.later(1.0, 20.0, undo)
