"""The life of one publication at its origin: the Publish call, serving, hashing, and what each answer comes to.

    Publish call ──▶ Accepted ──▶ Offer, serve ──▶ hash, page by page ──▶ root announced ──▶ ... ──▶ finished
               ├──▶ Accepted with an object and its root, whose publisher went away ──▶ hash here, compare, Offer
               └──▶ AlreadyPublished: hash here, compare, send nothing
    Accepted with a base ──▶ encode a delta meanwhile, and serve it while it is made, as a second object

Decides nothing about the fleet. Here is decided what an answer of the coordinator means to the caller, and when a
call is made again: a coordinator that is away is waited for, and finds the publication by its object.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio

from chappe.clock import boot_now
from chappe.core.digest import ALGORITHMS, XXH3_128
from chappe.errors import (
    ChappeError,
    CoordinatorUnavailableError,
    PublicationCancelledError,
    PublicationFailedError,
    SnapshotChangedError,
    SnapshotError,
    VersionConflictError,
)
from chappe.origin.bases import Making
from chappe.origin.calls import comes_too_early, explain, is_transient, retry_delay_s
from chappe.origin.compressing import CompressedOffer, MakeCompressed
from chappe.origin.deltaoffer import DeltaOffers, DeltaPlanned
from chappe.origin.hashing import hash_snapshot
from chappe.origin.headstart import HeadStart
from chappe.origin.node import OriginNode
from chappe.origin.scan import Snapshot
from chappe.origin.session import ObjectOffer
from chappe.origin.source import OriginObject
from chappe.origin.spool import SpooledSnapshot
from chappe.publication import AsyncPublication, PublicationStatus
from chappe.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)  # a library in somebody's trainer: nothing is printed uninvited

_CANCEL_TIMEOUT_S = 5.0
_FAILURE_GRACE_S = 5.0  # without a word from a coordinator that is away
_SETTLED = frozenset({"closed", "superseded"})


class PublishJob:
    """One publication on an open node. `start` it once; `release` frees all it holds. `forget` is called then."""

    def __init__(
        self,
        node: OriginNode,
        request: pb.PublishRequest,
        started_s: float,
        snapshot: Snapshot,
        spool: SpooledSnapshot | None,
        forget: Callable[[PublishJob], None],
        *,
        on_root: Callable[[PublishJob, str, Making | None], None] = lambda _job, _root, _making: None,
        deltas: DeltaPlanned | None = None,
        compressed: MakeCompressed | None = None,
    ) -> None:
        """`deltas` are those to the snapshot that can be made; `on_root` hears the root, once."""
        self.object_id = request.object_id
        self.spool = spool
        self._on_root, self._planned = on_root, deltas
        self._deltas: DeltaOffers | None = None
        self._make_compressed = compressed
        self._compressed: CompressedOffer | None = None
        self._first = HeadStart()
        self._making: asyncio.Task[None] | None = None
        self._kept = False  # the root is known: somebody may wait for the delta to it when this is over
        self._root: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._node, self._request, self._started_s, self.snapshot = node, request, started_s, snapshot
        self._forget = forget
        self._object: OriginObject | None = None
        self._accepted = False
        self._proving = False  # going on with a version that another publisher has announced
        self._own_root: str | None = None  # hashed here, to compare
        self._failure: ChappeError | None = None  # of the source
        self._hashing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.publication = AsyncPublication(
            self.object_id, request.version or None, request.until, self._follow, self._cancel
        )

    def start(self) -> None:
        self._spawn(self._drive())

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=f"publication {self.object_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @property
    def _what(self) -> str:
        return f"version {self.publication.version}" if self.publication.version else "the next version"

    # ---- the Publish call ------------------------------------------------------------------------------------------

    async def _drive(self) -> None:
        try:
            status = await self._follow(self.publication.until)
        except (ChappeError, OSError) as error:
            self.publication.fail(self._failure or error)
            await self.release()
        else:
            self.publication.finish(status)

    async def _follow(self, until: float) -> PublicationStatus:
        """Call Publish until the coordinator says that `until` is reached. Raises what the publication came to."""
        failures = 0
        while True:
            if self._node.closed:
                raise PublicationFailedError(f"the publisher was closed: `chappe status` says how far {self._what} got")
            await self._node.session.ready(None)  # a request names an origin that has joined
            request = pb.PublishRequest()
            request.CopyFrom(self._request)
            request.until = until
            request.elapsed_s = boot_now() - self._started_s
            if self._accepted:
                request.version = self.publication.version or 0
            try:
                async for event in self._node.coordinator.Publish(request):
                    if (status := await self._take(event, until)) is not None:
                        return status
                    if not event.HasField("already"):
                        failures = 0
            except grpc.aio.AioRpcError as error:
                if not is_transient(error) and not comes_too_early(error, failures, accepted=self._accepted):
                    raise explain(error, self._what) from error
                log.warning("%s: the Publish call was lost (%s); it is made again", self._what, error.details())
            failures += 1
            await asyncio.sleep(retry_delay_s(failures))

    async def _take(self, event: pb.PublishEvent, until: float) -> PublicationStatus | None:
        """Act on one event; the final status if it is the last."""
        match event.WhichOneof("message"):
            case "accepted":
                self._begin(event.accepted)
            case "already":
                return await self._compare(event.already, until)
            case "progress":
                self.publication.update(PublicationStatus.from_message(event.progress))
            case "finished":
                return PublicationStatus.from_message(event.finished)
        return None

    def _begin(self, accepted: pb.Accepted) -> None:
        """Serve the object. Once: a call that was made again is accepted again."""
        self._accepted = True
        self.publication.accepted(accepted.version)
        log.info("%s is accepted %.3f s after publish()", self._what, boot_now() - self._started_s)
        if self._object is not None:
            self._say_again(accepted)
            return
        if accepted.object_id:
            self._adopt(accepted.object_id)
        algorithm = ALGORITHMS.get(accepted.root.partition(":")[0], XXH3_128)
        try:
            source = OriginObject(
                self.snapshot, self.object_id, accepted.chunk_bytes, algorithm, on_failed=self._on_failed
            )
        except SnapshotError as error:
            self._give_up(error)
            return
        self._object = source
        if accepted.root:  # relays hold parts of it: not a byte is served before it is known to be the same
            self._proving = True
            self._hashing = self._spawn(self._prove(source, accepted.version, accepted.root))
            return
        self._node.catalog.add(source)
        self._offer(source, accepted.version)
        self._hashing = self._spawn(self._hash(source))
        if self._planned is not None:
            wanted = {root for root in (accepted.base_root, *accepted.older_base_roots) if root}
            self._deltas = DeltaOffers(
                self._node, accepted.version, self._planned, source.manifest, wanted, self._root, self._first.end
            )
            if self._deltas.direct:
                self._first.begin()
            # Not one of this job's tasks: what it makes may be wanted when the job is over.
            self._making = asyncio.create_task(self._deltas.run(), name=f"deltas of {self.object_id}")
        if accepted.compressed and self._make_compressed is not None:
            self._compressed = CompressedOffer(
                self._node,
                self._request.compressed.object_id,
                accepted.version,
                self._make_compressed(source.manifest),
                self._request.compressed.payload_bytes,
                self._root,
                self._first.end,
            )
            self._first.begin()
            self._spawn(self._compressed.run())

    def _say_again(self, accepted: pb.Accepted) -> None:
        """A coordinator that has lost its state heard the offers before it knew of the publication, and asks for what
        this job may not have any more."""
        self._node.session.offer_again(accepted.version)
        ids = {} if self._planned is None else self._planned.object_ids
        promised = [ids.get(root, "") for root in (accepted.base_root, *accepted.older_base_roots)]
        if accepted.compressed:
            promised.append(self._request.compressed.object_id)
        for object_id in promised:
            if object_id and not self.owns(object_id):
                self._node.session.source_failed(object_id, "the publisher does not serve it any more")

    def _adopt(self, object_id: str) -> None:
        """The object of a publisher that went away is built anew here: this job goes on under its id."""
        log.info("%s was announced before and lacks its publisher: going on with object %s", self._what, object_id)
        self.object_id = self.publication.object_id = self._request.object_id = object_id

    def _offer(self, source: OriginObject, version: int, root: str = "") -> None:
        self._node.session.offer(
            ObjectOffer(
                object_id=self.object_id,
                version=version,
                payload_bytes=source.manifest.payload_bytes,
                snapshot_bytes=self.snapshot.snapshot_bytes,
                chunks_total=source.manifest.chunks_total,
                root=root,
            )
        )

    async def _compare(self, already: pb.AlreadyPublished, until: float) -> PublicationStatus | None:
        """The version's root was announced before: the same bytes are a success without a byte sent.

        None while whoever published it still has to get as far as is asked here: then the question is put again.
        """
        algorithm = ALGORITHMS.get(already.root.partition(":")[0])
        if algorithm is None:
            raise PublicationFailedError(f"{self._what} exists with the root {already.root}, of a kind unknown here")
        if self._own_root is None:
            loop = asyncio.get_running_loop()
            self._own_root = await loop.run_in_executor(None, hash_snapshot, self.snapshot, algorithm)
        if self._own_root != already.root:
            raise self._other_bytes(already.root, self._own_root)
        status = PublicationStatus.from_message(already.publication)
        if status.state in _SETTLED or status.installed_fraction >= until:
            return status
        self.publication.update(status)
        return None

    # ---- the source ------------------------------------------------------------------------------------------------

    async def _hash(self, source: OriginObject) -> None:
        await self._first.wait()
        try:
            root = await source.hash()
        except SnapshotError as error:
            self._failure = error  # says more than the reason that was passed on
        else:
            log.info("%s is hashed", self._what)
            self._node.session.announce_root(self.object_id, root)
            if not self._root.done():
                self._root.set_result(root)
            self._kept = True
            self._on_root(self, root, None if self._deltas is None else self._deltas.making)

    async def _prove(self, source: OriginObject, version: int, root: str) -> None:
        """Hash it all, and offer it if it is what was announced under this version."""
        try:
            own_root = await source.hash()
        except SnapshotError as error:
            self._failure = error
            return
        self._proving = False
        if own_root != root:
            self.publication.fail(self._other_bytes(root, own_root))
            self._offer(source, version, own_root)  # so that the coordinator does not wait for this publisher either
            self._spawn(self.release())
            return
        self._node.catalog.add(source)
        self._offer(source, version, root)

    def _other_bytes(self, root: str, own_root: str) -> VersionConflictError:
        return VersionConflictError(
            f"{self._what} exists with other bytes (its root is {root}, that of this snapshot {own_root}): "
            "publish under a newer version"
        )

    def _on_failed(self, reason: str) -> None:
        """The source cannot be served any more: it changed, or cannot be read."""
        self._node.catalog.remove(self.object_id)
        self._give_up(SnapshotChangedError(reason))

    def _give_up(self, error: SnapshotError) -> None:
        log.error("%s cannot be served: %s", self._what, error)
        self._failure = error
        if self._proving:  # somebody else's version: nothing was offered, and another publisher may still have it
            self.publication.fail(error)
            self._spawn(self.release())
            return
        self._node.session.source_failed(self.object_id, str(error))
        self._spawn(self._fail())

    async def _fail(self) -> None:
        """The coordinator ends the Publish call when it has heard; then the version is free for another attempt."""
        while not self.publication.done:
            try:
                async with asyncio.timeout(_FAILURE_GRACE_S):
                    await self.publication.changed()
            except TimeoutError:
                break
        if self._failure is not None:
            self.publication.fail(self._failure)

    # ---- ending ----------------------------------------------------------------------------------------------------

    async def _cancel(self) -> None:
        unreached = ""
        try:
            async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                await self._cancel_at_coordinator()
        except TimeoutError:
            unreached = "it does not answer"
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                return  # it has ended a moment ago: how, the Publish call says
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                unreached = error.details() or error.code().name
        self.publication.fail(PublicationCancelledError(f"{self._what} was cancelled"))
        await self.release()
        if unreached:
            raise CoordinatorUnavailableError(
                f"{self._what} is not served any more, but the coordinator did not take the cancellation "
                f"({unreached}): run `chappe cancel {self.publication.version or 'VERSION'}` when it is back"
            )

    async def _cancel_at_coordinator(self) -> None:
        while not self._accepted and not self.publication.done:  # a version is cancelled, and it has none yet
            await self.publication.changed()
        if not self.publication.done:
            await self._node.coordinator.Cancel(pb.CancelRequest(version=self.publication.version))

    def take_back(self, reason: str) -> None:
        """Tell the coordinator that this origin does not hold the object any more. `release` it then."""
        if self._object is not None:
            self._node.session.source_failed(self.object_id, reason)

    def owns(self, object_id: str) -> bool:
        if object_id == self.object_id or (self._compressed is not None and self._compressed.object_id == object_id):
            return True
        return self._deltas is not None and self._deltas.owns(object_id)

    def unwanted(self, object_id: str) -> None:
        """The coordinator wants nothing of the object any more; how the publication ended, its own stream says."""
        if object_id != self.object_id:
            if self._compressed is not None and self._compressed.object_id == object_id:
                self._compressed.stop()
            elif self._deltas is not None:
                self._deltas.unwanted(object_id)
            return
        self._stop_serving()
        if self.publication.done:
            self._forget(self)

    def _stop_serving(self) -> None:
        if self._hashing is not None:
            self._hashing.cancel()
        self._root.cancel()
        if self._deltas is not None:
            self._deltas.stop()
        if self._compressed is not None:
            self._compressed.stop()
        self._node.session.withdraw(self.object_id)
        self._node.catalog.remove(self.object_id)
        if self._object is not None:
            self._object.close()
        if self.spool is not None:
            self.spool.close()

    async def release(self) -> None:
        """Stop serving, end what runs (but not the caller), let the copy go. Idempotent."""
        self._stop_serving()
        self._forget(self)
        tasks = self._tasks - {asyncio.current_task()}
        if self._making is not None and not self._kept:
            tasks.add(self._making)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
