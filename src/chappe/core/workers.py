"""Who the coordinator knows: identity, links, what each holds, and whether it is there.

A record says what was last heard; it decides nothing. Times are the `now` of the fleet machine (CLOCK_BOOTTIME).

    Hello ──▶ connected ──SessionLost──▶ absent ──grace──▶ out of its place ──lease──▶ lapsed (lost)
                 ▲  │ silent for the lease: stream closed, lapsed      │                    │
                 └──┴───────────────────────── Hello ◀────────────────┴────────────────────┘
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from chappe.core.effects import PeerRef
from chappe.core.events import HeldEdge, Holding, ObjectState, Role
from chappe.core.links import Demotion, Links
from chappe.core.stripemap import StripeMap

COMPLETE_STATES = frozenset({ObjectState.RECEIVED, ObjectState.VERIFIED, ObjectState.INSTALLED})


@dataclass(slots=True)
class Worker:
    worker_id: str
    role: Role
    name: str
    generation: int
    address: str
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    price_per_hour: float | None = None
    rollouts_per_second: float | None = None  # declared
    reported_rollouts_per_s: float | None = None  # by its engine, the last time
    standby: bool = False  # its rollouts are not wanted now
    duty_reason: str = ""  # why they are, or not
    drained: bool = False  # until it comes back with a newer generation
    superseded: bool = False  # lost a version to a newer one and has installed nothing since
    received: int = 0  # newest versions; 0 for none
    verified: int = 0
    installed: int = 0
    links: Links = field(default_factory=Links)
    demotion: Demotion | None = None  # the last one; it may be over
    dialable: bool | None = None  # None: nobody has tried
    stripes: bool = True  # it knows them
    # Not kept over a restart of the coordinator: a Hello tells it again.
    session: int | None = None
    data_port: int = 0  # for data connections; 0: not told
    heard_s: float = 0.0
    restored: bool = False  # known from the state store, not heard of since: its place is kept for a lease
    lapsed: bool = False
    leaving: bool = False
    learner_version: int = 0  # of an origin: what it told of the learner beside it; 0: nothing
    admitted: int = 0  # trajectories
    discarded: int = 0
    acknowledged_epoch: int = 0
    holdings: dict[str, Holding] = field(default_factory=dict)
    edges: dict[tuple[str, int], HeldEdge] = field(default_factory=dict)
    over_tcp: dict[str, bool] = field(default_factory=dict)  # by parent: what carries the payload, as reported last

    @property
    def peer(self) -> PeerRef:
        return PeerRef(self.worker_id, self.name, self.address, self.data_port)

    @property
    def connected(self) -> bool:
        return self.session is not None

    @property
    def present(self) -> bool:
        """Connected, or expected back: the coordinator has restarted and its lease still runs."""
        return self.connected or (self.restored and not self.lapsed)

    @property
    def demoted(self) -> bool:
        return self.demotion is not None and self.demotion.active

    @property
    def placeable(self) -> bool:
        return self.role is Role.RELAY and self.present and not self.drained and not self.leaving

    def holds_all(self, object_id: str) -> bool:
        """The worker is there and has every chunk of the object, so that it can feed others without a source."""
        holding = self.holdings.get(object_id)
        return self.connected and holding is not None and is_complete(holding)

    def holds_stripe(self, object_id: str, stripes: StripeMap, stripe: int) -> bool:
        """It is there and has every chunk of the stripe."""
        holding = self.holdings.get(object_id)
        if stripes.plain or holding is None or holding.chunks_total is None or not self.connected:
            return self.holds_all(object_id)
        return is_complete(holding) or not stripes.lacks(stripe, holding.chunks, holding.chunks_total)

    def note_versions(self, holding: Holding) -> bool:
        """Take newest versions from a landed holding; True when something is news."""
        before = (self.received, self.verified, self.installed)
        if holding.version:
            self.received = max(self.received, holding.version)
            self.verified = max(self.verified, holding.version)
            if holding.state is ObjectState.INSTALLED:
                self.installed = max(self.installed, holding.version)
        return before != (self.received, self.verified, self.installed)

    def to_json(self) -> dict[str, Any]:
        return {
            "worker_id": self.worker_id,
            "role": self.role.value,
            "name": self.name,
            "generation": self.generation,
            "address": self.address,
            "uplink_bytes_per_s": self.uplink_bytes_per_s,
            "downlink_bytes_per_s": self.downlink_bytes_per_s,
            "price_per_hour": self.price_per_hour,
            "rollouts_per_second": self.rollouts_per_second,
            "reported_rollouts_per_s": self.reported_rollouts_per_s,
            "standby": self.standby,
            "duty_reason": self.duty_reason,
            "drained": self.drained,
            "superseded": self.superseded,
            "lapsed": self.lapsed,
            "received": self.received,
            "verified": self.verified,
            "installed": self.installed,
            "links": self.links.to_json(),
            "demotion": None if self.demotion is None else asdict(self.demotion),
            "dialable": self.dialable,
            "stripes": self.stripes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Worker:
        demotion = data.get("demotion")
        rest = {
            "role": Role(data["role"]),
            "links": Links.from_json(data.get("links")),
            "demotion": None if demotion is None else Demotion(**demotion),
        }
        return cls(**{**data, **rest})


def is_complete(holding: Holding) -> bool:
    """All chunks are here. Chunks decide where they are told: some of a landed copy may have rotted."""
    if holding.chunks_total is None:
        return holding.version != 0 or holding.state in COMPLETE_STATES
    return sum(b - a for a, b in holding.chunks) == holding.chunks_total


def chunks_held(holding: Holding | None, total: int) -> int:
    if holding is None:
        return 0
    if is_complete(holding):
        return total
    return min(total, sum(b - a for a, b in holding.chunks))
