"""The whole of a simulated fleet: hosts, links, the coordinator and its database, on one agenda.

It wires them together and shares out bandwidth; what goes wrong is in `faults`, what must hold in `invariants`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from chappe.core.effects import Effect
from chappe.core.events import Topology
from chappe.core.state import FleetConfig
from chappe.sim.clock import Agenda, HostClock
from chappe.sim.coordinator import Coordinator
from chappe.sim.copies import SimObject
from chappe.sim.encoding import Trainer
from chappe.sim.fetching import Fetcher
from chappe.sim.flow import Stream
from chappe.sim.invariants import Checks
from chappe.sim.links import COORDINATOR, Network
from chappe.sim.node import SHARED_EXACTLY_MAX, Node
from chappe.sim.origin import Answer, Job, Origin
from chappe.sim.process import Line
from chappe.sim.relay import Relay
from chappe.sim.session import Session

HEARTBEATS_PER_S, CALM_HEARTBEATS_PER_S = 500.0, 50.0
"""What a simulated coordinator hears in all, with faults and without any: in larger fleets hearts beat slower, and
leases last longer. They cost more than all the rest of a large broadcast."""
TRAIL_LINES = 400


@dataclass(slots=True)
class WorldConfig:
    payload_bytes: int
    heartbeat_s: float = 1.0
    lease_s: float = 5.0
    progress_s: float | None = 2.0  # between two reports of a relay that receives; None: only the first and the last
    hash_bytes_per_s: float = 2e9
    land_s: tuple[float, float] = (0.05, 0.4)
    install_s: tuple[float, float] | None = None  # None: no hook
    topology: Topology = Topology.CHAINS
    declared: bool = True  # relays declare their links
    ports_change: bool = False  # with every start
    persist: bool = True  # keep the coordinator's database: only a restart reads it
    report_s: float = 2.0  # between two reports of what hops carry
    measuring_noise: float = 0.0  # the share by which a measured rate may be wrong
    verify: bool = True  # chunks against their pages; False is a bug that tests plant
    check_every: int = 1  # whole-fleet checks after every so many events of the coordinator


class World:
    """`random` decides everything that is left to chance."""

    def __init__(self, config: WorldConfig, rng: Random, coordinator_line_s: float = 0.005) -> None:
        self.config = config
        self.random = rng
        self.run = "sim"
        self.agenda = Agenda()
        self.network = Network(self.network_changed)
        self.network.add(COORDINATOR, coordinator_line_s)
        self.objects: dict[str, SimObject] = {}
        self.nodes: dict[str, Node] = {}
        self.relays: list[Relay] = []
        self.origin: Origin | None = None
        self.trainer: Trainer | None = None  # None: full objects only
        self.counts: Counter[str] = Counter()  # what has been exercised: probes, pushes, and the like
        self.closed: set[str] = set()  # objects that were offered with an open end, and have one by now
        self.traps: dict[str, list[Callable[..., None]]] = {}  # set by faults that wait for a moment
        self.trail: deque[tuple[float, str, str, object]] = deque(maxlen=TRAIL_LINES)
        self.odd = False  # some chunk somewhere is not what it should be
        self.forged = False  # nor is some page
        self.ever_slowed = False  # some link, or it was cut, or a process stood still
        self.ever_cut = False
        self.disturbed_s = -1e9  # when something went wrong last, or was mended
        self.checks = Checks(self)
        self._sessions = 0
        self._requests: dict[int, tuple[Origin, Session | None, Job]] = {}
        self._objects = 0
        fleet_config = FleetConfig(self.run, lease_s=config.lease_s)
        self.coordinator = Coordinator(self, fleet_config, self.host_clock())

    # ---- building --------------------------------------------------------------------------------------------------

    def host_clock(self) -> HostClock:
        return HostClock(self.agenda, booted_s=-self.random.uniform(10.0, 1e6))

    def add_relay(self, line: Line) -> Relay:
        number = len(self.relays) + 1
        relay = Relay(self, f"id-r{number}", f"r{number}", line, self.host_clock())
        self.nodes[relay.worker_id] = relay
        self.relays.append(relay)
        return relay

    def add_origin(self, line: Line) -> Origin:
        """A new publisher process; the one before it must be dead."""
        number = 1 + sum(isinstance(node, Origin) for node in self.nodes.values())
        origin = Origin(self, f"id-o{number}", f"o{number}", line, self.host_clock())
        self.nodes[origin.worker_id] = origin
        self.origin = origin
        return origin

    def next_session(self) -> int:
        self._sessions += 1
        return self._sessions

    def next_object_id(self) -> str:
        self._objects += 1
        return f"{self._objects:032x}"

    # ---- publish calls ---------------------------------------------------------------------------------------------

    def next_request(self, origin: Origin, job: Job) -> int:
        request = len(self._requests) + 1
        self._requests[request] = (origin, origin.session, job)
        return request

    def answer(self, request: int, effect: Effect) -> None:
        """To a publish call, whose stream lives and dies with the session here."""
        asked = self._requests.get(request)
        if asked is not None:
            origin, session, job = asked
            if session is not None and session is origin.session:
                session.down.send(Answer(job, effect))

    # ---- links -----------------------------------------------------------------------------------------------------

    def disturbed(self) -> None:
        self.disturbed_s = self.agenda.now

    def network_changed(self) -> None:
        """Or a process stands still, which looks the same from outside."""
        self.disturbed()
        self.ever_slowed = self.ever_cut = True
        for node in self.nodes.values():
            if node.running:
                node.watch_session()
        for relay in self.relays:
            for stream in list(relay.streams.values()):
                self.check_stream(stream)

    def check_stream(self, stream: Stream) -> None:
        """Whether anything passes on it; a child that hears nothing for long gives its parent up."""
        child, parent = stream.child, stream.parent
        passes = self.network.both(child.worker_id, parent.worker_id)
        if stream.orphaned or child.paused or parent.paused or not passes:
            if stream.blocked_s is None:
                stream.block()
                self.share(parent)
                if isinstance(child, Relay) and child.streams.get(stream.fetch) is stream:
                    patience_s = child.patience.floor_for(parent.worker_id)
                    child.later(patience_s, child.stalled, stream, stream.blocked_s)
        elif stream.blocked_s is not None:
            stream.unblock()
            self.share(parent)

    def share(self, parent: Node) -> None:
        """Max-min fair shares of a parent's uplink by weight, each bounded by the child's part of its downlink."""
        streams = [stream for stream in parent.serving if stream.blocked_s is None]
        caps = [s.child.downlink_bytes_per_s * s.weight / max(s.weight, s.child.fetching()) for s in streams]
        left, weights = parent.uplink_bytes_per_s, sum(s.weight for s in streams)
        if len(streams) > SHARED_EXACTLY_MAX:
            for stream, cap in zip(streams, caps, strict=True):
                rate = min(left * stream.weight / weights, cap)
                stream.set_capacity(rate / stream.source.object.chunk_bytes)
            return
        for i in sorted(range(len(streams)), key=lambda i: caps[i] / streams[i].weight):
            stream = streams[i]
            rate = min(caps[i], left * stream.weight / weights)
            left, weights = left - rate, weights - stream.weight
            stream.set_capacity(rate / stream.source.object.chunk_bytes)

    def share_downlink(self, child: Fetcher) -> None:
        """A child's own number of streams has changed."""
        for stream in list(child.streams.values()):
            if stream in stream.parent.serving:
                self.share(stream.parent)

    def content_changed(self) -> None:
        """Somewhere: every stream looks again which chunk will be the first that does not match its page."""
        self.odd = True
        for relay in self.relays:
            for stream in list(relay.streams.values()):
                stream.replan_soon()

    def spring(self, moment: str, *what: object) -> None:
        """It has come: those faults that wait for it strike."""
        for trap in self.traps.pop(moment, ()):
            trap(*what)

    # ---- what has happened -----------------------------------------------------------------------------------------

    def note(self, who: str, what: str, thing: object) -> None:
        self.trail.append((self.agenda.now, who, what, thing))

    def lines(self, last: int) -> list[str]:
        """The last part of the event log, for people."""
        return [
            f"{t:10.3f} {who:12} {what} {shown(thing)}".rstrip() for t, who, what, thing in list(self.trail)[-last:]
        ]


def shown(thing: Any) -> str:
    text = str(thing)
    return text if len(text) < 400 else text[:400] + "…"
