"""What the fleet machine knows, as plain data that survives a restart of the coordinator.

`FleetState.workers[id].to_json()` is the row to store on `PersistWorker`, `chappe.core.rows` makes those to store of
`FleetState.publications[object_id]` on `PersistPublication` (what is not in the state any more: delete it),
`reserved_epoch` is what `PersistEpoch` says. `FleetState.from_rows` takes them back, with publications assembled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from chappe.core.events import Role
from chappe.core.publication import ENDED, Phase, Publication
from chappe.core.training_config import Standing, TrainingConfig
from chappe.core.workers import Worker


@dataclass(frozen=True, slots=True)
class FleetConfig:
    run: str
    lease_s: float = 5.0  # silent for so long: lost. Five missed heartbeats of one second
    session_grace_s: float = 1.0  # a broken stream may come back for so long before its child is moved
    drain_s: float = 3.0  # a leaving relay waits no longer for its child to move: it has 5 s to stop in
    strike_window_s: float = 10.0  # two complaints of a child about its parent within this time move the parent
    renew_pause_s: float = 1.0  # at most one new epoch for the same edge in this time
    wake_grain_s: float = 0.1  # deadlines are rounded up to this, so that 10,000 leases are not 10,000 wake-ups
    assumed_bytes_per_s: float = 12.5e6  # 100 Mbit/s, for links that nobody declared or measured
    forget_origin_s: float = 600.0  # a publisher that died is known for so long, where its version is not over before
    probes: bool = True  # measure hosts without history while the fleet is idle
    publications_kept: int = 64  # ended ones, for status and for telling a repeat from a conflict
    lanes_max: int = 4  # deltas of one version, from different bases: each takes its share of the origin's uplink
    training: TrainingConfig | None = None  # what the run asks of the fleet; None: nothing is known of a run

    def __post_init__(self) -> None:
        for name in ("lease_s", "session_grace_s", "drain_s", "strike_window_s", "wake_grain_s", "assumed_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be more than zero")
        if self.session_grace_s > self.lease_s:
            raise ValueError(f"session_grace_s {self.session_grace_s} is longer than lease_s {self.lease_s}")


@dataclass(slots=True)
class FleetState:
    workers: dict[str, Worker] = field(default_factory=dict)
    publications: dict[str, Publication] = field(default_factory=dict)  # in the order in which they were accepted
    reserved_epoch: int = 0
    saved_s: float = 0.0  # the coordinator's clock when it was last written
    standing: Standing | None = None  # the last verdict on the run; not kept: a restart says it again

    @property
    def relays(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.role is Role.RELAY]

    @property
    def newest_version(self) -> int:
        """The newest version that is burned, here or (after a loss of this state) as a worker shows it."""
        burned = max((p.version for p in self.publications.values() if p.burned), default=0)
        return max(burned, max((w.verified for w in self.workers.values()), default=0))

    @property
    def current(self) -> Publication | None:
        """The newest publication that is a version: what a worker without any is given."""
        good = [p for p in self.publications.values() if p.burned and p.phase not in ENDED and not p.main]
        return max(good, key=lambda p: p.version, default=None)

    @property
    def keep_versions(self) -> tuple[int, ...]:
        """The two newest, and where a delta begins that somebody may still need."""
        good = [p for p in self.publications.values() if p.burned and p.phase not in ENDED]
        newest = sorted({p.version for p in good})[-2:]
        bases = {root for p in self.mains if p.phase is Phase.OPEN for root in p.deltas.values()}
        return tuple(sorted({*newest, *(p.version for p in good if p.root in bases)}))

    def spares_origin(self, publication: Publication) -> bool:
        """Only deltas are to leave its publisher: the full object comes from those that have made it out of one, as
        long as there will be somebody."""
        if not publication.spare_origin:
            return False
        lanes = [self.publications.get(object_id) for object_id in publication.deltas]
        return any(lane is None or (lane.active and bool(lane.members)) for lane in lanes)

    @property
    def mains(self) -> list[Publication]:
        """One for each version that was asked for: without the lanes by which some of the workers get it."""
        return [p for p in self.publications.values() if not p.main]

    def in_phase(self, *phases: Phase) -> list[Publication]:
        return [p for p in self.publications.values() if p.phase in phases]

    def to_json(self) -> dict[str, Any]:
        return {
            "workers": [worker.to_json() for worker in self.workers.values()],
            "publications": [publication.to_json() for publication in self.publications.values()],
            "reserved_epoch": self.reserved_epoch,
            "saved_s": self.saved_s,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FleetState:
        return cls.from_rows(data["workers"], data["publications"], data["reserved_epoch"], data.get("saved_s", 0.0))

    @classmethod
    def from_rows(
        cls,
        workers: Iterable[dict[str, Any]],
        publications: Iterable[dict[str, Any]],
        reserved_epoch: int,
        saved_s: float = 0.0,
    ) -> FleetState:
        """From stored rows in any order; `saved_s` is the clock at the last write (0: unknown)."""
        loaded = sorted((Publication.from_json(row) for row in publications), key=lambda p: (p.started_s, p.version))
        known = [Worker.from_json(row) for row in workers]
        return cls({w.worker_id: w for w in known}, {p.object_id: p for p in loaded}, reserved_epoch, saved_s)
