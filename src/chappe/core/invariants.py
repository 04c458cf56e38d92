"""What must hold after every event, whatever happened: checked by the tests and by the simulator, never in production.

`broken` looks at one moment of the whole fleet, `touched` at those who were told something new, which costs as much as
there is to tell; `History` looks at what may only grow. All return sentences; none is the good answer.

    structure   a worker stands at most once in each stripe; slots of a stripe differ, and are no more than planned
    edges       one parent; at most one child per (object, stripe, slot), the same at both ends; no cycle
    feeding     nobody who is here and may have a place is without one; no chain starves while another has a source
    dialling    every hop has a side that can dial, where its chain has such a place
    counting    counters equal a recount; received >= verified >= installed
    growing     epochs, versions, installed versions, recorded fractions
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from chappe.core.bridging import cut_off, spots
from chappe.core.chain import Chain
from chappe.core.effects import Assign, Edge, Effect, PersistEpoch
from chappe.core.feeding import served as served_in
from chappe.core.fleet import Fleet
from chappe.core.publication import Phase, Publication

T = TypeVar("T")
Node = tuple[str, int, str]  # object, stripe, worker


def broken(fleet: Fleet) -> list[str]:
    """Every invariant that does not hold now."""
    found: list[str] = []
    for publication in fleet.state.publications.values():
        found += _structure(publication)
        found += _counting(publication)
        found += _feeding(fleet, publication)
        found += _dialling(fleet, publication)
    found += _edges(fleet)
    return found


def touched(fleet: Fleet, effects: Iterable[Effect]) -> list[str]:
    """What does not hold for those who are assigned something by these effects: their places, and both ends of edges.

    An edge that leads from a place to the one in front of it can be part of no cycle.
    """
    found: list[str] = []
    for effect in effects:
        if isinstance(effect, Assign):
            for edge in effect.edges:
                publication = fleet.state.publications.get(edge.object_id)
                if publication is not None and effect.worker_id == publication.origin_id:
                    found += _heads(publication, edge)
                elif publication is None or not publication.active:
                    found.append(f"{effect.worker_id} was told an edge of {edge.object_id}, which nobody is served")
                else:
                    found += _neighbours(fleet, publication, effect.worker_id, edge)
            found += _placed(fleet, effect.worker_id)
    return found


def _heads(publication: Publication, edge: Edge) -> list[str]:
    chains = publication.layout.of_stripe(edge.stripe)
    heads = {chain.slot: chain.members[0] for chain in chains if chain.members and not chain.rooted}
    served = [(slot.slot, slot.child.worker_id) for slot in edge.children]
    if len(dict(served)) != len(served) or any(heads.get(slot) != child for slot, child in served):
        return [f"v{publication.version}: the origin was told {served}, the heads are {heads}"]
    return []


def _neighbours(fleet: Fleet, publication: Publication, worker_id: str, edge: Edge) -> list[str]:
    layout, what = publication.layout, f"v{publication.version}: {worker_id}"
    place = layout.place(edge.stripe, worker_id)
    if place is None:
        return [f"{what} was told an edge and has no place"]
    members = place.chain.members
    if not place.position < len(members) or members[place.position] != worker_id:
        return [f"{what} is not where the index finds it"]
    found: list[str] = []
    above = (publication.origin_id if place.position == 0 else members[place.position - 1]) if layout else ""
    if edge.parent is not None and (edge.parent.worker_id != above or (place.position == 0 and place.chain.rooted)):
        found.append(f"{what} was told parent {edge.parent.worker_id}, {above} is in front of it")
    below = [] if layout.child(place) is None else [layout.child(place)]
    if any(slot.child.worker_id not in below for slot in edge.children) or len(edge.children) > 1:
        found.append(f"{what} was told children {[s.child.worker_id for s in edge.children]}, behind it is {below}")
    content = None if edge.parent is None else fleet.assignment(edge.parent.worker_id)
    if content is not None:  # None: it is away, and is told when it comes back
        told = [s for e in content[1] if (e.object_id, e.stripe) == (edge.object_id, edge.stripe) for s in e.children]
        if (worker_id, edge.slot, edge.epoch) not in [(s.child.worker_id, s.slot, s.epoch) for s in told]:
            found.append(f"{what} was told parent {above} e{edge.epoch}, which was not told of it")
    return found


def _placed(fleet: Fleet, worker_id: str) -> list[str]:
    worker = fleet.state.workers[worker_id]
    if not worker.connected or not worker.placeable:
        return []
    return [
        f"v{publication.version}: {worker.name} is here and has no place"
        for publication in fleet.state.publications.values()
        if publication.active and worker_id not in publication.layout and _wants_a_place(publication, worker_id)
    ]


def _wants_a_place(publication: Publication, worker_id: str) -> bool:
    member = publication.members.get(worker_id)
    return member is not None and not (member.superseded or member.deferred or member.via)


def _structure(publication: Publication) -> list[str]:
    found: list[str] = []
    layout = publication.layout
    for stripe in layout.stripes:
        chains = layout.of_stripe(stripe)
        for m, n in _repeated([m for chain in chains for m in chain.members]):
            found.append(f"v{publication.version}: {m} stands {n} times in stripe {stripe}")
        for slot, n in _repeated([chain.slot for chain in chains]):
            found.append(f"v{publication.version}: {n} chains in slot {slot}")
        if 0 < publication.streams_max < len(chains):
            planned = publication.streams_max
            found.append(f"v{publication.version}: {len(chains)} chains in stripe {stripe}, {planned} are planned")
        for chain in chains:
            for i, member in enumerate(chain.members):
                place = layout.place(stripe, member)
                if place is None or place.chain is not chain or place.position != i:
                    found.append(f"v{publication.version}: the index does not find {member} at its place")
                if member not in publication.members:
                    found.append(f"v{publication.version}: {member} has a place and is no member")
    if layout and not publication.active:
        found.append(f"v{publication.version} is {publication.phase.value} and still has chains")
    return found


def _repeated(items: list[T]) -> list[tuple[T, int]]:
    """What is there more than once. Nothing mostly, so that is found out first."""
    return [] if len(set(items)) == len(items) else [(item, n) for item, n in Counter(items).items() if n > 1]


def _counting(publication: Publication) -> list[str]:
    found: list[str] = []
    if publication.counters != publication.recount():
        found.append(f"v{publication.version}: counts {publication.counters}, recounted {publication.recount()}")
    counts, _ = publication.counters
    if counts != sorted(counts, reverse=True):
        found.append(f"v{publication.version}: more have installed than received: {counts}")
    if publication.phase is Phase.CLOSED and not publication.burned:
        found.append(f"v{publication.version} is closed without a root")
    return found


def _feeding(fleet: Fleet, publication: Publication) -> list[str]:
    if not publication.active:
        return []
    found: list[str] = []
    workers = fleet.state.workers
    for worker_id, member in publication.members.items():
        worker = workers.get(worker_id)
        if worker is None or not worker.connected or not worker.placeable or member.superseded or member.deferred:
            continue
        if member.via:  # has its place in the lane, or was promised one
            lane = fleet.state.publications.get(member.via)
            if lane is not None and lane.active and worker_id not in lane.members:
                found.append(f"v{publication.version}: {worker.name} is in neither object's chains")
            continue
        if worker_id not in publication.layout:
            found.append(f"v{publication.version}: {worker.name} is here and has no place")
        elif len(publication.layout.chains_of(worker_id)) != len(publication.stripes.weights):
            found.append(f"v{publication.version}: {worker.name} has no place in some stripe")
    origin_usable = not publication.origin_out and publication.origin_id in workers
    if origin_usable:
        return found
    for chain in publication.layout.chains:
        head = workers.get(chain.members[0]) if chain.members else None
        if head is None or (chain.rooted and (head.holds_all(publication.object_id) or not head.connected)):
            continue
        sources = [
            m for m in publication.layout.workers() if m in workers and workers[m].holds_all(publication.object_id)
        ]
        if sources:
            found.append(
                f"v{publication.version}: chain {chain.slot} starves while {sources[0]} holds the whole object"
            )
    return found


def _dialling(fleet: Fleet, publication: Publication) -> list[str]:
    """Nobody is where no side of its hop can dial while there is a better place."""
    undialable = {w.worker_id for w in fleet.state.workers.values() if w.dialable is False}
    if not undialable or not publication.active:
        return []
    able = publication.origin_id not in undialable
    absent = {u for u in undialable if not fleet.state.workers[u].connected}
    found: list[str] = []
    of_stripe = {s: served_in(fleet.state, publication, s, undialable) for s in publication.layout.stripes}
    for chain in publication.layout.chains:
        served = of_stripe[chain.stripe]
        for i, member in enumerate(chain.members):
            if not cut_off(chain, i, undialable, source_dialable=able, served=served | absent):
                continue
            rest = Chain(chain.stripe, chain.slot, [m for m in chain.members if m != member], chain.rooted)
            if next(spots(rest, undialable, source_dialable=able, served=served), None) is not None:
                found.append(f"v{publication.version}: neither {member} nor its parent can dial, and it could move")
    return found


def _edges(fleet: Fleet) -> list[str]:
    found: list[str] = []
    edges: dict[Node, Edge] = {}
    connected = {w.worker_id for w in fleet.state.workers.values() if w.connected}
    for worker_id in connected:
        content = fleet.assignment(worker_id)
        if content is None:
            found.append(f"{worker_id} is connected and was told nothing")
            continue
        targets, own = content
        edges.update({(e.object_id, e.stripe, worker_id): e for e in own})
        if {e.object_id for e in own} - {t.object_id for t in targets}:
            found.append(f"{worker_id} has an edge of an object that is no target")
    for (object_id, stripe, worker_id), edge in edges.items():
        if len(edge.children) > 1 and _repeated([slot.slot for slot in edge.children]):
            found.append(f"{worker_id} serves two children in one slot of {object_id}/{stripe}")
        if edge.parent is None or edge.parent.worker_id not in connected:
            continue
        above = edges.get((object_id, stripe, edge.parent.worker_id))
        served = [] if above is None else [(s.child.worker_id, s.slot, s.epoch) for s in above.children]
        if (worker_id, edge.slot, edge.epoch) not in served:
            found.append(f"{worker_id} was told parent {edge.parent.name} e{edge.epoch}, which serves {served}")
        for fallback in edge.fallbacks:
            ancestor = edges.get((object_id, stripe, fallback.parent.worker_id))
            if ancestor is None or not ancestor.children:
                continue
            taken = [s.epoch for s in ancestor.children if s.slot == fallback.slot]
            if taken and max(taken) >= fallback.epoch:
                name = fallback.parent.name
                found.append(f"{worker_id}: fallback e{fallback.epoch} to {name} is outranked by {taken}")
    return found + _cycles(edges)


def _cycles(edges: dict[Node, Edge]) -> list[str]:
    parents = {n: (n[0], n[1], e.parent.worker_id) for n, e in edges.items() if e.parent is not None}
    done: set[Node] = set()
    for start in parents:
        path: set[Node] = set()
        node = start
        while node in parents and node not in done:
            if node in path:
                return [f"{node[2]} is its own ancestor in {node[0]}/{node[1]}"]
            path.add(node)
            node = parents[node]
        done |= path
    return []


class History:
    """What may only grow. Feed it every call's effects; keep it over a restart of the fleet machine."""

    def __init__(self) -> None:
        self._epoch = 0
        self._reserved = 0
        self._edges: dict[Node, Edge] = {}
        self._installed: dict[str, int] = {}
        self._newest = 0
        self._fractions: dict[str, dict[str, float]] = {}

    def observe(self, fleet: Fleet, effects: Iterable[Effect], *, whole: bool = True) -> list[str]:
        """`whole` False looks at the effects only: in large fleets a look at every worker is for now and then."""
        found: list[str] = []
        effects = list(effects)
        self._reserved = max([self._reserved, *(e.reserved for e in effects if isinstance(e, PersistEpoch))])
        for effect in effects:
            if isinstance(effect, Assign):
                found += self._assigned(effect)
        if whole:
            found += self._versions(fleet)
        return found

    def _assigned(self, assign: Assign) -> list[str]:
        found: list[str] = []
        if assign.epoch <= self._epoch:
            found.append(f"assignment epoch {assign.epoch} after {self._epoch}")
        self._epoch = max(self._epoch, assign.epoch)
        for edge in assign.edges:
            node = (edge.object_id, edge.stripe, assign.worker_id)
            before = self._edges.get(node)
            self._edges[node] = edge
            if edge.epoch > self._reserved or assign.epoch > self._reserved:
                found.append(f"epoch {max(edge.epoch, assign.epoch)} was sent before it was reserved")
            if before is None:
                continue
            same_parent = (before.parent and before.parent.worker_id) == (edge.parent and edge.parent.worker_id)
            if edge.epoch < before.epoch:
                found.append(f"{assign.worker_id}: edge epoch went from {before.epoch} to {edge.epoch}")
            if edge.epoch == before.epoch and not (same_parent and before.slot == edge.slot):
                found.append(f"{assign.worker_id}: another parent under the same epoch {edge.epoch}")
        return found

    def _versions(self, fleet: Fleet) -> list[str]:
        found: list[str] = []
        for worker in fleet.state.workers.values():
            before = self._installed.get(worker.worker_id, 0)
            if worker.installed < before:
                found.append(f"{worker.name} went back from version {before} to {worker.installed}")
            self._installed[worker.worker_id] = worker.installed
        burned = max((p.version for p in fleet.state.publications.values() if p.burned), default=0)
        if burned < self._newest:
            found.append(f"the newest version went from {self._newest} to {burned}")
        self._newest = max(self._newest, burned)
        for object_id, publication in fleet.state.publications.items():
            before_t = self._fractions.get(object_id, {})
            if publication.t_bcast == before_t:
                continue
            if any(publication.t_bcast.get(k) != v for k, v in before_t.items()):
                found.append(f"v{publication.version}: a recorded fraction changed")
            self._fractions[object_id] = dict(publication.t_bcast)
        return found
