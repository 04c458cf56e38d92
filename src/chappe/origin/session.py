"""The origin's stream to the coordinator: what it offers goes up, whom it may serve comes down.

Knows the objects it offers only by their identity; it neither reads nor hashes. What it decides: when to dial again,
and that an object which the desired state named and names no more is not wanted any more.

    dial ──▶ Hello ──▶ Welcome ──▶ every offer again ──▶ Assignment* / heartbeats ──▶ stream lost: dial again
                └───▶ Refused: over, `failed` says why                        └──▶ leave(): Leaving ──▶ Released: over

Offers are state, not messages: after a reconnect, also to a restarted coordinator, each is sent again with its root.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio

from chappe.core.events import LinkSample
from chappe.core.manifest import ObjectKind
from chappe.core.probes import ProbeOrder, ProbeOutcome
from chappe.errors import BadTokenError, CoordinatorUnavailableError, PeerError, RefusedError
from chappe.hop.guard import AssignedChild, EdgeGuard
from chappe.hop.pushes import PushEdge
from chappe.hop.source import Signal
from chappe.origin.calls import REFUSED_CODES, retry_delay_s
from chappe.publication import PublicationWanted
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc, relay_pb2
from chappe.wire.relay_messages import decode_probe_order, decode_pushes, encode_links, encode_probe_outcome

log = logging.getLogger(__name__)  # a library in somebody's trainer: nothing is printed uninvited

PROTOCOL_VERSION = 1
_FAILURES_KEPT = 16
_HEARTBEAT_S = 1.0  # until Welcome says otherwise

_KINDS = {
    ObjectKind.FULL: relay_pb2.OBJECT_KIND_FULL,
    ObjectKind.FULL_COMPRESSED: relay_pb2.OBJECT_KIND_FULL_COMPRESSED,
    ObjectKind.DELTA: relay_pb2.OBJECT_KIND_DELTA,
}


@dataclass(slots=True)
class ObjectOffer:
    """One object that this origin holds. With `open_end` it is still being made, and what it has is an estimate."""

    object_id: str
    version: int
    payload_bytes: int
    snapshot_bytes: int
    chunks_total: int
    root: str = ""
    kind: ObjectKind = ObjectKind.FULL
    changed_elements: int = 0  # of a delta, of those that have a base
    compared_elements: int = 0
    changed_bytes: int = 0
    open_end: bool = False
    named: bool = field(default=False, init=False)  # the present stream's desired state has named it

    def message(self) -> pb.JoinRequest:
        return pb.JoinRequest(
            offer=pb.Offer(
                object_id=self.object_id,
                version=self.version,
                kind=_KINDS[self.kind],
                payload_bytes=self.payload_bytes,
                snapshot_bytes=self.snapshot_bytes,
                chunks_total=self.chunks_total,
                root=self.root,
                changed_elements=self.changed_elements,
                compared_elements=self.compared_elements,
                changed_bytes=self.changed_bytes,
                open_end=self.open_end,
            )
        )


def _failed(object_id: str, reason: str) -> pb.JoinRequest:
    return pb.JoinRequest(source_failed=pb.SourceFailed(object_id=object_id, reason=reason))


class OriginSession:
    """One publisher's place in the fleet. Create, `start`, `ready`; `leave` at the end. All on one event loop.

    `open_channel` gives a fresh channel to the coordinator. `on_unwanted` is called with the id of an object that the
    coordinator does not want served any more (superseded, cancelled, or long installed); the offer is gone by then.
    `on_children` with all whom it may serve, and those of them that it has to dial; `on_probe` with what to measure;
    `on_wanted` when the coordinator asks for a version.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        name: str,
        address: str,
        data_port: int = 0,
        uplink_bytes_per_s: float | None,
        open_channel: Callable[[], grpc.aio.Channel],
        coordinator: str,
        guard: EdgeGuard,
        on_unwanted: Callable[[str], None],
        on_children: Callable[[list[AssignedChild], list[PushEdge]], None],
        on_probe: Callable[[ProbeOrder], None],
        on_wanted: Callable[[PublicationWanted], None],
    ) -> None:
        self.worker_id, self.name = worker_id, name
        self.run = ""
        """Of the fleet, from the first Welcome on: a coordinator of another run is not followed."""
        self.signal = Signal()
        """Fires when `joined` or `failed` changes."""
        self.joined = False
        self.failed: RefusedError | None = None
        self._address, self._data_port, self._uplink_bytes_per_s = address, data_port, uplink_bytes_per_s
        self._open_channel, self._coordinator = open_channel, coordinator
        self._guard, self._on_unwanted = guard, on_unwanted
        self._on_children, self._on_probe, self._on_wanted = on_children, on_probe, on_wanted
        self._learner: pb.LearnerProgress | None = None  # said again on every stream
        self._offers: dict[str, ObjectOffer] = {}
        self._failures: dict[str, str] = {}  # the last few: said again on every stream, one may have been lost
        self._outbox: asyncio.Queue[pb.JoinRequest] = asyncio.Queue()
        self._heartbeat_s = _HEARTBEAT_S
        self._epoch = 0
        self._problem = "not dialled yet"
        self._released = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_joined(), name="origin session")

    async def ready(self, timeout_s: float | None) -> None:
        """Return once the coordinator has taken this origin. Raises CoordinatorUnavailableError, RefusedError."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.joined:
                    seen = self.signal.count
                    if self.failed is not None:
                        raise self.failed
                    await self.signal.wait(seen)
        except TimeoutError:
            raise CoordinatorUnavailableError(
                f"the coordinator at {self._coordinator} did not answer within {timeout_s:g} s ({self._problem}): "
                "is it running there, and do both sides use TLS or neither?"
            ) from None

    async def leave(self, timeout_s: float) -> None:
        """Say goodbye, so that nobody waits for this origin's return, and end the stream."""
        if self.joined and self._task is not None and not self._task.done():
            self._outbox.put_nowait(pb.JoinRequest(leaving=pb.Leaving()))
            try:
                async with asyncio.timeout(timeout_s):
                    await self._released.wait()
            except TimeoutError:
                log.info("left without a release after %g s", timeout_s)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # ---- what this origin holds ------------------------------------------------------------------------------------

    def offer(self, offer: ObjectOffer) -> None:
        """The header is here and served from now on; again when the end of the object is known."""
        self._offers[offer.object_id] = offer
        self._failures.pop(offer.object_id, None)
        self._send(offer.message())

    def offer_again(self, version: int) -> None:
        """What is offered of a version, for a coordinator that may have heard it before it knew what to make of it."""
        for offer in self._offers.values():
            if offer.version == version:
                self._send(offer.message())

    def announce_root(self, object_id: str, root: str) -> None:
        """Hashing has ended and the files are still what they were: from now on the version is burned."""
        offer = self._offers.get(object_id)
        if offer is None:
            return  # not wanted any more
        offer.root = root
        self._send(pb.JoinRequest(root=pb.RootAnnounced(object_id=object_id, root=root)))

    def source_failed(self, object_id: str, reason: str) -> None:
        """This origin cannot go on with the object."""
        self._offers.pop(object_id, None)
        self._failures[object_id] = reason
        while len(self._failures) > _FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]
        self._send(_failed(object_id, reason))

    def withdraw(self, object_id: str) -> None:
        """Do not offer it again; the coordinator has been told another way, or will see that it is gone."""
        self._offers.pop(object_id, None)
        self._guard.forget(object_id)

    def report_links(self, samples: tuple[LinkSample, ...]) -> None:
        """What the hops of this origin have carried."""
        self._send(encode_links(samples))

    def report_learner(self, version: int, admitted: int, discarded: int) -> None:
        """How far the learner is, and how many trajectories it has admitted and found too old so far."""
        self._learner = pb.LearnerProgress(version=version, admitted=admitted, discarded=discarded)
        self._send(pb.JoinRequest(learner=self._learner))

    def report_probe(self, outcome: ProbeOutcome) -> None:
        self._send(encode_probe_outcome(outcome))

    def _send(self, message: pb.JoinRequest) -> None:
        if self.joined:  # else it is part of what the next stream begins with
            self._outbox.put_nowait(message)

    # ---- the stream ------------------------------------------------------------------------------------------------

    async def _keep_joined(self) -> None:
        failures = 0
        while self.failed is None and not self._released.is_set():
            try:
                async with self._open_channel() as channel:
                    await self._converse(coordinator_pb2_grpc.CoordinatorStub(channel))
                self._problem = "it closed the stream"
            except grpc.aio.AioRpcError as error:
                self._problem = f"{error.code().name}: {error.details()}"
                if error.code() in REFUSED_CODES:
                    self.failed = RefusedError(
                        f"the coordinator at {self._coordinator} does not take {self.name}: {error.details()}"
                    )
            except PeerError as error:
                self._problem = f"it broke the protocol: {error}"
            except RefusedError as error:
                self.failed = error
                log.error("%s", error)  # noqa: TRY400  # a traceback would say less
            failures = 0 if self.joined else failures + 1
            if self.joined and not self._released.is_set():
                log.warning("lost the coordinator at %s (%s); dialling again", self._coordinator, self._problem)
            self.joined = False
            self.signal.fire()
            if self.failed is None and not self._released.is_set():
                await asyncio.sleep(retry_delay_s(failures + 1))

    async def _converse(self, stub: coordinator_pb2_grpc.CoordinatorStub) -> None:
        self._outbox = asyncio.Queue()
        for offer in self._offers.values():
            offer.named = False
        async for reply in stub.Join(self._requests(self._outbox)):
            match reply.WhichOneof("message"):
                case "welcome":
                    self._welcomed(reply.welcome)
                case "assignment":
                    self._assigned(reply.assignment)
                case "refused":
                    raise RefusedError(
                        f"the coordinator at {self._coordinator} refused {self.name}: {reply.refused.reason}"
                    )
                case "released":
                    self._released.set()
                    return
                case "probe":
                    self._on_probe(decode_probe_order(reply.probe))
                case "wanted":
                    wanted = reply.wanted
                    self._on_wanted(PublicationWanted(wanted.learner_version, wanted.fleet_version, wanted.reason))
                case _:  # of a newer coordinator: what it cannot leave out it would refuse
                    log.warning("an unknown message on Join")

    async def _requests(self, outbox: asyncio.Queue[pb.JoinRequest]) -> AsyncIterator[pb.JoinRequest]:
        yield pb.JoinRequest(
            hello=pb.Hello(
                protocol_version=PROTOCOL_VERSION,
                role=pb.ROLE_ORIGIN,
                worker_id=self.worker_id,
                name=self.name,
                generation=1,  # a publisher that is started again is another origin
                run=self.run,
                address=self._address,
                data_port=self._data_port,
                uplink_bytes_per_s=self._uplink_bytes_per_s or 0.0,
                assignment_epoch=self._epoch,
                stripes=True,
            )
        )
        while True:
            try:
                yield await asyncio.wait_for(outbox.get(), self._heartbeat_s)
            except TimeoutError:
                yield pb.JoinRequest(heartbeat=pb.Heartbeat())

    def _welcomed(self, welcome: pb.Welcome) -> None:
        if self.run and welcome.run != self.run:
            raise RefusedError(
                f"the coordinator at {self._coordinator} now belongs to run {welcome.run!r}, this publisher to "
                f"{self.run!r}: open a new Publisher for the new run"
            )
        try:
            self._guard.set_run(welcome.run, welcome.token_key)
        except BadTokenError as error:
            raise RefusedError(f"the coordinator at {self._coordinator}: {error}") from error
        self.run = welcome.run
        self._heartbeat_s = welcome.heartbeat_s or _HEARTBEAT_S
        for offer in self._offers.values():
            self._outbox.put_nowait(offer.message())
        if self._learner is not None:
            self._outbox.put_nowait(pb.JoinRequest(learner=self._learner))
        for object_id, reason in self._failures.items():
            self._outbox.put_nowait(_failed(object_id, reason))
        self.joined = True
        self.signal.fire()
        log.info("joined run %s at %s as %s", self.run, self._coordinator, self.name)

    def _assigned(self, assignment: pb.Assignment) -> None:
        children = [
            AssignedChild(
                object_id=edge.object_id,
                stripe=edge.stripe,
                slot=slot.slot,
                worker_id=slot.child.worker_id,
                name=slot.child.name,
                generation=slot.generation,
                epoch=slot.epoch,
            )
            for edge in assignment.edges
            for slot in edge.children
        ]
        pushes = [
            PushEdge(edge.object_id, edge.stripe, push) for edge in assignment.edges for push in decode_pushes(edge)
        ]
        self._on_children(children, pushes)
        self._epoch = assignment.epoch
        self._outbox.put_nowait(pb.JoinRequest(acknowledge=pb.Acknowledge(epoch=assignment.epoch)))
        wanted = {target.object_id for target in assignment.targets}
        for offer in list(self._offers.values()):
            if offer.object_id in wanted:
                offer.named = True
            elif offer.named:
                self.withdraw(offer.object_id)
                log.info("version %d is not wanted from here any more", offer.version)
                self._on_unwanted(offer.object_id)
