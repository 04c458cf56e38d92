"""Lays an object's chains, or its star or stripes: from what the links carry, and from where its origin can send."""

from __future__ import annotations

from chappe.core import striped
from chappe.core.chain import Chain, Layout
from chappe.core.context import Context
from chappe.core.events import PublishRequested, Topology
from chappe.core.manifest import CHUNK_BYTES_PLAIN, chunk_bytes_for
from chappe.core.publication import Publication
from chappe.core.rates import downlink, link_of, uplink
from chappe.planning.striping import Striping, plan_striping, striped_chunk_bytes
from chappe.planning.topology import Link, Plan, broadcast_floor, plan_chains, plan_star, worker_rate


class Laying:
    def __init__(
        self,
        context: Context,
    ) -> None:
        self._context = context

    def links(self) -> list[Link]:
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        return [link_of(w, assumed, now) for w in self._context.state.relays if w.placeable]

    def origin_rate(self, origin_id: str) -> float:
        origin, assumed = self._context.state.workers.get(origin_id), self._context.config.assumed_bytes_per_s
        return assumed if origin is None else uplink(origin, assumed, self._context.now).bytes_per_s

    def chunk_bytes(self, event: PublishRequested) -> int:
        """Chunks are cut before chains are laid: for what a chain's links will carry, smaller where stripes will."""
        links = self.links()
        origin = self.origin_rate(event.origin_id)
        if not links:
            return chunk_bytes_for(0.0)
        if event.topology is Topology.STAR:
            return chunk_bytes_for(origin / len(links))
        usual = chunk_bytes_for(worker_rate(links))
        if event.chains or event.topology not in (Topology.STRIPED, Topology.AUTO):
            return usual
        if event.topology is Topology.AUTO and self._unknown(event.origin_id, links):
            return usual
        striping = plan_striping(
            origin,
            links,
            payload_bytes=max(1, event.snapshot_bytes),
            fraction=event.until,
            origin_dialable=event.origin_id not in self._context.undialable,
            chunk_bytes=CHUNK_BYTES_PLAIN,
        )
        return usual if striping is None else striped_chunk_bytes(striping, usual)

    def lay(self, publication: Publication, links: list[Link]) -> None:
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
                self.origin_rate(publication.origin_id),
                [link.uplink_bytes_per_s for link in links],
                [link.downlink_bytes_per_s for link in links],
            )
        names = [",".join(self._context.name(m) for m in chain.members) for chain in chains]
        self._context.log("planned", why, version=publication.version, chains=names)

    def _plan(self, publication: Publication, links: list[Link]) -> Plan:
        rate = self.origin_rate(publication.origin_id) * self._share(publication)
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

    def _unknown(self, origin_id: str, links: list[Link]) -> list[str]:
        """Those of whose links something is only assumed. What nobody has said or seen is nothing to stripe by."""
        assumed, now = self._context.config.assumed_bytes_per_s, self._context.now
        workers = self._context.state.workers
        origin = workers.get(origin_id)
        found = [] if origin is not None and uplink(origin, assumed, now).known is not None else ["the publisher"]
        for link in links:
            worker = workers[link.worker_id]
            if uplink(worker, assumed, now).known is None or downlink(worker, assumed, now).known is None:
                found.append(worker.name)
        return found

    def _striping(self, publication: Publication, links: list[Link]) -> Striping | None:
        """The stripes, where they were asked for and are worth it. Lanes have plain chains: they are short, and how
        many chunks one has may be known only at its end."""
        wanted = publication.topology in (Topology.STRIPED, Topology.AUTO)
        if not wanted or publication.chains_wanted or publication.main:
            return None
        if publication.topology is Topology.AUTO and self._unknown(publication.origin_id, links):
            return None
        return plan_striping(
            self.origin_rate(publication.origin_id) * self._share(publication),
            links,
            payload_bytes=max(1, publication.payload_bytes),
            fraction=publication.until,
            origin_dialable=publication.origin_id not in self._context.undialable,
            chunk_bytes=publication.chunk_bytes,
        )
