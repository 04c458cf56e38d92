"""A simulated publisher: offers, hashes while it serves, announces the root, and goes on for as long as it is needed.

A publisher that is started again is another origin with the same snapshot: what nobody can finish it publishes anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.events import Payload
from chappe.core.probes import ProbeOrder
from chappe.core.relay_events import Assigned, Released
from chappe.sim.clock import HostClock
from chappe.sim.copies import WHOLE, Copy, SimObject
from chappe.sim.encoding import Encoded, Encoder
from chappe.sim.flow import announce
from chappe.sim.node import Node
from chappe.sim.process import Line
from chappe.sim.tracks import Track
from chappe.wire.relay_messages import Welcomed

if TYPE_CHECKING:
    from chappe.sim.world import World

AGAIN_S = 1.0
TRIES = 60
WORTH_ANOTHER = (fx.PublishErrorKind.NO_WORKERS, fx.PublishErrorKind.INVALID, fx.PublishErrorKind.FAILED)
"""No workers yet, not joined as the coordinator sees it, or the publication came to nothing."""


@dataclass(slots=True)
class Job:
    """One publish call. `snapshot` numbers what is published."""

    snapshot: int
    object_id: str
    asked_s: float
    request: int = 0
    object: SimObject | None = None
    announced: bool = False  # hashing has ended
    named: bool = False
    over: bool = False  # the caller has its answer
    failed: bool = False  # its source: said to whom it may concern, on every stream
    stopped: bool = False  # nothing of it is wanted from here any more
    payload: Payload = Payload.AUTO
    share: float = 0.0  # of the snapshot's bytes: what has changed since the version before
    encode_s: float = 0.0  # of one object beside the full one
    spoiled: bool = False  # they lead to other bytes
    planned: list[Encoded] = field(default_factory=list)  # objects beside the full one that can be made
    wanted: list[Encoded] = field(default_factory=list)  # and those that somebody waits for


@dataclass(frozen=True, slots=True)
class Answer:
    """To a publish call, on its way down."""

    job: Job
    effect: fx.Effect


class Origin(Node):
    def __init__(self, world: World, worker_id: str, name: str, line: Line, clock: HostClock) -> None:
        super().__init__(world, worker_id, name, line, clock)
        self.jobs: list[Job] = []
        self.epoch = 0
        self.encoder = Encoder(self)

    def start(self) -> None:
        self.world.note(self.name, "starts", "")
        self.begin()

    def kill(self) -> None:
        if self.running:
            self.world.note(self.name, "killed", "")
        super().kill()

    def publish(self, snapshot: int) -> None:
        self.jobs.append(job := Job(snapshot, self.world.next_object_id(), self.agenda.now))
        self.encoder.plan(job)
        self._ask(job)

    def _ask(self, job: Job) -> None:
        """Also to take up again a call that was cut off."""
        if job.over or not self.joined or self.session is None:
            return
        job.request = self.world.next_request(self, job)
        size = self.world.config.payload_bytes
        elapsed_s = self.agenda.now - job.asked_s
        request = ev.PublishRequested(
            job.request, self.worker_id, job.object_id, 0, 1.0, self.world.config.topology, 0, size, elapsed_s
        )
        self.say(self.encoder.request(job, request))

    # ---- the coordinator -------------------------------------------------------------------------------------------

    def hello(self, session: int) -> object:
        uplink = self.line.uplink_bytes_per_s
        address = self.address
        return ev.Hello(
            self.worker_id,
            session,
            ev.Role.ORIGIN,
            self.name,
            1,
            address,
            uplink,
            assignment_epoch=self.epoch,
            no_dial_in=self.line.no_dial_in,
        )

    def on_message(self, message: object) -> None:
        match message:
            case Welcomed():
                self.welcomed()
                for job in self.jobs:
                    job.named = False
                    self._offer(job)
                    self.encoder.offer_again(job)
                    if job.failed:
                        self._say_failed(job)
                    self._ask(job)
            case Assigned(assignment):
                self.epoch = assignment.epoch
                self.admit_children(assignment)
                assert self.session is not None
                self.say(ev.Acknowledged(self.worker_id, self.session.number, assignment.epoch))
                self._forget_unwanted({target.object_id for target in assignment.targets})
            case ProbeOrder():
                self.desk.run(message)
            case Answer(job, effect):
                self.answered(job, effect)
            case Released():
                self.world.note(self.name, "released", "")

    def _forget_unwanted(self, wanted: set[str]) -> None:
        for job in self.jobs:
            self.encoder.unwanted(job, wanted)
            if job.object_id in wanted:
                job.named = True
            elif job.named and not job.stopped and not job.failed:
                self.encoder.stop(job)
                if job.object_id in self.copies:
                    self.drop_copy(self.copies.pop(job.object_id))
                    self.guard.forget(job.object_id)

    def answered(self, job: Job, answer: fx.Effect) -> None:
        """To the publish call."""
        match answer:
            case fx.PublishAccepted(version=version, chunk_bytes=chunk_bytes):
                if job.object is None:
                    self.encoder.accepted(job, answer.base_roots, answer.compressed)
                    self._open(job, version, chunk_bytes)
            case fx.PublishFinished():
                job.over = True
            case fx.RequestRefused(_, kind, message):
                self.world.note(self.name, "publish refused", message)
                job.over = True
                newest = all(other.snapshot <= job.snapshot for other in self.jobs)
                tried = sum(other.snapshot == job.snapshot for other in self.jobs)
                if newest and not job.failed and kind in WORTH_ANOTHER and tried < TRIES:
                    self.later(AGAIN_S, self._again, job.snapshot)
            case _:
                pass

    def _again(self, snapshot: int) -> None:
        if all(job.over or job.snapshot < snapshot for job in self.jobs):
            self.publish(snapshot)

    def _open(self, job: Job, version: int, chunk_bytes: int) -> None:
        config, now = self.world.config, self.agenda.now
        size = config.payload_bytes
        chunks = -(-size // chunk_bytes)
        root = f"xxh3_128:{job.snapshot:032x}"
        job.object = SimObject(job.object_id, version, chunks, chunk_bytes, size, root)
        self.world.objects[job.object_id] = job.object
        copy = self.copies[job.object_id] = Copy(job.object, header=True)
        self._offer(job)
        copy.tracks[WHOLE] = Track([(0, chunks)], now, lambda ranges: copy.store(ranges, None))
        rate = config.hash_bytes_per_s / chunk_bytes
        copy.tracks[WHOLE].turn(now, rate)
        self.later(chunks / rate, self._hashed, job, copy)
        self.encoder.opening(job)

    def _hashed(self, job: Job, copy: Copy) -> None:
        copy.settle(self.agenda.now)
        del copy.tracks[WHOLE]
        announce(self.agenda, copy, WHOLE, replanned=True)
        if job.failed:
            return
        job.announced = True
        if self.session is not None and job.object is not None:
            self.say(ev.RootAnnounced(self.worker_id, self.session.number, job.object_id, job.object.root))
        self.encoder.begin(job)

    def _offer(self, job: Job) -> None:
        if job.object is None or job.object_id not in self.copies or job.failed or self.session is None:
            return
        o = job.object
        root = o.root if job.announced else ""
        self.say(
            ev.Offered(
                self.worker_id,
                self.session.number,
                o.object_id,
                o.version,
                "full",
                o.payload_bytes,
                o.payload_bytes,
                o.chunks_total,
                root,
            )
        )

    # ---- its files ------------------------------------------------------------------------------------------------

    def fail_source(self) -> bool:
        """The files under the newest publication change."""
        job = self.jobs[-1] if self.jobs else None
        if job is None or job.object_id not in self.copies:
            return False
        job.failed = True
        self.drop_copy(self.copies.pop(job.object_id))
        self._say_failed(job)
        return True

    def _say_failed(self, job: Job) -> None:
        if self.session is not None:
            self.say(ev.SourceFailed(self.worker_id, self.session.number, job.object_id, "its files have changed"))

    def recheck(self, copy: Copy, chunks: tuple[int, ...]) -> None:
        copy.recheck(chunks)  # its files are what they were: they rot only at relays here
