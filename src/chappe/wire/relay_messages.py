"""Between a relay's machine and its messages to and from the coordinator. Pure: no stream, no clock.

What comes down is checked once, here: an object id becomes the name of a directory, an address is dialled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from chappe.core.effects import ChildSlot, PeerRef, Target
from chappe.core.events import HeldEdge, Holding, LinkSample, ObjectState
from chappe.core.manifest import OBJECT_ID_CHARS
from chappe.core.probes import ProbeOrder, ProbeOutcome
from chappe.core.ranges import Range
from chappe.core.relay_events import (
    Acknowledge,
    AskToLeave,
    Assigned,
    Assignment,
    EdgeOrder,
    PushOrder,
    Released,
    ReportConnected,
    ReportHolding,
    ReportLost,
    Source,
)
from chappe.errors import PeerError
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2
from chappe.wire.stripes import decode_stripes

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


DUTIES = {pb.DUTY_UNSPECIFIED: "", pb.DUTY_ACTIVE: "active", pb.DUTY_STANDBY: "standby"}
_REASON_CHARS = 2000


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
    dialable: bool = True  # False: declared to be out of reach for peers
    data_port: int = 0  # for data connections; 0: there are none


@dataclass(frozen=True, slots=True)
class Welcomed:
    run: str
    token_key: bytes
    lease_s: float
    heartbeat_s: float


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What the hops of this node have carried since the last one."""

    samples: tuple[LinkSample, ...]


@dataclass(frozen=True, slots=True)
class RolloutsReport:
    """What the engine beside this relay generates."""

    rollouts_per_s: float


Report = (
    ReportHolding | ReportConnected | ReportLost | Acknowledge | AskToLeave | LinkReport | RolloutsReport | ProbeOutcome
)
Reply = Welcomed | Assigned | Released | Refusal | ProbeOrder

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
        dialable=pb.DIALABLE_UNSPECIFIED if node.dialable else pb.DIALABLE_NO,
        data_port=node.data_port,
        stripes=True,
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
        case LinkReport(samples):
            return encode_links(samples)
        case RolloutsReport(rate):
            return pb.JoinRequest(rollouts=pb.RolloutRate(rollouts_per_second=rate))
        case ProbeOutcome():
            return encode_probe_outcome(report)


def encode_links(samples: Iterable[LinkSample]) -> pb.JoinRequest:
    return pb.JoinRequest(
        links=pb.LinkReport(
            samples=[
                pb.LinkSample(
                    peer=sample.peer,
                    sending=sample.sending,
                    bytes_per_s=sample.bytes_per_s,
                    busy_s=sample.busy_s,
                    bytes=sample.bytes,
                    streams=sample.streams,
                    tcp=sample.tcp,
                )
                for sample in samples
            ]
        )
    )


def encode_probe_outcome(outcome: ProbeOutcome) -> pb.JoinRequest:
    return pb.JoinRequest(
        probe_result=pb.ProbeResult(
            order=outcome.order,
            up_bytes_per_s=outcome.up_bytes_per_s,
            down_bytes_per_s=outcome.down_bytes_per_s,
            bytes=outcome.bytes,
            seconds=outcome.seconds,
            error=outcome.error,
        )
    )


def report_key(report: Report) -> tuple[str, ...]:
    """Of two reports with the same key that wait to be sent, the newer says all that the older did."""
    match report:
        case ReportHolding(holding):
            return "holding", holding.object_id
        case ReportConnected(edge) | ReportLost(edge):
            return type(report).__name__, edge.object_id, str(edge.stripe), edge.parent
        case Acknowledge() | AskToLeave() | LinkReport() | RolloutsReport():
            return (type(report).__name__,)
        case ProbeOutcome(order):
            return "probe", order


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
        case "probe":
            return decode_probe_order(reply.probe)
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
    duty = DUTIES.get(assignment.duty, "")  # of a newer coordinator: generating is never wrong
    return Assignment(
        assignment.epoch, targets, edges, tuple(assignment.keep_versions), duty, assignment.duty_reason[:_REASON_CHARS]
    )


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


def decode_probe_order(order: pb.ProbeOrder) -> ProbeOrder:
    """Raises PeerError."""
    if not order.order or order.bytes_max == 0 or not 0 < order.seconds_max < 3600:
        raise PeerError(f"a probe {order.order[:80]!r} of {order.bytes_max} bytes, {order.seconds_max} s")
    return ProbeOrder(
        order.order, _peer(order.peer), order.token.SerializeToString(), order.bytes_max, order.seconds_max
    )


def decode_pushes(edge: pb.Edge) -> tuple[PushOrder, ...]:
    """The children of this edge's node that it has to dial. Raises PeerError."""
    return tuple(
        PushOrder(_peer(c.child), c.slot, c.generation, c.epoch, c.token.SerializeToString())
        for c in edge.children
        if c.dialer == pb.DIALER_PARENT
    )


def _edge(edge: pb.Edge) -> EdgeOrder:
    parent = None
    if edge.HasField("parent"):
        dials = edge.dialer == pb.DIALER_PARENT
        parent = Source(_peer(edge.parent), edge.token.SerializeToString(), dials)
    if not 0 <= edge.expected_bytes_per_s < math.inf:
        raise PeerError(f"an edge that is expected to carry {edge.expected_bytes_per_s} bytes per second")
    return EdgeOrder(
        _object_id(edge.object_id),
        edge.stripe,
        edge.epoch,
        parent,
        tuple(Source(_peer(other.parent), other.token.SerializeToString()) for other in edge.fallbacks),
        tuple(ChildSlot(_peer(c.child), c.slot, c.generation, c.epoch) for c in edge.children),
        decode_pushes(edge),
        edge.expected_bytes_per_s,
        decode_stripes(edge.stripes if edge.HasField("stripes") else None, edge.stripe),
    )


def _peer(peer: pb.Peer) -> PeerRef:
    if not peer.worker_id or not peer.name:
        raise PeerError(f"a peer without a worker id or a name: {peer.worker_id[:80]!r}, {peer.name[:80]!r}")
    if peer.data_port > 65535:
        raise PeerError(f"peer {peer.name[:80]!r} takes data connections at port {peer.data_port}")
    return PeerRef(peer.worker_id, peer.name, peer.address, peer.data_port)
