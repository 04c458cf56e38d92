"""What must hold of objects with an open end, and of what a damaged base gave all the same.

after every event   what is known of an object whose end is known is what its publisher made; nobody is called a liar
                    for what he says of one whose end is open
at every answer     no caller is told that all is over while an object of his is still being made and can be told of
at landing          nobody lands what has no end yet
every second        an end that was told is known soon; of what was withdrawn in its middle nobody keeps anything
at every chunk      nothing is fetched that is here and lacks only its page
at retention        nothing that came out right is thrown away before it could be asked for
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.lanes import lanes_of
from chappe.core.publication import ENDED

if TYPE_CHECKING:
    from chappe.core.effects import Log, PublishFinished
    from chappe.core.fleet import Fleet
    from chappe.sim.copies import Copy
    from chappe.sim.encoding import Encoded
    from chappe.sim.flow import Stream
    from chappe.sim.invariants import Checks
    from chappe.sim.node import Node
    from chappe.sim.storing import Storing

TOLD_S = 10.0
WITHDRAWN_S = 40.0
"""Whoever hears of it drops it; those who do not hear the coordinator learn it when they do."""


class StreamedChecks:
    def __init__(self, checks: Checks) -> None:
        self._checks = checks
        self._world = checks.world
        self._open_s: dict[str, float] = {}  # objects whose end was told and is not known: since when
        self._kept_s: dict[tuple[str, str], float] = {}  # relay, withdrawn object

    # ---- the coordinator -------------------------------------------------------------------------------------------

    def fleet_moved(self, fleet: Fleet) -> list[str]:
        found: list[str] = []
        for lane in fleet.state.publications.values():
            made = self._world.objects.get(lane.object_id)
            if made is None or not made.open_end or lane.open_end:
                continue
            if lane.object_id not in self._world.closed:
                found.append(f"v{lane.version}: an object is taken as made, and its publisher has not said so")
            if (lane.chunks_total, lane.payload_bytes) != (made.chunks_total, made.payload_bytes):
                found.append(
                    f"v{lane.version}: a delta of {made.chunks_total} chunks is taken as one of {lane.chunks_total}"
                )
        return found

    def decided(self, log: Log) -> None:
        if log.event == "full_instead" and log.reason.startswith("reports "):
            self._checks.fail(f"{log.fields.get('relay')} is called a liar, and is none: {log.reason}")

    def finished(self, effect: PublishFinished) -> None:
        state = self._world.coordinator.fleet.state
        main = state.publications.get(effect.object_id)
        open_ones = {one.object_id for one in self._made_now()}
        for lane in lanes_of(state, main) if main is not None else ():
            if lane.object_id in open_ones and lane.phase not in ENDED:
                self._checks.fail(f"version {lane.version} is told as finished, and one of its objects has no end yet")

    def _made_now(self) -> list[Encoded]:
        """Objects that are still being made, by a publisher that can say so."""
        origin = self._world.origin
        if origin is None or not self._checks.reachable(origin):
            return []
        wanted = [one for job in origin.jobs if not (job.failed or job.stopped) for one in job.wanted]
        made = [one for one in wanted if one.made is not None and one.made.open_end and not one.closed]
        return [one for one in made if origin.encoder.serves(one)]

    # ---- every second ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        world, origin = self._world, self._world.origin
        if not world.coordinator.running or origin is None or not self._checks.reachable(origin):
            self._open_s, self._kept_s = {}, {}
            return
        state, now = world.coordinator.fleet.state, world.agenda.now
        opened = [one for job in origin.jobs for one in job.wanted if one.made is not None and one.made.open_end]
        ended = {one.object_id for one in opened if one.closed and origin.encoder.serves(one)}
        lanes = [lane for lane in state.publications.values() if lane.open_end and lane.active]
        self._open_s = {i.object_id: self._open_s.get(i.object_id, now) for i in lanes if i.object_id in ended}
        for object_id, since_s in self._open_s.items():
            if now - since_s > TOLD_S:
                self._checks.fail(f"the end of {object_id} was told {now - since_s:.0f} s ago, and is not known")
        withdrawn = [one.object_id for one in opened if one.failed and not one.closed]
        kept = [(r.name, i) for r in world.relays if self._checks.reachable(r) for i in withdrawn if i in r.copies]
        self._kept_s = {key: self._kept_s.get(key, now) for key in kept}
        for (name, object_id), since_s in self._kept_s.items():
            if now - since_s > WITHDRAWN_S:
                self._checks.fail(f"{name} still has {object_id}, which was withdrawn before it had an end")

    # ---- relays ----------------------------------------------------------------------------------------------------

    def lands(self, relay: Storing, copy: Copy) -> None:
        made = copy.object
        if made.open_end and made.object_id not in self._world.closed:
            self._checks.fail(f"{relay.name} lands version {made.version} from an object that has no end yet")

    def salvaged(self, relay: Storing, part: Copy) -> None:
        if part.held:
            self._checks.fail(f"{relay.name} holds chunks of version {part.object.version} that nothing has proven")

    def stored(self, relay: Node, stream: Stream, ranges: list[tuple[int, int]]) -> None:
        if stream.copy.salvaged:
            self._world.counts["fetched of parts"] += sum(stop - start for start, stop in ranges)
        expected = stream.copy.expected
        if expected and any(expected.within(start, stop) for start, stop in ranges):
            self._checks.fail(f"{relay.name} has fetched chunks that are here and lack only their page")

    def thrown_away(self, relay: Storing, gone: list[str]) -> None:
        for copy in relay.copies.values():
            if copy.object.full_id in gone and relay.copies[copy.object.full_id].salvaged and not copy.applied:
                self._checks.fail(
                    f"{relay.name} throws away what came out right of version {copy.object.version}, "
                    "and has not been told how else to get it"
                )
