"""Between a relay's machine and its messages to and from the coordinator. Pure: no stream, no clock.

What comes down is checked once, here: an object id becomes the name of a directory, an address is dialled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from chappe.core.effects import ChildSlot, PeerRef, Target
from chappe.core.events import HeldEdge, Holding, ObjectState
from chappe.core.manifest import OBJECT_ID_CHARS
from chappe.core.ranges import Range
from chappe.core.relay_events import (
    Acknowledge,
    AskToLeave,
    Assigned,
    Assignment,
    EdgeOrder,
    Released,
    ReportConnected,
    ReportHolding,
    ReportLost,
    Source,
)
from chappe.errors import PeerError
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2

RANGES_MAX = 4096
"""Of one holding. What is held beyond them is not claimed: a message stays small, and claiming less is safe."""
_VERSION_MAX = 1 << 62
_STATES = {
    ObjectState.RECEIVING: pb.OBJECT_STATE_RECEIVING,
    ObjectState.RECEIVED: pb.OBJECT_STATE_RECEIVED,
    ObjectState.VERIFIED: pb.OBJECT_STATE_VERIFIED,
    ObjectState.INSTALLED: pb.OBJECT_STATE_INSTALLED,
    ObjectState.FAILED: pb.OBJECT_STATE_FAILED,
    ObjectState.DISK_FULL: pb.OBJECT_STATE_DISK_FULL,
}
_KINDS = {
    relay_pb2.OBJECT_KIND_FULL: "full",
    relay_pb2.OBJECT_KIND_FULL_COMPRESSED: "full-compressed",
    relay_pb2.OBJECT_KIND_DELTA: "delta",
}


@dataclass(frozen=True, slots=True)
class Node:
    """What a relay says of itself. Rates are bytes per second, None when undeclared."""

    worker_id: str
    name: str
    generation: int
    run: str
    address: str
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    price_per_hour: float | None = None
    rollouts_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Welcomed:
    run: str
    token_key: bytes
    lease_s: float
    heartbeat_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str


Report = ReportHolding | ReportConnected | ReportLost | Acknowledge | AskToLeave
Reply = Welcomed | Assigned | Released | Refusal

# ---- up ------------------------------------------------------------------------------------------------------------


def encode_hello(
    node: Node, protocol_version: int, holdings: Iterable[Holding], edges: Iterable[HeldEdge], assignment_epoch: int
) -> pb.JoinRequest:
    hello = pb.Hello(
        protocol_version=protocol_version,
        role=pb.ROLE_RELAY,
        worker_id=node.worker_id,
        name=node.name,
        generation=node.generation,
        run=node.run,
        address=node.address,
        uplink_bytes_per_s=node.uplink_bytes_per_s or 0.0,
        downlink_bytes_per_s=node.downlink_bytes_per_s or 0.0,
        price_per_hour=node.price_per_hour or 0.0,
        rollouts_per_second=node.rollouts_per_second or 0.0,
        holdings=[encode_holding(holding) for holding in holdings],
        edges=[
            pb.HeldEdge(object_id=edge.object_id, stripe=edge.stripe, parent=edge.parent, epoch=edge.epoch)
            for edge in edges
        ],
        assignment_epoch=assignment_epoch,
    )
    return pb.JoinRequest(hello=hello)


def encode_holding(holding: Holding) -> pb.Holding:
    return pb.Holding(
        object_id=holding.object_id,
        version=holding.version,
        root=holding.root,
        state=_STATES[holding.state],
        chunks=[_range(r) for r in holding.chunks[:RANGES_MAX]],
        chunks_total=holding.chunks_total or 0,
        reason=holding.reason,
    )


def _range(chunks: Range) -> relay_pb2.Range:
    return relay_pb2.Range(start=chunks[0], stop=chunks[1])


def encode_report(report: Report) -> pb.JoinRequest:
    match report:
        case ReportHolding(holding):
            return pb.JoinRequest(holding=pb.HoldingChanged(holding=encode_holding(holding)))
        case ReportConnected(edge):
            connected = pb.ParentConnected(
                object_id=edge.object_id, stripe=edge.stripe, parent=edge.parent, epoch=edge.epoch
            )
            return pb.JoinRequest(parent_connected=connected)
        case ReportLost(edge, reason):
            lost = pb.ParentLost(
                object_id=edge.object_id,
                stripe=edge.stripe,
                parent=edge.parent,
                epoch=edge.epoch,
                reason=reason.value,
            )
            return pb.JoinRequest(parent_lost=lost)
        case Acknowledge(epoch):
            return pb.JoinRequest(acknowledge=pb.Acknowledge(epoch=epoch))
        case AskToLeave():
            return pb.JoinRequest(leaving=pb.Leaving())


def report_key(report: Report) -> tuple[str, ...]:
    """Of two reports with the same key that wait to be sent, the newer says all that the older did."""
    match report:
        case ReportHolding(holding):
            return "holding", holding.object_id
        case ReportConnected(edge) | ReportLost(edge):
            return type(report).__name__, edge.object_id, str(edge.stripe), edge.parent
        case Acknowledge() | AskToLeave():
            return (type(report).__name__,)


# ---- down ----------------------------------------------------------------------------------------------------------


def decode_reply(reply: pb.JoinReply) -> Reply:
    """Raises PeerError for what cannot be true."""
    match reply.WhichOneof("message"):
        case "welcome":
            welcome = reply.welcome
            if not welcome.run or not 0 < welcome.heartbeat_s < 3600 or not 0 < welcome.lease_s < 86400:
                raise PeerError(
                    f"a Welcome to run {welcome.run!r}, lease {welcome.lease_s} s, heartbeat {welcome.heartbeat_s} s"
                )
            return Welcomed(welcome.run, welcome.token_key, welcome.lease_s, welcome.heartbeat_s)
        case "assignment":
            return Assigned(decode_assignment(reply.assignment))
        case "refused":
            return Refusal(reply.refused.reason or "no reason given")
        case "released":
            return Released()
        case other:
            raise PeerError(f"a reply {other!r} on Join: is the coordinator of another release?")


def decode_assignment(assignment: pb.Assignment) -> Assignment:
    """Raises PeerError."""
    targets = tuple(_target(target) for target in assignment.targets)
    edges = tuple(_edge(edge) for edge in assignment.edges)
    if len({t.object_id for t in targets}) != len(targets):
        raise PeerError("an assignment names a target twice")
    if len({(e.object_id, e.stripe) for e in edges}) != len(edges):
        raise PeerError("an assignment gives two parents in one stripe")
    return Assignment(assignment.epoch, targets, edges, tuple(assignment.keep_versions))


def _object_id(text: str) -> str:
    if len(text) != OBJECT_ID_CHARS or not set(text) <= set("0123456789abcdef"):
        raise PeerError(f"object_id {text[:80]!r} is not {OBJECT_ID_CHARS} lower-case hex digits")
    return text


def _target(target: pb.Target) -> Target:
    kind = _KINDS.get(target.kind)
    if kind is None:
        raise PeerError(f"object kind {target.kind} is not known here: update relayd")
    if not 0 < target.version < _VERSION_MAX:
        raise PeerError(f"version {target.version} of object {target.object_id[:80]!r}")
    return Target(
        _object_id(target.object_id),
        target.version,
        target.root,
        kind,
        target.payload_bytes,
        target.snapshot_bytes,
    )


def _edge(edge: pb.Edge) -> EdgeOrder:
    if edge.dialer == pb.DIALER_PARENT:
        raise PeerError("an edge on which the parent dials: this release of relayd only dials its parent itself")
    parent = Source(_peer(edge.parent), edge.token.SerializeToString()) if edge.HasField("parent") else None
    return EdgeOrder(
        _object_id(edge.object_id),
        edge.stripe,
        edge.epoch,
        parent,
        tuple(Source(_peer(other.parent), other.token.SerializeToString()) for other in edge.fallbacks),
        tuple(ChildSlot(_peer(c.child), c.slot, c.generation, c.epoch) for c in edge.children),
    )


def _peer(peer: pb.Peer) -> PeerRef:
    if not peer.worker_id or not peer.name:
        raise PeerError(f"a peer without a worker id or a name: {peer.worker_id[:80]!r}, {peer.name[:80]!r}")
    return PeerRef(peer.worker_id, peer.name, peer.address)
