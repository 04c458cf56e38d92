"""What the fleet machine asks its shell to do. Effects of one `handle` call are carried out in order.

`Persist*` effects of a call are written in one transaction before any message of that call is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from chappe.core.stripemap import PLAIN, StripeMap


@dataclass(frozen=True, slots=True)
class PeerRef:
    worker_id: str
    name: str
    address: str
    data_port: int = field(default=0, compare=False)
    """Where it takes data connections; 0: not known. Nobody is another peer because more is known of it."""


class Dialer(StrEnum):
    """Which end of a hop opens it: the parent where its own address cannot be dialled (NAT)."""

    CHILD = "child"
    PARENT = "parent"


@dataclass(frozen=True, slots=True)
class ChildSlot:
    """Whom a parent may serve in one slot. An origin has a slot per chain, a star one per worker."""

    child: PeerRef
    slot: int
    generation: int
    epoch: int
    dialer: Dialer = Dialer.CHILD


@dataclass(frozen=True, slots=True)
class FallbackParent:
    parent: PeerRef
    slot: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Edge:
    """One node's place in one stripe of one object. The shell signs a token for (parent -> this node) and one for each
    fallback: {run, object_id, stripe, slot, parent, child = this node, its generation, epoch}."""

    object_id: str
    stripe: int
    epoch: int
    parent: PeerRef | None
    slot: int = 0  # of this node at its parent
    fallbacks: tuple[FallbackParent, ...] = ()
    children: tuple[ChildSlot, ...] = ()
    dialer: Dialer = Dialer.CHILD  # of the hop from the parent
    expected_bytes_per_s: float = 0.0  # of that hop when its epoch was handed out; 0: unknown
    stripes: StripeMap = PLAIN  # of the object


@dataclass(frozen=True, slots=True)
class Target:
    object_id: str
    version: int
    root: str
    kind: str
    payload_bytes: int
    snapshot_bytes: int


@dataclass(frozen=True, slots=True)
class Assign:
    """The whole desired state of one node."""

    worker_id: str
    session: int
    generation: int
    epoch: int
    targets: tuple[Target, ...]
    edges: tuple[Edge, ...]
    keep_versions: tuple[int, ...] = ()
    duty: str = ""  # active, standby; empty where nobody decides that
    duty_reason: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    worker_id: str
    session: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Close this stream: the node is not taken. `reason` says what to do."""

    worker_id: str
    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Close this stream without a word: the same worker has a newer one, or was silent for its lease and has to join
    again."""

    worker_id: str
    session: int


@dataclass(frozen=True, slots=True)
class Release:
    """The relay that wanted to leave has no child any more and may go."""

    worker_id: str
    session: int


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Let this idle node measure the link to an idle peer. The shell signs a token that is good for nothing else:
    {run, object_id "", parent = the peer, child = the node, its generation, epoch}. Answered by `ProbeEnded`."""

    worker_id: str
    session: int
    generation: int
    order: str
    peer: PeerRef
    epoch: int
    bytes_max: int
    seconds_max: float


@dataclass(frozen=True, slots=True)
class AskPublication:
    """Tell this origin that the learner is too far ahead of the fleet."""

    worker_id: str
    session: int
    learner_version: int
    fleet_version: int
    reason: str


class PublishErrorKind(StrEnum):
    CONFLICT = "conflict"  # gRPC ALREADY_EXISTS; the request is sound, what is there is in its way
    INVALID = "invalid"  # INVALID_ARGUMENT
    NO_WORKERS = "no_workers"  # FAILED_PRECONDITION
    NOT_FOUND = "not_found"  # NOT_FOUND
    FAILED = "failed"  # ABORTED
    CANCELLED = "cancelled"  # CANCELLED
    SUPERSEDED = "superseded"  # ABORTED


@dataclass(frozen=True, slots=True)
class PublishAccepted:
    """With `object_id` and `root`: the version was announced before and its publisher went away. The caller is to build
    that object anew, and to offer it when its root has come out the same. With `base_roots`: workers wait for deltas
    from these; with `compressed`: for the compressed object."""

    request: int
    version: int
    chunk_bytes: int
    object_id: str = ""
    root: str = ""
    base_roots: tuple[str, ...] = ()
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class PublishAlready:
    """The version was announced before with this root: the publisher compares."""

    request: int
    version: int
    root: str


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """Something a watcher wants to see changed: the shell renders the status now, at most ten times a second."""

    object_id: str
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PublishFinished:
    object_id: str
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """Ends a Publish, Cancel, Drain or Forget call with an error."""

    request: int
    kind: PublishErrorKind
    message: str


@dataclass(frozen=True, slots=True)
class RequestDone:
    """Ends a Cancel, Drain or Forget call."""

    request: int


@dataclass(frozen=True, slots=True)
class PersistWorker:
    worker_id: str


@dataclass(frozen=True, slots=True)
class ForgetWorker:
    worker_id: str


@dataclass(frozen=True, slots=True)
class PersistPublication:
    object_id: str


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Epochs up to this one may have been handed out. Reserved in blocks: not every edge costs a transaction."""

    reserved: int


@dataclass(frozen=True, slots=True)
class Log:
    """One structured line for a decision, `event` with its fields. `warning`: somebody should do something."""

    event: str
    reason: str
    fields: dict[str, str | int | float | list[str]] = field(default_factory=dict)
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """Increment a counter of the coordinator's metrics: `name` without prefix, labels from a closed set."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `handle(Tick(), now)` at this time at the latest. Replaces the one asked for before."""

    time_s: float


Effect = (
    Assign
    | Welcome
    | Refuse
    | Replace
    | Release
    | StartProbe
    | AskPublication
    | PublishAccepted
    | PublishAlready
    | PublishProgress
    | PublishFinished
    | RequestRefused
    | RequestDone
    | PersistWorker
    | ForgetWorker
    | PersistPublication
    | PersistEpoch
    | Log
    | Count
    | WakeAt
)
