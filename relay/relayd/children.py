"""A relay's children: as the machine orders them and the guard admits them, and how a push to one of them ended."""

from __future__ import annotations

import structlog

from chappe.core.relay_events import EdgeOrder
from chappe.hop.guard import AssignedChild
from chappe.hop.push import PushEnd
from chappe.hop.pushes import PushEdge
from chappe.v1.relay_pb2 import EndReason

log = structlog.get_logger()


def log_push(edge: PushEdge, end: PushEnd) -> None:
    log.info(
        "push_ended",
        object_id=edge.object_id,
        child=edge.order.child.name,
        address=edge.order.child.address,
        reason=EndReason.Name(end.reason).removeprefix("END_REASON_").lower(),
        detail=end.detail,
    )


def assigned_children(edges: tuple[EdgeOrder, ...]) -> list[AssignedChild]:
    return [
        AssignedChild(
            edge.object_id, edge.stripe, slot.slot, slot.child.worker_id, slot.child.name, slot.generation, slot.epoch
        )
        for edge in edges
        for slot in edge.children
    ]
