"""Giving workers their places, taking them away, and keeping every chain fed.

The only writer of layouts. Each change is logged with its reason and touches only the neighbourhood. It knows nothing
of streams or complaints: those decide in `repair` and `membership` and call this. Sources are `feeding`'s.
"""

from __future__ import annotations

from chappe.core.chain import Chain, Layout, Place
from chappe.core.events import ObjectState, Topology
from chappe.core.feeding import Feeding
from chappe.core.publication import Phase, Publication
from chappe.core.rates import link_of, uplink
from chappe.core.reasons import RebuildReason
from chappe.core.striped import describe, give_up, seat
from chappe.core.workers import Worker

FAILURES = frozenset(
    {
        RebuildReason.SESSION_LOST,
        RebuildReason.LEASE_LAPSED,
        RebuildReason.PARENT_UNREACHABLE,
        RebuildReason.CORRUPT,
    }
)
"""Reasons for which a relay with a child has failed it: they lower its success rate."""
SLOW = frozenset({RebuildReason.SLOW_SENDER, RebuildReason.SLOW_RECEIVER})
WEAK_SHARE = 0.5
"""A joiner is not put behind a tail that sends at less than this of what the joiner can take."""


class Placement(Feeding):
    # ---- placing ----

    def append(self, publication: Publication, worker: Worker, reason: RebuildReason) -> None:
        """Behind the tail of the shortest chain that is fed and not slow; in a star, a stream of its own. Rather behind
        somebody who made the object out of a delta than behind the origin."""
        self.suit(publication, worker)
        layout = publication.layout
        for stripe in layout.stripes or [0]:
            if layout.place(stripe, worker.worker_id) is not None:
                continue
            chain, at = self._seat(publication, stripe, worker)
            near: set[str] = set()
            alone = not chain.members and publication.topology is not Topology.STAR
            if alone and publication.stripes.plain and not self.holds_all(publication, worker.worker_id):
                near = self.recruit(publication, chain)
                at = len(chain.members)
            while at > chain.rooted and self._stuck(publication, chain.members[at - 1], worker):
                at -= 1
            near |= layout.insert(chain, worker.worker_id, at)
            parent = self._context.name(chain.members[at - 1] if at else publication.origin_id)
            publication.members[worker.worker_id].why = f"{reason.value}: behind {parent}"
            self._context.touch(publication, near)
            self._context.log(
                "placed", reason.value, version=publication.version, relay=worker.name, chain=chain.slot, parent=parent
            )
        if not publication.stripes.plain:
            publication.members[worker.worker_id].why = f"{reason.value}: {describe(layout, worker.worker_id)}"
        self.heal(publication)

    def suit(self, publication: Publication, worker: Worker) -> None:
        """Somebody has a part in it who does not know stripes: it goes on without."""
        if worker.stripes or publication.stripes.plain:
            return
        why = f"plain: {worker.name} came, which is of a release without stripes"
        give_up(publication, why)
        self._context.touch_all(publication)
        self._context.log("stripes_given_up", why, version=publication.version)
        self.heal(publication)

    def _seat(self, publication: Publication, stripe: int, worker: Worker) -> tuple[Chain, int]:
        """The chain, and the place in it."""
        chain = self._chain_for(publication, stripe, worker)
        if publication.stripes.plain or not self.fed(publication, chain):
            return chain, len(chain.members)
        workers, assumed, now = self._context.state.workers, self._context.config.assumed_bytes_per_s, self._context.now

        def uplink_of(worker_id: str) -> float:
            one = workers.get(worker_id)
            return 0.0 if one is None or one.demoted else uplink(one, assumed, now).bytes_per_s

        planned = publication.phase is Phase.OPEN
        chains = [
            c
            for c in publication.layout.of_stripe(stripe)
            if self.fed(publication, c) and (bool(c.members) or (planned and self.origin_usable(publication)))
        ]
        found = seat(publication, stripe, worker.worker_id, chains or [chain], uplink_of)
        return found.chain, found.position

    def _chain_for(self, publication: Publication, stripe: int, worker: Worker) -> Chain:
        layout = publication.layout
        usable = self.origin_usable(publication)
        if publication.topology is Topology.STAR and usable:
            return layout.open_slot(stripe)
        planned_slots = usable and publication.phase is Phase.OPEN  # the plan's share of the origin is there to be used
        fed = [
            c for c in layout.of_stripe(stripe) if self.fed(publication, c) and (bool(c.members) or planned_slots)
        ] or [c for c in layout.of_stripe(stripe) if c.members and not usable]
        fed = fed or self._waiting(publication, stripe)
        if not fed:
            return layout.open_slot(stripe)
        return min(fed, key=lambda c: (self._slows(publication, c, worker), len(c.members), c.slot))

    @staticmethod
    def _waiting(publication: Publication, stripe: int) -> list[Chain]:
        """Nothing is fed: an empty slot of the origin's, else wherever somebody waits. Never one more than planned."""
        chains = publication.layout.of_stripe(stripe)
        return [c for c in chains if not c.members] or chains

    def _slows(self, publication: Publication, chain: Chain, worker: Worker) -> bool:
        """Behind this chain's tail the worker would get far less than it can take, or nobody could dial."""
        tail = self._context.state.workers.get(chain.members[-1] if chain.members else publication.origin_id)
        if tail is None:
            return False
        if tail.dialable is False and worker.dialable is False:
            return True
        if not chain.members or self._stuck(publication, tail.worker_id, worker):
            return False  # it will be put in front of that one
        config, now = self._context.config, self._context.now
        takes = link_of(worker, config.assumed_bytes_per_s, now).downlink_bytes_per_s
        return uplink(tail, config.assumed_bytes_per_s, now).bytes_per_s < WEAK_SHARE * takes

    def _stuck(self, publication: Publication, worker_id: str, other: Worker) -> bool:
        """Waits for room on its disk, or is demoted and the other one is not: nobody is put behind it."""
        worker = self._context.state.workers.get(worker_id)
        if worker is None:
            return False
        holding = worker.holdings.get(publication.object_id)
        full = holding is not None and holding.state is ObjectState.DISK_FULL
        return full or (worker.demoted and not other.demoted)

    # ---- taking away ----

    def take_out(self, worker: Worker, reason: RebuildReason) -> list[tuple[str, int, str]]:
        """Out of every chain of every object. Returns the (object, stripe, child) that move up."""
        moved: list[tuple[str, int, str]] = []
        for publication in self._context.state.publications.values():
            if worker.worker_id in publication.layout:
                moved += self.take_from(publication, worker, reason)
        return moved

    def take_from(self, publication: Publication, worker: Worker, reason: RebuildReason) -> list[tuple[str, int, str]]:
        layout = publication.layout
        moved: list[tuple[str, int, str]] = []
        near: set[str] = {worker.worker_id}
        for place in layout.places(worker.worker_id):
            child = layout.child(place)
            if child is not None:
                if not moved:  # one failure, in however many stripes
                    self._note_failure(worker, reason)
                moved.append((publication.object_id, place.chain.stripe, child))
                self._rebuilt(publication, place, reason, child)
            near |= layout.remove_from(place.chain, worker.worker_id)
            publication.edges.forget(place.chain.stripe, worker.worker_id)
        member = publication.members.get(worker.worker_id)
        if member is not None:
            member.why = f"no place: {reason.value}"
        self._context.touch(publication, near)
        self._context.log("removed", reason.value, version=publication.version, relay=worker.name)
        self.heal(publication)
        return moved

    def _rebuilt(self, publication: Publication, place: Place, reason: RebuildReason, child: str) -> None:
        self._context.count("segment_rebuilds_total", reason=reason.value)
        above = publication.layout.ancestors(place, 1)
        parent = self._context.name((above[0] if above else "") or publication.origin_id) if above else ""
        publication.members[child].why = f"{reason.value} of {self._context.name(place.chain.members[place.position])}"
        self._context.log(
            "segment_rebuilt",
            reason.value,
            version=publication.version,
            chain=place.chain.slot,
            child=self._context.name(child),
            parent=parent,
        )

    def _note_failure(self, worker: Worker, reason: RebuildReason) -> None:
        if reason in FAILURES:
            worker.links.note(False, self._context.now)
            self._context.persist_worker(worker)

    def note_served(self, publication: Publication) -> None:
        """Everybody has it: those in front of somebody have served."""
        for chain in publication.layout.chains:
            for member in chain.members[:-1]:
                worker = self._context.state.workers.get(member)
                if worker is not None and worker.links.success_rate(self._context.now) < 1:
                    worker.links.note(True, self._context.now)
                    self._context.persist_worker(worker)

    def move_to_end(self, publication: Publication, place: Place, reason: RebuildReason) -> None:
        """To where nobody waits behind it; it goes on receiving. One that may be slow waits behind nobody slower."""
        layout = publication.layout
        worker_id = place.chain.members[place.position]
        child = layout.child(place)
        worker = self._context.state.workers.get(worker_id)
        if child is None or worker is None:
            return
        members = place.chain.members
        at = len(members) - 1  # once it is taken out
        if reason in SLOW:
            while at > place.position and self._slower(members[at], worker):
                at -= 1
        if at == place.position:
            return
        self._rebuilt(publication, place, reason, child)
        self._note_failure(worker, reason)
        near = layout.remove_from(place.chain, worker_id)
        self._context.touch(publication, near | layout.insert(place.chain, worker_id, at))
        publication.members[worker_id].why = f"{reason.value}: moved to the end"
        self._context.log(
            "moved_to_end", reason.value, version=publication.version, relay=self._context.name(worker_id)
        )
        self.heal(publication)

    def takes(self, publication: Publication, chain: Chain, worker: Worker) -> bool:
        """The worker could stand behind this chain's tail: it is fed, not stuck, and one of the two can dial."""
        tail = self._context.state.workers.get(chain.members[-1]) if chain.members else None
        if tail is None or not self.fed(publication, chain) or self._stuck(publication, tail.worker_id, worker):
            return False
        return not tail.demoted and (tail.dialable is not False or worker.dialable is not False)

    def move_aside(self, publication: Publication, place: Place, onto: Chain, reason: RebuildReason) -> None:
        """Behind another chain's tail. Whoever was behind it moves up."""
        layout = publication.layout
        worker_id, parent = place.chain.members[place.position], self._context.name(onto.members[-1])
        child = layout.child(place)
        if child is not None:
            self._rebuilt(publication, place, reason, child)
        near = layout.remove_from(place.chain, worker_id)
        self._context.touch(publication, near | layout.insert(onto, worker_id))
        self._context.count("segment_rebuilds_total", reason=reason.value)
        publication.members[worker_id].why = f"{reason.value}: moved behind {parent}, another chain's tail"
        self._context.log(
            "moved_aside",
            reason.value,
            version=publication.version,
            relay=self._context.name(worker_id),
            chain=onto.slot,
            parent=parent,
        )
        self.heal(publication)

    def transplant(self, publication: Publication, place: Place, onto: Chain, at: int, reason: RebuildReason) -> None:
        """A segment to another position of its stripe (see `Layout.transplant`). Its members stay behind each other."""
        worker_id = place.chain.members[place.position]
        parent = self._context.name(onto.members[at - 1] if at else publication.origin_id)
        self._context.touch(publication, publication.layout.transplant(place, onto, at))
        self._context.count("segment_rebuilds_total", reason=reason.value)
        where = f"{describe(publication.layout, worker_id)}; in stripe {onto.stripe} "
        publication.members[worker_id].why = f"{where}{reason.value}: moved behind {parent}, which has room"
        self._context.log(
            "segment_moved",
            reason.value,
            version=publication.version,
            relay=self._context.name(worker_id),
            stripe=onto.stripe,
            parent=parent,
        )
        self.heal(publication)

    def _slower(self, member: str, worker: Worker) -> bool:
        other = self._context.state.workers.get(member)
        if other is None:
            return False
        if other.demoted is not worker.demoted:
            return other.demoted
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        hops = [link_of(w, assumed, now).hop_bytes_per_s for w in (other, worker)]
        return hops[0] < WEAK_SHARE * hops[1]

    def dismiss(self, publication: Publication) -> None:
        """Nobody is served this object any more. Its slots stay: it may be restored."""
        self._context.touch_all(publication)
        publication.layout = Layout(Chain(chain.stripe, chain.slot) for chain in publication.layout.chains)
        publication.edges.main.clear()
        publication.edges.fallback.clear()
