"""Probes between simulated nodes: both ends of `chappe.hop.probe`, with filler as a fluid.

order ──▶ is this node idle? ──dial──▶ is the peer, and may we? ──▶ filler up, filler down ──▶ outcome, to be reported
             └── no: says so              └── no: says so            └── a stream begins at either end: given up
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chappe.core.events import ProbeEnded
from chappe.core.probes import ProbeOrder
from chappe.errors import BadTokenError
from chappe.sim.links import HANDSHAKES
from chappe.v1.relay_pb2 import EdgeToken

if TYPE_CHECKING:
    from chappe.sim.node import Node

BUSY = "something flows here"
TIMEOUT_S = 7.0
"""Two seconds in each direction, and three to get there."""


@dataclass(slots=True, eq=False)
class Probe:
    order: ProbeOrder
    caller: Node
    life: int
    began_s: float
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0


class ProbeDesk:
    """One per node: at most one probe at a time, none while anything flows."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.probe: Probe | None = None

    def _busy(self) -> str:
        return BUSY if self._node.flowing else "another probe is under way here" if self.probe is not None else ""

    def give_up(self, why: str) -> None:
        """Something begins to flow here, or this process ends: the other end hears of it if it can."""
        probe, self.probe = self.probe, None
        if probe is None:
            return
        node, peer = self._node, self._peer(probe)
        if probe.caller is node:
            self._report(probe, why)
        if peer is not None and node.network.passes(node.worker_id, peer.worker_id):
            latency_s = node.network.latency_s(node.worker_id, peer.worker_id)
            node.agenda.after(latency_s, peer.run, peer.life, peer.desk.end, probe, why)

    def _peer(self, probe: Probe) -> Node | None:
        node = self._node
        return node.world.nodes.get(probe.order.peer.worker_id) if probe.caller is node else probe.caller

    # ---- the end that dials ----------------------------------------------------------------------------------------

    def run(self, order: ProbeOrder) -> None:
        node = self._node
        probe = Probe(order, node, node.life, node.agenda.now)
        if busy := self._busy():
            self._report(probe, busy)
            return
        self.probe = probe
        node.later(TIMEOUT_S, self.end, probe, "the peer did not answer in time")
        peer = node.world.nodes.get(order.peer.worker_id)
        if peer is None or peer.natted or not node.network.both(node.worker_id, peer.worker_id):
            return
        latency_s = node.network.latency_s(node.worker_id, peer.worker_id)
        if not peer.running or order.peer.address != peer.address:
            node.later(2 * latency_s, self.end, probe, "cannot be reached")
        else:
            node.agenda.after((1 + HANDSHAKES) * latency_s, peer.run, peer.life, peer.desk.serve, probe)

    def end(self, probe: Probe, error: str) -> None:
        """At either end, which may have given it up already."""
        if self.probe is probe:
            self.probe = None
            if probe.caller is self._node:
                self._report(probe, error)

    def _report(self, probe: Probe, error: str) -> None:
        node = self._node
        if node.session is None:
            return
        up, down = (None, None) if error else (probe.up_bytes_per_s or None, probe.down_bytes_per_s or None)
        seconds = node.agenda.now - probe.began_s
        node.say(ProbeEnded(node.worker_id, node.session.number, probe.order.order, up, down, seconds, error))

    # ---- the end that is dialled -----------------------------------------------------------------------------------

    def serve(self, probe: Probe) -> None:
        node = self._node
        error = self._busy()
        if not error:
            try:
                node.guard.check_probe(EdgeToken.FromString(probe.order.token))
            except BadTokenError as refused:
                error = str(refused)
        if error:
            self._tell(probe, error)
            return
        self.probe = probe
        node.world.checks.hops.probed(node)
        probe.up_bytes_per_s = min(probe.caller.uplink_bytes_per_s, node.downlink_bytes_per_s)
        node.later(self._takes_s(probe, probe.up_bytes_per_s), self._turn, probe)

    @staticmethod
    def _takes_s(probe: Probe, bytes_per_s: float) -> float:
        return min(probe.order.seconds_max, probe.order.bytes_max / bytes_per_s)

    def _turn(self, probe: Probe) -> None:
        if self.probe is not probe:
            return
        node = self._node
        probe.down_bytes_per_s = min(node.uplink_bytes_per_s, probe.caller.downlink_bytes_per_s)
        node.later(self._takes_s(probe, probe.down_bytes_per_s), self._done, probe)

    def _done(self, probe: Probe) -> None:
        if self.probe is probe:
            self.probe = None
            self._node.world.counts["probes"] += 1
            self._tell(probe, "")

    def _tell(self, probe: Probe, error: str) -> None:
        node, caller = self._node, probe.caller
        if node.network.passes(node.worker_id, caller.worker_id):
            latency_s = node.network.latency_s(node.worker_id, caller.worker_id)
            node.agenda.after(latency_s, caller.run, probe.life, caller.desk.end, probe, error)
