"""A fleet that publishes, as the training machinery sees it: events in, time under the test's control."""

from __future__ import annotations

import json

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.fleet import Fleet, FleetConfig
from chappe.core.invariants import broken
from chappe.core.overlap import Assessment, assess
from chappe.core.state import FleetState
from chappe.core.training_config import TrainingConfig

PAYLOAD = 16_400_000_000
CHUNKS = 1000
LINK = 12.5e6  # 100 Mbit/s
ORIGIN = "o"
LEASE_S = 100.0
STEPS = 20


class Rig:
    """`workers` relays of `rate` rollouts/s each on equal links; the origin's uplink feeds them all at full rate."""

    def __init__(self, training: TrainingConfig, workers: int, rate: float | None = 0.33, price: float = 1.0) -> None:
        self.config = FleetConfig("run", lease_s=LEASE_S, probes=False, training=training)
        self.fleet = Fleet(self.config)
        self.now = 1000.0
        self.checked = False  # the invariants after every event
        self.wake: float | None = None
        self.logs: list[fx.Log] = []
        self.effects: list[fx.Effect] = []
        self.sessions: dict[str, int] = {}
        self.landed: dict[str, ev.Holding] = {}
        self.tell(self.hello(ORIGIN, ev.Role.ORIGIN, uplink=37.5e6))
        for i in range(workers):
            self.join(f"w{i}", rate, price)

    @property
    def training(self) -> TrainingConfig:
        assert self.config.training is not None
        return self.config.training

    @property
    def state(self) -> FleetState:
        return self.fleet.state

    def hello(
        self,
        name: str,
        role: ev.Role,
        rate: float | None = None,
        price: float | None = None,
        uplink: float = LINK,
        downlink: float = LINK,
    ) -> ev.Hello:
        self.sessions[name] = max(self.sessions.values(), default=0) + 1
        holdings = (self.landed[name],) if name in self.landed else ()
        return ev.Hello(
            name, self.sessions[name], role, name, 1, f"{name}:1", uplink, downlink, price, rate, holdings=holdings
        )

    def join(self, name: str, rate: float | None = 0.33, price: float | None = 1.0, downlink: float = LINK) -> None:
        self.tell(self.hello(name, ev.Role.RELAY, rate, price, downlink=downlink))

    def tell(self, event: ev.Event) -> list[fx.Effect]:
        effects = self.fleet.handle(event, self.now)
        if self.checked:
            problems = broken(self.fleet)
            assert not problems, f"after {event}: {problems}"
        for effect in effects:
            if isinstance(effect, fx.WakeAt):
                self.wake = effect.time_s
            elif isinstance(effect, fx.Log):
                self.logs.append(effect)
        self.effects.extend(effects)
        return effects

    def wait(self, seconds: float, silent: tuple[str, ...] = ()) -> None:
        """Everybody but the silent ones sends heartbeats; ticks come when they are due."""
        end = self.now + seconds
        beat = min(end, self.now + LEASE_S / 5)
        while self.now < end - 1e-9:
            self.now = beat if self.wake is None else min(beat, max(self.wake, self.now))
            if self.now >= beat:
                beat = min(end, self.now + LEASE_S / 5)
                for name, session in self.sessions.items():
                    if name not in silent:
                        self.tell(ev.Heard(name, session))
            if self.wake is not None and self.now >= self.wake - 1e-9:
                self.wake = None
                self.tell(ev.Tick())

    def start(self, version: int, *, payload: int = PAYLOAD, t_train_s: float = 0.0) -> None:
        """A publish call at this moment, and the offer."""
        request = ev.PublishRequested(
            version, ORIGIN, f"v{version}", version, 1.0, ev.Topology.CHAINS, 0, payload, 0.0, t_train_s=t_train_s
        )
        self.tell(request)
        session = self.sessions[ORIGIN]
        self.tell(ev.Offered(ORIGIN, session, f"v{version}", version, "full", payload, payload, CHUNKS))
        self.tell(ev.RootAnnounced(ORIGIN, session, f"v{version}", f"x:{version}"))

    def install(self, version: int, *names: str) -> None:
        for name in names or [n for n in self.sessions if n != ORIGIN]:
            self.landed[name] = ev.Holding(
                f"v{version}", ev.ObjectState.INSTALLED, version, f"x:{version}", ((0, CHUNKS),), CHUNKS
            )
            self.tell(ev.HoldingChanged(name, self.sessions[name], self.landed[name]))

    def publish(self, version: int, t_bcast_s: float, **options: float) -> None:
        """A whole broadcast that all have after so long."""
        payload, t_train_s = int(options.get("payload", PAYLOAD)), options.get("t_train_s", 0.0)
        self.start(version, payload=payload, t_train_s=t_train_s)
        self.travel(version, t_bcast_s)
        self.install(version)

    def travel(self, version: int, seconds: float) -> None:
        """All receive at the same pace, and say so."""
        for step in range(STEPS):
            self.wait(seconds / STEPS)
            chunks = ((0, (step + 1) * (CHUNKS - 1) // STEPS),)
            holding = ev.Holding(f"v{version}", ev.ObjectState.RECEIVING, chunks=chunks, chunks_total=CHUNKS)
            for name, session in self.sessions.items():
                if name != ORIGIN and not self.state.workers[name].lapsed:
                    self.tell(ev.HoldingChanged(name, session, holding))

    def restart(self) -> None:
        """The coordinator starts again from what it stored; everybody comes back."""
        stored = json.loads(json.dumps(self.state.to_json()))
        self.fleet = Fleet(self.config, FleetState.from_json(stored))
        self.wake = None
        self.tell(ev.Tick())
        for name in self.sessions:
            role = ev.Role.ORIGIN if name == ORIGIN else ev.Role.RELAY
            worker = self.state.workers[name]
            self.tell(self.hello(name, role, worker.rollouts_per_second, worker.price_per_hour))

    def duties(self) -> tuple[set[str], set[str]]:
        """Names: active, on standby."""
        relays = self.state.relays
        return {w.name for w in relays if not w.standby}, {w.name for w in relays if w.standby}

    def told(self, name: str) -> str:
        """The duty in the assignment that a worker was sent last."""
        return next(e.duty for e in reversed(self.effects) if isinstance(e, fx.Assign) and e.worker_id == name)

    def assess(self) -> Assessment:
        return assess(self.state, self.config, self.training, self.now)

    def verdicts(self) -> list[tuple[str | int | float | list[str], str | int | float | list[str]]]:
        """Of the log: before and after, in order."""
        return [(log.fields["before"], log.fields["verdict"]) for log in self.logs if log.event == "training_verdict"]
