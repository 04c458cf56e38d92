"""Lays an object's chains, or its star or stripes: from what the links carry, and from where its origin can send."""

from __future__ import annotations

from chappe.core import striped
from chappe.core.chain import Chain, Layout
from chappe.core.context import Context
from chappe.core.events import PublishRequested, Topology
from chappe.core.floor import set_floor
from chappe.core.grounds import Grounds
from chappe.core.manifest import CHUNK_BYTES_PLAIN, chunk_bytes_for
from chappe.core.publication import ENDED, Publication
from chappe.core.rates import downlink, link_of, uplink
from chappe.planning.striping import Judged, judge_striping, striped_chunk_bytes
from chappe.planning.topology import Link, Plan, plan_chains, plan_star, worker_rate
from chappe.units import format_duration, format_rate

NAMED_MAX = 3
NOBODY = "nobody gets it in full"
AUTO_BYTES_PER_S_MAX = 125e6
"""Faster, hosts are the limit, not links: nobody takes stripes for that who has not asked for them."""


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
        if self._ruled_out(event.topology, event.chains, event.origin_id, links) is not None:
            return usual
        judged = self._worth(event, origin, links, event.snapshot_bytes, CHUNK_BYTES_PLAIN)
        return usual if judged.striping is None else striped_chunk_bytes(judged.striping, usual)

    def lay(self, publication: Publication, links: list[Link]) -> None:
        judged = self._judge(publication, links)
        if judged.striping is not None:
            chains, why = striped.lay(publication, judged.striping), judged.why
            stripes = judged.striping.plan.stripes
            streams, rate = max(len(stripe.chains) for stripe in stripes), judged.striping.plan.rate_bytes_per_s
        else:
            striped.lay_plain(publication)
            plan = self._plan(publication, links)
            in_lanes = not links and any(member.via for member in publication.members.values())
            why = NOBODY if in_lanes else "; ".join(filter(None, (judged.why, plan.why)))
            chains, streams, rate = [Chain(0, slot) for slot in range(plan.chains)], plan.chains, None
            for placement in plan.placements:
                member = publication.members[placement.worker_id]
                if not member.deferred:
                    chains[placement.slot].members.append(placement.worker_id)
                    member.why = placement.why
        publication.layout = Layout(chains)
        publication.grounds = Grounds(why, rate, judged.striped_s, judged.plain_s)
        publication.streams_max = 0 if publication.topology is Topology.STAR else streams
        if links:
            context = self._context
            set_floor(context.state, context.config, publication, [link.worker_id for link in links], context.now)
        names = [",".join(self._context.name(m) for m in chain.members) for chain in chains]
        self._context.log("planned", why, version=publication.version, chains=names)

    def judge_rest(
        self, publication: Publication, links: list[Link], rest_bytes: float, origin_bytes_per_s: float | None
    ) -> Judged:
        """Stripes for what the last one still lacks. `origin_bytes_per_s`: what is seen of its uplink, where it is."""
        rate = self.origin_rate(publication.origin_id)
        rate = rate if origin_bytes_per_s is None else min(rate, origin_bytes_per_s)
        return self._worth(publication, rate, links, round(rest_bytes), publication.chunk_bytes)

    def lay_rest(self, publication: Publication, judged: Judged, elapsed_s: float) -> None:
        """Other stripes for what is lacking. What is held is held. The caller says so to everybody."""
        assert judged.striping is not None
        publication.layout = Layout(striped.lay(publication, judged.striping))
        plan = judged.striping.plan
        why = f"laid anew after {format_duration(elapsed_s)}, for the rest: {judged.why}"
        promised = [None if rest_s is None else elapsed_s + rest_s for rest_s in (judged.striped_s, judged.plain_s)]
        publication.grounds = Grounds(why, plan.rate_bytes_per_s, *promised)
        publication.streams_max = max(len(stripe.chains) for stripe in plan.stripes)

    def _plan(self, publication: Publication, links: list[Link]) -> Plan:
        rate = self.origin_rate(publication.origin_id) * self._share(publication)
        if publication.topology is Topology.STAR:
            return plan_star(rate, links)
        return plan_chains(
            rate,
            links,
            chains=publication.chains_wanted,
            previous=self._chains_before(publication),
            payload_bytes=max(1, publication.payload_bytes),
            fraction=publication.until,
            origin_dialable=publication.origin_id not in self._context.undialable,
        )

    def _chains_before(self, publication: Publication) -> int | None:
        """As planned for the newest version before, for the object that most workers got: where all got a delta, the
        version's own publication had nobody in its chains. None: others than planned ones, or as many as workers."""
        older = [p for p in self._context.state.publications.values() if p.version < publication.version]
        for version in sorted({p.version for p in older if p.burned and p.phase not in ENDED}, reverse=True):
            laid = [p for p in older if p.version == version]
            workers, last = max(((_placed(p), p) for p in laid), key=lambda found: found[0])
            if workers:
                planned = last.topology is not Topology.STAR and last.stripes.plain and not last.chains_wanted
                return last.streams_max if planned and 0 < last.streams_max < workers else None
        return None

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

    def _ruled_out(self, topology: Topology, chains: int, origin_id: str, links: list[Link]) -> str | None:
        """Why there are no stripes, whatever the links carry: empty where nobody asked for any. None: there may be."""
        if chains or topology not in (Topology.STRIPED, Topology.AUTO):
            return ""
        workers = self._context.state.workers
        here = [workers[link.worker_id] for link in links]
        origin = workers.get(origin_id)
        older = ["the publisher"] if origin is not None and not origin.stripes else []
        older += [worker.name for worker in here if not worker.stripes]
        if older:
            return f"plain: {_some(older)} {'is' if len(older) == 1 else 'are'} of a release without stripes"
        unknown = self._unknown(origin_id, links) if topology is Topology.AUTO else []
        return f"plain: nobody has declared or measured the links of {_some(unknown)}" if unknown else None

    def _judge(self, publication: Publication, links: list[Link]) -> Judged:
        """The stripes, where they were asked for and are worth it. Lanes have plain chains: they are short, and how
        many chunks one has may be known only at its end."""
        if publication.main:
            return Judged(None, "")
        ruled_out = self._ruled_out(publication.topology, publication.chains_wanted, publication.origin_id, links)
        if ruled_out is not None:
            return Judged(None, ruled_out)
        rate = self.origin_rate(publication.origin_id) * self._share(publication)
        return self._worth(publication, rate, links, publication.payload_bytes, publication.chunk_bytes)

    def _worth(
        self, what: Publication | PublishRequested, rate: float, links: list[Link], size: int, chunk_bytes: int
    ) -> Judged:
        """`rate` is the origin's share for this object, in bytes per second."""
        judged = judge_striping(
            rate,
            links,
            payload_bytes=max(1, size),
            fraction=what.until,
            origin_dialable=what.origin_id not in self._context.undialable,
            chunk_bytes=chunk_bytes,
        )
        found = 0.0 if judged.striping is None else judged.striping.plan.rate_bytes_per_s
        if what.topology is Topology.AUTO and found > AUTO_BYTES_PER_S_MAX:
            why = f"plain: at {format_rate(found)} hosts are the limit, not links"
            return Judged(None, why, judged.striped_s, judged.plain_s)
        return judged


def _placed(publication: Publication) -> int:
    """How many workers got a version as this object."""
    return sum(not member.via for member in publication.members.values())


def _some(names: list[str]) -> str:
    """A few names, and how many more."""
    shown = ", ".join(names[:NAMED_MAX])
    return shown if len(names) <= NAMED_MAX else f"{shown} and {len(names) - NAMED_MAX} more"
