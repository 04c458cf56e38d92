"""Chains: who feeds whom, as ordered lists of workers.

A layout decides nothing: it keeps, per stripe, lists in which each worker is named at most once, and answers who is in
front of and behind whom. Since every edge is read off a list, one parent, at most one child and no cycle hold by
construction. It knows no epochs, addresses, sessions or clocks.

    source slot 0 ──▶ a ──▶ b ──▶ c        Chain(stripe=0, slot=0, members=[a, b, c])
    source slot 1 ──▶ d ──▶ e              Chain(stripe=0, slot=1, members=[d, e])
    (rooted)          f ──▶ g              its head holds the whole object and needs no source

Every change returns the workers whose edges may differ now: the one in front (its child slot) and those close enough
behind (their parent or their fallbacks). `SOURCE` stands for the origin among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

SOURCE = ""
FALLBACKS_MAX = 3
"""Ancestors beyond the parent for which a child holds a token: enough for two deaths at once and one more, and few
enough that a change touches only the neighbourhood, also in a chain of thousands."""


@dataclass(slots=True)
class Chain:
    stripe: int
    slot: int
    members: list[str] = field(default_factory=list)
    rooted: bool = False
    _at: dict[str, int] = field(default_factory=dict, repr=False, compare=False)  # position by member, once asked for

    def position(self, worker_id: str) -> int:
        if not self._at:
            self._at = {member: i for i, member in enumerate(self.members)}
        return self._at[worker_id]

    def changed(self) -> None:
        self._at = {}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker stands; position 0 is the head."""

    chain: Chain
    position: int


class Layout:
    """The chains of one object."""

    def __init__(self, chains: Iterable[Chain] = ()) -> None:
        self.chains: list[Chain] = list(chains)
        self._of: dict[str, dict[int, Chain]] = {}  # worker -> stripe -> chain
        for chain in self.chains:
            for member in chain.members:
                self._enter(chain, member)

    def _enter(self, chain: Chain, worker_id: str) -> None:
        chains = self._of.setdefault(worker_id, {})
        if chain.stripe in chains:
            raise ValueError(f"{worker_id} is in two chains of stripe {chain.stripe}")
        chains[chain.stripe] = chain

    # ---- reading ----

    @property
    def stripes(self) -> list[int]:
        return sorted({chain.stripe for chain in self.chains})

    def of_stripe(self, stripe: int) -> list[Chain]:
        return [chain for chain in self.chains if chain.stripe == stripe]

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._of

    def __bool__(self) -> bool:
        return bool(self._of)

    def workers(self) -> Iterator[str]:
        """Each worker once, chain by chain from the head."""
        return iter(dict.fromkeys(member for chain in self.chains for member in chain.members))

    def place(self, stripe: int, worker_id: str) -> Place | None:
        chain = self._of.get(worker_id, {}).get(stripe)
        return None if chain is None else Place(chain, chain.position(worker_id))

    def places(self, worker_id: str) -> list[Place]:
        chains = self._of.get(worker_id, {})
        return [Place(chains[stripe], chains[stripe].position(worker_id)) for stripe in sorted(chains)]

    def chains_of(self, worker_id: str) -> list[Chain]:
        return list(self._of.get(worker_id, {}).values())

    def ancestors(self, place: Place, most: int) -> list[str]:
        """The parent, its parent, and so on, at most so many; the source is the last one unless the chain is rooted."""
        members = place.chain.members
        above = [members[i] for i in range(place.position - 1, max(-1, place.position - 1 - most), -1)]
        if len(above) < most and not place.chain.rooted:
            above.append(SOURCE)
        return above

    def child(self, place: Place) -> str | None:
        members = place.chain.members
        return members[place.position + 1] if place.position + 1 < len(members) else None

    # ---- changing ----

    def _near(self, chain: Chain, position: int) -> set[str]:
        """Whose edges can have changed when something changed at this position."""
        near = set(chain.members[max(0, position - 1) : position + FALLBACKS_MAX + 2])
        if position <= 1:
            near.add(SOURCE)
        return near

    def insert(self, chain: Chain, worker_id: str, position: int | None = None) -> set[str]:
        self._enter(chain, worker_id)
        at = len(chain.members) if position is None else position
        chain.members.insert(at, worker_id)
        chain.changed()
        return self._near(chain, at)

    def remove_from(self, chain: Chain, worker_id: str) -> set[str]:
        at = chain.position(worker_id)
        near = self._near(chain, at)
        del chain.members[at]
        chain.changed()
        del self._of[worker_id][chain.stripe]
        if not self._of[worker_id]:
            del self._of[worker_id]
        return near

    def remove(self, worker_id: str) -> set[str]:
        """Take a worker out of every stripe: its children move up to its predecessors."""
        near: set[str] = set()
        for place in self.places(worker_id):
            near |= self.remove_from(place.chain, worker_id)
        return near

    def move_to_end(self, chain: Chain, worker_id: str) -> set[str]:
        near = self.remove_from(chain, worker_id)
        return near | self.insert(chain, worker_id)

    def rotate(self, chain: Chain, head: str) -> set[str]:
        """Make this member the head; those in front of it follow at the end. One edge changes."""
        at = chain.position(head)
        before = chain.members[:at]
        chain.members = chain.members[at:] + before
        chain.changed()
        tail = chain.members[-1]  # the new head was its child
        return {*chain.members[: FALLBACKS_MAX + 2], *self._near(chain, len(chain.members) - at), tail, SOURCE}

    def join(self, onto: Chain, chain: Chain) -> set[str]:
        """Hang a whole chain behind the tail of another one. One edge changes; the emptied chain keeps its slot."""
        at = len(onto.members)
        for member in chain.members:
            self._of[member][chain.stripe] = onto
        onto.members.extend(chain.members)
        chain.members = []
        chain.rooted = False
        chain.changed()
        onto.changed()
        return self._near(onto, at) | {SOURCE}

    def transplant(self, place: Place, onto: Chain, at: int) -> set[str]:
        """A segment, from this place to the end of its chain, to this position of another chain of its stripe, or in
        front of where it is in its own. Two edges change: the segment's, and that of who comes behind it."""
        chain = place.chain
        segment = chain.members[place.position :]
        if onto.stripe != chain.stripe or (onto is chain and at >= place.position):
            raise ValueError(f"a segment of stripe {chain.stripe} to position {at} of stripe {onto.stripe}")
        near = self._near(chain, place.position)
        del chain.members[place.position :]
        onto.members[at:at] = segment
        for member in segment:
            self._of[member][onto.stripe] = onto
        chain.changed()
        onto.changed()
        return near | self._near(onto, at) | self._near(onto, at + len(segment))

    def near(self, worker_id: str) -> set[str]:
        """Whose edges name this worker, or its generation or address."""
        near: set[str] = {worker_id}
        for place in self.places(worker_id):
            near |= self._near(place.chain, place.position)
        return near

    # ---- choosing ----

    def open_slot(self, stripe: int) -> Chain:
        """An empty chain of its own: one that has emptied, or a new one with the next slot."""
        for chain in self.of_stripe(stripe):
            if not chain.members:
                return chain
        chain = Chain(stripe, 1 + max((c.slot for c in self.of_stripe(stripe)), default=-1))
        self.chains.append(chain)
        return chain

    def shortest(self, stripe: int, usable: Callable[[Chain], bool]) -> Chain | None:
        return min(filter(usable, self.of_stripe(stripe)), key=lambda c: (len(c.members), c.slot), default=None)

    # ---- keeping ----

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"stripe": c.stripe, "slot": c.slot, "members": list(c.members), "rooted": c.rooted} for c in self.chains
        ]

    @classmethod
    def from_json(cls, data: list[dict[str, Any]]) -> Layout:
        return cls(Chain(c["stripe"], c["slot"], list(c["members"]), c["rooted"]) for c in data)
