"""What can go wrong with processes and hosts: relays, coordinator, publisher, the install hook, many at once."""

from __future__ import annotations

from chappe.core import events as ev
from chappe.sim.links import ANYBODY
from chappe.sim.session import Session
from chappe.sim.victims import Victims

DIES_FOR_GOOD = 0.2
"""The share of killed relays that never come back; one always does."""


def kill(v: Victims) -> float | None:
    relay = v.relay()
    if relay is None:
        return None
    relay.kill()
    if v.random.random() < DIES_FOR_GOOD and any(r.running for r in v.world.relays):
        return v.agenda.now
    if v.random.random() < 0.2:
        relay.clock.reboot()  # the whole host went down
    return v.later(0.1, 12.0, relay.start)


def restart(v: Victims) -> float | None:
    relay = v.relay()
    if relay is None:
        return None
    back_s = v.random.uniform(0.1, 6.0)
    relay.terminate(back_s)
    return v.agenda.now + 4.0 + back_s


def pause(v: Victims) -> float | None:
    relay = v.relay()
    if relay is None:
        return None
    relay.pause()
    life = relay.life

    def resume() -> None:
        if relay.life == life and relay.running:
            relay.resume()

    return v.later(0.2, 14.0, resume)


def ghost(v: Victims) -> float | None:
    """A copy of a relay's store, as it was before its last start, says Hello: an old image of the host came up."""
    relay = v.relay()
    if relay is None or relay.generation < 2 or not v.world.coordinator.running:
        return None
    session = Session(v.world, relay)
    session.down.close()
    session.up.send(
        ev.Hello(relay.worker_id, session.number, ev.Role.RELAY, relay.name, relay.generation - 1, relay.address)
    )
    return v.agenda.now + 1.0


def hook(v: Victims) -> float | None:
    """The engine of a host does not load what it is given, for a while."""
    relay = v.relay()
    if relay is None or relay.hook_broken or v.world.config.install_s is None:
        return None
    relay.hook_broken = True

    def mend() -> None:
        relay.hook_broken = False

    return v.later(2.0, 30.0, mend)


# ---- coordinator and publisher ---------------------------------------------------------------------------------------


def coordinator(v: Victims) -> float | None:
    process = v.world.coordinator
    if not process.running:
        return None
    process.kill()
    if v.random.random() < 0.3:
        process.clock.reboot()
    return v.later(0.2, 10.0, process.start)


def publisher(v: Victims) -> float | None:
    origin = v.world.origin
    if origin is None or not origin.running:
        return None
    if v.random.random() < 0.3:  # only its way to everybody
        node = origin.worker_id
        v.world.network.cut(node, ANYBODY)
        return v.later(0.5, 15.0, lambda: v.world.network.mend(node, ANYBODY))
    origin.kill()
    return v.later(0.5, 15.0, v.run.publisher_returns)


def source(v: Victims) -> float | None:
    """Files change under the publisher; the trainer has the next snapshot a little later."""
    origin = v.world.origin
    if origin is None or not origin.running or not origin.fail_source():
        return None
    return v.later(0.5, 5.0, v.run.publish_next)


def clock(v: Victims) -> float | None:
    """Somebody sets a wall clock."""
    clocks = [v.world.coordinator.clock, *(node.clock for node in v.world.nodes.values())]
    v.random.choice(clocks).step_wall(v.random.choice([-86400.0, -30.0, 30.0, 3600.0, 86400.0 * 365]))
    return v.agenda.now


# ---- many at once ----------------------------------------------------------------------------------------------------


def joins(v: Victims) -> float | None:
    """New hosts, all at once."""
    for _ in range(v.random.randint(1, 4)):
        v.world.add_relay(v.run.line()).start()
    return v.agenda.now


def leaves(v: Victims) -> float | None:
    """Some hosts are told to stop at once, for good, and somebody drains another one."""
    relays = v.relays()
    if len(relays) < 2:
        return None
    for relay in v.random.sample(relays, v.random.randint(1, len(relays) // 2)):
        if v.random.random() < 0.3 and v.world.coordinator.running:
            v.world.coordinator.handle(ev.DrainRequested(0, relay.name))
        else:
            relay.terminate(None)
    return v.agenda.now + 4.0


def outage(v: Victims) -> float | None:
    """Several hosts die at the same moment."""
    relays = v.relays()
    if len(relays) < 2:
        return None
    end_s = v.agenda.now
    for relay in v.random.sample(relays, v.random.randint(2, len(relays))):
        relay.kill()
        end_s = max(end_s, v.later(0.5, 12.0, relay.start))
    return end_s
