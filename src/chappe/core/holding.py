"""One object at one relay: how far it is. What moves it on is decided by `Transfer`, this only says what follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from chappe.core.effects import Target
from chappe.core.events import Holding, ObjectState
from chappe.core.ranges import Range
from chappe.core.relay_events import Restored
from chappe.core.stripemap import StripeMap

DOUBTS_OF_TWO, DOUBTS_OF_ONE = 2, 4
"""How many sources must have sent a chunk that does not match its page, or how often the only one, until it is the page
that is not believed: pages come from a parent too, and one that is wrong would accuse every honest source for ever."""


FAULT_SAID_AGAIN_S = 60.0
"""A fault is tried again every few seconds, and may last for hours."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The store is in the way: shown as this state until something gets further, tried again at `until_s`."""

    state: ObjectState
    reason: str
    until_s: float


@dataclass(slots=True)
class Held:
    """`version` and `root` are what it lands or has landed as; `waiting` survives the retry and ends with progress."""

    object_id: str
    chunks: tuple[Range, ...] = ()
    chunks_total: int | None = None
    version: int = 0
    root: str = ""
    landed: bool = False
    landing: bool = False
    installed: bool | None = None  # None: no answer yet
    mismatches: int = 0
    reason: str = ""
    waiting: Waiting | None = None
    doomed: bool = False
    delta: bool = False  # it has been applied: what landed is another object
    part: str = ""  # of a delta that failed: the object of which the store keeps what came out right
    doubted: int | None = None  # a chunk that did not match its page, and who sent it since
    doubters: list[str] = field(default_factory=list)
    said: dict[str, float] = field(default_factory=dict)  # when each cause was logged last

    @classmethod
    def restored(cls, r: Restored) -> Held:
        landed = r.version != 0
        installed = True if r.installed else None
        return cls(r.object_id, r.chunks, r.chunks_total, r.version, r.root, landed=landed, installed=installed)

    @property
    def complete(self) -> bool:
        return self.chunks_total is not None and sum(b - a for a, b in self.chunks) == self.chunks_total

    def lacks(self, stripes: StripeMap, stripe: int) -> bool:
        """Whether chunks of this stripe are missing. All are while nobody knows how many there are."""
        if stripes.plain or self.complete or self.chunks_total is None:
            return not self.complete
        return stripes.lacks(stripe, self.chunks, self.chunks_total)

    @property
    def state(self) -> ObjectState:
        if self.doomed or self.installed is False:
            return ObjectState.FAILED
        if self.landed:
            return ObjectState.INSTALLED if self.installed else ObjectState.VERIFIED
        if self.waiting is not None:
            return self.waiting.state
        return ObjectState.RECEIVED if self.complete else ObjectState.RECEIVING

    def holding(self) -> Holding:
        version, root = (self.version, self.root) if self.landed else (0, "")
        reason = self.reason if self.waiting is None else self.waiting.reason
        return Holding(self.object_id, self.state, version, root, self.chunks, self.chunks_total, reason)

    def wants_chunks(self, now: float) -> bool:
        held_up = self.waiting is not None and now < self.waiting.until_s
        return not (self.landing or self.doomed or self.complete or held_up)

    def may_land(self, target: Target, now: float) -> bool:
        held_up = self.waiting is not None and now < self.waiting.until_s
        return bool(target.root) and self.complete and not (self.landed or self.landing or self.doomed or held_up)

    # ---- what happened: each returns whether anything changed that others should hear of ---------------------------

    def on_progress(self, chunks: tuple[Range, ...], total: int | None) -> bool:
        if (chunks, total) == (self.chunks, self.chunks_total):
            return False
        further = _count(chunks) > _count(self.chunks) or (self.chunks_total is None and total is not None)
        self.chunks, self.chunks_total = chunks, total
        if further:
            self.waiting = None
        return True

    def on_mended(self) -> None:
        self.reason = ""

    def on_dropped(self, chunks: tuple[Range, ...]) -> bool:
        """Rot: what is left. A landed version stays what it was, its readers are told by `chappe verify`."""
        if chunks == self.chunks:
            return False
        self.chunks = chunks
        if self.landed:
            self.reason = "some of the landed copy has rotted and is fetched again"
        return True

    def on_fault(self, waiting: Waiting, cause: str, now: float) -> bool:
        """True: this cause is news, or was said long ago. What the waiting says may differ with each try."""
        self.waiting = waiting
        if now < self.said.get(cause, -math.inf) + FAULT_SAID_AGAIN_S:
            return False
        self.said[cause] = now
        return True

    def on_landing(self, target: Target) -> None:
        self.landing = True
        self.version, self.root = target.version, target.root

    def on_landed(self) -> None:
        self.landing, self.landed = False, True
        self.waiting, self.reason = None, ""

    def on_delta_failed(self, detail: str, part: str) -> None:
        """For good: the coordinator sends the version as another object. What is here of this one is still served."""
        self.landing, self.part = False, part
        self.doomed, self.reason = True, detail

    def on_root_mismatch(self, detail: str) -> bool:
        """True: start again from nothing. The second time it is given up: the source itself must be wrong."""
        self.landing = False
        self.mismatches += 1
        if self.mismatches > 1:
            self.doomed, self.reason = True, f"{detail}, again after a second transfer from scratch"
            return False
        self.on_reset()
        self.reason = f"{detail}: receiving it again from scratch"
        return True

    def on_corrupt(self, chunk: int, source: str) -> bool:
        """True: start again from nothing, the page here is wrong. What has landed has proven its pages by its root."""
        if self.doubted != chunk:
            self.doubted, self.doubters = chunk, []
        self.doubters.append(source)
        doubtful = len(set(self.doubters)) >= DOUBTS_OF_TWO or len(self.doubters) >= DOUBTS_OF_ONE
        if self.landed or not doubtful:
            return False
        self.on_reset()
        self.reason = f"chunk {chunk} matches its page from nobody: receiving it again from scratch"
        return True

    def on_reset(self) -> None:
        self.chunks, self.chunks_total = (), None
        self.doubted, self.doubters = None, []

    def on_installed(self, ok: bool, reason: str) -> None:
        self.installed, self.reason = ok, reason


def _count(chunks: tuple[Range, ...]) -> int:
    return sum(b - a for a, b in chunks)
