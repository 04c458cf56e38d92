"""What goes wrong, and how it ends again. A fault picks its victim when its time has come, among those it can befall.

Every kind is one function: it does the harm, arranges the end of it, and returns the end's time, or None when nobody
was there to be harmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from chappe.core import events as ev
from chappe.core.reasons import ParentLossReason
from chappe.sim.links import ANYBODY, COORDINATOR
from chappe.sim.relay import Relay
from chappe.sim.session import Session
from chappe.sim.victims import Victims

if TYPE_CHECKING:
    from chappe.sim.scenario import Run

DIES_FOR_GOOD = 0.2
"""The share of killed relays that never come back; one always does."""


class Faults(Victims):
    def __init__(self, run: Run, kinds: Sequence[str]) -> None:
        super().__init__(run)
        self.kinds = tuple(kinds)
        self.injected: list[str] = []
        self.last_s = 0.0
        self._pending = 0
        self._parts = 0

    @property
    def over(self) -> bool:
        return self._pending == 0 and self.agenda.now >= self.last_s

    def schedule(self, from_s: float, span_s: float, most: int) -> None:
        if not self.kinds:
            return
        for _ in range(self.random.randint(1, most)):
            self._pending += 1
            kind = self.random.choice(self.kinds)
            self.agenda.at(from_s + self.random.uniform(0, 1.2) * span_s, self._strike, kind, 0)

    def _strike(self, kind: str, tries: int) -> None:
        end_s = KINDS[kind](self)
        if end_s is None and tries < 3:  # nobody to be harmed now; perhaps in a while, or in another way
            other = kind if tries < 2 else self.random.choice(self.kinds)
            self.agenda.after(self.random.uniform(0.2, 2.0), self._strike, other, tries + 1)
            return
        self._pending -= 1
        if end_s is not None:
            self.injected.append(kind)
            self.last_s = max(self.last_s, end_s)
            self.world.note("fault", kind, f"until {end_s:.1f}")

    # ---- processes -------------------------------------------------------------------------------------------------

    def kill(self) -> float | None:
        relay = self.relay()
        if relay is None:
            return None
        relay.kill()
        if self.random.random() < DIES_FOR_GOOD and any(r.running for r in self.world.relays):
            return self.agenda.now
        if self.random.random() < 0.2:
            relay.clock.reboot()  # the whole host went down
        return self.later(0.1, 12.0, relay.start)

    def restart(self) -> float | None:
        relay = self.relay()
        if relay is None:
            return None
        back_s = self.random.uniform(0.1, 6.0)
        relay.terminate(back_s)
        return self.agenda.now + 4.0 + back_s

    def pause(self) -> float | None:
        relay = self.relay()
        if relay is None:
            return None
        relay.pause()
        life = relay.life

        def resume() -> None:
            if relay.life == life and relay.running:
                relay.resume()

        return self.later(0.2, 14.0, resume)

    def ghost(self) -> float | None:
        """A copy of a relay's store, as it was before its last start, says Hello: an old image of the host came up."""
        relay = self.relay()
        if relay is None or relay.generation < 2 or not self.world.coordinator.running:
            return None
        session = Session(self.world, relay)
        session.down.close()
        session.up.send(
            ev.Hello(relay.worker_id, session.number, ev.Role.RELAY, relay.name, relay.generation - 1, relay.address)
        )
        return self.agenda.now + 1.0

    # ---- links -----------------------------------------------------------------------------------------------------

    def slow(self) -> float | None:
        relay = self.relay()
        if relay is None:
            return None
        factor = self.random.uniform(0.1, 0.5)
        if self.random.random() < 0.5:
            relay.uplink_bytes_per_s *= factor
        else:
            relay.downlink_bytes_per_s *= factor
        self._reshare(relay)

        def undo() -> None:
            relay.uplink_bytes_per_s = relay.line.uplink_bytes_per_s
            relay.downlink_bytes_per_s = relay.line.downlink_bytes_per_s
            self._reshare(relay)

        return self.later(2.0, 20.0, undo)

    def _reshare(self, relay: Relay) -> None:
        self.world.share(relay)
        self.world.share_downlink(relay)

    def blackhole(self) -> float | None:
        """One way, no reset: between two nodes, or to or from one of them altogether."""
        relay = self.relay()
        if relay is None:
            return None
        others = [n.worker_id for n in self.world.nodes.values() if n is not relay and n.running]
        other = self.random.choice([*others, COORDINATOR, ANYBODY])
        pair = (relay.worker_id, other) if self.random.random() < 0.5 else (other, relay.worker_id)
        self.world.network.cut(*pair)
        return self.later(0.5, 25.0, lambda: self.world.network.mend(*pair))

    def partition(self) -> float | None:
        """Some relays on one side, with the publisher or without; the coordinator on the other."""
        nodes = [n.worker_id for n in self.world.nodes.values() if n.running]
        away = [n for n in nodes if self.random.random() < 0.4]
        if not away:
            return None
        self._parts += 1
        number = self._parts
        self.world.network.part(away, number)
        return self.later(0.5, 20.0, lambda: self.world.network.join(away, number))

    def reset(self) -> float | None:
        """A connection is lost: a relay's to the coordinator, or one that payload comes down on."""
        relay = self.relay()
        if relay is None:
            return None
        streams = [s for s in relay.streams.values() if s in s.parent.serving]
        if streams and self.random.random() < 0.5:
            stream = self.random.choice(streams)
            stream.parent.end_stream(stream, ParentLossReason.BROKEN)
        elif relay.session is not None:
            relay.session_over()
        else:
            return None
        return self.agenda.now

    # ---- bytes and disks -------------------------------------------------------------------------------------------

    def corrupt(self) -> float | None:
        """What a node sends is wrong now and then, for a while; what it holds is right."""
        streams = [s for r in self.relays() for s in r.streams.values() if s.blocked_s is None]
        if not streams:
            return None
        parent = self.random.choice(streams).parent
        end_s = self.agenda.now + self.random.choice([0.0, self.random.uniform(0.5, 8.0)])
        self._spoil(parent.worker_id, end_s)
        return end_s

    def _spoil(self, parent_id: str, end_s: float) -> None:
        for relay in self.relays():
            for stream in list(relay.streams.values()):
                if stream.parent.worker_id == parent_id and stream.blocked_s is None:
                    stream.spoil()
        if self.agenda.now < end_s:
            self.agenda.after(self.random.uniform(0.1, 1.5), self._spoil, parent_id, end_s)

    def rot(self) -> float | None:
        """Bytes on a disk change."""
        found = self.holder()
        if found is None:
            return None
        _, copy = found
        copy.settle(self.agenda.now)
        held = [c for start, stop in copy.held for c in (self.random.randrange(start, stop),)]
        chunk = self.random.choice(held)
        for stream in copy.children:
            stream.track.settle(self.agenda.now)  # what is past has arrived whole
        copy.rot(chunk)
        self.world.content_changed()
        return self.agenda.now

    def forge(self) -> float | None:
        """A page and its chunk that are wrong in the same way come down one hop, to the last of a chain."""
        found = [
            (s.copy, s)
            for r in self.relays()
            for s in r.streams.values()
            if not s.copy.children and s.track.left() and s.view is not None and s.copy.forged is None
        ]
        if not found:
            return None
        copy, stream = self.random.choice(found)
        stream.track.settle(self.agenda.now)
        left = [(a, b) for a, b in stream.track.left() if b > copy.pages_upto]
        if not left:
            return None
        a, b = left[-1]
        copy.forged = self.random.randrange(max(a, copy.pages_upto), b)
        self.world.forged = True
        self.world.content_changed()
        return self.agenda.now

    def disk(self) -> float | None:
        relay = self.relay()
        if relay is None or relay.disk_full:
            return None
        relay.fill_disk()

        def free() -> None:
            relay.disk_full = False

        return self.later(0.5, 15.0, free)

    def clock(self) -> float | None:
        """Somebody sets a wall clock."""
        clocks = [self.world.coordinator.clock, *(node.clock for node in self.world.nodes.values())]
        self.random.choice(clocks).step_wall(self.random.choice([-86400.0, -30.0, 30.0, 3600.0, 86400.0 * 365]))
        return self.agenda.now

    # ---- coordinator and publisher ---------------------------------------------------------------------------------

    def coordinator(self) -> float | None:
        coordinator = self.world.coordinator
        if not coordinator.running:
            return None
        coordinator.kill()
        if self.random.random() < 0.3:
            coordinator.clock.reboot()
        return self.later(0.2, 10.0, coordinator.start)

    def publisher(self) -> float | None:
        origin = self.world.origin
        if origin is None or not origin.running:
            return None
        if self.random.random() < 0.3:  # only its way to everybody
            node = origin.worker_id
            self.world.network.cut(node, ANYBODY)
            return self.later(0.5, 15.0, lambda: self.world.network.mend(node, ANYBODY))
        origin.kill()
        return self.later(0.5, 15.0, self.run.publisher_returns)

    def source(self) -> float | None:
        """Files change under the publisher; the trainer has the next snapshot a little later."""
        origin = self.world.origin
        if origin is None or not origin.running or not origin.fail_source():
            return None
        return self.later(0.5, 5.0, self.run.publish_next)

    # ---- many at once ----------------------------------------------------------------------------------------------

    def joins(self) -> float | None:
        """New hosts, all at once."""
        for _ in range(self.random.randint(1, 4)):
            self.world.add_relay(self.run.line()).start()
        return self.agenda.now

    def leaves(self) -> float | None:
        """Some hosts are told to stop at once, for good, and somebody drains another one."""
        relays = self.relays()
        if len(relays) < 2:
            return None
        for relay in self.random.sample(relays, self.random.randint(1, len(relays) // 2)):
            if self.random.random() < 0.3 and self.world.coordinator.running:
                self.world.coordinator.handle(ev.DrainRequested(0, relay.name))
            else:
                relay.terminate(None)
        return self.agenda.now + 4.0

    def outage(self) -> float | None:
        """Several hosts die at the same moment."""
        relays = self.relays()
        if len(relays) < 2:
            return None
        end_s = self.agenda.now
        for relay in self.random.sample(relays, self.random.randint(2, len(relays))):
            relay.kill()
            end_s = max(end_s, self.later(0.5, 12.0, relay.start))
        return end_s


KINDS: dict[str, Callable[[Faults], float | None]] = {
    "kill": Faults.kill,
    "restart": Faults.restart,
    "pause": Faults.pause,
    "ghost": Faults.ghost,
    "slow": Faults.slow,
    "blackhole": Faults.blackhole,
    "partition": Faults.partition,
    "reset": Faults.reset,
    "corrupt": Faults.corrupt,
    "rot": Faults.rot,
    "forge": Faults.forge,
    "disk": Faults.disk,
    "clock": Faults.clock,
    "coordinator": Faults.coordinator,
    "publisher": Faults.publisher,
    "source": Faults.source,
    "joins": Faults.joins,
    "leaves": Faults.leaves,
    "outage": Faults.outage,
}
MIXED = tuple(KINDS)
