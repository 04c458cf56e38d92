"""From what nodes and publishers send to the fleet's events; it is checked here, once.

A message that cannot be true raises PeerError: the service ends the stream with it. Nothing here decides anything about
the fleet, does I/O or knows a stream. The other direction is `chappe.coordinator.assignments`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from chappe.core import events
from chappe.core.ranges import Range
from chappe.core.reasons import ParentLossReason
from chappe.errors import PeerError
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2

CHUNK_LIMIT = 1 << 40
"""No object has as many chunks: larger numbers are refused before they reach the arithmetic."""
_COUNT_LIMIT = 1 << 62
_RATE_LIMIT = 1e13  # bytes/s; a peer's infinity or nonsense must not plan chains
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_ROOT = re.compile(r"[a-z0-9_]{1,32}:[0-9a-f]{16,128}")
_DELTAS_MAX = 64  # of one publish call
_TEXT_CHARS = 2000  # of a reason: for people, shown in status and kept in the state

_OBJECT_STATES = {
    pb.OBJECT_STATE_RECEIVING: events.ObjectState.RECEIVING,
    pb.OBJECT_STATE_RECEIVED: events.ObjectState.RECEIVED,
    pb.OBJECT_STATE_VERIFIED: events.ObjectState.VERIFIED,
    pb.OBJECT_STATE_INSTALLED: events.ObjectState.INSTALLED,
    pb.OBJECT_STATE_FAILED: events.ObjectState.FAILED,
    pb.OBJECT_STATE_DISK_FULL: events.ObjectState.DISK_FULL,
}
_ROLES = {pb.ROLE_RELAY: events.Role.RELAY, pb.ROLE_ORIGIN: events.Role.ORIGIN}
_TOPOLOGIES = {
    pb.TOPOLOGY_UNSPECIFIED: events.Topology.CHAINS,
    pb.TOPOLOGY_CHAINS: events.Topology.CHAINS,
    pb.TOPOLOGY_STAR: events.Topology.STAR,
    pb.TOPOLOGY_STRIPED: events.Topology.STRIPED,
    pb.TOPOLOGY_AUTO: events.Topology.AUTO,
}
KINDS = {
    relay_pb2.OBJECT_KIND_FULL: "full",
    relay_pb2.OBJECT_KIND_FULL_COMPRESSED: "full-compressed",
    relay_pb2.OBJECT_KIND_DELTA: "delta",
}
_SAMPLES_MAX = 65536  # in one report: an origin of a star has a hop to every relay
_ORIGIN_ONLY = frozenset({"offer", "root", "source_failed", "learner"})
_RELAY_ONLY = frozenset({"parent_connected", "parent_lost", "rollouts"})


# ---- checks --------------------------------------------------------------------------------------------------------


def _identifier(value: str, what: str) -> str:
    if not _ID.fullmatch(value):
        raise PeerError(f"{what} {value[:80]!r} is not an identifier")
    return value


def _root(value: str, what: str) -> str:
    if not _ROOT.fullmatch(value):
        raise PeerError(f"{what} {value[:80]!r} is not a root (algorithm:hex)")
    return value


def _rate(value: float, what: str) -> float | None:
    """Bytes per second, or None for 0 (undeclared)."""
    if not math.isfinite(value) or not 0 <= value <= _RATE_LIMIT:
        raise PeerError(f"{what} {value!r} is not a rate")
    return value or None


def _number(value: float, what: str) -> float | None:
    if not math.isfinite(value) or value < 0:
        raise PeerError(f"{what} {value!r} must be zero or more")
    return value or None


def _ranges(ranges: Iterable[relay_pb2.Range]) -> tuple[Range, ...]:
    """Sorted and disjoint, as every node keeps them; anything else is a broken peer."""
    decoded: list[Range] = []
    end = 0
    for item in ranges:
        if item.start < end or item.stop <= item.start or item.stop > CHUNK_LIMIT:
            raise PeerError(f"[{item.start}, {item.stop}) is not the next range of a sorted, disjoint set of chunks")
        decoded.append((item.start, item.stop))
        end = item.stop
    return tuple(decoded)


# ---- up ------------------------------------------------------------------------------------------------------------


def decode_hello(hello: pb.Hello, session: int) -> events.Hello:
    """Raises PeerError. The protocol version and the run are the service's business: their refusals are answers."""
    role = _ROLES.get(hello.role)
    if role is None:
        raise PeerError(f"role {hello.role} is neither relay nor origin")
    if not _NAME.fullmatch(hello.name):
        raise PeerError(f"name {hello.name[:80]!r}: use letters, digits, '.', '_' and '-', at most 253 of them")
    if not hello.address or len(hello.address) > 300 or ":" not in hello.address:
        raise PeerError(f"address {hello.address[:80]!r} is not HOST:PORT")
    if hello.generation < 1:
        raise PeerError("generation must be 1 or more: it grows with every start")
    if hello.data_port > 65535:
        raise PeerError(f"data_port {hello.data_port} is not a port")
    return events.Hello(
        worker_id=_identifier(hello.worker_id, "worker_id"),
        session=session,
        role=role,
        name=hello.name,
        generation=hello.generation,
        address=hello.address,
        uplink_bytes_per_s=_rate(hello.uplink_bytes_per_s, "uplink_bytes_per_s"),
        downlink_bytes_per_s=_rate(hello.downlink_bytes_per_s, "downlink_bytes_per_s"),
        price_per_hour=_number(hello.price_per_hour, "price_per_hour"),
        rollouts_per_second=_number(hello.rollouts_per_second, "rollouts_per_second"),
        holdings=tuple(decode_holding(holding) for holding in hello.holdings),
        edges=tuple(
            events.HeldEdge(
                _identifier(edge.object_id, "object_id"), edge.stripe, _identifier(edge.parent, "parent"), edge.epoch
            )
            for edge in hello.edges
        ),
        assignment_epoch=hello.assignment_epoch,
        no_dial_in=hello.dialable == pb.DIALABLE_NO,
        data_port=hello.data_port,
        stripes=hello.stripes,
    )


def decode_holding(holding: pb.Holding) -> events.Holding:
    """Raises PeerError."""
    state = _OBJECT_STATES.get(holding.state)
    if state is None:
        raise PeerError(f"state {holding.state} of object {holding.object_id[:80]!r} is unknown")
    chunks = _ranges(holding.chunks)
    total = holding.chunks_total or None
    if total is not None and (total > CHUNK_LIMIT or (chunks and chunks[-1][1] > total)):
        raise PeerError(f"object {holding.object_id[:80]!r} has {total} chunks, but {chunks[-1:]} are said to be held")
    return events.Holding(
        object_id=_identifier(holding.object_id, "object_id"),
        state=state,
        version=holding.version,
        root=_root(holding.root, "root") if holding.root else "",
        chunks=chunks,
        chunks_total=total,
        reason=holding.reason[:_TEXT_CHARS],
    )


def decode_join(message: pb.JoinRequest, hello: events.Hello) -> events.Event | None:
    """The event of a message that follows `hello` on its stream; None for a heartbeat.

    Raises PeerError, also for a message that the role may not send and for one that this version does not know.
    """
    worker_id, session = hello.worker_id, hello.session
    kind = message.WhichOneof("message")
    if (kind in _ORIGIN_ONLY and hello.role is not events.Role.ORIGIN) or (
        kind in _RELAY_ONLY and hello.role is not events.Role.RELAY
    ):
        raise PeerError(f"{hello.role} {hello.name} may not send {kind!r}")
    match kind:
        case "heartbeat":
            return None
        case "acknowledge":
            return events.Acknowledged(worker_id, session, message.acknowledge.epoch)
        case "holding":
            return events.HoldingChanged(worker_id, session, decode_holding(message.holding.holding))
        case "parent_connected":
            return events.ParentConnected(worker_id, session, _held_edge(message.parent_connected))
        case "parent_lost":
            return events.ParentLost(
                worker_id, session, _held_edge(message.parent_lost), _loss_reason(message.parent_lost.reason)
            )
        case "offer":
            return _offer(message.offer, worker_id, session)
        case "root":
            return events.RootAnnounced(
                worker_id, session, _identifier(message.root.object_id, "object_id"), _root(message.root.root, "root")
            )
        case "source_failed":
            return events.SourceFailed(
                worker_id,
                session,
                _identifier(message.source_failed.object_id, "object_id"),
                message.source_failed.reason[:_TEXT_CHARS],
            )
        case "links":
            return _links(message.links, worker_id, session)
        case "probe_result":
            return _probe_result(message.probe_result, worker_id, session)
        case "rollouts":
            rate = _number(message.rollouts.rollouts_per_second, "rollouts_per_second")
            return events.RolloutsReported(worker_id, session, rate or 0.0)
        case "learner":
            told = message.learner
            if max(told.version, told.admitted, told.discarded) > _COUNT_LIMIT:
                raise PeerError(f"learner version {told.version} or its counts are out of range")
            return events.LearnerMoved(worker_id, session, told.version, told.admitted, told.discarded)
        case "leaving":
            return events.LeaveRequested(worker_id, session)
        case "hello":
            raise PeerError("a second Hello on one stream: open a new stream instead")
        case _:
            raise PeerError("an empty or unknown message on Join")


def _seconds(value: float, what: str) -> float:
    if not math.isfinite(value) or not 0 <= value <= 1e6:
        raise PeerError(f"{what} {value!r} is not a duration in seconds")
    return value


def _links(report: pb.LinkReport, worker_id: str, session: int) -> events.LinksMeasured:
    """A sample without a rate or without busy time is news, too: the hop kept up with its source."""
    if len(report.samples) > _SAMPLES_MAX:
        raise PeerError(f"{len(report.samples)} samples in one report are too many")
    samples = []
    for sample in report.samples:
        peer = _identifier(sample.peer, "peer")
        rate, busy_s = _rate(sample.bytes_per_s, "bytes_per_s") or 0.0, _seconds(sample.busy_s, "busy_s")
        streams = max(1, sample.streams)
        samples.append(events.LinkSample(peer, sample.sending, rate, busy_s, streams, sample.bytes, sample.tcp))
    return events.LinksMeasured(worker_id, session, tuple(samples))


def _probe_result(result: pb.ProbeResult, worker_id: str, session: int) -> events.ProbeEnded:
    return events.ProbeEnded(
        worker_id,
        session,
        _identifier(result.order, "order"),
        _rate(result.up_bytes_per_s, "up_bytes_per_s"),
        _rate(result.down_bytes_per_s, "down_bytes_per_s"),
        _seconds(result.seconds, "seconds"),
        result.error[:_TEXT_CHARS],
    )


def _held_edge(edge: pb.ParentConnected | pb.ParentLost) -> events.HeldEdge:
    return events.HeldEdge(
        _identifier(edge.object_id, "object_id"), edge.stripe, _identifier(edge.parent, "parent"), edge.epoch
    )


def _loss_reason(value: str) -> ParentLossReason:
    try:
        return ParentLossReason(value)
    except ValueError:
        raise PeerError(f"{value[:80]!r} is not a reason for the loss of a parent") from None


def _offer(offer: pb.Offer, worker_id: str, session: int) -> events.Offered:
    kind = KINDS.get(offer.kind)
    if kind is None:
        raise PeerError(f"kind {offer.kind} of object {offer.object_id[:80]!r} is unknown")
    if offer.chunks_total > CHUNK_LIMIT:
        raise PeerError(f"{offer.chunks_total} chunks are too many")
    return events.Offered(
        worker_id=worker_id,
        session=session,
        object_id=_identifier(offer.object_id, "object_id"),
        version=offer.version,
        kind=kind,
        payload_bytes=offer.payload_bytes,
        snapshot_bytes=offer.snapshot_bytes,
        chunks_total=offer.chunks_total,
        root=_root(offer.root, "root") if offer.root else "",
        changed_elements=offer.changed_elements,
        compared_elements=offer.compared_elements,
        changed_bytes=offer.changed_bytes,
        open_end=offer.open_end,
    )


def decode_publish(request: pb.PublishRequest, number: int) -> events.PublishRequested:
    """Raises PeerError."""
    topology = _TOPOLOGIES.get(request.topology)
    if topology is None:
        raise PeerError(f"topology {request.topology} is unknown")
    if not 0 < request.until <= 1:
        raise PeerError(f"until {request.until!r} must be a fraction above 0 and at most 1")
    if not math.isfinite(request.elapsed_s) or request.elapsed_s < 0:
        raise PeerError(f"elapsed_s {request.elapsed_s!r} must be zero or more")
    return events.PublishRequested(
        request=number,
        origin_id=_identifier(request.origin_id, "origin_id"),
        object_id=_identifier(request.object_id, "object_id"),
        version=request.version,
        until=request.until,
        topology=topology,
        chains=request.chains,
        snapshot_bytes=request.snapshot_bytes,
        elapsed_s=request.elapsed_s,
        payload=_payload(request.payload),
        deltas=_deltas(request),
        no_delta=request.no_delta[:_TEXT_CHARS],
        t_train_s=_seconds(request.t_train_s, "t_train_s"),
        compressed=_compressed(request.compressed) if request.HasField("compressed") else None,
    )


def _compressed(compressed: pb.Compressed) -> events.Compressed:
    rates = (compressed.encode_bytes_per_s, compressed.decode_bytes_per_s)
    if not all(0 < rate <= _RATE_LIMIT for rate in rates):  # not for NaN either
        raise PeerError(f"compression at {rates[0]!r} and {rates[1]!r} bytes/s: not rates")
    object_id = _identifier(compressed.object_id, "compressed object_id")
    return events.Compressed(object_id, compressed.payload_bytes, *rates)


def _deltas(request: pb.PublishRequest) -> tuple[events.DeltaFrom, ...]:
    pairs = [(request.base_root, request.delta_object_id)] if request.base_root else []
    pairs += [(older.base_root, older.object_id) for older in request.older]
    distinct = min(len({root for root, _ in pairs}), len({object_id for _, object_id in pairs}))
    if len(pairs) > _DELTAS_MAX or distinct < len(pairs):
        raise PeerError(f"{len(pairs)} deltas are offered: more than {_DELTAS_MAX}, or two alike")
    return tuple(
        events.DeltaFrom(_root(root, "base_root"), _identifier(object_id, "delta object_id"))
        for root, object_id in pairs
    )


def _payload(value: str) -> events.Payload:
    try:
        return events.Payload(value or events.Payload.AUTO)
    except ValueError:
        raise PeerError(f"payload {value[:80]!r} is not one of {', '.join(events.Payload)}") from None
