"""Who is in the fleet: joining, coming back, falling silent.

Decides who is taken and who is gone; what that means for chains is done by `placement`, for fractions by `progress`.
The diagram of a worker's life is in `workers`.
"""

from __future__ import annotations

from collections.abc import Iterable

from chappe.core.assign import Assignments
from chappe.core.bases import is_for
from chappe.core.context import Context
from chappe.core.deadlines import Deadlines
from chappe.core.departure import Departure
from chappe.core.dialling import Dialling
from chappe.core.effects import Refuse, Replace, Welcome
from chappe.core.events import Hello, Holding, Role, SessionLost
from chappe.core.lanes import enter
from chappe.core.placement import Placement
from chappe.core.progress import Progress
from chappe.core.publication import Member, Phase, Publication
from chappe.core.reasons import LostReason, RebuildReason
from chappe.core.repair import Repair
from chappe.core.supersede import Supersession
from chappe.core.workers import Worker

BLACKOUT_MIN = 3  # fewer may well die together


class Membership:
    def __init__(
        self,
        context: Context,
        placement: Placement,
        progress: Progress,
        repair: Repair,
        supersession: Supersession,
        departure: Departure,
        assignments: Assignments,
        deadlines: Deadlines,
        dialling: Dialling,
    ) -> None:
        self._context = context
        self._placement = placement
        self._progress = progress
        self._repair = repair
        self._supersession = supersession
        self._departure = departure
        self._assignments = assignments
        self._deadlines = deadlines
        self._dialling = dialling
        self._names: dict[str, set[str]] = {}  # worker ids by name
        self._blackout_seen = (-1.0, False)  # when it was looked at, and what was seen

    # ---- joining ----

    def hello(self, event: Hello) -> None:
        context = self._context
        known = context.state.workers.get(event.worker_id)
        refusal = self._refusal(known, event)
        if refusal:
            context.send(Refuse(event.worker_id, event.session, refusal))
            context.log("refused", refusal, relay=event.name)
            return
        if known is not None and known.session is not None and known.session != event.session:
            context.send(Replace(known.worker_id, known.session))
        restarted = known is not None and event.generation > known.generation
        worker = self._record(known, event)
        self._take_name(worker)
        context.outrank(max([event.assignment_epoch, *(edge.epoch for edge in event.edges)]))
        context.persist_worker(worker)
        context.send(Welcome(worker.worker_id, event.session))
        self._assignments.forget(worker.worker_id)
        context.dirty[worker.worker_id] = None
        self._watch(worker)
        if worker.role is Role.ORIGIN:
            self._origin_joined(worker, restarted)
        else:
            self._relay_joined(worker, event, known is not None, restarted)

    def _refusal(self, known: Worker | None, event: Hello) -> str:
        if known is not None and known.role is not event.role:
            return f"{event.name} joined before as {known.role.value}: use another store"
        if known is not None and event.generation < known.generation:
            return (
                f"{event.name} shows generation {event.generation}, generation {known.generation} has joined since: "
                "another process with a copy of its store runs, or the store was put back from an old copy"
            )
        if event.role is Role.RELAY and any(other.present for other in self._namesakes(event.name, event.worker_id)):
            return f"another relay named {event.name} is in the fleet: choose another --name, or stop that one"
        return ""

    def _namesakes(self, name: str, worker_id: str) -> list[Worker]:
        """Other relays of this name."""
        known = map(self._context.state.workers.get, sorted(self._names.get(name, ())))
        return [w for w in known if w is not None and w.worker_id != worker_id and w.role is Role.RELAY]

    def _record(self, known: Worker | None, event: Hello) -> Worker:
        worker = known
        if worker is None:
            worker = Worker(event.worker_id, event.role, event.name, event.generation, event.address)
            self._context.state.workers[event.worker_id] = worker
        if event.generation > worker.generation:
            worker.drained = False
        elsewhere = worker.address != event.address
        moved = (worker.generation, worker.address, worker.name) != (event.generation, event.address, event.name)
        self._names.setdefault(worker.name, set()).discard(worker.worker_id)
        self._names.setdefault(event.name, set()).add(worker.worker_id)
        worker.name, worker.generation, worker.address = event.name, event.generation, event.address
        worker.data_port = event.data_port
        worker.uplink_bytes_per_s, worker.downlink_bytes_per_s = event.uplink_bytes_per_s, event.downlink_bytes_per_s
        worker.price_per_hour, worker.rollouts_per_second = event.price_per_hour, event.rollouts_per_second
        worker.session, worker.heard_s, worker.stripes = event.session, self._context.now, event.stripes
        worker.restored = worker.lapsed = worker.leaving = False
        worker.acknowledged_epoch = event.assignment_epoch
        worker.holdings, worker.edges, worker.over_tcp = {}, {}, {}
        self._departure.stays(worker)
        self._dialling.joined(worker, event, moved=elsewhere)
        if moved:  # whoever dials it, or may be dialled by it, has to know
            for publication in self._context.active():
                near = publication.layout.near(worker.worker_id) if worker.worker_id in publication.layout else set()
                if near:
                    self._context.touch(publication, near)
        return worker

    def _take_name(self, worker: Worker) -> None:
        """A relay with a new store takes over the name of one that is gone."""
        if worker.role is Role.RELAY:
            for other in self._namesakes(worker.name, worker.worker_id):
                self._departure.forget(other)

    def _origin_joined(self, worker: Worker, restarted: bool) -> None:
        for publication in self._context.state.publications.values():
            if publication.origin_id != worker.worker_id:
                continue
            self._placement.suit(publication, worker)
            if publication.origin_out and not publication.source_failed and not restarted:
                self.origin_returned(publication)
            heads = {chain.members[0] for chain in publication.layout.chains if chain.members}
            for head in sorted(heads):
                self._context.touch(publication, publication.layout.near(head))

    def origin_returned(self, publication: Publication) -> None:
        publication.origin_out = False
        self._placement.suit(publication, self._context.state.workers[publication.origin_id])  # it may be another one
        self._context.log("origin_returned", RebuildReason.ORIGIN_RETURNED.value, version=publication.version)
        self._context.touch_all(publication)
        self._placement.heal(publication)

    def _relay_joined(self, worker: Worker, event: Hello, known: bool, restarted: bool) -> None:
        context = self._context
        held = {holding.object_id for holding in event.holdings}
        self._enlist(worker, event.holdings)
        for holding in event.holdings:
            self._progress.take_holding(worker, holding, afresh=True)
        for publication in context.active():
            member = publication.members.get(worker.worker_id)
            if member is None:
                continue
            member.name = worker.name
            if worker.worker_id in publication.layout:
                self._placement.suit(publication, worker)
            if not worker.drained and publication.regain(worker.worker_id):
                context.log("regained", "", version=publication.version, relay=worker.name)
                context.update(publication)
            if publication.object_id not in held and worker.verified < publication.version:
                publication.advance(worker.worker_id, 0, afresh=True)
                context.update(publication)
            if restarted and worker.worker_id in publication.layout:
                context.log("kept_place", RebuildReason.RESTARTED.value, version=publication.version, relay=worker.name)
                context.count("segment_rebuilds_total", reason=RebuildReason.RESTARTED.value)
        self.place(worker, RebuildReason.RETURNED if known else RebuildReason.JOINED)
        for edge in event.edges:
            self._repair.adopt(worker, edge)
        for publication in context.active():
            if worker.worker_id in publication.layout:
                self._placement.heal(publication)
                context.changed[publication.object_id] = None

    def _newest(self) -> Publication | None:
        """What a joiner is given: the newest open publication, else the newest version."""
        current = self._context.state.current
        opened = [p for p in self._context.state.in_phase(Phase.OPEN) if not p.main]
        candidates = [*opened, *([current] if current else [])]
        return max(candidates, key=lambda p: p.version, default=None)

    def _enlist(self, worker: Worker, holdings: Iterable[Holding]) -> None:
        newest = self._newest()
        if newest is None or worker.worker_id in newest.members or worker.verified > newest.version or worker.drained:
            return
        waited_for = newest.phase is Phase.OPEN and is_for(newest, holdings) and not worker.standby
        newest.enlist(worker.worker_id, Member(worker.name, targeted=waited_for))
        self._context.update(newest)

    def place(self, worker: Worker, reason: RebuildReason) -> None:
        """A place in everything that this worker should be given and has none in."""
        if not worker.placeable or not worker.connected:
            return
        self._enlist(worker, worker.holdings.values())
        for publication in self._context.active():
            member = publication.members.get(worker.worker_id)
            if member is None or member.superseded or member.deferred or worker.worker_id in publication.layout:
                continue
            self._context.dirty[worker.worker_id] = None
            carrier = enter(self._context.state, publication, worker)
            if carrier is not None and worker.worker_id not in carrier.layout:
                self._placement.append(carrier, worker, reason)
        self._supersession.promote(worker)

    def place_all(self, reason: RebuildReason) -> None:
        """After a publication came to nothing: everybody gets what there is, those who hold all of it first."""
        newest = self._newest()
        if newest is not None and newest.retired:
            newest.unretire()
            self._context.touch_all(newest)
        held = "" if newest is None else newest.object_id
        for worker in sorted(self._context.state.relays, key=lambda w: (not w.holds_all(held), w.name)):
            self.place(worker, reason)

    # ---- falling silent ----

    def session_lost(self, event: SessionLost) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        if worker is None:
            return
        worker.session, worker.heard_s = None, self._context.now
        worker.edges = {}
        self._assignments.forget(worker.worker_id)
        self._watch(worker)
        self._context.log("session_lost", "", relay=worker.name)
        if worker.leaving:
            self._placement.take_out(worker, RebuildReason.DRAINED)
        elif self._repair.complained_of(worker):
            self._repair.gone_both_ways(worker)

    def restored(self) -> None:
        """The coordinator has started with what it knew: everybody has a lease to come back in."""
        for worker in self._context.state.workers.values():
            self._names.setdefault(worker.name, set()).add(worker.worker_id)
            worker.restored, worker.heard_s = True, self._context.now
            if not worker.lapsed:
                self._watch(worker)

    def forgive(self) -> None:
        """The coordinator itself was late: nobody could be heard meanwhile."""
        for worker in self._context.state.workers.values():
            if not worker.lapsed:
                worker.heard_s = self._context.now

    def _watch(self, worker: Worker) -> None:
        config = self._context.config
        wait_s = config.lease_s if worker.connected or worker.restored else config.session_grace_s
        self._deadlines.at(f"worker {worker.worker_id}", worker.heard_s + wait_s)

    def _blackout(self) -> bool:
        """Most of the fleet has lost its stream within moments: it is the coordinator's own network that is broken.

        Nobody is moved then before its lease is over; who dies now is told of by its child.
        """
        if self._blackout_seen[0] != self._context.now:
            placed = {w for p in self._context.active() for w in p.layout.workers()}
            here = [w.connected for w in self._context.state.relays if w.worker_id in placed]
            absent = here.count(False)
            self._blackout_seen = (self._context.now, absent >= BLACKOUT_MIN and 2 * absent > len(here))
        return self._blackout_seen[1]

    def review(self, worker: Worker) -> None:
        """Whatever is due for this worker; sets when to look again."""
        config, now = self._context.config, self._context.now
        silent_s = now - worker.heard_s + 1e-9
        if worker.lapsed:
            return
        if silent_s >= config.lease_s:
            self._lapse(worker)
            return
        if not worker.connected and not worker.restored and silent_s >= config.session_grace_s:
            if self._blackout():
                self._deadlines.at(f"worker {worker.worker_id}", worker.heard_s + config.lease_s)
                return
            self._placement.take_out(worker, RebuildReason.SESSION_LOST)
            self._repair.origin_out(worker)
            self._deadlines.at(f"worker {worker.worker_id}", worker.heard_s + config.lease_s)
            return
        self._watch(worker)

    def _lapse(self, worker: Worker) -> None:
        if worker.session is not None:
            self._context.send(Replace(worker.worker_id, worker.session))
            worker.session = None
            self._assignments.forget(worker.worker_id)
        worker.lapsed, worker.restored, worker.edges = True, False, {}
        self._context.persist_worker(worker)
        self._context.log("lease_lapsed", "", relay=worker.name)
        self._placement.take_out(worker, RebuildReason.LEASE_LAPSED)
        self._repair.origin_out(worker)
        self._departure.lose(worker, LostReason.LEASE_LAPSED)
