"""What must hold of every hop: one side of it can dial, and it is probed only while nothing is to be carried.

at every dial       nobody dials a host that has said that it cannot be dialled, unless it is the only thing to try
every second        a host that cannot be dialled is known as that soon after it has joined
at a probe's order  nothing is being published, and nobody is being fed
at every stream     neither of its ends is being probed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.bridging import cut_off, spots
from chappe.core.effects import StartProbe
from chappe.core.feeding import served as served_in
from chappe.core.publication import LIVE, Publication

if TYPE_CHECKING:
    from chappe.sim.invariants import Checks
    from chappe.sim.node import Node

KNOWN_S = 6.0
"""Longer than the coordinator takes to give up an address that does not answer."""


class HopChecks:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._world = checks.world

    # ---- dialling --------------------------------------------------------------------------------------------------

    def dials(self, caller: Node, callee: Node) -> None:
        if callee.line.no_dial_in and not (caller.natted or self._counts_as_natted(caller)):
            self._checks.fail(f"{caller.name} dials {callee.name}, which has said that it cannot be dialled")

    def _counts_as_natted(self, node: Node) -> bool:
        """For the coordinator: perhaps because its address did not answer once, when it joined."""
        worker = self._world.coordinator.fleet.state.workers.get(node.worker_id)
        return worker is not None and worker.dialable is False

    def look(self) -> None:
        world = self._world
        if not world.coordinator.running:
            return
        workers = world.coordinator.fleet.state.workers
        for node in world.nodes.values():
            worker = workers.get(node.worker_id)
            if worker is None or node.session is None or worker.session != node.session.number or not node.joined:
                continue
            here_s = world.agenda.now - node.joined_s
            if node.line.natted and worker.dialable is not False and here_s > KNOWN_S:
                self._checks.fail(f"{node.name} counts as one that can be dialled, {here_s:.0f} s after it has joined")

    def door_shut(self, relay: Node, publication: Publication, stripe: int) -> bool:
        """It or its parent could be dialled and cannot be any more: that takes two silences to find out."""
        place = publication.layout.place(stripe, relay.worker_id)
        above = [] if place is None else publication.layout.ancestors(place, 1)
        parents = [self._world.nodes[worker_id or publication.origin_id] for worker_id in above]
        return any(node.natted and not node.line.natted for node in (relay, *parents))

    def walled_in(self, relay: Node, publication: Publication, stripe: int) -> bool:
        """It is behind a host that cannot be dialled either, and there is no place for it where it is otherwise."""
        world, layout = self._world, publication.layout
        if not (relay.natted or self._counts_as_natted(relay)):
            return False
        undialable = {node.worker_id for node in world.nodes.values() if node.natted or self._counts_as_natted(node)}
        able = publication.origin_id not in undialable
        place = layout.place(stripe, relay.worker_id)
        if place is None or not cut_off(place.chain, place.position, undialable, source_dialable=able):
            return False
        served = served_in(world.coordinator.fleet.state, publication, stripe, undialable)
        return all(
            next(spots(chain, undialable, source_dialable=able, served=served), None) is None
            for chain in layout.of_stripe(stripe)
            if chain.members
        )

    # ---- probes ----------------------------------------------------------------------------------------------------

    def probe_ordered(self, order: StartProbe) -> None:
        world = self._world
        for publication in world.coordinator.fleet.state.publications.values():
            if publication.phase in LIVE and not publication.settled and not publication.main:
                self._checks.fail(f"{order.order} is ordered while version {publication.version} is being published")
            if publication.active:
                self._nobody_fed(order, publication)

    def _nobody_fed(self, order: StartProbe, publication: Publication) -> None:
        for relay in self._world.relays:
            member = publication.members.get(relay.worker_id)
            if member is None or member.level or member.failed or relay.worker_id not in publication.layout:
                continue
            for stream in relay.streams.values():
                of_this = stream.source.object.object_id == publication.object_id
                if of_this and stream.blocked_s is None and not stream.copy.complete:
                    self._checks.fail(
                        f"{order.order} is ordered while {relay.name} is fed version {publication.version}"
                    )

    def probed(self, node: Node) -> None:
        """Filler begins to come."""
        if node.flowing:
            self._checks.fail(f"{node.name} takes part in a probe while it carries something else")

    def flows(self, *ends: Node) -> None:
        for node in ends:
            if node.desk.probe is not None:
                self._checks.fail(f"{node.name} goes on with a probe while a hop begins")
