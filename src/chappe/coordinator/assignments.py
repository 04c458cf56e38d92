"""From the fleet's assignments to the message for one node, with the edge tokens that make it true for its peers.

Signing is handed in: the key stays with the service.
"""

from __future__ import annotations

from collections.abc import Callable

from chappe.coordinator.codec import KINDS
from chappe.core import effects
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2
from chappe.wire.relay_messages import DUTIES
from chappe.wire.stripes import encode_stripes

_KIND_NUMBERS = {name: number for number, name in KINDS.items()}

_DUTIES = {name: number for number, name in DUTIES.items()}
_DIALERS = {effects.Dialer.CHILD: pb.DIALER_CHILD, effects.Dialer.PARENT: pb.DIALER_PARENT}

Sign = Callable[[relay_pb2.EdgeClaims], relay_pb2.EdgeToken]


def encode_assignment(assign: effects.Assign, run: str, sign: Sign) -> pb.JoinReply:
    """The message for one node, with a token for its parent, each fallback, and each child it may have to dial."""

    def token(edge: effects.Edge, slot: int, parent: str, epoch: int, *, fallback: bool) -> relay_pb2.EdgeToken:
        return sign(
            relay_pb2.EdgeClaims(
                run=run,
                object_id=edge.object_id,
                stripe=edge.stripe,
                slot=slot,
                parent=parent,
                child=assign.worker_id,
                child_generation=assign.generation,
                epoch=epoch,
                fallback=fallback,
            )
        )

    message = pb.Assignment(
        epoch=assign.epoch,
        keep_versions=assign.keep_versions,
        duty=_DUTIES[assign.duty],
        duty_reason=assign.duty_reason,
    )
    for target in assign.targets:
        message.targets.add(
            object_id=target.object_id,
            version=target.version,
            root=target.root,
            kind=_KIND_NUMBERS[target.kind],
            payload_bytes=target.payload_bytes,
            snapshot_bytes=target.snapshot_bytes,
        )
    for edge in assign.edges:
        encoded = message.edges.add(
            object_id=edge.object_id,
            stripe=edge.stripe,
            epoch=edge.epoch,
            dialer=_DIALERS[edge.dialer],
            expected_bytes_per_s=edge.expected_bytes_per_s,
            stripes=encode_stripes(edge.stripes),
        )
        if edge.parent is not None:
            encoded.parent.CopyFrom(_peer(edge.parent))
            encoded.token.CopyFrom(token(edge, edge.slot, edge.parent.worker_id, edge.epoch, fallback=False))
        for other in edge.fallbacks:
            encoded.fallbacks.add(
                parent=_peer(other.parent),
                token=token(edge, other.slot, other.parent.worker_id, other.epoch, fallback=True),
            )
        for child in edge.children:
            encoded.children.add(
                child=_peer(child.child),
                slot=child.slot,
                generation=child.generation,
                epoch=child.epoch,
                token=sign(_child_claims(assign, edge, child, run)),
                dialer=_DIALERS[child.dialer],
            )
    return pb.JoinReply(assignment=message)


def encode_probe(order: effects.StartProbe, run: str, sign: Sign) -> pb.JoinReply:
    """An order with a token that names no object: it opens a probe and nothing else."""
    claims = relay_pb2.EdgeClaims(
        run=run,
        parent=order.peer.worker_id,
        child=order.worker_id,
        child_generation=order.generation,
        epoch=order.epoch,
    )
    return pb.JoinReply(
        probe=pb.ProbeOrder(
            order=order.order,
            peer=_peer(order.peer),
            token=sign(claims),
            bytes_max=order.bytes_max,
            seconds_max=order.seconds_max,
        )
    )


def _child_claims(
    assign: effects.Assign, edge: effects.Edge, child: effects.ChildSlot, run: str
) -> relay_pb2.EdgeClaims:
    return relay_pb2.EdgeClaims(
        run=run,
        object_id=edge.object_id,
        stripe=edge.stripe,
        slot=child.slot,
        parent=assign.worker_id,
        child=child.child.worker_id,
        child_generation=child.generation,
        epoch=child.epoch,
    )


def _peer(peer: effects.PeerRef) -> pb.Peer:
    return pb.Peer(worker_id=peer.worker_id, name=peer.name, address=peer.address, data_port=peer.data_port)
