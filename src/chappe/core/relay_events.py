"""What a relay's transfer machine is told, and what it asks its shell to do (see `chappe.core.transfer`).

Fetches are known by a number that is never used twice: what comes from one that was closed meanwhile is ignored.
Chunks appear as ranges only, so that a simulated relay costs no more than a real one's bookkeeping.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chappe.core.effects import ChildSlot, Count, Log, PeerRef, Target, WakeAt
from chappe.core.events import HeldEdge, Holding
from chappe.core.ranges import Range
from chappe.core.reasons import ParentLossReason
from chappe.core.stripemap import PLAIN, StripeMap

# ---- what the coordinator wants ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Source:
    """A node to fetch from, and the token it will ask for (serialized; nothing in the core looks inside)."""

    peer: PeerRef
    token: bytes
    dials: bool = False  # it opens the stream, because this node cannot: wait for its call


@dataclass(frozen=True, slots=True)
class PushOrder:
    """A child that this node has to dial. The token is this node's introduction."""

    child: PeerRef
    slot: int
    generation: int
    epoch: int
    token: bytes


@dataclass(frozen=True, slots=True)
class EdgeOrder:
    """This node's place in one stripe of one object. No parent: no source is known now, wait."""

    object_id: str
    stripe: int
    epoch: int
    parent: Source | None
    fallbacks: tuple[Source, ...] = ()
    children: tuple[ChildSlot, ...] = ()
    pushes: tuple[PushOrder, ...] = ()  # those of the children that are dialled from here
    expected_bytes_per_s: float = 0.0  # of the hop to the parent, as the coordinator figures it; 0: unknown
    stripes: StripeMap = PLAIN  # which chunks are meant

    @property
    def sources(self) -> tuple[Source, ...]:
        return () if self.parent is None else (self.parent, *self.fallbacks)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The whole desired state of this node."""

    epoch: int
    targets: tuple[Target, ...] = ()
    edges: tuple[EdgeOrder, ...] = ()
    keep_versions: tuple[int, ...] = ()
    duty: str = ""  # active, standby; empty: nobody decides whether this worker generates
    duty_reason: str = ""


# ---- events --------------------------------------------------------------------------------------------------------


class LocalFault(StrEnum):
    """What this node's own store has against going on."""

    DISK_FULL = "disk_full"
    STORE = "store"  # an I/O error, or something in the store that this program did not write
    DAMAGED = "damaged"  # the device lost a write: nothing of the object can be relied on
    DELTA = "delta"  # its base is not here or not what it was, or it does not give the root: another object is needed
    ROTTEN = "rotten"  # chunks were not what they had been: they are dropped, and fetched again
    ROOT_MISMATCH = "root_mismatch"  # every chunk matched its page, the whole is not what was announced


@dataclass(frozen=True, slots=True)
class Restored:
    """An object that the store held when this process started. `version` is 0 unless it has landed."""

    object_id: str
    version: int = 0
    root: str = ""
    chunks: tuple[Range, ...] = ()
    chunks_total: int | None = None
    installed: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Connected:
    """The coordinator has welcomed this node."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The stream to the coordinator is gone. The shell dials again by itself."""


@dataclass(frozen=True, slots=True)
class FetchConnected:
    """The first message came down this fetch."""

    fetch: int


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """No reason: everything asked for came. `progressed`: at least one header, page or chunk was stored."""

    fetch: int
    reason: ParentLossReason | LocalFault | None
    detail: str = ""
    rejected: tuple[int, ...] = ()
    progressed: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What is held of an object now. Sent at once when the header or the last chunk comes, else about once a second."""

    object_id: str
    chunks: tuple[Range, ...]
    chunks_total: int | None


@dataclass(frozen=True, slots=True)
class ChunksDropped:
    """Chunks that were held turned out rotten and are no longer: `chunks` is what is left. Sent at once."""

    object_id: str
    chunks: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Landed:
    """`full` is the object that a delta led to: it is what the store holds from now on."""

    object_id: str
    full: Restored | None = None


@dataclass(frozen=True, slots=True)
class LandFailed:
    """`part` is the object to which a delta leads, where what came out right is kept as a part of it."""

    object_id: str
    fault: LocalFault
    detail: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    """Retention has removed these landed objects from the store."""

    object_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstallEnded:
    """The hook has answered, or the engine has."""

    version: int
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """This process was asked to stop."""


@dataclass(frozen=True, slots=True)
class Released:
    """The coordinator has moved the child away: nothing depends on this node any more."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the moment asked for by the last `WakeAt` has come, or an earlier one."""


RelayEvent = (
    Assigned
    | Connected
    | Disconnected
    | FetchConnected
    | FetchEnded
    | Progress
    | ChunksDropped
    | Landed
    | LandFailed
    | Removed
    | InstallEnded
    | StopRequested
    | Released
    | Tick
)

# ---- effects -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenObject:
    """Have this object in the store and serve it, as far as it is here. Doing it twice is doing it once."""

    object_id: str


@dataclass(frozen=True, slots=True)
class ResetObject:
    """Throw away what is here of an object and start it again, empty."""

    object_id: str


@dataclass(frozen=True, slots=True)
class DropObject:
    """Not wanted any more: tell its children and give the room back."""

    object_id: str


@dataclass(frozen=True, slots=True)
class AdmitChildren:
    """Whom this node may serve, in all: replaces what was there."""

    edges: tuple[EdgeOrder, ...]


@dataclass(frozen=True, slots=True)
class OpenFetch:
    fetch: int
    object_id: str
    stripe: int
    source: Source
    rejected: tuple[int, ...] = ()
    epoch: int = 0  # of the edge
    expected_bytes_per_s: float = 0.0
    stripes: StripeMap = PLAIN


@dataclass(frozen=True, slots=True)
class CloseFetch:
    fetch: int


@dataclass(frozen=True, slots=True)
class DrainFetch:
    """Take what its parent has on its way, ask for no more, and say FetchEnded; at once where nothing comes."""

    fetch: int


@dataclass(frozen=True, slots=True)
class Land:
    """Answered by Landed or LandFailed."""

    object_id: str
    version: int
    root: str


@dataclass(frozen=True, slots=True)
class Mend:
    """The rotten chunks of a landed object are here again: replace the files that they belong to."""

    object_id: str


@dataclass(frozen=True, slots=True)
class Install:
    """Start the hook for a landed version; answered by InstallEnded. `previous` was installed before it, 0 for none."""

    version: int
    previous: int


@dataclass(frozen=True, slots=True)
class Retain:
    """Everything else that has landed may go, except what the store itself knows to be current, previous or in use."""

    objects: tuple[str, ...]
    versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReportHolding:
    holding: Holding


@dataclass(frozen=True, slots=True)
class ReportConnected:
    edge: HeldEdge


@dataclass(frozen=True, slots=True)
class ReportLost:
    edge: HeldEdge
    reason: ParentLossReason


@dataclass(frozen=True, slots=True)
class Acknowledge:
    epoch: int


@dataclass(frozen=True, slots=True)
class AskToLeave:
    """Tell the coordinator that this node stops, so that it moves the child first."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process now, in good order."""


RelayEffect = (
    OpenObject
    | ResetObject
    | DropObject
    | AdmitChildren
    | OpenFetch
    | CloseFetch
    | DrainFetch
    | Land
    | Mend
    | Install
    | Retain
    | ReportHolding
    | ReportConnected
    | ReportLost
    | Acknowledge
    | AskToLeave
    | Stop
    | Log
    | Count
    | WakeAt
)
