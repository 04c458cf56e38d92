"""The trainer's side: an origin that stays open between publications.

    publish(path)     check the files ──▶ returns    the files must stay as they are until the publication is done
    publish(tensors)  copy them once ───▶ returns    the tensors may be changed at once

What happens to a publication afterwards is `chappe.origin.job`. Decided here is how long a copy of tensors is held:
until the coordinator does not want it any more, the publisher is closed, or other tensors are to be copied and this
publication has finished (so that in the rhythm of a trainer there is one copy, never two).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from chappe.clock import boot_now
from chappe.errors import ManifestError, PublicationFailedError, SnapshotError, UsageError
from chappe.hop.net import Tls
from chappe.loop_thread import LoopThread, shared_loop
from chappe.origin.adapters import Bindings, base_root_of, bound_to
from chappe.origin.bases import DELTAS_KEPT, Bases, Making
from chappe.origin.compressing import BYTES_MIN as COMPRESSED_BYTES_MIN
from chappe.origin.compressing import SHARE_MAX as COMPRESSED_SHARE_MAX
from chappe.origin.compressing import MakeCompressed, Whole, measure
from chappe.origin.deltaoffer import DeltaPlanned
from chappe.origin.deltas import WORTH_SHARE, DeltaFile, estimate
from chappe.origin.job import PublishJob
from chappe.origin.node import OriginNode, OriginSettings
from chappe.origin.rollback import Past, revive
from chappe.origin.scan import Snapshot, scan
from chappe.origin.spool import SpooledSnapshot, spool_tensors
from chappe.origin.steps import Base
from chappe.publication import AsyncPublication, Publication, PublicationWanted, check_fraction
from chappe.v1 import coordinator_pb2 as pb

Tensors = Mapping[str, Any]
"""Names to torch or numpy tensors, as `model.state_dict()` gives them."""
Source = str | os.PathLike[str] | Tensors

OnWanted = Callable[[PublicationWanted], Any]
"""A function, called in a thread of its own, or a coroutine function, run on the publisher's loop."""

log = logging.getLogger(__name__)  # a library in somebody's trainer: nothing is printed uninvited

PAYLOADS = ("auto", "full", "delta", "compressed")
TOPOLOGIES = {"chains": pb.TOPOLOGY_CHAINS, "star": pb.TOPOLOGY_STAR, "striped": pb.TOPOLOGY_STRIPED}
CLOSE_TIMEOUT_S = 3.0
T_TRAIN_S_MAX = 1e6


class AsyncPublisher:
    """Publishes snapshots to the fleet of one coordinator. Use it in `async with`, on one event loop.

    - `listen`, `advertise`: where this origin serves, and how workers reach it where that is another address.
    - `data_listen`: where it offers workers a bare TCP connection for the payload, beside gRPC; by default any port
      at the host of `listen`, "off" for gRPC alone.
    - `uplink`: what the host can send, as `300mbit` or bytes per second, for planning. `limit_uplink` caps it.
    - `tls`: as `chappe.hop.net.load_tls` reads it; without, addresses beyond loopback need `insecure=True`.
    - `name`: of this origin in the fleet; with TLS it must be, and is by default, the certificate's.
    - `spool`: where copies of tensors are put; by default /dev/shm if there is room, else the temporary directory.
    - `base_cache`: where the bytes published last are kept, to make the next delta from them. None: the copy of tensors
      that is there anyway, or a temporary copy of files, until this publisher closes. A folder: there, for the next
      process too (twice a snapshot's size while it is replaced). False: nowhere, and everything is sent in full.
    - `keep_deltas`: so many of the last deltas are kept beside the base, in at most a quarter of a snapshot's bytes:
      workers that are that far behind get one folded delta.
    - `on_wanted`: called with a `PublicationWanted` when the coordinator asks for a version (asynchronous mode), a
      plain function in a thread of its own, a coroutine function on this loop. Publish at the next good moment; to see
      between two steps whether something is wanted, read `wanted` instead.
    """

    def __init__(
        self,
        coordinator: str,
        *,
        listen: str = "127.0.0.1:0",
        data_listen: str | None = None,
        advertise: str | None = None,
        uplink: str | float | None = None,
        limit_uplink: str | float | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        name: str | None = None,
        spool: str | os.PathLike[str] | None = None,
        base_cache: str | os.PathLike[str] | bool | None = None,
        keep_deltas: int = DELTAS_KEPT,
        on_wanted: OnWanted | None = None,
        open_timeout_s: float = 10.0,
    ) -> None:
        self._settings = OriginSettings.parse(
            coordinator=coordinator,
            listen=listen,
            data_listen=data_listen,
            advertise=advertise,
            uplink=uplink,
            limit_uplink=limit_uplink,
            tls=tls,
            insecure=insecure,
            name=name,
        )
        self._spool_directory = Path(spool) if spool is not None else None
        self._open_timeout_s = open_timeout_s
        self._on_wanted = on_wanted
        self._answering: set[asyncio.Future[Any]] = set()
        self.wanted: PublicationWanted | None = None
        """What the coordinator asks for (asynchronous mode), until something is published."""
        self._node: OriginNode | None = None
        self._jobs: list[PublishJob] = []
        self._bindings = Bindings(self._spool_directory)
        folder = None if base_cache is None or isinstance(base_cache, bool) else Path(base_cache)
        self._bases = Bases(folder, enabled=base_cache is not False, deltas_kept=_checked_kept(keep_deltas))

    # ---- life ------------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Serve, and join the fleet. Raises CoordinatorUnavailableError, RefusedError, ConfigError."""
        if self._node is None:
            node = OriginNode(self._settings, self._unwanted, self._want)
            self._node = node
            try:
                await node.open(self._open_timeout_s)
            except BaseException:
                self._node = None
                await node.close(0.0)
                raise
        return self

    async def close(self) -> None:
        """Stop serving. What has not finished fails here; workers that hold everything go on without this origin."""
        node, self._node = self._node, None
        if node is None:
            return
        for job in list(self._jobs):
            job.publication.fail(
                PublicationFailedError(
                    f"the publisher was closed before version {job.publication.version or '(not chosen yet)'} "
                    "had finished"
                )
            )
        await node.leave(CLOSE_TIMEOUT_S)
        for job in list(self._jobs):
            await job.release()
        await node.close(CLOSE_TIMEOUT_S)
        await self._bases.close()
        self._bindings.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self._bases.stop()
        await self.close()

    @property
    def address(self) -> str:
        """Where workers dial this origin."""
        return self._opened().address

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def run(self) -> str:
        return self._opened().session.run

    def _opened(self) -> OriginNode:
        if self._node is None:
            raise UsageError("the publisher is not open: use it in a `with` block, or call open()")
        return self._node

    # ---- publishing ------------------------------------------------------------------------------------------------

    async def publish(
        self,
        source: Source | Past,
        version: int | None = None,
        *,
        payload: str = "auto",
        until: float = 1.0,
        topology: str = "chains",
        chains: int = 0,
        adapter_of: str | None = None,
        t_train_s: float | None = None,
    ) -> AsyncPublication:
        """Start a publication, and return when `source` may be left alone.

        A path (one .safetensors file, or a Hugging Face directory) is checked and served in place: its files must not
        change until the publication is done, and one that does fails it. Tensors are copied once and may change as soon
        as this returns. `version` None takes the next one; `chains` 0 leaves their number to the planner.
        `payload` auto sends a delta to the workers that hold what was published last, where it is kept here and that
        saves bytes, and the full snapshot to all others, compressed where that is sooner; `delta` fails where not all
        can take one, `full` and `compressed` send that to everybody.
        A `Past` is a version that was published from here before, as `rollback` takes it.
        `adapter_of` binds an adapter (LoRA) to its base: the base's root, or a path to where it has landed. Relays land
        it only beside that base; publish adapters in a run of their own.
        `t_train_s` tells the coordinator what a training step takes now; without it that is measured from the times
        between publications, with whatever the learner waited in them.

        Raises SnapshotError for what is not a snapshot, UsageError. Everything later comes out of the publication.
        """
        started_s = boot_now()
        node = self._opened()
        request = pb.PublishRequest(
            origin_id=node.session.worker_id,
            version=_checked_version(version),
            until=check_fraction(until, "until"),
            topology=_checked_topology(topology),
            chains=_checked_chains(chains),
            object_id=uuid4().hex,
            payload=_checked_payload(payload),
            t_train_s=_checked_t_train(t_train_s),
        )
        snapshot, spool = await self._take(source)
        snapshot = await self._bound(request, snapshot, spool, adapter_of)
        deltas = await self._deltas_for(request, node.session.run, snapshot)
        compressed = await self._compressed_for(request, snapshot)
        if node is not self._node:  # closed meanwhile
            _close_spool(spool)
            self._opened()
        request.snapshot_bytes = snapshot.snapshot_bytes
        job = PublishJob(
            node,
            request,
            started_s,
            snapshot,
            spool,
            self._forget,
            on_root=self._published,
            deltas=deltas,
            compressed=compressed,
        )
        self._jobs.append(job)
        self.wanted = None
        job.start()
        return job.publication

    async def rollback(
        self,
        to_version: int,
        version: int | None = None,
        *,
        payload: str = "auto",
        until: float = 1.0,
        topology: str = "chains",
        chains: int = 0,
    ) -> AsyncPublication:
        """Publish the bytes of an older version again, as a new one: a delta to the workers that hold what is out now.

        They are made from what is kept here (the base and the last deltas, see `keep_deltas`), in the spool directory,
        and are the old ones bit for bit. Raises SnapshotError when they cannot be made any more, UsageError.
        """
        return await self.publish(
            Past(to_version), version, payload=payload, until=until, topology=topology, chains=chains
        )

    # ---- the learner -----------------------------------------------------------------------------------------------

    def learner(self, version: int, *, admitted: int = 0, discarded: int = 0) -> None:
        """Tell the coordinator how far the learner is, and what it made of all trajectories so far.

        Shown by `chappe status`; in asynchronous mode the coordinator asks for a version (`on_wanted`, `wanted`) when
        the fleet falls more than delta_max behind. Versions count as those of `publish` do. `Admission` calls it.
        """
        if min(version, admitted, discarded) < 0:
            raise UsageError(f"version={version}, admitted={admitted}, discarded={discarded}: none of them is negative")
        self._opened().session.report_learner(version, admitted, discarded)

    def _want(self, wanted: PublicationWanted) -> None:
        self.wanted = wanted
        log.info("a publication is wanted: %s", wanted.reason)
        if self._on_wanted is not None:
            loop = asyncio.get_running_loop()
            if inspect.iscoroutinefunction(self._on_wanted):
                answering: asyncio.Future[Any] = loop.create_task(self._on_wanted(wanted))
            else:
                answering = loop.run_in_executor(None, self._on_wanted, wanted)
            self._answering.add(answering)
            answering.add_done_callback(self._answered)

    def _answered(self, answering: asyncio.Future[Any]) -> None:
        self._answering.discard(answering)
        if not answering.cancelled() and (error := answering.exception()) is not None:
            log.error("on_wanted failed: %r", error, exc_info=error)

    async def _bound(
        self, request: pb.PublishRequest, snapshot: Snapshot, spool: SpooledSnapshot | None, adapter_of: str | None
    ) -> Snapshot:
        """An adapter with its binding, to be sent in full: relays look at that before they land it."""

        def bind() -> tuple[Snapshot, bool]:
            if adapter_of is None:
                return snapshot, bound_to(snapshot) is not None
            return self._bindings.bind(snapshot, base_root_of(adapter_of)), True

        try:
            found, adapter = await asyncio.get_running_loop().run_in_executor(None, bind)
        except BaseException:
            _close_spool(spool)
            raise
        if adapter and request.payload not in ("auto", "full"):
            _close_spool(spool)
            raise UsageError(f"payload={request.payload}: adapters are small, and sent in full")
        if adapter:
            request.payload = "full"
        return found

    async def _take(self, source: Source | Past) -> tuple[Snapshot, SpooledSnapshot | None]:
        loop = asyncio.get_running_loop()
        if not isinstance(source, Mapping | Past):
            return await loop.run_in_executor(None, scan, Path(source)), None
        for job in list(self._jobs):
            if job.spool is not None and job.publication.done:  # or there would be two copies
                job.take_back("the publisher let its copy go, to take the next one")
                await job.release()
        if isinstance(source, Past):
            spool = await self._revive(source.version)
        else:
            settle_devices()
            spool = await loop.run_in_executor(None, spool_tensors, source, self._spool_directory)
        return spool.snapshot, spool

    async def _revive(self, version: int) -> SpooledSnapshot:
        base = await self._bases.get(self._opened().session.run)
        if base is None:
            raise SnapshotError(f"version {version} cannot be made any more: {self._bases.why}; publish the old files")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, revive, base, version, self._spool_directory)

    async def _deltas_for(self, request: pb.PublishRequest, run: str, snapshot: Snapshot) -> DeltaPlanned | None:
        """The deltas that can be made; the request says which, or why there are none. Raises UsageError without one
        for payload delta."""
        if request.payload in ("full", "compressed"):
            request.no_delta = f"payload {request.payload} was asked for"
            return None
        base, share = await self._bases.get(run), 0.0
        if base is None:
            request.no_delta = self._bases.why
        else:
            try:
                share = await asyncio.get_running_loop().run_in_executor(None, estimate, base.snapshot, snapshot)
            except (SnapshotError, ManifestError) as error:
                request.no_delta = f"the base of version {base.version} is of no use: {error}"
            else:
                if share > WORTH_SHARE and request.payload == "auto":
                    request.no_delta = f"a delta from version {base.version} would have about {share:.0%} of the bytes"
        if not request.no_delta and base is not None:
            object_ids = {root: uuid4().hex for root in _bases_of(base, share, snapshot.snapshot_bytes)}
            (request.base_root, request.delta_object_id), *older = object_ids.items()
            request.older.extend(pb.DeltaFrom(base_root=root, object_id=object_id) for root, object_id in older)
            make = partial(DeltaFile, spool=self._spool_directory)
            return DeltaPlanned(base, snapshot, object_ids, make)
        if request.payload == "delta":
            raise UsageError(f"payload=delta: {request.no_delta}; publish with payload=auto")
        return None

    async def _compressed_for(self, request: pb.PublishRequest, snapshot: Snapshot) -> MakeCompressed | None:
        """The compressed snapshot, if it is or may be wanted; the request says what it would weigh. Raises UsageError
        where it is insisted on and cannot be made."""
        asked = request.payload == "compressed"
        if not asked and (request.payload != "auto" or snapshot.snapshot_bytes < COMPRESSED_BYTES_MIN):
            return None
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, measure, snapshot)
        except (SnapshotError, ManifestError) as error:
            if asked:
                raise UsageError(f"payload=compressed: {error}; publish with payload=full") from error
            return None
        if not asked and found.payload_bytes > COMPRESSED_SHARE_MAX * snapshot.snapshot_bytes:
            return None
        request.compressed.CopyFrom(
            pb.Compressed(
                object_id=uuid4().hex,
                payload_bytes=found.payload_bytes,
                encode_bytes_per_s=found.encode_bytes_per_s,
                decode_bytes_per_s=found.decode_bytes_per_s,
            )
        )
        return lambda full: DeltaFile(Whole(snapshot), full, self._spool_directory)

    def _published(self, job: PublishJob, root: str, making: Making | None) -> None:
        node = self._node
        if node is not None:
            version = job.publication.version or 0
            self._bases.published(node.session.run, job.snapshot, root, version, job.spool, making)

    def _unwanted(self, object_id: str) -> None:
        for job in [job for job in self._jobs if job.owns(object_id)]:
            job.unwanted(object_id)

    def _forget(self, job: PublishJob) -> None:
        if job in self._jobs:
            self._jobs.remove(job)


class Publisher:
    """`AsyncPublisher` for threads without an event loop: the same methods, blocking. Use it in a `with` block."""

    def __init__(
        self,
        coordinator: str,
        *,
        listen: str = "127.0.0.1:0",
        data_listen: str | None = None,
        advertise: str | None = None,
        uplink: str | float | None = None,
        limit_uplink: str | float | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        name: str | None = None,
        spool: str | os.PathLike[str] | None = None,
        base_cache: str | os.PathLike[str] | bool | None = None,
        keep_deltas: int = DELTAS_KEPT,
        on_wanted: OnWanted | None = None,
        open_timeout_s: float = 10.0,
    ) -> None:
        self._publisher = AsyncPublisher(
            coordinator,
            listen=listen,
            data_listen=data_listen,
            advertise=advertise,
            uplink=uplink,
            limit_uplink=limit_uplink,
            tls=tls,
            insecure=insecure,
            name=name,
            spool=spool,
            base_cache=base_cache,
            keep_deltas=keep_deltas,
            on_wanted=on_wanted,
            open_timeout_s=open_timeout_s,
        )
        self._thread: LoopThread = shared_loop()

    def open(self) -> Self:
        self._thread.run(self._publisher.open())
        return self

    def close(self) -> None:
        self._thread.run(self._publisher.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        return self._publisher.address

    @property
    def name(self) -> str:
        return self._publisher.name

    @property
    def run(self) -> str:
        return self._publisher.run

    @property
    def wanted(self) -> PublicationWanted | None:
        """What the coordinator asks for (asynchronous mode), until something is published."""
        return self._publisher.wanted

    def learner(self, version: int, *, admitted: int = 0, discarded: int = 0) -> None:
        """As `AsyncPublisher.learner`."""

        async def tell() -> None:
            self._publisher.learner(version, admitted=admitted, discarded=discarded)

        self._thread.run(tell())

    def publish(
        self,
        source: Source,
        version: int | None = None,
        *,
        payload: str = "auto",
        until: float = 1.0,
        topology: str = "chains",
        chains: int = 0,
        adapter_of: str | None = None,
        t_train_s: float | None = None,
    ) -> Publication:
        """As `AsyncPublisher.publish`."""
        if isinstance(source, Mapping):
            settle_devices()  # of the thread that computed them
        publication = self._thread.run(
            self._publisher.publish(
                source,
                version,
                payload=payload,
                until=until,
                topology=topology,
                chains=chains,
                adapter_of=adapter_of,
                t_train_s=t_train_s,
            )
        )
        return Publication(publication, self._thread)

    def rollback(
        self,
        to_version: int,
        version: int | None = None,
        *,
        payload: str = "auto",
        until: float = 1.0,
        topology: str = "chains",
        chains: int = 0,
    ) -> Publication:
        """As `AsyncPublisher.rollback`."""
        publication = self._thread.run(
            self._publisher.rollback(
                to_version, version, payload=payload, until=until, topology=topology, chains=chains
            )
        )
        return Publication(publication, self._thread)


def settle_devices() -> None:
    """Wait for what this process's GPUs still have to compute: another thread's copy would not."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


def _close_spool(spool: SpooledSnapshot | None) -> None:
    if spool is not None:
        spool.close()


def _checked_version(version: int | None) -> int:
    if version is not None and version < 1:
        raise UsageError(f"version={version!r}: versions begin at 1")
    return version or 0


def _checked_payload(payload: str) -> str:
    if payload not in PAYLOADS:
        raise UsageError(f"payload={payload!r} is not one of {', '.join(PAYLOADS)}")
    return payload


def _checked_kept(keep_deltas: int) -> int:
    if keep_deltas < 0:
        raise UsageError(f"keep_deltas={keep_deltas!r}: give a number of deltas, or 0 for none")
    return keep_deltas


def _bases_of(base: Base, share: float, snapshot_bytes: int) -> list[str]:
    """The roots from which a delta may be worth its bytes, the newest first: folded, deltas have at most the sum of
    their bytes."""
    roots = [base.root]
    size = share * snapshot_bytes
    for step in reversed(base.steps):
        size += step.size_bytes
        if size > WORTH_SHARE * snapshot_bytes:
            break
        if step.base_root not in roots:
            roots.append(step.base_root)
    return roots


def _checked_topology(topology: str) -> pb.Topology:
    if topology not in TOPOLOGIES:
        raise UsageError(f"topology={topology!r} is not one of {', '.join(TOPOLOGIES)}")
    return TOPOLOGIES[topology]


def _checked_t_train(t_train_s: float | None) -> float:
    if t_train_s is not None and not 0 < t_train_s <= T_TRAIN_S_MAX:
        raise UsageError(f"t_train_s={t_train_s!r}: give the seconds of a training step, more than zero")
    return t_train_s or 0.0


def _checked_chains(chains: int) -> int:
    if chains < 0:
        raise UsageError(f"chains={chains!r}: give a number of chains, or 0 for the planner's")
    return chains
