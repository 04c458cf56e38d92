"""What must hold of stripes, beyond what holds of every hop. A plain chain is one stripe.

at a stream's first message   its child has one parent in this stripe, and both ends mean the same chunks
at every chunk                it is of the stripe that the stream is for, and has not come before
when a link counts as less    it is what it carries, whatever others do, where it has always been what it is
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.effects import Log
from chappe.core.publication import Publication
from chappe.sim.relay import Relay

if TYPE_CHECKING:
    from chappe.sim.flow import Stream
    from chappe.sim.invariants import Checks
    from chappe.sim.node import Node

MEASURED_WITHIN = 0.25


class StripeChecks:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._world = checks.world

    # ---- streams ---------------------------------------------------------------------------------------------------

    def begins(self, child: Node, stream: Stream) -> None:
        if not isinstance(child, Relay):
            return
        object_id = stream.source.object.object_id
        same = [
            s
            for s in child.streams.values()
            if s.stripe == stream.stripe and s.source.object.object_id == object_id and not s.ended
        ]
        if len(same) > 1:
            names = ", ".join(s.parent.name for s in same)
            self._checks.fail(f"{child.name} is fed by {names} in stripe {stream.stripe}")
        others = {s.stripes for s in child.streams.values() if s.copy is stream.copy}
        if len(others) > 1:
            self._checks.fail(f"{child.name} takes the chunks of one object by {len(others)} maps at once")

    def stored(self, relay: Node, stream: Stream, ranges: list[tuple[int, int]], new: int) -> None:
        if stream.stripes.plain:
            return
        for start, stop in ranges:
            for chunk in (start, stop - 1):
                if stream.stripes.stripe_of(chunk) != stream.stripe:
                    self._checks.fail(f"{relay.name} got chunk {chunk} from {stream.parent.name} in another stripe")
        twice = sum(b - a for a, b in ranges) - new
        if twice:
            self._checks.fail(f"{relay.name} got {twice} chunks twice, now from {stream.parent.name}")

    # ---- links ---------------------------------------------------------------------------------------------------

    def decided(self, log: Log) -> None:
        if log.event == "planned":
            self._world.counts["striped"] += bool(self._striped())
        if log.event == "restriped":
            self._world.counts["restriped"] += 1
        if log.event not in ("uplink_short", "downlink_short"):
            return
        relay = next(r for r in self._world.relays if r.name == log.fields["relay"])
        links = self._world.coordinator.fleet.state.workers[relay.worker_id].links
        up = log.event == "uplink_short"
        known = (links.up if up else links.down).bytes_per_s
        share = known / (relay.uplink_bytes_per_s if up else relay.downlink_bytes_per_s)
        if abs(share - 1) > MEASURED_WITHIN and not (relay.ever_slowed or self._world.ever_cut):
            what = "uplink" if up else "downlink"
            self._checks.fail(f"the {what} of {relay.name} counts as short: as {share:.2f} of what it is")

    def _striped(self) -> list[Publication]:
        publications = self._world.coordinator.fleet.state.publications.values()
        return [p for p in publications if p.active and not p.stripes.plain]
