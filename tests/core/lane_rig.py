"""A fleet in memory whose origin publishes version 2 as a full object and deltas: for the tests of lanes."""

from __future__ import annotations

import json
from collections.abc import Iterable

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.events import Holding, ObjectState, Payload, Role
from chappe.core.fleet import Fleet, FleetConfig, FleetState
from chappe.core.invariants import broken
from chappe.core.lanes import lanes_of
from chappe.core.publication import Publication

OLD = "xxh3_128:" + "0" * 32
OLDER, OLDEST = "xxh3_128:" + "a" * 32, "xxh3_128:" + "c" * 32
ROOT = "xxh3_128:" + "1" * 32
FULL, DELTA, COMPRESSED = "f" * 32, "d" * 32, "c4" * 16
FOLDED, FOLDED_TWICE = "d2" * 16, "d3" * 16
DELTAS = {OLD: DELTA, OLDER: FOLDED, OLDEST: FOLDED_TWICE}
BASE = Holding("b" * 32, ObjectState.INSTALLED, 1, OLD, ((0, 10),), 10)
FULL_CHUNKS, DELTA_CHUNKS = 100, 4
SNAPSHOT_BYTES = 1_000_000


class Rig:
    """Workers a, b, c, ... join with or without the base; the origin is `o`, it publishes version 2."""

    def __init__(self, with_base: str, without: str = "") -> None:
        self.fleet = Fleet(FleetConfig("run"))
        self.now = 10.0
        self.joins = 0
        self.sessions = {"o": 1}
        self.effects: list[fx.Effect] = []
        for name in sorted(with_base + without):
            self.join(name, [BASE] if name in with_base else [])
        self.do(ev.Hello("o", 1, Role.ORIGIN, "o", 1, "h:1", uplink_bytes_per_s=50e6))

    def do(self, event: ev.Event) -> list[fx.Effect]:
        self.now += 0.01
        self.effects = self.fleet.handle(event, self.now)
        found = broken(self.fleet)
        assert found == [], found
        return self.effects

    def wait(self, seconds: float, *, silent: str = "o") -> None:
        """Everybody but the origin, or whoever is named, is heard of meanwhile."""
        for _ in range(round(seconds * 2)):
            self.now += 0.49
            for name, session in self.sessions.items():
                if name not in silent:
                    self.do(ev.Heard(name, session))
            self.do(ev.Tick())

    def join(self, name: str, holdings: Iterable[Holding] = ()) -> None:
        self.joins += 1
        self.sessions[name] = self.joins + 100
        self.do(
            ev.Hello(name, self.sessions[name], Role.RELAY, name, self.sessions[name], "h:1", holdings=tuple(holdings))
        )

    def publish(
        self,
        payload: Payload = Payload.AUTO,
        *,
        bases: Iterable[str] = (OLD,),
        version: int = 2,
        compressed: ev.Compressed | None = None,
    ) -> list[fx.Effect]:
        return self.do(
            ev.PublishRequested(
                1,
                "o",
                FULL,
                version,
                1.0,
                ev.Topology.CHAINS,
                0,
                SNAPSHOT_BYTES,
                0.0,
                payload,
                tuple(ev.DeltaFrom(base, DELTAS[base]) for base in bases),
                "none",
                compressed=compressed,
            )
        )

    def offer_full(self, object_id: str = FULL, version: int = 2, root: str = "") -> None:
        self.do(ev.Offered("o", 1, object_id, version, "full", SNAPSHOT_BYTES, SNAPSHOT_BYTES, FULL_CHUNKS, root))

    def offer_delta(self, object_id: str = DELTA) -> None:
        self.do(ev.Offered("o", 1, object_id, 2, "delta", 10_000, SNAPSHOT_BYTES, DELTA_CHUNKS, changed_elements=5))

    def offer_compressed(self, kind: str = "full-compressed") -> None:
        self.do(ev.Offered("o", 1, COMPRESSED, 2, kind, 690_000, SNAPSHOT_BYTES, DELTA_CHUNKS))

    def announce(self) -> None:
        self.do(ev.RootAnnounced("o", 1, FULL, ROOT))

    def open(self) -> None:
        self.publish()
        self.offer_full()
        self.announce()
        self.offer_delta()

    def holds(self, name: str, object_id: str, state: ObjectState, chunks: int, reason: str = "") -> None:
        total = FULL_CHUNKS if object_id == FULL else DELTA_CHUNKS
        landed = state in (ObjectState.VERIFIED, ObjectState.INSTALLED)
        version, root = (2, ROOT) if landed else (0, "")
        held = ((0, chunks),) if chunks else ()
        self.do(
            ev.HoldingChanged(name, self.sessions[name], Holding(object_id, state, version, root, held, total, reason))
        )

    def applies(self, name: str, object_id: str = DELTA) -> None:
        """All of the delta, and what it leads to."""
        self.holds(name, object_id, ObjectState.RECEIVED, DELTA_CHUNKS)
        self.holds(name, object_id, ObjectState.INSTALLED, DELTA_CHUNKS)
        self.holds(name, FULL, ObjectState.INSTALLED, FULL_CHUNKS)

    @property
    def main(self) -> Publication:
        return self.fleet.state.publications[FULL]

    @property
    def lane(self) -> Publication | None:
        return next(iter(lanes_of(self.fleet.state, self.main)), None)

    def places(self) -> tuple[str, str]:
        """Who stands in the chains of the full object, and of the delta."""
        lane = self.lane
        return "".join(sorted(self.main.layout.workers())), "".join(sorted(lane.layout.workers() if lane else ()))

    def stand_in(self, object_id: str) -> str:
        """Who stands in the chains of this object."""
        publication = self.fleet.state.publications.get(object_id)
        return "" if publication is None else "".join(sorted(publication.layout.workers()))

    def restart_coordinator(self, rejoin: dict[str, list[Holding]]) -> None:
        state = FleetState.from_json(json.loads(json.dumps(self.fleet.state.to_json())))
        self.fleet = Fleet(FleetConfig("run"), state)
        self.do(ev.Hello("o", 2, Role.ORIGIN, "o", 1, "h:1", uplink_bytes_per_s=50e6))
        for name, holdings in rejoin.items():
            self.join(name, holdings)

    def targets(self, name: str) -> set[str]:
        told = self.fleet.assignment(name)
        return set() if told is None else {target.object_id for target in told[0]}


def of(effects: list[fx.Effect], kind: type) -> list[fx.Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]
