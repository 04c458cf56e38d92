"""What people are shown of the fleet: plain views that mirror a status message, filled by `chappe.core.status`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chappe.core.training_view import TrainingView


class RelayState(StrEnum):
    """A closed set: also the label of a metric."""

    IDLE = "idle"  # here, nothing to do, nothing installed
    RECEIVING = "receiving"
    RECEIVED = "received"
    VERIFIED = "verified"
    INSTALLED = "installed"
    FAILED = "failed"
    DISK_FULL = "disk_full"
    DRAINED = "drained"
    LEAVING = "leaving"
    ABSENT = "absent"  # its stream broke, its lease runs
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class FractionsView:
    received: float
    verified: float
    installed: float


@dataclass(frozen=True, slots=True)
class PayloadView:
    """One object of a publication. Elements are those of a delta."""

    object_id: str
    kind: str
    payload_bytes: int
    targeted: int
    installed: int
    base_root: str = ""
    changed_elements: int = 0
    compared_elements: int = 0
    alarm: str = ""


@dataclass(frozen=True, slots=True)
class ChainView:
    names: tuple[str, ...]  # from the head
    stripe: int = 0


@dataclass(frozen=True, slots=True)
class PublicationView:
    run: str
    object_id: str
    version: int
    root: str
    kind: str
    payload_bytes: int
    snapshot_bytes: int
    targeted: int
    installed: int
    lost: tuple[str, ...]
    installed_fraction: float
    t_bcast: dict[str, float]
    floor_s: float | None
    chains: tuple[ChainView, ...]
    fractions: FractionsView
    state: str
    reason: str
    objects: tuple[str, ...]
    elapsed_s: float
    topology: str
    payloads: tuple[PayloadView, ...] = ()
    payload_reason: str = ""
    layout_reason: str = ""
    stripe_weights: tuple[int, ...] = ()  # empty: plain chains
    rate_bytes_per_s: float | None = None
    striped_s: float | None = None
    plain_s: float | None = None
    floor_source: str = ""  # what the floor stands on; empty without one


@dataclass(frozen=True, slots=True)
class RelayView:
    """`parent` is a name or empty, `chain` and `position` -1 without a place, versions 0 for none."""

    name: str
    state: str
    parent: str
    chain: int
    position: int
    received: int
    verified: int
    installed: int
    rank: int
    downlink_bytes_per_s: float
    uplink_bytes_per_s: float
    source: str
    reason: str
    worker_id: str
    address: str
    progress: float
    uplink_source: str = "assumed"
    downlink_source: str = "assumed"
    uplink_age_s: float | None = None  # since it was measured
    downlink_age_s: float | None = None
    demoted: bool = False
    dialable: str = "unknown"  # yes, no, unknown
    price_per_hour: float | None = None
    rollouts_per_s: float | None = None
    rollouts_source: str = ""  # measured, declared; empty: unknown
    duty: str = ""  # active, standby; empty where nobody decides that
    duty_reason: str = ""
    transport: str = ""  # tcp, grpc: of the hop from the parent; empty: nothing is reported of it


@dataclass(frozen=True, slots=True)
class OriginView:
    name: str
    worker_id: str
    address: str
    state: str
    uplink_bytes_per_s: float
    source: str
    age_s: float | None


@dataclass(frozen=True, slots=True)
class StatusView:
    run: str
    relays: tuple[RelayView, ...]
    publications: tuple[PublicationView, ...]  # newest first
    origins: tuple[OriginView, ...] = ()
    training: TrainingView | None = None  # None where it is not configured
