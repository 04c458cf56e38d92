"""What a simulated node has of an object: which chunks, and whether their bytes are the true ones.

Content is a number per chunk: 0 is what the publisher has, anything else is not. Only chunks that are not 0 somewhere
are written down. Three places can differ: what this node's pages promise, what arrived (the leaf digests, and with them
the root, are made then), and what lies on the disk now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chappe.core.manifest import CHUNKS_PER_PAGE
from chappe.core.ranges import Range, RangeSet
from chappe.core.stripemap import PLAIN, StripeMap

if TYPE_CHECKING:
    from chappe.sim.flow import Stream
    from chappe.sim.tracks import Track


WHOLE = -1
"""In the place of a stripe: all of them, as a publisher hashes."""


@dataclass(frozen=True, slots=True)
class SimObject:
    """One published object. The root stands for the bytes: two objects of one snapshot share it.

    A delta, or a compressed snapshot, leads to the bytes of `full_id`, from the snapshot with `base_root`, if any.
    """

    object_id: str
    version: int
    chunks_total: int
    chunk_bytes: int
    payload_bytes: int
    root: str
    kind: str = "full"
    base_root: str = ""
    full_id: str = ""
    folded: bool = False  # it begins further back than at the version before
    open_end: bool = False  # it leaves while it is made: how many chunks there are is on its last page
    per_page: int = CHUNKS_PER_PAGE
    spoiled: bool = False  # its publisher has made a wrong one


def pieces(ranges: list[Range], start: int, stop: int) -> list[Range]:
    """Items number [start, stop) of the numbers that the ranges list, as ranges."""
    found: list[Range] = []
    for a, b in ranges:
        size = b - a
        if start < size and stop > 0:
            found.append((a + max(0, start), a + min(size, stop)))
        start -= size
        stop -= size
        if stop <= 0:
            break
    return found


@dataclass(slots=True, eq=False)
class Copy:
    object: SimObject
    held: RangeSet = field(default_factory=RangeSet)
    header: bool = False
    pages_upto: int = 0  # chunks below it have their page here
    page_tags: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)
    at_rest: dict[int, int] = field(default_factory=dict)
    rotted: set[int] = field(default_factory=set)  # by a fault, after they had arrived whole
    stripes: StripeMap = PLAIN  # of what is coming in
    tracks: dict[int, Track] = field(default_factory=dict)  # what is coming in now, by stripe
    upstreams: dict[int, Copy] = field(default_factory=dict)  # where it comes from
    children: list[Stream] = field(default_factory=list)
    forged: int | None = None  # a chunk that will come with a page that is wrong in the same way
    false_page: tuple[int, int] | None = None  # a chunk, and the stripe in which its page will come false
    version: int = 0  # it has landed as
    applied: bool = False  # of a delta: the full object has been made out of it
    told: tuple[int, bool] = (0, False)  # chunks and header, as last reported
    expected: RangeSet = field(default_factory=RangeSet)  # here, but for the pages that would prove it
    doubtful: set[int] = field(default_factory=set)  # of these the pages will say otherwise
    salvaged: bool = False  # it began as what a delta has made right

    @property
    def total(self) -> int | None:
        """How many chunks there are, where that is known."""
        known = self.header and (not self.object.open_end or self.pages_upto >= self.object.chunks_total)
        return self.object.chunks_total if known else None

    @property
    def pages_known(self) -> int:
        """Chunks below it have their page here."""
        return self.object.chunks_total if self.complete else self.pages_upto

    @property
    def complete(self) -> bool:
        return self.header and len(self.held) == self.object.chunks_total

    def settle(self, now: float) -> None:
        """Take in what has come by now."""
        for track in list(self.tracks.values()):
            track.settle(now)

    def track(self, stripe: int) -> Track | None:
        """On which chunks of this stripe are coming in."""
        return self.tracks.get(stripe) or self.tracks.get(WHOLE)

    def store(self, ranges: list[Range], source: Copy | None, stripe: int = WHOLE) -> int:
        """Chunks that came from `source` (None: nothing there can be false) and were found to match their pages.
        Returns how many are new."""
        before = len(self.held)
        for start, stop in ranges:
            if source is not None:
                self._store_odd(start, stop, source)
            if self.false_page is not None:
                self._false_page(stop, stripe)
            if self.forged is not None and start <= self.forged < stop:
                for tags in (self.page_tags, self.arrived, self.at_rest):
                    tags[self.forged] = 1
                self.forged = None
            self.held.add(start, stop)
            self.pages_upto = max(self.pages_upto, self._page_end(stop))
        new = len(self.held) - before
        if self.expected:
            self.prove(self.pages_upto, {chunk for chunk, tag in self.page_tags.items() if tag})
        return new

    def prove(self, upto: int, false: set[int]) -> bool:
        """Pages of the chunks below `upto` have come; those of `false` are not true. What is here and right is held."""
        here = list(self.expected.within(0, upto))
        for start, stop in here:
            self.held.add(start, stop)
            self.expected.discard(start, stop)
            for chunk in false | self.doubtful:
                if start <= chunk < stop:
                    self.held.discard(chunk, chunk + 1)
        return bool(here)

    def _false_page(self, stop: int, stripe: int) -> None:
        """A page is believed whoever brings it first."""
        assert self.false_page is not None
        chunk, liar = self.false_page
        if self.pages_upto <= chunk < self._page_end(stop):
            self.false_page = None
            if stripe == liar:
                self.page_tags[chunk] = 1
            elif self.forged == chunk:
                self.forged = None

    def _store_odd(self, start: int, stop: int, source: Copy) -> None:
        for chunk in source.odd():
            if self.pages_upto <= chunk < self._page_end(stop) and source.page(chunk):
                self.page_tags[chunk] = source.page(chunk)
        for chunk in {*self.page_tags, *source.odd()}:
            if start <= chunk < stop:
                content = source.content(chunk)
                for tags in (self.arrived, self.at_rest):
                    if content:
                        tags[chunk] = content
                    else:
                        tags.pop(chunk, None)

    # Transfers settle when somebody looks: what is not here yet is looked up where it comes from.

    def _sources(self, chunk: int) -> Iterator[Copy]:
        """This copy, the one that this chunk comes from, and so on; each once, for streams may go round in a circle for
        a while."""
        seen: list[Copy] = []
        node: Copy | None = self
        while node is not None and not any(node is other for other in seen):
            seen.append(node)
            yield node
            node = node.upstreams.get(node.stripes.stripe_of(chunk))

    def _all_sources(self) -> list[Copy]:
        found: list[Copy] = [self]
        for node in found:  # grows meanwhile
            found += [up for up in node.upstreams.values() if not any(up is other for other in found)]
        return found

    def odd(self) -> set[int]:
        """Chunks of which something is written down, here or where they come from."""
        found: set[int] = set()
        for node in self._all_sources():
            found.update(node.page_tags, node.at_rest)
            if node.forged is not None:
                found.add(node.forged)
        return found

    def content(self, chunk: int) -> int:
        """Of a chunk that is here or will be."""
        content = 0
        for node in self._sources(chunk):
            if chunk == node.forged:
                return 1
            content = node.at_rest.get(chunk, 0)
            if chunk in node.held:
                break
        return content

    def page(self, chunk: int) -> int:
        """What its page says of it, or will."""
        tag = 0
        for node in self._sources(chunk):
            if chunk == node.forged:
                return 1
            tag = node.page_tags.get(chunk, 0)
            if chunk < node.pages_upto:
                break
        return tag

    def mismatches(self, source: Copy) -> list[int]:
        """Chunks that would not match their page here if they came from there, in order."""
        bad: list[int] = []
        for chunk in sorted({*self.page_tags, *source.odd()}):
            page = self.page_tags.get(chunk, 0) if chunk < self.pages_upto else source.page(chunk)
            if chunk not in self.held and chunk != self.forged and source.content(chunk) != page:
                bad.append(chunk)
        return bad

    def rot(self, chunk: int) -> None:
        self.at_rest[chunk] = 2
        self.rotted.add(chunk)

    def drop(self, chunk: int) -> None:
        self.held.discard(chunk, chunk + 1)
        self.rotted.discard(chunk)
        self.at_rest.pop(chunk, None)
        self.arrived.pop(chunk, None)

    def recheck(self, chunks: tuple[int, ...]) -> list[int]:
        """Those that are held and are not what their page says are dropped."""
        rotten = [c for c in chunks if c in self.held and self.at_rest.get(c, 0) != self.page_tags.get(c, 0)]
        for chunk in rotten:
            self.drop(chunk)
        return rotten

    def false_chunks(self) -> list[int]:
        """Held, not true, and not by a fault of the disk that nobody has noticed yet."""
        return sorted(c for c, tag in self.at_rest.items() if tag and c in self.held and c not in self.rotted)

    def _page_end(self, stop: int) -> int:
        return -(-stop // self.object.per_page) * self.object.per_page
