"""What must hold in a simulated fleet, whatever happens. The first breach ends the run.

    after every event   of the coordinator: `core.invariants`; generations; nobody silent counts as here, nobody who is
                        gone has a place
    at admission        at a parent: one child per slot and stripe, no outranked token, no fallback against a live child
    every second        nobody stays without a parent for long while there is a source; no lasting cycle of streams
    at the end          every reachable honest worker has the exact bytes of the newest version, where they still exist

What is stored, landed and installed is checked in `byte_checks`, who dials whom and when links are probed in
`hop_checks`, what becomes of slow hops in `slow_checks`, who gets a version as which object in `lane_checks`, what only
stripes can break in `stripe_checks`, what only open ends and damaged bases can in `streamed_checks`. At size those whom
an event has touched are checked after it, the whole fleet after every so many events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chappe.core import events as ev
from chappe.core.effects import Effect
from chappe.core.events import ObjectState
from chappe.core.fleet import Fleet
from chappe.core.invariants import History, broken, touched
from chappe.core.publication import Publication
from chappe.hop.guard import AssignedChild, Ticket
from chappe.hop.stall import STALL_FLOOR_S
from chappe.sim.byte_checks import ByteChecks
from chappe.sim.hop_checks import HopChecks
from chappe.sim.lane_checks import LaneChecks
from chappe.sim.links import COORDINATOR
from chappe.sim.slow_checks import SlowChecks
from chappe.sim.streamed_checks import StreamedChecks
from chappe.sim.stripe_checks import StripeChecks
from chappe.v1.relay_pb2 import EdgeClaims

if TYPE_CHECKING:
    from chappe.sim.flow import Stream
    from chappe.sim.node import Node
    from chappe.sim.relay import Relay
    from chappe.sim.world import World

ORPHAN_S = 10.0
"""Longer than any honest way to a new parent: a silence to be noticed, a lease (5 s), retries with their waits."""
CYCLE_S = 15.0
SILENCE_SLACK_S = 1.0


class InvariantError(AssertionError):
    """`str` is the sentence that says what."""


class Checks:
    def __init__(self, world: World) -> None:
        self.world = world
        self.bytes, self.hops, self.slowness = ByteChecks(self), HopChecks(self), SlowChecks(self)
        self.lanes = LaneChecks(self)
        self.stripes, self.streamed = StripeChecks(self), StreamedChecks(self)
        self._history = History()
        self._handled = 0
        self._generations: dict[str, int] = {}
        self._epochs: dict[tuple[str, int, str, int, int], int] = {}
        self._chains: dict[tuple[str, int], int] = {}  # by object and stripe
        self._fed_s: dict[tuple[str, str, int], float] = {}
        self._cycles_s: dict[frozenset[str], float] = {}

    def fail(self, what: str) -> None:
        raise InvariantError(f"{what} (at {self.world.agenda.now:.3f} s)")

    # ---- the coordinator -------------------------------------------------------------------------------------------

    def fleet_moved(self, event: ev.Event, effects: Sequence[Effect]) -> None:
        fleet = self.world.coordinator.fleet
        self._handled += 1
        whole = self._handled % self.world.config.check_every == 0
        found = self._history.observe(fleet, effects, whole=whole) + touched(fleet, effects)
        if whole:
            found += broken(fleet) + self._presence(fleet) + self.lanes.fleet_moved(fleet)
            found += self.streamed.fleet_moved(fleet)
        if isinstance(event, ev.Hello):
            found += self._generation(fleet, event)
        if found:
            self.fail(found[0])

    def _generation(self, fleet: Fleet, event: ev.Hello) -> list[str]:
        worker = fleet.state.workers.get(event.worker_id)
        if worker is None:
            return []
        before = self._generations.get(event.worker_id, 0)
        self._generations[event.worker_id] = max(before, worker.generation)
        if worker.generation < before or (worker.session == event.session and event.generation < before):
            return [f"{worker.name} went back from generation {before} to {event.generation}"]
        return []

    def _presence(self, fleet: Fleet) -> list[str]:
        found: list[str] = []
        now, lease_s = self.world.coordinator.now(), fleet.config.lease_s
        for worker in fleet.state.workers.values():
            silent_s = now - worker.heard_s
            if worker.connected and silent_s > lease_s + fleet.config.wake_grain_s + SILENCE_SLACK_S:
                found.append(f"{worker.name} counts as here after {silent_s:.1f} s of silence")
        for publication in fleet.state.publications.values():
            if publication.active:
                for worker_id in publication.layout.workers():
                    known = fleet.state.workers.get(worker_id)
                    if known is None or known.lapsed or known.leaving or known.drained:
                        found.append(f"{worker_id} is gone and has a place in version {publication.version}")
        return found

    # ---- parents ---------------------------------------------------------------------------------------------------

    def children_assigned(self, parent: Node, children: list[AssignedChild]) -> None:
        for c in children:
            key = (parent.worker_id, parent.life, c.object_id, c.stripe, c.slot)
            self._epochs[key] = max(c.epoch, self._epochs.get(key, 0))

    def admitted(self, parent: Node, claims: EdgeClaims, present: Ticket | None, now: float) -> None:
        key = (parent.worker_id, parent.life, claims.object_id, claims.stripe, claims.slot)
        newest = self._epochs.get(key, 0)
        child = self.world.nodes[claims.child].name
        if claims.epoch < newest:
            self.fail(f"{parent.name} took {child} in with epoch {claims.epoch} after it knew of {newest}")
        if not claims.fallback:
            self._epochs[key] = claims.epoch
        elif present is not None and present.child != claims.child:
            idle_s = now - present.progressed_s
            if idle_s < STALL_FLOOR_S:
                self.fail(f"{parent.name} gave up a child that moved {idle_s:.1f} s ago for {child}'s fallback")

    def serving(self, parent: Node, stream: Stream, *, wanted: bool) -> None:
        """`wanted`: its child still waits for it, and did not give up while the parent was paused."""
        same = [s for s in parent.serving if s.ticket.slot == stream.ticket.slot]
        if len(same) > 1:
            names = ", ".join(s.child.name for s in same)
            self.fail(f"{parent.name} serves {names} in slot {stream.ticket.slot[2]}")
        if stream.child is parent:
            self.fail(f"{parent.name} is its own parent")
        self.hops.flows(parent, *([stream.child] if wanted else []))
        self._slots(parent, stream)
        self.lanes.serving(parent, stream)

    def _slots(self, parent: Node, stream: Stream) -> None:
        """An origin never serves more streams of a stripe than chains were planned there; a relay one. Those of another
        map end by themselves, or with their connections: there need not be a successor in their slots."""
        object_id, stripe = stream.source.object.object_id, stream.stripe
        same = [s for s in parent.serving if s.source.object.object_id == object_id and s.stripe == stripe]
        live = sum(s.stripes == stream.stripes for s in same)
        publication = self.world.coordinator.fleet.state.publications.get(object_id)
        key = (object_id, stripe)
        if publication is not None:
            known = self._chains.get(key, 1)
            chains = len(publication.layout.of_stripe(stripe))
            self._chains[key] = publication.streams_max or max(known, chains)
        most = self._chains.get(key, 1) if parent is self.world.origin else 1
        if live > most:
            version = stream.source.object.version
            self.fail(f"{parent.name} serves {live} streams of stripe {stripe}, version {version}: its share is {most}")

    # ---- every second ----------------------------------------------------------------------------------------------

    def look_around(self) -> None:
        self._orphans()
        self._loops()
        self.hops.look()
        self.lanes.look()
        self.streamed.look()
        self.slowness.look()

    def reachable(self, relay: Node) -> bool:
        """It runs, and the coordinator and it hear each other."""
        network = self.world.network
        alive = relay.running and not relay.paused and not relay.leaving
        return alive and relay.joined and network.both(relay.worker_id, COORDINATOR)

    def _orphans(self) -> None:
        world, now = self.world, self.world.agenda.now
        if not world.coordinator.running:
            self._fed_s.clear()
            return
        for publication in world.coordinator.fleet.state.publications.values():
            if not publication.active:
                continue
            for relay in world.relays:
                for stripe in range(len(publication.stripes.weights)):
                    key = (relay.name, publication.object_id, stripe)
                    if self._suffers(relay, publication, stripe):
                        since_s = self._fed_s.setdefault(key, now)
                        if now - since_s > ORPHAN_S * world.config.heartbeat_s:
                            waits = f"{now - since_s:.0f} s without a parent while a source exists"
                            where = "" if publication.stripes.plain else f", stripe {stripe}"
                            self.fail(f"{relay.name} has been {waits}, version {publication.version}{where}")
                    else:
                        self._fed_s.pop(key, None)

    def _suffers(self, relay: Relay, publication: Publication, stripe: int) -> bool:
        object_id = publication.object_id
        member = publication.members.get(relay.worker_id)
        if member is None or member.superseded or member.deferred or member.failed or not self.reachable(relay):
            return False
        copy = relay.copies.get(object_id)
        if relay.disk_full or not self.world.network.clear(relay.worker_id) or (copy is not None and copy.complete):
            return False
        if any(s.copy is copy and s.stripe == stripe and s.blocked_s is None for s in relay.streams.values()):
            return False
        if copy is not None and copy.header and not publication.stripes.plain:
            copy.settle(self.world.agenda.now)
            if not publication.stripes.lacks(stripe, copy.held.ranges(), copy.object.chunks_total):
                return False
        if self.hops.walled_in(relay, publication, stripe) or self.hops.door_shut(relay, publication, stripe):
            return False
        if self.lanes.elsewhere(publication, member):
            return False
        return bool(self.sources(object_id, relay))

    def sources(self, object_id: str, relay: Relay) -> list[Node]:
        """Who could feed this relay, one way or another, with something that it lacks."""
        mine = relay.copies.get(object_id)
        publication = self.world.coordinator.fleet.state.publications.get(object_id)
        spared = publication is not None and self.lanes.spared(publication)
        found: list[Node] = []
        for node in self.world.nodes.values():
            copy = node.copies.get(object_id)
            if node is relay or copy is None or not self.reachable(node):
                continue
            if not self.world.network.both(node.worker_id, relay.worker_id) or (node.natted and relay.natted):
                continue
            if node is self.world.origin and spared:
                continue
            whole = node is self.world.origin or copy.complete
            if whole and (mine is None or len(mine.held) < copy.object.chunks_total):
                found.append(node)
        return found

    def _loops(self) -> None:
        parents: dict[tuple[str, int], dict[str, str]] = {}
        for relay in self.world.relays:
            for stream in relay.streams.values():
                if stream.blocked_s is None:
                    key = (stream.source.object.object_id, stream.stripe)
                    parents.setdefault(key, {})[relay.name] = stream.parent.name
        seen: set[frozenset[str]] = set()
        for edges in parents.values():
            seen |= set(cycles(edges))
        now = self.world.agenda.now
        self._cycles_s = {loop: self._cycles_s.get(loop, now) for loop in seen}
        for loop, since_s in self._cycles_s.items():
            if now - since_s > CYCLE_S:
                self.fail(f"{', '.join(sorted(loop))} have fed each other for {now - since_s:.0f} s")

    # ---- the end ---------------------------------------------------------------------------------------------------

    def unfinished(self) -> list[str]:
        """Who should have the newest version and has not, and could have it."""
        world = self.world
        current = world.coordinator.fleet.state.current if world.coordinator.running else None
        if current is None:
            return []
        found: list[str] = []
        for relay in world.relays:
            if not relay.running or relay.paused:
                continue
            copy = next((c for c in relay.copies.values() if c.version == current.version), None)
            if copy is None and world.forged and self._gave_up(relay, current.object_id):
                continue  # false pages twice: it says so, and has landed nothing
            if copy is None:
                held = relay.copies.get(current.object_id)
                if self.sources(current.object_id, relay) or (held is not None and (held.complete or not relay.natted)):
                    got = 0 if held is None else len(held.held)
                    found.append(
                        f"{relay.name} has {got} of {current.chunks_total} chunks of version {current.version}"
                    )
            elif copy.false_chunks():
                found.append(f"{relay.name} has false bytes in version {current.version}")
            elif self._unheard_failure(relay, current):
                found.append(f"nobody knows that {relay.name} could not install version {current.version}")
        return found

    def _unheard_failure(self, relay: Relay, current: Publication) -> bool:
        member = current.members.get(relay.worker_id)
        says = any(h.version == current.version and h.state is ObjectState.FAILED for h in relay.machine.holdings())
        return says and member is not None and self.reachable(relay) and not member.failed

    @staticmethod
    def _gave_up(relay: Relay, object_id: str) -> bool:
        states = {holding.object_id: holding.state for holding in relay.machine.holdings()}
        return states.get(object_id) is ObjectState.FAILED


def cycles(parents: dict[str, str]) -> list[frozenset[str]]:
    """The loops of a map from child to parent."""
    found: list[frozenset[str]] = []
    done: set[str] = set()
    for start in parents:
        path: list[str] = []
        node = start
        while node in parents and node not in done and node not in path:
            path.append(node)
            node = parents[node]
        if node in path:
            found.append(frozenset(path[path.index(node) :]))
        done.update(path)
    return found
