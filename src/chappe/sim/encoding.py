"""What a simulated publisher sends beside the full object: deltas and compressed snapshots, as `chappe.origin` does.

    kept on its host ──▶ a request names what can be made ──▶ accepted: what is wanted (what leaves while it is made
                                                                        goes on in `streaming`)
        ──root known──▶ made, one after the other ──▶ offered, served ──▶ not wanted any more, or cannot be gone on with

What is in a delta is of no interest here: only where it begins, what it leads to, and how many bytes it has. The host
of the publisher outlives its processes, and so does what is kept there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chappe.core import events as ev
from chappe.core.bases import NOTHING
from chappe.core.events import Compressed, DeltaFrom, Payload
from chappe.core.lanes import COMPRESSED, DELTA
from chappe.core.manifest import CHUNK_BYTES_PLAIN, CHUNKS_PER_PAGE
from chappe.core.ranges import RangeSet
from chappe.origin.growing import pages_of
from chappe.sim import streaming
from chappe.sim.copies import Copy, SimObject

if TYPE_CHECKING:
    from chappe.sim.origin import Job, Origin
    from chappe.sim.world import World

WORTH_SHARE = 0.85
"""Of the snapshot's bytes: a larger delta is not made."""
KEPT_MOST = 16
MADE_S, STREAMED_S = (0.05, 0.4), (0.2, 3.0)
"""For a gigabit of the snapshot. What is served meanwhile may take its time: that is when things go wrong."""
COMPRESSED_SHARE = 0.69


@dataclass(frozen=True, slots=True)
class Step:
    """A published version, and what the delta to it from the one before has of the snapshot's bytes."""

    root: str
    share: float


@dataclass(slots=True)
class Trainer:
    """The publisher's host: what is published how, and what of it is kept."""

    payload: Payload
    shares: tuple[float, ...]  # what changes between two versions is one of these
    compresses: bool
    streams: bool = False  # what is made leaves while it is
    steps: list[Step] = field(default_factory=list)  # oldest first; the last one is the base
    spoils: bool = False  # the deltas that are made next lead to other bytes

    def bases(self, share: float) -> Iterator[tuple[str, float]]:
        """Where deltas to the next version can begin, the newest first, and what each has of the snapshot's bytes."""
        roots: list[str] = []
        for step in reversed(self.steps):
            if share > WORTH_SHARE:
                return
            if step.root not in roots:
                roots.append(step.root)
                yield step.root, share
            share += step.share

    def published(self, root: str, share: float) -> None:
        self.steps = [*self.steps, Step(root, share)][-KEPT_MOST:]


@dataclass(slots=True)
class Encoded:
    """One object beside the full one. `made` when it is offered."""

    object_id: str
    base_root: str
    payload_bytes: int
    made: SimObject | None = None
    estimate_bytes: int = 0  # what is told of it while its end is open
    whole: bool = False  # all of it is made, but for its end
    closed: bool = False  # and its end
    named: bool = False
    failed: str = ""  # why it does not come, or no more

    @property
    def kind(self) -> str:
        return COMPRESSED if self.base_root == NOTHING else DELTA


class Encoder:
    """Of one publisher process."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    @property
    def _world(self) -> World:
        return self.origin.world

    @property
    def _trainer(self) -> Trainer | None:
        return self._world.trainer

    # ---- the request -----------------------------------------------------------------------------------------------

    def plan(self, job: Job) -> None:
        """What can be made for it."""
        trainer, rng, size = self._trainer, self._world.random, self._world.config.payload_bytes
        if trainer is None:
            return
        refused = any(other.snapshot == job.snapshot for other in self.origin.jobs if other is not job)
        insists = trainer.payload is Payload.DELTA
        job.payload = Payload.AUTO if insists and (refused or not trainer.steps) else trainer.payload
        job.share = rng.choice(trainer.shares)
        if job.payload in (Payload.AUTO, Payload.DELTA):
            job.planned = [self._encoded(root, share) for root, share in trainer.bases(job.share)]
        if job.payload is Payload.COMPRESSED or (job.payload is Payload.AUTO and trainer.compresses):
            job.planned.append(self._encoded(NOTHING, COMPRESSED_SHARE))
        job.encode_s = rng.uniform(*(STREAMED_S if trainer.streams else MADE_S)) * size / 125e6
        job.spoiled, trainer.spoils = trainer.spoils, False

    def _encoded(self, base_root: str, share: float) -> Encoded:
        return Encoded(self._world.next_object_id(), base_root, max(1, round(share * self._world.config.payload_bytes)))

    def request(self, job: Job, asked: ev.PublishRequested) -> ev.PublishRequested:
        """The request, with what can be made."""
        if self._trainer is None:
            return asked
        deltas = tuple(DeltaFrom(e.base_root, e.object_id) for e in job.planned if e.base_root != NOTHING)
        compressed = next((e for e in job.planned if e.base_root == NOTHING), None)
        return ev.PublishRequested(
            asked.request,
            asked.origin_id,
            asked.object_id,
            asked.version,
            asked.until,
            asked.topology,
            asked.chains,
            asked.snapshot_bytes,
            asked.elapsed_s,
            job.payload,
            deltas,
            "" if deltas else "the publisher keeps no base",
            compressed=None
            if compressed is None
            else Compressed(compressed.object_id, compressed.payload_bytes, asked.snapshot_bytes / job.encode_s, 2e9),
        )

    def accepted(self, job: Job, base_roots: tuple[str, ...], compressed: bool) -> None:
        wanted = {*base_roots, *([NOTHING] if compressed else [])}
        job.wanted = [one for one in job.planned if one.base_root in wanted]

    # ---- making ----------------------------------------------------------------------------------------------------

    def opening(self, job: Job) -> None:
        """The full object is offered: what leaves while it is made is begun."""
        if self._trainer is not None and self._trainer.streams:
            streaming.begin(self, job)

    def serves(self, one: Encoded) -> bool:
        return not one.failed and one.object_id in self.origin.copies

    def begin(self, job: Job) -> None:
        """The root is known. The deltas come first, then the compressed snapshot, as threads have time."""
        if self._trainer is None or job.object is None:
            return
        self._trainer.published(job.object.root, job.share)
        if self._trainer.streams:
            for one in job.wanted:
                streaming.close(self, job, one)
            return
        for number, one in enumerate(job.wanted):
            self.origin.later((number + 1) * job.encode_s, self._made, job, one)

    def _made(self, job: Job, one: Encoded) -> None:
        origin, full = self.origin, job.object
        if job.stopped or one.failed or full is None:
            return
        if job.failed:
            self.fail(one, "the snapshot's files have changed")
            return
        made = self.object_of(job, one)
        origin.copies[one.object_id] = Copy(made, RangeSet([(0, made.chunks_total)]), header=True)
        self.offer(job, one)

    def object_of(self, job: Job, one: Encoded, *, open_end: bool = False) -> SimObject:
        """What there is to be served of it now, or will be."""
        full = job.object
        assert full is not None  # the request is accepted
        chunk_bytes = max(CHUNK_BYTES_PLAIN, full.chunk_bytes if one.base_root == NOTHING else 0)
        one.made = SimObject(
            one.object_id,
            full.version,
            -(-one.payload_bytes // chunk_bytes),
            chunk_bytes,
            one.payload_bytes,
            full.root,
            one.kind,
            one.base_root,
            full.object_id,
            folded=one.kind == DELTA and one is not job.planned[0],
            spoiled=job.spoiled,
            open_end=open_end,
            per_page=pages_of(chunk_bytes) if open_end else CHUNKS_PER_PAGE,
        )
        self._world.objects[one.object_id] = one.made
        self._world.counts[f"{one.kind} offered"] += 1
        return one.made

    def offer(self, job: Job, one: Encoded) -> None:
        origin = self.origin
        if origin.session is None or one.made is None or job.object is None:
            return
        open_end = one.made.open_end and not one.closed
        size, chunks = one.payload_bytes, one.made.chunks_total
        if open_end:
            size = one.estimate_bytes
            chunks = -(-size // one.made.chunk_bytes)
        origin.say(
            ev.Offered(
                origin.worker_id,
                origin.session.number,
                one.object_id,
                one.made.version,
                one.kind,
                size,
                job.object.payload_bytes,
                chunks,
                open_end=open_end,
            )
        )

    # ---- while it goes on ------------------------------------------------------------------------------------------

    def offer_again(self, job: Job) -> None:
        """On a new stream."""
        for one in job.wanted:
            one.named = False
            if one.failed:
                self._say_failed(one)
            elif one.object_id in self.origin.copies:
                self.offer(job, one)

    def unwanted(self, job: Job, wanted: set[str]) -> None:
        """The desired state says who is served: what it named and names no more is let go of."""
        for one in job.wanted:
            if one.object_id in wanted:
                one.named = True
            elif one.named:
                self._let_go(one)

    def fail(self, one: Encoded, reason: str) -> None:
        """It cannot be made, or not be read any more."""
        one.failed = reason
        self._let_go(one)
        self._say_failed(one)

    def stop(self, job: Job) -> None:
        """Nothing of the version is wanted from here any more."""
        job.stopped = True
        for one in job.wanted:
            self._let_go(one)

    def _let_go(self, one: Encoded) -> None:
        copy = self.origin.copies.pop(one.object_id, None)
        if copy is not None:
            self.origin.drop_copy(copy)
            self.origin.guard.forget(one.object_id)

    def _say_failed(self, one: Encoded) -> None:
        origin = self.origin
        if origin.session is not None:
            origin.say(
                ev.SourceFailed(origin.worker_id, origin.session.number, one.object_id, f"no delta: {one.failed}")
            )
