"""Hops that the parent opens, as `chappe.hop.pushes` keeps them: one call to each child that it has to dial.

assign ──▶ guard: may it be served? ──dial──▶ parked by the child until it wants something ──▶ stream ... ends
   ▲                                                                                                        │
   └────────────────────────────── other news while it is parked, or a short wait ◀─────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chappe.core.effects import PeerRef
from chappe.core.reasons import ParentLossReason
from chappe.core.relay_events import EdgeOrder, PushOrder
from chappe.hop.guard import Ticket
from chappe.sim.clock import Entry
from chappe.sim.links import HANDSHAKES
from chappe.v1.relay_pb2 import EdgeClaims, EdgeToken

if TYPE_CHECKING:
    from chappe.sim.node import Node, Request

RETRY_S_MIN, RETRY_S_MAX, UNWANTED_RETRY_S = 0.05, 2.0, 0.5
CONNECT_S, HANDSHAKE_S, PARK_S = 1.0, 5.0, 20.0

Identity = tuple[str, int, int, PeerRef, int]


@dataclass(slots=True, eq=False)
class Call:
    object_id: str
    stripe: int
    order: PushOrder | None  # None: not to be dialled again
    failures: int = 0
    ticket: Ticket | None = None  # from the moment it dials
    waits: Entry | None = None  # until it dials again


class Pushes:
    """Of one process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._calls: dict[Identity, Call] = {}

    def assign(self, edges: Iterable[EdgeOrder]) -> None:
        wanted = {
            (edge.object_id, edge.stripe, order.slot, order.child, order.generation): order
            for edge in edges
            for order in edge.pushes
        }
        for identity in [identity for identity in self._calls if identity not in wanted]:
            call = self._calls.pop(identity)
            call.order = None
            self._stop_waiting(call)
        for identity, order in wanted.items():
            known = self._calls.get(identity)
            if known is None:
                call = self._calls[identity] = Call(identity[0], identity[1], order)
                self._dial(call)
            elif known.order != order:
                known.order = order
                if self._stop_waiting(known) or self._give_up(known):
                    known.failures = 0
                    self._dial(known)

    @staticmethod
    def _stop_waiting(call: Call) -> bool:
        waits, call.waits = call.waits, None
        if waits is not None:
            waits.cancel()
        return waits is not None

    def _give_up(self, call: Call) -> bool:
        """Of a call that has not come to a stream yet."""
        ticket = call.ticket
        if ticket is None or self._streams(ticket):
            return False
        call.ticket = None
        self._node.guard.release(ticket)
        return True

    def _streams(self, ticket: Ticket) -> bool:
        return any(stream.ticket is ticket for stream in self._node.serving)

    def _dial(self, call: Call) -> None:
        call.waits = None
        node, order = self._node, call.order
        if order is None:
            return
        ticket = node.ticket(order.token, call.object_id, call.stripe) if call.object_id in node.copies else None
        if not isinstance(ticket, Ticket):
            self._again(call)
            return
        call.ticket = ticket
        child = node.world.nodes.get(order.child.worker_id)
        node.later(PARK_S + HANDSHAKE_S, self._failed, call, ticket)
        if child is None:
            return
        node.world.checks.hops.dials(node, child)
        if child.natted or not node.network.both(node.worker_id, child.worker_id):
            node.later(CONNECT_S, self._failed, call, ticket)
            return
        latency_s = node.network.latency_s(node.worker_id, child.worker_id)
        if not child.running or order.child.address != child.address:
            node.later(2 * latency_s, self._failed, call, ticket)
            return
        claims = node.guard.read(EdgeToken.FromString(order.token))
        arrives_s = (1 + HANDSHAKES) * latency_s
        node.agenda.after(arrives_s, child.run, child.life, self._at_child, child, call, ticket, claims, node.life)

    def _at_child(self, child: Node, call: Call, ticket: Ticket, claims: EdgeClaims, life: int) -> None:
        node = self._node
        if not node.network.passes(child.worker_id, node.worker_id):
            return
        latency_s = node.network.latency_s(node.worker_id, child.worker_id)

        def answer(request: Request | None, unwanted: bool = False) -> bool:
            """Whether the parent is there to hear it."""
            if not node.running or node.life != life:
                return False
            if request is None:
                node.agenda.after(latency_s, node.run, life, self._failed, call, ticket, unwanted)
            else:
                node.agenda.after(latency_s, node.run, life, self._answered, call, ticket, request)
            return True

        child.called(claims, answer)

    def _answered(self, call: Call, ticket: Ticket, request: Request) -> None:
        node = self._node
        if call.ticket is not ticket:
            return
        copy = node.copies.get(call.object_id)
        if ticket.ended_by is not None or copy is None:
            node.refuse(request, ParentLossReason.EVICTED if copy is not None else ParentLossReason.DROPPED)
            self._failed(call, ticket)
            return
        node.world.counts["pushes"] += 1
        node.serve(request, copy, ticket)

    def _failed(self, call: Call, ticket: Ticket, unwanted: bool = False) -> None:
        """It came to no stream."""
        if call.ticket is ticket and self._give_up(call):
            self._again(call, unwanted=unwanted)

    def ended(self, ticket: Ticket, *, complete: bool) -> None:
        """The stream on this ticket is over, if it was one of these."""
        for call in self._calls.values():
            if call.ticket is ticket:
                call.ticket = None
                self._again(call, unwanted=complete)

    def _again(self, call: Call, *, unwanted: bool = False) -> None:
        node = self._node
        call.failures = 0 if unwanted else call.failures + 1
        base_s = UNWANTED_RETRY_S if unwanted else min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(call.failures - 1, 8))
        if call.order is not None:
            call.waits = node.later(base_s * node.world.random.uniform(0.5, 1.5), self._dial, call)
