"""What must hold of the objects of one version, and of those who get it as one or the other.

after every event   a lane belongs to its main, has its root, and nobody in it that has no base; nobody is in two lanes,
                    or in a lane and, before it has landed, among the main's chains; who has left for the full object is
                    in no lane of that version any more; a delta is not waited for when its publisher is gone
at every stream     the objects of a version share what its publisher can send
every second        a delta that was promised comes or is called off
at landing          what a delta leads to is the object, and the root, of the full one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.bases import takes
from chappe.core.fleet import Fleet
from chappe.core.lanes import lanes_of
from chappe.core.publication import ENDED, VERIFIED, Member, Phase, Publication

if TYPE_CHECKING:
    from chappe.core.effects import Log
    from chappe.sim.copies import Copy
    from chappe.sim.flow import Stream
    from chappe.sim.invariants import Checks
    from chappe.sim.node import Node
    from chappe.sim.storing import Storing

PROMISED_S = 15.0
"""Beyond the time that its publisher takes to make it, and to come back."""
SLACK = 1.05


class LaneChecks:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._world = checks.world
        self._left: set[tuple[str, str]] = set()  # main, worker: gets this version in full for good
        self._members: dict[str, set[str]] = {}  # of a lane, as they were
        self._promised_s: dict[str, float] = {}  # since when a delta could have been offered

    # ---- after every event -----------------------------------------------------------------------------------------

    def fleet_moved(self, fleet: Fleet) -> list[str]:
        found: list[str] = []
        for main in fleet.state.mains:
            if main.deltas or any(member.full_only for member in main.members.values()):
                found += self._version(fleet, main)
        known = fleet.state.publications
        for lane in known.values():
            if lane.main and lane.main not in known:
                found.append(f"v{lane.version}: {lane.object_id} is a lane of a version that nobody knows")
        return found

    def _version(self, fleet: Fleet, main: Publication) -> list[str]:
        what, lanes = f"v{main.version}", lanes_of(fleet.state, main)
        found: list[str] = []
        stands: dict[str, str] = {}
        for lane in lanes:
            if lane.main != main.object_id or lane.version != main.version:
                found.append(f"{what}: {lane.object_id} is listed as its lane, and says that it is not")
            if lane.base_root != main.deltas[lane.object_id] or lane.root != main.root:
                found.append(f"{what}: a lane leads from {lane.base_root} to {lane.root}, the version has {main.root}")
            if main.phase in ENDED and lane.phase not in ENDED:
                found.append(f"{what} is {main.phase.value}, and one of its lanes goes on")
            if main.retired and lane.active:
                found.append(f"{what} is served to nobody any more, and one of its lanes goes on")
            found += self._entered(fleet, main, lane)
            for worker_id in lane.layout.workers():
                if worker_id in stands:
                    found.append(f"{what}: {worker_id} has a place in two lanes")
                stands[worker_id] = lane.object_id
        for worker_id, member in main.members.items():
            found += self._member(main, worker_id, member, stands.get(worker_id, ""))
        origin = fleet.state.workers.get(main.origin_id)
        gone = origin is None or origin.lapsed or origin.leaving
        if gone and main.active and main.deltas.keys() - fleet.state.publications.keys():
            found.append(f"{what}: a delta is waited for, and its publisher is gone")
        return found

    def _entered(self, fleet: Fleet, main: Publication, lane: Publication) -> list[str]:
        """Those who were not members of the lane before. A restart of the coordinator forgets what workers hold."""
        before = self._members.get(lane.object_id, set())
        self._members[lane.object_id] = now = set(lane.members)
        found: list[str] = []
        for worker_id in now - before:
            worker = fleet.state.workers.get(worker_id)
            if worker is not None and worker.connected and not takes(worker, lane.base_root):
                found.append(f"v{lane.version}: {worker.name} is given a delta from a version that it has not proven")
            if worker_id not in main.members:
                found.append(f"v{lane.version}: {worker_id} is in a lane and not in the version")
        return found

    def _member(self, main: Publication, worker_id: str, member: Member, lane_id: str) -> list[str]:
        what = f"v{main.version}: {member.name}"
        found: list[str] = []
        if member.full_only:
            self._left.add((main.object_id, worker_id))
        if (main.object_id, worker_id) in self._left and (lane_id or member.via):
            found.append(f"{what} has left its lane for the full object, and is back in one")
        if lane_id and member.via != lane_id:
            found.append(
                f"{what} has a place in a lane, and is to get the version as {member.via or 'the full object'}"
            )
        if lane_id and worker_id in main.layout and member.level < VERIFIED:
            found.append(f"{what} has a place in a lane, and one for the full object")
        return found

    def decided(self, log: Log) -> None:
        if log.event in ("full_instead", "no_delta", "finishes_first", "recruited"):
            self._world.counts[log.event] += 1

    # ---- streams ---------------------------------------------------------------------------------------------------

    def serving(self, parent: Node, stream: Stream) -> None:
        world = self._world
        if parent is not world.origin or world.trainer is None or not world.coordinator.running:
            return
        if any(node.natted for node in world.nodes.values()):
            return  # whoever can stand behind nobody has a stream of its own
        state = world.coordinator.fleet.state
        publication = state.publications.get(stream.source.object.object_id)
        if publication is None or not publication.streams_max:
            return
        main = state.publications.get(publication.main) if publication.main else publication
        if main is None:
            return
        objects = {p.object_id: p for p in (main, *lanes_of(state, main))}
        live = sum(s.source.object.object_id in objects and s.blocked_s is None for s in parent.serving)
        slowest = min(relay.line.uplink_bytes_per_s for relay in world.relays)
        slowest = min(slowest, *(relay.line.downlink_bytes_per_s for relay in world.relays))
        fits = int(SLACK * parent.line.uplink_bytes_per_s / slowest)
        if live > max(fits, len(objects)) + 1:
            self._checks.fail(f"{parent.name} feeds {live} chains of version {main.version}, its uplink carries {fits}")

    def spared(self, publication: Publication) -> bool:
        """Its publisher is to serve only the deltas."""
        state = self._world.coordinator.fleet.state
        return not publication.main and state.spares_origin(publication)

    def elsewhere(self, publication: Publication, member: Member) -> bool:
        """It gets the version as another object."""
        return bool(member.via) and member.via in publication.deltas

    # ---- every second ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """A promised delta whose publisher is there, and has all it needs to make it, is not waited for for ever."""
        world = self._world
        origin = world.origin
        waited: dict[str, float] = {}
        if (
            world.trainer is None
            or origin is None
            or not world.coordinator.running
            or not self._checks.reachable(origin)
        ):
            self._promised_s = waited
            return
        state = world.coordinator.fleet.state
        making = {one.object_id: job.encode_s * (len(job.wanted) + 1) for job in origin.jobs for one in job.wanted}
        for main in state.mains:
            if main.phase is not Phase.OPEN or not main.burned:
                continue
            for object_id in main.deltas.keys() - state.publications.keys():
                since_s = waited[object_id] = self._promised_s.get(object_id, world.agenda.now)
                if world.agenda.now - since_s > PROMISED_S + making.get(object_id, 0.0):
                    self._checks.fail(f"version {main.version}: a delta was promised, and nobody makes it")
        self._promised_s = waited

    # ---- landing ---------------------------------------------------------------------------------------------------

    def landed(self, relay: Storing, copy: Copy, root: str) -> None:
        if copy.object.full_id:
            self._checks.fail(f"{relay.name} has landed a delta as version {copy.version}")
        if copy.object.root != root:
            self._checks.fail(f"{relay.name} has landed version {copy.version} with another root than was announced")
