"""What the fleet machine is told. Each is a fact that has happened; times are the `now` given to `handle`.

Workers are known by `worker_id`, their streams by `session` (a number that the shell never uses twice): an event from a
stream that has been replaced is stale and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chappe.core.ranges import Range
from chappe.core.reasons import ParentLossReason


class Role(StrEnum):
    RELAY = "relay"
    ORIGIN = "origin"


class ObjectState(StrEnum):
    """What a worker says of an object, in the order in which a transfer passes through it."""

    RECEIVING = "receiving"
    RECEIVED = "received"
    VERIFIED = "verified"
    INSTALLED = "installed"
    FAILED = "failed"
    DISK_FULL = "disk_full"


class Topology(StrEnum):
    CHAINS = "chains"
    STAR = "star"
    STRIPED = "striped"  # where the links are worth it, chains where not
    AUTO = "auto"  # the same, where all links are known: declared or measured


class Payload(StrEnum):
    """What may travel. Auto: a delta to whoever proves its base, the full snapshot to the others, compressed where that
    is faster."""

    AUTO = "auto"
    FULL = "full"
    DELTA = "delta"
    COMPRESSED = "compressed"


@dataclass(frozen=True, slots=True)
class Holding:
    """What one worker holds of one object. `version` is 0 until it has landed, `chunks_total` None without a header."""

    object_id: str
    state: ObjectState
    version: int = 0
    root: str = ""
    chunks: tuple[Range, ...] = ()
    chunks_total: int | None = None
    reason: str = ""

    @classmethod
    def gone(cls, object_id: str) -> Holding:
        return cls(object_id, ObjectState.RECEIVING)

    @property
    def nothing(self) -> bool:
        """Not a byte of it is there, and none is on its way that anybody has heard of."""
        return self == Holding.gone(self.object_id)


@dataclass(frozen=True, slots=True)
class HeldEdge:
    """A stream that is really there, as its child reports it."""

    object_id: str
    stripe: int
    parent: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Hello:
    """A relay or an origin has (re)joined. Rates are bytes per second, None when undeclared."""

    worker_id: str
    session: int
    role: Role
    name: str
    generation: int
    address: str
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    price_per_hour: float | None = None
    rollouts_per_second: float | None = None
    holdings: tuple[Holding, ...] = ()
    edges: tuple[HeldEdge, ...] = ()
    assignment_epoch: int = 0
    no_dial_in: bool = False  # declared: peers cannot dial it
    data_port: int = 0  # for data connections; 0: not told
    stripes: bool = True  # it knows them


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The stream broke or was closed. The worker may be alive."""

    worker_id: str
    session: int


@dataclass(frozen=True, slots=True)
class Heard:
    """Anything came from the worker: its lease is renewed. Sent by the shell for every message, heartbeats included."""

    worker_id: str
    session: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    worker_id: str
    session: int
    epoch: int


@dataclass(frozen=True, slots=True)
class HoldingChanged:
    worker_id: str
    session: int
    holding: Holding


@dataclass(frozen=True, slots=True)
class ParentConnected:
    worker_id: str
    session: int
    edge: HeldEdge


@dataclass(frozen=True, slots=True)
class ParentLost:
    worker_id: str
    session: int
    edge: HeldEdge
    reason: ParentLossReason


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """A relay stops gracefully: its child is to be moved first."""

    worker_id: str
    session: int


@dataclass(frozen=True, slots=True)
class Offered:
    """An origin holds the header of an object and serves it. `root` is set when it offers a closed object again. With
    `open_end` it is still being made, `payload_bytes` and `chunks_total` are an estimate, and it is offered again."""

    worker_id: str
    session: int
    object_id: str
    version: int
    kind: str
    payload_bytes: int
    snapshot_bytes: int
    chunks_total: int
    root: str = ""
    changed_elements: int = 0  # of a delta, of those that have a base
    compared_elements: int = 0
    open_end: bool = False
    changed_bytes: int = 0  # about what the changed elements take of the payload; 0: not told


@dataclass(frozen=True, slots=True)
class RootAnnounced:
    worker_id: str
    session: int
    object_id: str
    root: str


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The origin cannot go on with an object (its files changed): nothing of it may become a version."""

    worker_id: str
    session: int
    object_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class LinkSample:
    """One hop as one of its ends measured it: goodput while the sender had data to give, for `busy_s` seconds.

    `streams` are those of the reporting node in that direction, this one included; `bytes` moved in all. Rate and time
    are 0 for a hop that always caught up with its source: it was not the limit. `tcp`: the payload travels over a
    connection of its own, not over gRPC.
    """

    peer: str
    sending: bool
    bytes_per_s: float
    busy_s: float
    streams: int = 1
    bytes: int = 0
    tcp: bool = False


@dataclass(frozen=True, slots=True)
class LinksMeasured:
    """What a node's hops carried since its last report. A claim: see `chappe.core.measuring`."""

    worker_id: str
    session: int
    samples: tuple[LinkSample, ...]


@dataclass(frozen=True, slots=True)
class ProbeEnded:
    """The answer to a `StartProbe`. Rates are None where nothing was measured; `error` says why nothing was at all."""

    worker_id: str
    session: int
    order: str
    up_bytes_per_s: float | None
    down_bytes_per_s: float | None
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class RolloutsReported:
    """What the engine beside a relay generates, as it measured; 0: it cannot say any more."""

    worker_id: str
    session: int
    rollouts_per_s: float


@dataclass(frozen=True, slots=True)
class LearnerMoved:
    """How far the learner beside an origin is, and how many trajectories it has admitted and found too old so far."""

    worker_id: str
    session: int
    version: int
    admitted: int = 0
    discarded: int = 0


@dataclass(frozen=True, slots=True)
class DialedBack:
    """The coordinator has tried the address that a node advertised."""

    worker_id: str
    session: int
    reachable: bool


@dataclass(frozen=True, slots=True)
class DeltaFrom:
    """A delta that can be made: what it begins at, and the object that it would be."""

    base_root: str
    object_id: str


@dataclass(frozen=True, slots=True)
class Compressed:
    """The full snapshot compressed, as its publisher expects it. Rates are of the snapshot's bytes."""

    object_id: str
    payload_bytes: int
    encode_bytes_per_s: float
    decode_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class PublishRequested:
    """A publisher asks for a version. `version` 0 means the next one; `chains` 0 means as planned.

    `request` names the caller's stream in the effects that answer it. A request for a publication that is open already
    (same object_id) attaches to it. `deltas` are those that the publisher can make, the one from what it published last
    first; where there is none, `no_delta` says why.
    """

    request: int
    origin_id: str
    object_id: str
    version: int
    until: float
    topology: Topology
    chains: int
    snapshot_bytes: int
    elapsed_s: float
    payload: Payload = Payload.AUTO
    deltas: tuple[DeltaFrom, ...] = ()
    no_delta: str = ""
    t_train_s: float = 0.0  # of one training step, as the trainer measures it; 0: not told
    compressed: Compressed | None = None


@dataclass(frozen=True, slots=True)
class PublishWatcherLeft:
    """The caller of Publish is gone. The publication goes on."""

    request: int


@dataclass(frozen=True, slots=True)
class CancelRequested:
    request: int
    version: int


@dataclass(frozen=True, slots=True)
class DrainRequested:
    request: int
    name: str


@dataclass(frozen=True, slots=True)
class ForgetRequested:
    request: int
    name: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the moment asked for by the last `WakeAt` has come, or an earlier one."""


@dataclass(frozen=True, slots=True)
class StoodStill:
    """Nothing could be taken in for a while, by the coordinator's own fault: what follows was said meanwhile."""


Event = (
    Hello
    | SessionLost
    | Heard
    | Acknowledged
    | HoldingChanged
    | ParentConnected
    | ParentLost
    | LeaveRequested
    | Offered
    | RootAnnounced
    | SourceFailed
    | LinksMeasured
    | ProbeEnded
    | DialedBack
    | RolloutsReported
    | LearnerMoved
    | PublishRequested
    | PublishWatcherLeft
    | CancelRequested
    | DrainRequested
    | ForgetRequested
    | StoodStill
    | Tick
)
