"""Who feeds a chain, and giving every chain a source again where there is one.

fed     not rooted and the origin is there, or rooted and its head holds the whole object
recruit one that got the version as a delta, and holds the full object by now, heads a chain of those that lack it:
        rather than the origin, for its uplink is what everybody shares
re-root a chain without a source is turned so that a member that holds everything is its head; a chain without
        such a member is hung behind one that has; when nobody holds everything, edges stay and it waits
"""

from __future__ import annotations

from collections.abc import Iterable

from chappe.core.bridging import cut_off, mend
from chappe.core.chain import Chain, Layout
from chappe.core.context import Context
from chappe.core.events import ObjectState
from chappe.core.publication import Phase, Publication
from chappe.core.rates import uplink
from chappe.core.reasons import RebuildReason
from chappe.core.state import FleetState

WAITS = "waits for its publisher: no relay that is here holds the whole object"


def served(state: FleetState, publication: Publication, stripe: int, among: Iterable[str]) -> set[str]:
    """Who of these is here and needs nothing of this stripe any more."""
    object_id, stripes = publication.object_id, publication.stripes
    workers = [state.workers[worker_id] for worker_id in among if worker_id in state.workers]
    return {worker.worker_id for worker in workers if worker.holds_stripe(object_id, stripes, stripe)}


class Feeding:
    def __init__(self, context: Context) -> None:
        self._context = context

    def origin_usable(self, publication: Publication) -> bool:
        state = self._context.state
        here = not publication.origin_out and publication.origin_id in state.workers
        return here and not state.spares_origin(publication)

    def holds_all(self, publication: Publication, worker_id: str) -> bool:
        worker = self._context.state.workers.get(worker_id)
        return worker is not None and worker.holds_all(publication.object_id)

    def fed(self, publication: Publication, chain: Chain) -> bool:
        if chain.rooted:
            return bool(chain.members) and (
                self.holds_all(publication, chain.members[0]) or self._absent(chain.members[0])
            )
        return self.origin_usable(publication)

    def _absent(self, worker_id: str) -> bool:
        """Its stream is gone and its place is not: it may be back within its grace with all that it held."""
        worker = self._context.state.workers.get(worker_id)
        return worker is not None and not worker.connected

    def can_do_without_origin(self, publication: Publication) -> bool:
        """Every living chain holds the whole object in one member, or has nobody left that lacks anything, or only
        such as wait for room on their disks and can be fed by somebody else then. Or the origin does not serve it."""
        spared = self._context.state.spares_origin(publication)
        return spared or all(self._goes_on(publication, chain) for chain in publication.layout.chains)

    def _goes_on(self, publication: Publication, chain: Chain) -> bool:
        if any(self.holds_all(publication, m) for m in chain.members):
            return True
        lacking = [m for m in chain.members if not publication.members[m].level]
        return all(self._waits_for_room(publication, m) and self._has_another_source(publication, m) for m in lacking)

    def _waits_for_room(self, publication: Publication, worker_id: str) -> bool:
        """Nobody knows for how long."""
        worker = self._context.state.workers.get(worker_id)
        holding = None if worker is None else worker.holdings.get(publication.object_id)
        return holding is not None and holding.state is ObjectState.DISK_FULL

    def _has_another_source(self, publication: Publication, worker_id: str) -> bool:
        """Somebody holds all of it whom `heal` puts above this one when the origin is gone."""
        hidden = self._context.undialable
        return any(
            _available(self._context.state, other)
            and self.holds_all(publication, other)
            and not (worker_id in hidden and other in hidden)
            for other in publication.members
        )

    # ---- healing ----

    def heal(self, publication: Publication) -> None:
        """Give every chain a source again where there is one."""
        layout = publication.layout
        near: set[str] = set()
        for chain in layout.chains:
            if chain.rooted and not self.fed(publication, chain):
                chain.rooted = False
                near |= self._head_changed(layout, chain)
                if chain.members:
                    near |= self.recruit(publication, chain)
        if not self.origin_usable(publication):
            near |= self._reroot(publication)
        if self._context.undialable:
            near |= self._bridge(publication)
        waits = any(c.members and not self.fed(publication, c) for c in layout.chains)
        waits &= not self._context.state.spares_origin(publication)
        if waits and publication.phase is Phase.OPEN and publication.reason != WAITS:
            publication.reason = WAITS
            self._context.log("waits_for_publisher", RebuildReason.ORIGIN_LOST.value, version=publication.version)
            self._context.update(publication)
        elif not waits and publication.reason == WAITS:
            publication.reason = ""
            self._context.update(publication)
        if near:
            self._context.touch(publication, near)

    def _bridge(self, publication: Publication) -> set[str]:
        near: set[str] = set()
        for stripe in publication.layout.stripes:
            near |= self._bridge_in(publication, stripe)
        return near

    def _bridge_in(self, publication: Publication, stripe: int) -> set[str]:
        near, moved = mend(
            publication.layout,
            stripe,
            self._context.undialable,
            source_dialable=publication.origin_id not in self._context.undialable,
            usable=lambda chain: self.fed(publication, chain) and bool(chain.members),
            served=served(self._context.state, publication, stripe, self._context.undialable),
        )
        for chain in publication.layout.of_stripe(stripe):
            near |= self._stand_between(publication, chain)
        reason = RebuildReason.UNDIALABLE.value
        for worker_id in moved:
            place = publication.layout.place(stripe, worker_id)
            assert place is not None
            above = publication.layout.ancestors(place, 1)
            parent = self._context.name((above[0] if above else "") or publication.origin_id)
            publication.members[worker_id].why = f"cannot be dialled: behind {parent}, which can"
            self._context.count("segment_rebuilds_total", reason=reason)
            self._context.log(
                "bridged", reason, version=publication.version, relay=self._context.name(worker_id), parent=parent
            )
        return near

    def feed_unreached(self, publication: Publication) -> None:
        """Somebody has got the full object out of another one meanwhile."""
        near: set[str] = set()
        for chain in publication.layout.chains:
            near |= self._stand_between(publication, chain)
        if near:
            self._context.touch(publication, near)

    def _stand_between(self, publication: Publication, chain: Chain) -> set[str]:
        """Whoever is cut off still is fed by somebody who can be dialled, got the version as another object, and has no
        place here yet."""
        undialable = self._context.undialable
        able = publication.origin_id not in undialable
        done = served(self._context.state, publication, chain.stripe, undialable)
        near: set[str] = set()
        for worker_id in list(chain.members):
            at = chain.members.index(worker_id)
            if cut_off(chain, at, undialable, source_dialable=able, served=done):
                near |= self.recruit(publication, chain, at)
        return near

    @staticmethod
    def _head_changed(layout: Layout, chain: Chain) -> set[str]:
        return layout.near(chain.members[0]) if chain.members else set()

    def _reroot(self, publication: Publication) -> set[str]:
        layout = publication.layout
        near: set[str] = set()
        for chain in layout.chains:
            if not chain.members or chain.rooted:
                continue
            head = next((m for m in chain.members if self.holds_all(publication, m)), None)
            if head is not None:
                chain.rooted = True
                if head != chain.members[0]:  # a head that holds everything has long been its chain's source
                    self._log_reroot(publication, chain, head)
                near |= layout.rotate(chain, head)
            else:
                near |= self.recruit(publication, chain)
                if chain.rooted:
                    self._log_reroot(publication, chain, chain.members[0])
        for chain in layout.chains:
            if not chain.members or chain.rooted:
                continue
            onto = layout.shortest(chain.stripe, lambda c: c.rooted)
            if onto is not None:
                self._log_reroot(publication, chain, onto.members[-1])
                near |= layout.join(onto, chain)
        return near

    def recruit(self, publication: Publication, chain: Chain, at: int = 0) -> set[str]:
        """A head for a chain that has no source but the origin, or none, or a parent further down: whoever got the
        version as another object holds all of this one as well, and has no place here yet. The one that sends
        fastest."""
        context, layout = self._context, publication.layout
        config, now = context.config, context.now
        pushes = at < len(chain.members) and chain.members[at] not in context.undialable  # it can be dialled by anybody
        able = [
            context.state.workers[worker_id]
            for worker_id, member in publication.members.items()
            if member.via
            and _available(context.state, worker_id)
            and layout.place(chain.stripe, worker_id) is None
            and (pushes or worker_id not in context.undialable)
            and self.holds_all(publication, worker_id)
        ]
        if not able or (chain.rooted and not at):
            return set()
        hidden = context.undialable
        head = min(
            able,
            key=lambda w: (
                w.worker_id in hidden,
                w.demoted,
                -uplink(w, config.assumed_bytes_per_s, now).bytes_per_s,
                w.name,
            ),
        )
        chain.rooted = chain.rooted or not at
        context.log("recruited", "", version=publication.version, relay=head.name, chain=chain.slot)
        return layout.insert(chain, head.worker_id, at)

    def _log_reroot(self, publication: Publication, chain: Chain, source: str) -> None:
        reason = RebuildReason.ORIGIN_LOST.value
        self._context.count("segment_rebuilds_total", reason=reason)
        self._context.log(
            "rerooted", reason, version=publication.version, chain=chain.slot, source=self._context.name(source)
        )


def _available(state: FleetState, worker_id: str) -> bool:
    """It may be given a place."""
    worker = state.workers.get(worker_id)
    return worker is not None and worker.placeable
