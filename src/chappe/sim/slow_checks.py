"""What must become of slow hops. The truth about every link is known here, and to nobody in the fleet.

    a hop that stays at half of what both of its ends are known for    does not stay for long
    a relay whose uplink has halved, put to the test                   is demoted, unless somebody disturbs the test
    a relay in a fleet whose links have always been what they are      is never demoted
    what is measured of relays in such a fleet, where all have declared   is what the link is, or was not measured
    a demoted relay whose link is well again                           is trusted again, by what others get from it

Looked at in small fleets only: they show as much as large ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chappe.core.demotion import EARN_MAX_S, EARN_S, EARN_SHARE
from chappe.core.effects import Log
from chappe.core.probing import LOOK_S, PROBE_CREDIT_S, RETRY_S
from chappe.core.rates import downlink, fleet_rate, uplink
from chappe.sim.relay import Relay

if TYPE_CHECKING:
    from chappe.core.workers import Worker
    from chappe.sim.flow import Stream
    from chappe.sim.invariants import Checks

SLOW_SHARE = 0.5
STAYS_S = 25.0
"""Three busy seconds as two reports show them, and a case in the same chain that has to end first."""
COOL_S = 31.0  # a child that has complained is not heard again for so long
VERDICT_S = 13.0
PUT_TO_THE_TEST = ("up", "aside")
MEASURED_WITHIN = 0.25
MEASURED_S = (
    4.0  # of busy time: two reports, since one of them may come from a moment of which nobody else has told yet
)
PLAIN = 1.5  # so much better must the way round a slow sender be for the test to be plain
LATER_S = 8.0
"""A hop with less than so much left to carry, or with less backlog than two seconds, proves nothing."""


@dataclass(slots=True)
class Test:
    """A relay is put to the test: its child gets the same from somebody else. `best` is what that one could give."""

    since_s: float
    watched: str
    best_bytes_per_s: float = 0.0


class SlowChecks:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._world = checks.world
        self._slow_s: dict[tuple[str, str, str], float] = {}  # object, parent, child: since when
        self._named_s: dict[str, float] = {}  # in a case: when last
        self._tests: dict[str, Test] = {}  # by who is accused

    # ---- decisions -------------------------------------------------------------------------------------------------

    def decided(self, log: Log) -> None:
        names = {str(log.fields.get(key, "")) for key in ("accused", "watched", "relay", "accuser")}
        match log.event:
            case "slow_hop":
                if log.reason in PUT_TO_THE_TEST:
                    test = Test(self._world.agenda.now, str(log.fields["watched"]))
                    self._tests[str(log.fields["accused"])] = test
            case "demoted":
                self._world.counts["demotions"] += 1
                relay = str(log.fields["relay"])
                self._tests.pop(relay, None)
                if not self._world.ever_slowed:
                    self._checks.fail(f"{relay} is demoted, and no link of this fleet has ever been slower than it is")
            case "trusted_again":
                self._world.counts["trusted_again"] += 1
            case "case_dropped":  # somebody in it is gone, or has moved: also because nobody there could dial
                self._tests.pop(str(log.fields["accused"]), None)
            case "slow_receiver" | "accuser_wrong" | "unproven":
                pass
            case _:
                return
        for name in names:
            self._named_s[name] = self._world.agenda.now

    # ---- every second ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        world, now = self._world, self._world.agenda.now
        if not world.coordinator.running or not world.ever_slowed:
            self._slow_s.clear()
            self._tests.clear()
            if world.coordinator.running and world.config.declared:
                self._look_at_figures()
            return
        self._look_at_tests()
        slow: dict[tuple[str, str, str], float] = {}
        for relay in world.relays:
            for stream in relay.streams.values():
                if self._is_slow(relay, stream):
                    key = (stream.source.object.object_id, stream.parent.name, relay.name)
                    named_s = max(self._named_s.get(stream.parent.name, -1e9), self._named_s.get(relay.name, -1e9))
                    slow[key] = max(self._slow_s.get(key, now), named_s + COOL_S)
                    if now - slow[key] > STAYS_S:
                        self._checks.fail(
                            f"{relay.name} has got half of what it could from {stream.parent.name} for "
                            f"{now - slow[key]:.0f} s and nothing is done about it"
                        )
        self._slow_s = slow

    def _is_slow(self, child: Relay, stream: Stream) -> bool:
        parent, world = stream.parent, self._world
        if not isinstance(parent, Relay) or stream.blocked_s is not None or stream.ended:
            return False
        if len(parent.serving) > 1 or len(child.streams) > 1:
            return False  # two versions at once
        publication = world.coordinator.fleet.state.publications.get(stream.source.object.object_id)
        place = None if publication is None else publication.layout.place(stream.ticket.slot[1], child.worker_id)
        if publication is None or place is None or publication.layout.ancestors(place, 1) != [parent.worker_id]:
            return False
        clear = world.network.clear(child.worker_id) and world.network.clear(parent.worker_id)
        if not (clear and self._checks.reachable(child) and self._checks.reachable(parent)):
            return False
        known = self._known(parent, child)
        rate = stream.capacity * stream.source.object.chunk_bytes
        if known is None or rate >= SLOW_SHARE * known:
            return False
        stream.copy.settle(world.agenda.now)
        stream.source.settle(world.agenda.now)
        lacks = stream.copy.object.chunks_total - len(stream.copy.held)
        behind = len(stream.source.held) - len(stream.copy.held)
        return lacks > LATER_S * stream.capacity and behind > 2 * stream.capacity

    def _known(self, parent: Relay, child: Relay) -> float | None:
        """What the coordinator knows that this hop can carry."""
        workers, now = self._world.coordinator.fleet.state.workers, self._world.coordinator.now()
        sender, receiver = workers.get(parent.worker_id), workers.get(child.worker_id)
        if sender is None or receiver is None:
            return None
        up, down = uplink(sender, 0.0, now).known, downlink(receiver, 0.0, now).known
        return min(up, down) if up and down else None

    def _look_at_figures(self) -> None:
        for worker in self._world.coordinator.fleet.state.relays:
            line = self._world.nodes[worker.worker_id].line
            for what, estimate, true in (
                ("uplink", worker.links.up, line.uplink_bytes_per_s),
                ("downlink", worker.links.down, line.downlink_bytes_per_s),
            ):
                share = estimate.bytes_per_s / true
                if estimate.weight_s > MEASURED_S and abs(share - 1) > MEASURED_WITHIN:
                    self._checks.fail(f"the {what} of {worker.name} was measured as {share:.2f} of what it is")

    def _look_at_tests(self) -> None:
        world, now = self._world, self._world.agenda.now
        relays = {relay.name: relay for relay in world.relays}
        for name, test in list(self._tests.items()):
            accused, child = relays[name], relays[test.watched]
            streams = [s for s in child.streams.values() if s.parent is not accused]
            rates = [s.capacity * s.source.object.chunk_bytes for s in streams]
            test.best_bytes_per_s = max([test.best_bytes_per_s, *rates])
            whole = all(copy.complete for copy in child.copies.values())
            if world.disturbed_s > test.since_s or whole or not accused.slowed:
                del self._tests[name]
            elif now - test.since_s > VERDICT_S:
                del self._tests[name]
                if test.best_bytes_per_s > PLAIN * accused.uplink_bytes_per_s:
                    self._checks.fail(f"{name}'s uplink has halved, {child.name} has shown it, {name} is not demoted")

    # ---- earning a place back --------------------------------------------------------------------------------------

    def untrusted(self) -> list[Relay]:
        """Relays that are demoted although their links are well, and that somebody could find out about."""
        world = self._world
        if not world.coordinator.running:
            return []
        fleet = world.coordinator.fleet
        now, assumed = world.coordinator.now(), fleet.config.assumed_bytes_per_s
        bar = 1.2 * EARN_SHARE * fleet_rate(fleet.state.relays, assumed, now)
        here = {w.worker_id: w for w in fleet.state.relays if w.connected and w.placeable}
        found: list[Relay] = []
        for relay in world.relays:
            worker = here.get(relay.worker_id)
            if worker is None or not worker.demoted or worker.dialable is False or relay.natted or relay.slowed:
                continue
            others = [w for w in here.values() if w is not worker and not w.demoted]
            if relay.uplink_bytes_per_s >= bar and self._checks.reachable(relay) and self._takers(others, bar):
                found.append(relay)
        return found

    def _takers(self, others: list[Worker], bar: float) -> bool:
        """Everybody who may be told to find out can take as much."""
        nodes = [self._world.nodes[w.worker_id] for w in others]
        return bool(nodes) and all(n.downlink_bytes_per_s >= bar and self._checks.reachable(n) for n in nodes)

    def patience_s(self) -> float:
        """By when a probe a minute has shown enough, for whoever has been demoted most often."""
        workers = self._world.coordinator.fleet.state.workers.values()
        times: int = max((w.demotion.times for w in workers if w.demotion is not None), default=1)
        probes = math.ceil(min(EARN_MAX_S, EARN_S * 2.0 ** (times - 1)) / PROBE_CREDIT_S)
        return 2.0 * (probes + 2) * (RETRY_S + LOOK_S)
