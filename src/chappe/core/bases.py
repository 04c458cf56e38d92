"""At which bases a delta is wanted: what workers prove, will prove when they have landed it, or had before they went.

Reads the state, changes nothing. What follows from it is in `lanes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from chappe.core.events import DeltaFrom, Holding, ObjectState, Payload, PublishRequested
from chappe.core.publication import VERIFIED, Publication
from chappe.core.state import FleetState
from chappe.core.workers import Worker, chunks_held

NOTHING = ""
"""The base of the compressed snapshot: everybody can begin there."""
FINISH_SHARE_OF_BASE = 0.9
"""The rest of the older version and a delta from it, against the newer one in full."""
ABSENT_S = 3600.0
"""A worker that was away for longer may wait for a full object when it comes back."""


def proves(worker: Worker, root: str) -> bool:
    """It has told of a landed version with this root."""
    return bool(root) and any(h.version and h.root == root for h in worker.holdings.values())


def takes(worker: Worker, base_root: str) -> bool:
    return base_root == NOTHING or proves(worker, base_root)


def takers(state: FleetState, base_roots: Iterable[str]) -> list[Worker]:
    roots = list(base_roots)
    return [w for w in state.relays if w.placeable and any(takes(w, root) for root in roots)]


@dataclass(frozen=True, slots=True)
class _Base:
    """A root at which a delta can begin, as the fleet knows it."""

    root: str
    versions: frozenset[int]
    on_the_way: tuple[Publication, ...]  # by which it is still being given to somebody

    @staticmethod
    def of(state: FleetState, root: str) -> _Base:
        known = [p for p in state.publications.values() if root != NOTHING and p.root == root]
        return _Base(root, frozenset(p.version for p in known), tuple(p for p in known if p.active))

    def is_for(self, worker: Worker) -> bool:
        """It is here, and proves the base, or will when it has landed what it is given."""
        return worker.placeable and (takes(worker, self.root) or any(map(partial(_heads_for, worker), self.on_the_way)))

    def may_be_for(self, worker: Worker, now: float) -> bool:
        """It is away, not for too long, and this is what it had when it was last heard of."""
        if worker.placeable or worker.drained or now - worker.heard_s > ABSENT_S:
            return False
        return proves(worker, self.root) or worker.verified in self.versions


def _heads_for(worker: Worker, publication: Publication) -> bool:
    """It will have finished this one when the next comes, or finishes it first."""
    member = publication.members.get(worker.worker_id)
    if member is None or member.level >= VERIFIED or member.failed or member.superseded:
        return False
    holding = worker.holdings.get(publication.object_id)
    if holding is not None and holding.state is ObjectState.DISK_FULL:
        return False
    held = chunks_held(holding, publication.chunks_total)
    if held < publication.chunks_total and _waits_for_publisher(worker, publication):
        return False
    return worker.superseded or held > (1 - FINISH_SHARE_OF_BASE) * publication.chunks_total


def _waits_for_publisher(worker: Worker, publication: Publication) -> bool:
    """That one has gone, and nobody who is here feeds this worker's chains: it will hardly finish."""
    places = publication.layout.places(worker.worker_id)
    return publication.origin_out and not (places and all(place.chain.rooted for place in places))


def promised(state: FleetState, deltas: Iterable[DeltaFrom], most: int, now: float) -> dict[str, str]:
    """Which of the deltas that can be made are wanted: object to base, in the order in which they are preferred."""
    left = {worker.worker_id: worker for worker in state.relays}
    wanted: list[tuple[int, int, int, DeltaFrom]] = []
    for number, delta in enumerate(deltas):
        base = _Base.of(state, delta.base_root)
        here = [worker_id for worker_id, worker in left.items() if base.is_for(worker)]
        away = [worker_id for worker_id, worker in left.items() if base.may_be_for(worker, now)]
        for worker_id in (*here, *away):
            del left[worker_id]
        if here or away:
            wanted.append((number, len(here), len(away), delta))
    wanted.sort(key=lambda one: (one[0] > 0 or not one[1], -one[1], -one[2], one[0]))
    return {delta.object_id: delta.base_root for *_, delta in sorted(wanted[:most], key=lambda one: one[0])}


def refusal(state: FleetState, event: PublishRequested, lanes_max: int, now: float) -> str:
    """Why a delta that was insisted on cannot be sent to all; empty when it can, or was not insisted on."""
    if event.payload is not Payload.DELTA:
        return ""
    if not event.deltas:
        return f"payload delta: {event.no_delta or 'the publisher keeps no base'}"
    ready = {w.worker_id for w in takers(state, promised(state, event.deltas, lanes_max, now).values())}
    lacking = sorted(w.name for w in state.relays if w.placeable and w.worker_id not in ready)
    if not lacking:
        return ""
    base = event.deltas[0].base_root
    return f"payload delta: {', '.join(lacking)} do not hold the base ({base}): publish with payload auto"


def is_for(main: Publication, holdings: Iterable[Holding]) -> bool:
    """Whoever holds this is one of those that a publication is for: where only deltas are sent, who can take one."""
    return not main.delta_only or any(h.version and h.root in main.deltas.values() for h in holdings)
