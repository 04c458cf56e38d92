"""One Join stream of a node, as both of its ends have it. Messages are events of the fleet up, replies down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.sim.links import COORDINATOR, Pipe

if TYPE_CHECKING:
    from chappe.sim.process import Process
    from chappe.sim.world import World

CLOSE = object()
HEARTBEAT = object()


class Session:
    """`up` and `down` carry what is said; `CLOSE` is the end of the stream, which needs the path like anything else."""

    def __init__(self, world: World, node: Process) -> None:
        self.number = world.next_session()
        self.node = node
        self.worker_id = node.worker_id
        self.watched = False  # a keepalive is waiting for an answer
        coordinator = world.coordinator
        self.since_s = coordinator.since_s  # of which coordinator's process
        self.up = Pipe(world.agenda, world.network, self.worker_id, COORDINATOR, lambda m: coordinator.receive(self, m))
        self.down = Pipe(world.agenda, world.network, COORDINATOR, self.worker_id, lambda m: node.receive(self, m))

    def drop_by_node(self) -> None:
        self.down.close()
        self.up.send(CLOSE)

    def drop_by_coordinator(self) -> None:
        self.up.close()
        self.down.send(CLOSE)
