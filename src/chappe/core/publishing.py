"""Publications from the caller's request to their end.

Decides which versions may be asked for, lays the chains when the origin offers the object, burns the version when the
root is announced, and ends what cannot become a version. Phases and their diagram are in `publication`; who yields to
whom is `supersede`'s, how far workers are is `progress`'s.
"""

from __future__ import annotations

from chappe.core import striped
from chappe.core.bases import NOTHING, promised, takers
from chappe.core.chain import Chain, Layout
from chappe.core.context import Context
from chappe.core.demotion import Demotions
from chappe.core.effects import PublishAccepted, PublishAlready, PublishErrorKind, RequestDone, RequestRefused
from chappe.core.events import (
    CancelRequested,
    Compressed,
    DeltaFrom,
    Offered,
    Payload,
    PublishRequested,
    PublishWatcherLeft,
    Role,
    RootAnnounced,
    SourceFailed,
    Topology,
)
from chappe.core.lanes import Lanes, lane_for, lanes_of, of_version
from chappe.core.manifest import chunk_bytes_for
from chappe.core.membership import Membership
from chappe.core.placement import Placement
from chappe.core.publication import ENDED, LIVE, Member, Phase, Publication
from chappe.core.rates import link_of, uplink
from chappe.core.reasons import RebuildReason
from chappe.core.supersede import Supersession
from chappe.core.versions import Verdict, judge, next_version
from chappe.core.workers import Worker
from chappe.planning.compression import compression_gain
from chappe.planning.striping import Striping, plan_striping
from chappe.planning.topology import Link, Plan, broadcast_floor, plan_chains, plan_star, worker_rate


class Publishing:
    def __init__(
        self,
        context: Context,
        placement: Placement,
        supersession: Supersession,
        membership: Membership,
        demotions: Demotions,
        lanes: Lanes,
    ) -> None:
        self._context = context
        self._lanes = lanes
        self._demotions = demotions
        self._placement = placement
        self._supersession = supersession
        self._membership = membership

    # ---- asking ----

    def requested(self, event: PublishRequested) -> None:
        state = self._context.state
        known = state.publications.get(event.object_id)
        if known is not None and known.origin_id == event.origin_id:
            self._attach(known, event)
            return
        verdict = judge(state, event, self._context.config.lanes_max, self._context.now)
        if verdict.already is not None:
            self._context.send(PublishAlready(event.request, verdict.already.version, verdict.already.root))
            return
        if verdict.resume is not None:
            self._resume(verdict.resume, event)
            return
        if verdict.refusal is not None:
            kind, message = verdict.refusal
            self._context.send(RequestRefused(event.request, kind, message))
            self._context.log("publish_refused", message, version=event.version)
            return
        self._accept(event, verdict)

    def _attach(self, known: Publication, event: PublishRequested) -> None:
        known.watchers[event.request] = event.until
        self._send_accepted(known, event.request)
        self._context.changed[known.object_id] = None

    def _resume(self, waiting: Publication, event: PublishRequested) -> None:
        """Its publisher is gone for good, another process has the bytes: the object gets a new origin, which is out
        until it has offered it with the root that was announced."""
        waiting.origin_id, waiting.source_failed = event.origin_id, True
        waiting.watchers[event.request] = event.until
        self._context.send(
            PublishAccepted(event.request, waiting.version, waiting.chunk_bytes, waiting.object_id, waiting.root)
        )
        self._context.touch_all(waiting)
        self._context.log("resumed", "", version=waiting.version, origin=self._context.name(event.origin_id))

    def _accept(self, event: PublishRequested, verdict: Verdict) -> None:
        for stale in verdict.abandoned:
            self.end(stale, Phase.FAILED, "its publisher went away, and the version was asked for again")
        version = event.version or next_version(self._context.state)
        publication = Publication(
            object_id=event.object_id,
            version=version,
            origin_id=event.origin_id,
            until=event.until,
            topology=event.topology,
            chains_wanted=event.chains,
            chunk_bytes=chunk_bytes_for(self._chain_rate(event)),
            snapshot_bytes=event.snapshot_bytes,
            started_s=self._context.now - event.elapsed_s,
            watchers={event.request: event.until},
            t_train_s=event.t_train_s,
        )
        publication.delta_only = publication.spare_origin = event.payload is Payload.DELTA
        self._promise(publication, event)
        self._context.state.publications[event.object_id] = publication
        self._prune()
        self._context.update(publication)
        self._send_accepted(publication, event.request)
        self._context.log("accepted", "", version=version, origin=self._context.name(event.origin_id))

    def _send_accepted(self, publication: Publication, request: int) -> None:
        bases = tuple(root for root in publication.deltas.values() if root != NOTHING)
        compressed = NOTHING in publication.deltas.values()
        self._context.send(
            PublishAccepted(
                request, publication.version, publication.chunk_bytes, base_roots=bases, compressed=compressed
            )
        )

    def _promise(self, publication: Publication, event: PublishRequested) -> None:
        """Whoever proves a base that the publisher can begin at waits for its delta, the others for the compressed
        snapshot where that is faster."""
        state, most, now = self._context.state, self._context.config.lanes_max, self._context.now
        publication.deltas = promised(state, event.deltas, most, now)
        self._say_deltas(publication, event)
        ready = {worker.worker_id for worker in takers(state, publication.deltas.values())}
        others = [link for link in self._links() if link.worker_id not in ready]
        if event.compressed is None or not others:
            return
        wanted, why = self._compresses(event, event.compressed, others)
        if wanted:
            every = (*event.deltas, DeltaFrom(NOTHING, event.compressed.object_id))
            publication.deltas = promised(state, every, most, now)
        publication.payload_reason = "; ".join(filter(None, (publication.payload_reason, why)))

    def _compresses(self, event: PublishRequested, compressed: Compressed, links: list[Link]) -> tuple[bool, str]:
        """Whether these workers are sent the compressed snapshot, and why."""
        gain = compression_gain(
            event.snapshot_bytes,
            compressed.payload_bytes,
            compressed.encode_bytes_per_s,
            compressed.decode_bytes_per_s,
            self._origin_rate(event.origin_id),
            [link.uplink_bytes_per_s for link in links],
            [link.downlink_bytes_per_s for link in links],
            event.until,
        )
        cost = f"{gain.saved_s:.3g} s less on the links, {gain.added_s:.3g} s more for encoding and decoding"
        if event.payload is Payload.COMPRESSED:
            return True, f"compressed as was asked for: {cost}"
        return gain.worth, f"{'compressed' if gain.worth else 'not compressed'}: {cost}"

    def _say_deltas(self, publication: Publication, event: PublishRequested) -> None:
        ready = takers(self._context.state, publication.deltas.values())
        if ready:
            bases = "the base" if len(publication.deltas) == 1 else f"one of {len(publication.deltas)} bases"
            publication.payload_reason = f"{len(ready)} of {len(self._links())} workers hold {bases}"
        else:
            publication.payload_reason = "no worker holds the base" if event.deltas else event.no_delta

    def _chain_rate(self, event: PublishRequested) -> float:
        """What a chain's links will carry: chunks are cut before chains are laid."""
        links = self._links()
        if not links:
            return 0.0
        if event.topology is Topology.STAR:
            return self._origin_rate(event.origin_id) / len(links)
        return worker_rate(links)

    def _prune(self) -> None:
        """Forget the oldest publications that are over."""
        state = self._context.state
        over = [p for p in state.mains if p.phase in ENDED or p.retired]
        excess = len(state.mains) - self._context.config.publications_kept
        for main in over[: max(0, excess)]:
            for publication in of_version(state, main):
                del state.publications[publication.object_id]
                self._context.persist(publication)

    def watcher_left(self, event: PublishWatcherLeft) -> None:
        for publication in self._context.state.publications.values():
            publication.watchers.pop(event.request, None)

    # ---- offering ----

    def offered(self, event: Offered) -> None:
        publication = self._of_origin(event.worker_id, event.session, event.object_id)
        if publication is None:
            self._delta_offered(event)
            return
        self._context.dirty[event.worker_id] = None
        if publication.phase in ENDED or publication.retired:
            return  # its assignment does not name the object: it may let go of it
        if publication.phase is Phase.OPENING:
            self._open(publication, event)
        elif (event.payload_bytes, event.chunks_total) != (publication.payload_bytes, publication.chunks_total):
            self._context.log("offer_differs", "not what was offered before", version=publication.version)
            return
        elif publication.burned and event.root != publication.root and publication.origin_out and not publication.main:
            self._refuse_root(publication, event)
            return
        elif publication.origin_out or publication.source_failed:
            publication.source_failed = False
            self._membership.origin_returned(publication)
        if event.root and publication.phase not in ENDED and not publication.main:
            self._burn(publication, event.root)

    def _delta_offered(self, event: Offered) -> None:
        worker = self._context.of_session(event.worker_id, event.session)
        main = None if worker is None else self._lanes.promised_by(event.object_id, event.worker_id)
        lane = None if main is None else self._lanes.open(main, event)
        if main is None or lane is None:
            self._context.log("unknown_offer", "nobody asked for this object", object=event.object_id)
            return
        workers = map(self._context.state.workers.get, lane.members)
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        self._lay(lane, [link_of(w, assumed, now) for w in workers if w is not None and w.placeable])
        self._context.touch_all(lane)
        self._context.update(main)

    def _refuse_root(self, publication: Publication, event: Offered) -> None:
        """Whoever comes back to a burned version has to show its root: relays have parts of those very bytes."""
        self._context.log("offer_differs", "not the root that was announced", version=publication.version)
        if not event.root:
            return
        message = (
            f"version {publication.version} was announced with root {publication.root}, "
            f"this snapshot has {event.root}: publish it as a newer version"
        )
        for request in publication.watchers:
            self._context.send(RequestRefused(request, PublishErrorKind.CONFLICT, message))
        publication.watchers.clear()
        publication.origin_id = ""  # whoever has the right bytes may resume it
        self._context.touch_all(publication)

    def _of_origin(self, worker_id: str, session: int, object_id: str) -> Publication | None:
        worker = self._context.of_session(worker_id, session)
        publication = self._context.state.publications.get(object_id)
        if worker is None or publication is None or publication.origin_id != worker_id:
            return None
        return publication

    def _open(self, publication: Publication, event: Offered) -> None:
        if event.version != publication.version:
            self.end(publication, Phase.FAILED, f"its origin offered version {event.version}")
            return
        newer = [
            p.version
            for p in self._context.state.publications.values()
            if p.version > publication.version and p.phase is not Phase.OPENING and p.phase not in ENDED
        ]
        if newer:
            self._superseded(publication, max(newer))
            return
        if publication.delta_only and not takers(self._context.state, publication.deltas.values()):
            self.end(publication, Phase.FAILED, "payload delta: nobody who holds a base is here any more")
            return
        publication.phase = Phase.OPEN
        publication.kind, publication.snapshot_bytes = event.kind, event.snapshot_bytes
        publication.payload_bytes, publication.chunks_total = event.payload_bytes, event.chunks_total
        for worker in self._context.state.relays:
            self._demotions.review(worker)
        links = self._links()
        spared = not all(link.standby for link in links)  # with nobody active there is nobody else to wait for
        for link in links:
            publication.enlist(link.worker_id, Member(link.name, targeted=not (link.standby and spared)))
        superseded = self._supersession.take_over(publication)
        for link in links if publication.deltas else ():
            member = publication.members[link.worker_id]
            if not member.deferred:
                member.via = lane_for(self._context.state, publication, self._context.state.workers[link.worker_id])
            if publication.delta_only and not (member.via or member.deferred):
                publication.enlist(link.worker_id, Member(link.name, targeted=False))
        for old in superseded:
            self._superseded(old, publication.version)
        self._lay(publication, [link for link in links if not publication.members[link.worker_id].via])
        self._placement.heal(publication)  # who is deferred has left a gap: nobody is to be cut off by it
        self._context.touch_all(publication)

    def _superseded(self, old: Publication, version: int) -> None:
        old.end(Phase.SUPERSEDED, f"version {version} took over", self._context.now)
        old.superseded_by = version
        self._context.update(old)
        self._context.log("superseded", RebuildReason.SUPERSEDED.value, version=old.version, newer=version)

    def _links(self) -> list[Link]:
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        return [link_of(w, assumed, now) for w in self._context.state.relays if w.placeable]

    def _origin_rate(self, origin_id: str) -> float:
        origin, assumed = self._context.state.workers.get(origin_id), self._context.config.assumed_bytes_per_s
        return assumed if origin is None else uplink(origin, assumed, self._context.now).bytes_per_s

    def _plan(self, publication: Publication, links: list[Link]) -> Plan:
        rate = self._origin_rate(publication.origin_id) * self._share(publication)
        if publication.topology is Topology.STAR:
            return plan_star(rate, links)
        current = self._context.state.current
        previous = None
        chained = current is not None and current.topology is not Topology.STAR and current.stripes.plain
        if chained and current is not None and not current.chains_wanted:
            previous = sum(bool(chain.members) for chain in current.layout.chains) or None
        return plan_chains(
            rate,
            links,
            chains=publication.chains_wanted,
            previous=previous,
            payload_bytes=max(1, publication.payload_bytes),
            fraction=publication.until,
            origin_dialable=publication.origin_id not in self._context.undialable,
        )

    def _share(self, publication: Publication) -> float:
        """Of B0: objects that travel at the same time have equal parts of it."""
        main = self._context.state.publications.get(publication.main) if publication.main else publication
        if main is None or not main.deltas:
            return 1.0
        kinds = {
            member.via
            for member in main.members.values()
            if member.counted and not member.deferred and member.level == 0
        }
        return 1.0 / max(1, len(kinds))

    def _striping(self, publication: Publication, links: list[Link]) -> Striping | None:
        """The stripes, where they were asked for and are worth it."""
        if publication.topology is not Topology.STRIPED or publication.chains_wanted:
            return None
        return plan_striping(
            self._origin_rate(publication.origin_id) * self._share(publication),
            links,
            payload_bytes=max(1, publication.payload_bytes),
            fraction=publication.until,
            origin_dialable=publication.origin_id not in self._context.undialable,
            chunk_bytes=publication.chunk_bytes,
        )

    def _lay(self, publication: Publication, links: list[Link]) -> None:
        striping = self._striping(publication, links)
        if striping is not None:
            chains, why = striped.lay(publication, striping), striping.why
            streams = max(len(stripe.chains) for stripe in striping.plan.stripes)
        else:
            striped.lay_plain(publication)
            plan = self._plan(publication, links)
            chains, why, streams = [Chain(0, slot) for slot in range(plan.chains)], plan.why, plan.chains
            for placement in plan.placements:
                member = publication.members[placement.worker_id]
                if not member.deferred:
                    chains[placement.slot].members.append(placement.worker_id)
                    member.why = placement.why
        publication.layout = Layout(chains)
        publication.streams_max = 0 if publication.topology is Topology.STAR else streams
        if links:
            publication.floor_s = broadcast_floor(
                publication.payload_bytes,
                self._origin_rate(publication.origin_id),
                [link.uplink_bytes_per_s for link in links],
                [link.downlink_bytes_per_s for link in links],
            )
        names = [",".join(self._context.name(m) for m in chain.members) for chain in chains]
        self._context.log("planned", why, version=publication.version, chains=names)

    # ---- closing the manifest, or not ----

    def root_announced(self, event: RootAnnounced) -> None:
        publication = self._of_origin(event.worker_id, event.session, event.object_id)
        if publication is None or publication.phase in ENDED or publication.phase is Phase.OPENING:
            self._context.log("unknown_root", "of an object that is not being published", object=event.object_id)
            return
        self._burn(publication, event.root)

    def _burn(self, publication: Publication, root: str) -> None:
        if publication.root == root:
            return
        if publication.root or ":" not in root:
            self._context.log("bad_root", "refused", version=publication.version, root=root, known=publication.root)
            return
        publication.root = root
        for lane in lanes_of(self._context.state, publication):
            lane.root = root
            self._context.touch_all(lane)
        for worker_id, member in publication.members.items():
            worker = self._context.state.workers.get(worker_id)
            if member.level and worker is not None and worker.received < publication.version:
                worker.received = publication.version
                self._context.persist_worker(worker)
        self._context.touch_all(publication)
        self._context.log("root_announced", "", version=publication.version, root=root)
        for worker in self._context.state.relays:  # keep_versions is told to everybody
            self._context.dirty[worker.worker_id] = None

    def source_failed(self, event: SourceFailed) -> None:
        publication = self._of_origin(event.worker_id, event.session, event.object_id)
        main = self._lanes.promised_by(event.object_id, event.worker_id)
        if publication is None and main is not None:
            self._lanes.withdrawn(main, event.object_id, event.reason)
            if main.delta_only and self._unfinished(main):
                self.end(main, Phase.FAILED, f"payload delta: {event.reason}; publish with payload auto")
        if publication is None or publication.phase in ENDED:
            return
        self._context.log("source_failed", event.reason, version=publication.version)
        publication.source_failed = publication.origin_out = True
        self._context.touch_all(publication)
        if publication.burned:
            self._placement.heal(publication)
        fed = all(self._placement.fed(publication, c) for c in publication.layout.chains if c.members)
        carried_on = publication.burned and publication.layout and fed
        if self._unfinished(publication) and not carried_on and not publication.main:
            self.end(publication, Phase.FAILED, event.reason)

    @staticmethod
    def _unfinished(publication: Publication) -> bool:
        return publication.phase in LIVE or (publication.phase is Phase.SUPERSEDED and not publication.retired)

    def cancel(self, event: CancelRequested) -> None:
        versions = [p for p in self._context.state.mains if p.version == event.version]
        running = [p for p in versions if self._unfinished(p)]
        if running:
            for publication in running:
                self.end(publication, Phase.CANCELLED, "on request")
            self._context.send(RequestDone(event.request))
        elif not versions:
            message = f"no publication of version {event.version} is known"
            self._context.send(RequestRefused(event.request, PublishErrorKind.NOT_FOUND, message))
        else:
            message = f"version {event.version} is {versions[-1].phase.value} already: there is nothing to stop"
            self._context.send(RequestRefused(event.request, PublishErrorKind.CONFLICT, message))

    def end(self, publication: Publication, phase: Phase, reason: str) -> None:
        """It does not become what was asked for: callers are told, hosts go back to what there was before."""
        publication.end(phase, reason, self._context.now)
        self._context.update(publication)
        self._context.log("ended", reason, version=publication.version, phase=phase.value)
        self._lanes.end(publication, phase, reason)
        self._placement.dismiss(publication)
        self._supersession.restore(publication)
        self._supersession.promote_all()
        self._membership.place_all(RebuildReason.RESTORED)

    # ---- the origin is gone ----

    def origin_lapsed(self, origin: Worker) -> None:
        """What it had not announced comes to nothing; it is forgotten once nothing waits for it."""
        if origin.role is not Role.ORIGIN or not origin.lapsed:
            return
        mine = self.origin_gone(origin)
        if any(p.phase is Phase.OPEN or (p.phase is Phase.SUPERSEDED and not p.retired) for p in mine):
            return
        self._context.drop_worker(origin)
        for publication in mine:
            if publication.layout:
                self._placement.heal(publication)
                self._context.touch(publication, {c.members[0] for c in publication.layout.chains if c.members})

    def origin_gone(self, origin: Worker) -> list[Publication]:
        """It has left or lapsed: what it had not announced comes to nothing. Returns all that it ever published."""
        mine = [p for p in self._context.state.publications.values() if p.origin_id == origin.worker_id]
        for publication in mine:
            if self._unfinished(publication) and not publication.burned and not publication.main:
                self.end(publication, Phase.FAILED, "its publisher went away before the root was announced")
            self._lanes.review(publication)
        return mine
