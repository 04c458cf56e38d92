"""Epochs of edges, and the edges of one node as its layout says.

An epoch is handed out when an edge is new: when its parent, slot, or the generation of either end has changed. It
stays while the edge stays, so that a relay that is told the same again goes on with its stream. A fallback token must
outrank the child that its slot serves now, and is outranked by whatever is handed out later: it gets a new epoch
whenever the edge in that slot does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from chappe.core.chain import FALLBACKS_MAX, SOURCE, Layout, Place
from chappe.core.effects import ChildSlot, Dialer, Edge, FallbackParent
from chappe.core.stripemap import PLAIN, StripeMap
from chappe.core.workers import Worker

Key = tuple[int, str]  # stripe, child
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Issued:
    """What an epoch stands for. `over` is the epoch that a fallback outranks, 0 for a main edge."""

    parent: str
    slot: int
    parent_generation: int
    child_generation: int
    over: int
    epoch: int
    expected_bytes_per_s: float = 0.0  # when it was handed out

    def same_edge(self, other: Issued) -> bool:
        return self._identity == other._identity

    @property
    def row(self) -> tuple[str, int, int, int, int, int]:
        """In the order of the constructor. `astuple` copies every value, and a fleet has thousands of these."""
        return self.parent, self.slot, self.parent_generation, self.child_generation, self.over, self.epoch

    @property
    def _identity(self) -> tuple[str, int, int, int, int]:
        return self.parent, self.slot, self.parent_generation, self.child_generation, self.over


class EdgeBook:
    """The epochs in force for one object: of each child's edge, and of its fallbacks by ancestor."""

    def __init__(self) -> None:
        self.main: dict[Key, Issued] = {}
        self.fallback: dict[Key, Mapping[str, Issued]] = {}  # replaced, never changed in place

    def forget(self, stripe: int, child: str) -> None:
        """The child has left its place: whatever place it gets next is a new edge."""
        self.main.pop((stripe, child), None)
        self.fallback.pop((stripe, child), None)

    def adopt(self, stripe: int, child: str, ancestor: str, epoch: int) -> bool:
        """A child has healed by the fallback that is in force for this ancestor: that token becomes its edge.

        Unless its edge has had a newer epoch since: then the next derivation hands out a newer one still.
        """
        issued = self.fallback.get((stripe, child), {}).get(ancestor)
        if issued is None or issued.epoch != epoch:
            return False
        main = self.main.pop((stripe, child), None)
        if main is None or main.epoch < epoch:
            self.main[stripe, child] = replace(issued, over=0)
        return True

    def renew(self, stripe: int, child: str) -> None:
        """The next derivation hands out a new epoch although the edge is the same."""
        self.main.pop((stripe, child), None)

    def rows_of(self, key: Key) -> list[list[Any]]:
        """What is in force for one child."""
        main = [self.main[key]] if key in self.main else []
        fallback = self.fallback.get(key, {}).values()
        return [[*key, False, *i.row] for i in main] + [[*key, True, *i.row] for i in fallback]

    def to_json(self) -> list[list[Any]]:
        return [row for key in sorted(self.main.keys() | self.fallback.keys()) for row in self.rows_of(key)]

    @classmethod
    def from_json(cls, rows: list[list[Any]]) -> EdgeBook:
        book = cls()
        for stripe, child, is_fallback, *rest in rows:
            issued = Issued(*rest)
            if is_fallback:
                book.fallback[stripe, child] = {**book.fallback.get((stripe, child), {}), issued.parent: issued}
            else:
                book.main[stripe, child] = issued
        return book


def dialer(parent: Worker, child: Worker) -> Dialer:
    """The child, unless only the parent can."""
    return Dialer.PARENT if parent.dialable is False and child.dialable is not False else Dialer.CHILD


@dataclass(frozen=True, slots=True)
class EdgeMaker:
    """Derives the edges of one object. `next_epoch` returns a number greater than any before.

    `origin_id` is empty when the origin cannot serve the object any more.
    """

    object_id: str
    layout: Layout
    book: EdgeBook
    workers: Mapping[str, Worker]
    origin_id: str
    next_epoch: Callable[[], int]
    expected: Callable[[Worker, Worker, int], float]  # bytes/s of a hop: parent, child, streams of the parent
    stripes: StripeMap = PLAIN

    def _worker(self, member: str) -> Worker | None:
        return self.workers.get(self.origin_id if member == SOURCE else member)

    def _slot_at(self, parent: str, place: Place) -> int:
        return place.chain.slot if parent == SOURCE else 0

    def _main(self, place: Place, child: Worker) -> Issued:
        parent = self.parent(place)
        wanted = Issued(
            parent.worker_id if parent else "",
            self._slot_at(self._above(place), place) if parent else 0,
            parent.generation if parent else 0,
            child.generation,
            0,
            0,
        )
        have = self.book.main.get((place.chain.stripe, child.worker_id))
        if parent is not None and (have is None or not have.same_edge(wanted)):
            streams = 1 if place.position else len(self.layout.chains)
            weights, stripe = self.stripes.weights, place.chain.stripe
            expected = self.expected(parent, child, streams) * (weights[stripe] if stripe < len(weights) else 1)
            wanted = replace(wanted, expected_bytes_per_s=float(f"{expected:.2g}"))
        return self._issue(self.book.main, (place.chain.stripe, child.worker_id), wanted)

    def _issue(self, book: dict[K, Issued], key: K, wanted: Issued) -> Issued:
        have = book.get(key)
        if have is None or not have.same_edge(wanted):
            have = book[key] = replace(wanted, epoch=self.next_epoch())
        return have

    def _above(self, place: Place) -> str:
        return place.chain.members[place.position - 1] if place.position else SOURCE

    def parent(self, place: Place) -> Worker | None:
        """None for a head that needs no source, or whose source is unknown."""
        if place.position == 0 and place.chain.rooted:
            return None
        return self._worker(self._above(place))

    def _fallbacks(self, place: Place, child: Worker) -> tuple[FallbackParent, ...]:
        key = (place.chain.stripe, child.worker_id)
        before = self.book.fallback.get(key, {})
        now: dict[str, Issued] = {}
        found: list[FallbackParent] = []
        for i, ancestor in enumerate(self.layout.ancestors(place, FALLBACKS_MAX + 1)[1:]):
            served = Place(place.chain, place.position - 1 - i)  # whom the ancestor's slot serves now
            worker, below = self._worker(ancestor), self.workers.get(served.chain.members[served.position])
            if worker is None or below is None or worker.dialable is False:
                continue  # a child heals by dialling
            slot = self._slot_at(ancestor, place)
            over = self._main(served, below).epoch
            wanted = Issued(worker.worker_id, slot, worker.generation, child.generation, over, 0)
            if worker.worker_id in before:
                now[worker.worker_id] = before[worker.worker_id]
            found.append(FallbackParent(worker.peer, slot, self._issue(now, worker.worker_id, wanted).epoch))
        self.book.fallback[key] = now
        return tuple(found)

    def of_relay(self, worker: Worker) -> list[Edge]:
        edges = []
        for place in self.layout.places(worker.worker_id):
            parent = self.parent(place)
            main = self._main(place, worker)
            edges.append(
                Edge(
                    self.object_id,
                    place.chain.stripe,
                    main.epoch,
                    parent.peer if parent else None,
                    main.slot,
                    self._fallbacks(place, worker),
                    self._children(place),
                    Dialer.CHILD if parent is None else dialer(parent, worker),
                    main.expected_bytes_per_s,
                    self.stripes,
                )
            )
        return edges

    def _children(self, place: Place) -> tuple[ChildSlot, ...]:
        member = self.layout.child(place)
        child = None if member is None else self.workers.get(member)
        parent = self.workers.get(place.chain.members[place.position])
        if child is None or parent is None:
            return ()
        issued = self._main(Place(place.chain, place.position + 1), child)
        return (ChildSlot(child.peer, 0, child.generation, issued.epoch, dialer(parent, child)),)

    def of_origin(self, origin: Worker) -> list[Edge]:
        edges = []
        for stripe in self.layout.stripes or [0]:
            slots = []
            for chain in self.layout.of_stripe(stripe):
                head = self.workers.get(chain.members[0]) if chain.members and not chain.rooted else None
                if head is not None:
                    issued = self._main(Place(chain, 0), head)
                    slots.append(ChildSlot(head.peer, chain.slot, head.generation, issued.epoch, dialer(origin, head)))
            wanted = Issued("", 0, 0, origin.generation, 0, 0)
            epoch = self._issue(self.book.main, (stripe, origin.worker_id), wanted).epoch
            edges.append(Edge(self.object_id, stripe, epoch, None, 0, (), tuple(slots), stripes=self.stripes))
        return edges
