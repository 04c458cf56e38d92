"""A run from a seed: how large a fleet, on what links, what is published when, what goes wrong, and when it is over.

prepare ──▶ relays and publisher join ──▶ publish ... faults ... ──▶ all faults over ──▶ everybody has the newest
                                                                                    └─▶ too late: a breach
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from chappe.core.events import Payload, Topology
from chappe.core.status import publication_view
from chappe.sim.encoding import Trainer
from chappe.sim.faults import MIXED, Faults
from chappe.sim.invariants import InvariantError
from chappe.sim.process import Line
from chappe.sim.world import CALM_HEARTBEATS_PER_S, HEARTBEATS_PER_S, World, WorldConfig

MBIT = 125_000.0
WARM_UP_S = 1.0
PATIENCE = 12.0
"""How many times longer than an undisturbed broadcast a run may take after its last fault."""
ORIGIN_NATTED, DECLARED = 0.2, 0.5
"""How often the publisher is behind NAT too, in a fleet where somebody is; and how many of them say so."""
HOOK_S = (0.1, 3.0)  # what an install hook takes, where there is one
SMALL = 32
"""Up to this many relays everything is checked after every event."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    relays: int
    payload_bytes: int
    uplink_bytes_per_s: float = 100 * MBIT
    downlink_bytes_per_s: float = 100 * MBIT
    origin_uplink_bytes_per_s: float = 300 * MBIT
    faults: tuple[str, ...] = ()
    faults_most: int = 6
    publications: int = 1
    varied: bool = False  # links, hooks, hashing and the like differ from seed to seed
    latency_s: float = 0.01
    natted_share: float = 0.0  # of the relays that cannot be dialled
    warm_up_s: float = WARM_UP_S  # before the first publish call
    pause: tuple[float, float] = (0.1, 1.5)  # between two of them, of the time that one broadcast takes
    payload: Payload = Payload.FULL  # what may travel
    changes: tuple[float, ...] = (0.01,)  # one of these is what a delta has of the snapshot's bytes
    compresses: bool = False  # the snapshot gets smaller by it
    streams: bool = False  # deltas leave while they are made; what a damaged base gives all the same is kept
    topologies: tuple[Topology, ...] = (Topology.CHAINS,) * 5 + (Topology.STAR,)  # one of them; not varied, the first
    uplinks_bytes_per_s: tuple[float, ...] = ()  # relay by relay, over and over; varied, one of them each. None: equal


@dataclass(slots=True)
class Result:
    seed: int
    relays: int
    events: int
    simulated_s: float
    faults: dict[str, int]
    t_bcast: dict[str, float | None]
    floor_s: float | None
    broken: list[str] = field(default_factory=list)
    trail: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.broken


def mixed(seed: int, rng: Random, kinds: Sequence[str] = MIXED) -> Scenario:
    """A small fleet in trouble: what it is like is drawn."""
    relays = rng.randint(1, 9)
    return Scenario(
        seed,
        relays,
        payload_bytes=rng.choice([60, 120, 250]) * 10**6,
        origin_uplink_bytes_per_s=rng.choice([100, 200, 300]) * MBIT,
        faults=tuple(kinds),
        publications=rng.choice([1, 1, 2, 3]),
        varied=True,
        latency_s=rng.choice([0.001, 0.01, 0.05]),
        natted_share=rng.choice([0.0, 0.0, 0.3, 0.5]),
        warm_up_s=rng.choice([WARM_UP_S, WARM_UP_S, 6.0]),
    )


class Run:
    def __init__(self, scenario: Scenario, rng: Random) -> None:
        self.scenario = s = scenario
        self.random = rng
        self.world = World(self._config(), self.random, s.latency_s / 2)
        for _ in range(s.relays):
            self.world.add_relay(self.line())
        natted = bool(s.natted_share) and rng.random() < ORIGIN_NATTED
        up = s.origin_uplink_bytes_per_s
        self.origin_line = Line(up, up, s.latency_s / 2, natted, natted and rng.random() < DECLARED)
        self.world.add_origin(self.origin_line)
        slowest = min(s.downlink_bytes_per_s, s.uplink_bytes_per_s)
        self.expected_s = s.payload_bytes / min(slowest, s.origin_uplink_bytes_per_s)
        self.snapshot = 0
        self.to_publish = s.publications
        if s.payload is not Payload.FULL:
            self.world.trainer = Trainer(s.payload, s.changes, s.compresses, s.streams)
        self.faults = Faults(self, s.faults)
        self._trust_by_s: float | None = None

    def _config(self) -> WorldConfig:
        s, rng = self.scenario, self.random
        small = s.relays <= SMALL
        heartbeat_s = 1.0 if small else max(1.0, s.relays / (HEARTBEATS_PER_S if s.faults else CALM_HEARTBEATS_PER_S))
        config = WorldConfig(
            s.payload_bytes,
            heartbeat_s=heartbeat_s,
            lease_s=5 * heartbeat_s,
            progress_s=max(2.0, s.payload_bytes / s.downlink_bytes_per_s / 50) if small else None,
            report_s=2.0 if small else 10 * heartbeat_s,
            install_s=HOOK_S if "hook" in s.faults else None,
            persist="coordinator" in s.faults,
            check_every=1 if small else 64 * s.relays,
            topology=s.topologies[0],
        )
        if not s.varied:
            return config
        return replace(
            config,
            hash_bytes_per_s=rng.choice([2e9, s.payload_bytes / 8, s.payload_bytes / 25]),
            install_s=rng.choice([None, HOOK_S]),
            measuring_noise=rng.choice([0.0, 0.03]),
            topology=rng.choice(s.topologies),
            declared=rng.random() < 0.7,
            ports_change=rng.random() < 0.3,
        )

    def line(self) -> Line:
        s, rng = self.scenario, self.random
        natted = bool(s.natted_share) and rng.random() < s.natted_share
        no_dial_in = natted and rng.random() < DECLARED
        ups = s.uplinks_bytes_per_s
        if not s.varied:
            up = ups[len(self.world.relays) % len(ups)] if ups else s.uplink_bytes_per_s
            return Line(up, s.downlink_bytes_per_s, s.latency_s / 2, natted, no_dial_in)
        up = rng.choice(ups) * rng.uniform(0.9, 1.1) if ups else s.uplink_bytes_per_s * rng.uniform(0.5, 1.5)
        down = s.downlink_bytes_per_s * rng.uniform(0.7, 1.5)
        return Line(up, down, s.latency_s / 2 * rng.uniform(0.5, 2), natted, no_dial_in)

    # ---- publishing ------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """The trainer has a new snapshot; a publisher that is away takes it when it is back."""
        self.to_publish -= 1
        self.publish_next()
        if self.to_publish:
            self.world.agenda.after(self.expected_s * self.random.uniform(*self.scenario.pause), self.publish)

    def publish_next(self) -> None:
        self.snapshot += 1
        origin = self.world.origin
        if origin is not None and origin.running and not origin.paused:
            origin.publish(self.snapshot)

    def publisher_returns(self) -> None:
        """Another process on the trainer's host: it publishes the newest snapshot again if that did not get through."""
        origin = self.world.add_origin(self.origin_line)
        origin.start()
        if self.snapshot:
            origin.publish(self.snapshot)

    # ---- running ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        world, agenda = self.world, self.world.agenda
        world.coordinator.start()
        for relay in world.relays:
            agenda.after(self.random.uniform(0, WARM_UP_S / 2), relay.start)
        assert world.origin is not None
        agenda.after(self.random.uniform(0, WARM_UP_S / 2), world.origin.start)
        agenda.after(self.scenario.warm_up_s, self.publish)
        self.faults.schedule(WARM_UP_S, self.expected_s * self.scenario.publications, self.scenario.faults_most)
        agenda.after(WARM_UP_S, self._look_around)

    def _look_around(self) -> None:
        self.world.checks.look_around()
        self.world.agenda.after(max(1.0, self.scenario.relays / 50), self._look_around)

    @property
    def quiet(self) -> bool:
        return self.faults.over and not self.to_publish

    def _deadline_s(self) -> float:
        hops = self.scenario.relays * self.scenario.latency_s * 2
        return self.faults.last_s + 60.0 + hops + PATIENCE * self.expected_s * self.scenario.publications

    def over(self) -> bool:
        """Nothing more is to come, and everybody who can has what was published last."""
        world = self.world
        if not self.quiet or not world.coordinator.running:
            return False
        if not any(relay.running for relay in world.relays):
            return True  # all have left, or died for good
        if all(node.natted for node in world.nodes.values() if node.running):
            return True  # nobody can talk to anybody
        current = world.coordinator.fleet.state.current
        origin = world.origin
        if origin is None or not origin.running or any(not job.over for job in origin.jobs):
            return False
        last = origin.jobs[-1] if origin.jobs else None
        wanted = 0 if last is None or last.failed or last.object is None else last.object.version
        return current is not None and current.version >= wanted and not world.checks.unfinished() and self._trusted()

    def _trusted(self) -> bool:
        """Whoever is demoted and deserves better has been given the time to show it."""
        world = self.world
        if self.scenario.relays > SMALL or not world.counts["demotions"]:
            return True
        untrusted = world.checks.slowness.untrusted()
        if not untrusted:
            return True
        if self._trust_by_s is None:
            self._trust_by_s = world.agenda.now + world.checks.slowness.patience_s()
        if world.agenda.now > self._trust_by_s:
            world.checks.fail(f"{untrusted[0].name} is demoted, sends as fast as the others, and is not trusted again")
        return False

    def play(self) -> Result:
        world, agenda = self.world, self.world.agenda
        broken: list[str] = []
        try:
            self.start()
            look_s = 0.0
            while agenda.step():
                if agenda.now < look_s:
                    continue
                look_s = agenda.now + (0.25 if self.scenario.relays <= SMALL else 10.0)
                if self.over():
                    break
                if self.quiet and self._trust_by_s is None and agenda.now > self._deadline_s():
                    what = world.checks.unfinished() or ["the publisher waits for ever"]
                    world.checks.fail(f"it does not end: {what[0]}")
        except InvariantError as error:
            broken = [str(error)]
        return self._result(broken)

    def _result(self, broken: list[str]) -> Result:
        world = self.world
        state = world.coordinator.fleet.state
        published = max(state.publications.values(), key=lambda p: p.version, default=None)
        t_bcast: dict[str, float | None] = {"0.5": None, "0.9": None, "1.0": None}
        floor_s = None
        if published is not None:
            view = publication_view(state, published, world.run, world.coordinator.now())
            t_bcast |= view.t_bcast
            floor_s = view.floor_s
        return Result(
            self.scenario.seed,
            self.scenario.relays,
            world.agenda.events,
            world.agenda.now,
            dict(Counter(self.faults.injected)),
            t_bcast,
            floor_s,
            broken,
            world.lines(80) if broken else [],
        )


def simulate(scenario: Scenario, rng: Random) -> Result:
    """Play a scenario to its end, or to its first breach. The same `rng` state gives the same run."""
    collects = gc.isenabled()
    gc.disable()  # half of the time at 10,000 relays went into looking for garbage that is not there
    try:
        return Run(scenario, rng).play()
    finally:
        if collects:
            gc.enable()
