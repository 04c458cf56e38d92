"""The trainer's side: an origin that stays open between publications.

    publish(path)     check the files ──▶ returns    the files must stay as they are until the publication is done
    publish(tensors)  copy them once ───▶ returns    the tensors may be changed at once

What happens to a publication afterwards is `chappe.origin.job`. Decided here is how long a copy of tensors is held:
until the coordinator does not want it any more, the publisher is closed, or other tensors are to be copied and this
publication has finished (so that in the rhythm of a trainer there is one copy, never two).
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import update_wrapper
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, Self

from chappe.clock import boot_now
from chappe.errors import UsageError
from chappe.loop_thread import LoopThread, shared_loop
from chappe.origin.bases import Making
from chappe.origin.choosing import close_spool
from chappe.origin.job import PublishJob
from chappe.origin.opened import OpenOrigin
from chappe.origin.options import OnWanted, Source, Tensors, request_of
from chappe.origin.private import scan_to_publish
from chappe.origin.rollback import Past
from chappe.origin.scan import Snapshot
from chappe.origin.spool import SpooledSnapshot, spool_tensors
from chappe.publication import AsyncPublication, Publication, PublicationWanted

__all__ = ["AsyncPublisher", "OnWanted", "Publisher", "Source", "Tensors", "settle_devices"]

P = ParamSpec("P")


class AsyncPublisher(OpenOrigin):
    """Publishes snapshots to the fleet of one coordinator. Use it in `async with`, on one event loop.

    - `listen`, `advertise`: where this origin serves, and how workers reach it where that is another address.
    - `data_listen`: where it offers workers a bare TCP connection for the payload, beside gRPC; by default any port
      at the host of `listen`, "off" for gRPC alone. `streams`: so many of them for each hop from here; by default
      ("auto") one, and on a long link that loses packets bbr, or more of them where the kernel has none.
    - `uplink`: what the host can send, as `300mbit` or bytes per second, for planning. `limit_uplink` caps it.
    - `tls`: as `chappe.hop.net.load_tls` reads it; without, addresses beyond loopback need `insecure=True`.
    - `name`: of this origin in the fleet; with TLS it must be, and is by default, the certificate's.
    - `spool`: where copies of tensors are put; by default /dev/shm if there is room, else the temporary directory.
    - `base_cache`: where the bytes published last are kept, to make the next delta from them. None: the copy of tensors
      that is there anyway, or a temporary copy of files, until this publisher closes. A folder: there, for the next
      process too (twice a snapshot's size while it is replaced). False: nowhere, and everything is sent in full.
    - `keep_deltas`: so many of the last deltas are kept beside the base, in at most a quarter of a snapshot's bytes:
      workers that are that far behind get one folded delta.
    - `encoders`: processes that compare and compress blocks for large snapshots, from the second publication on; by
      default as many as there are cores, up to 8, of some 40 MB each. 0: threads alone do that, which is slower.
    - `on_wanted`: called with a `PublicationWanted` when the coordinator asks for a version (asynchronous mode), a
      plain function in a thread of its own, a coroutine function on this loop. Publish at the next good moment; to see
      between two steps whether something is wanted, read `wanted` instead.
    """

    # ---- publishing ------------------------------------------------------------------------------------------------

    async def publish(
        self,
        source: Source | Past,
        version: int | None = None,
        *,
        payload: str = "auto",
        until: float = 1.0,
        topology: str = "auto",
        chains: int = 0,
        adapter_of: str | None = None,
        t_train_s: float | None = None,
    ) -> AsyncPublication:
        """Start a publication, and return when `source` may be left alone.

        A path (one .safetensors file, or a Hugging Face directory) is checked and served in place: its files must not
        change until the publication is done, and one that does fails it. Tensors are copied once and may change as soon
        as this returns. `version` None takes the next one; `chains` 0 leaves their number to the planner.
        `topology` auto takes stripes where all links are known and unequal enough, else `chains`; `striped` takes them
        where links are only assumed, too.
        `payload` auto sends a delta to the workers that hold what was published last, where it is kept here and that
        saves bytes, and the full snapshot to all others, compressed where that is sooner; `delta` fails where not all
        can take one, `full` and `compressed` send that to everybody.
        A `Past` is a version that was published from here before, as `rollback` takes it.
        `adapter_of` binds an adapter (LoRA) to its base: the base's root, or a path to where it has landed. Relays land
        it only beside that base; publish adapters in a run of their own.
        `t_train_s` tells the coordinator what a training step takes now; without it that is measured from the times
        between publications, with whatever the learner waited in them.

        Raises SnapshotError for what is not a snapshot or has a private key in it, UsageError. Everything later comes
        out of the publication.
        """
        started_s = boot_now()
        node = self._opened()
        request = request_of(
            node.session.worker_id,
            version,
            payload=payload,
            until=until,
            topology=topology,
            chains=chains,
            t_train_s=t_train_s,
        )
        snapshot, spool = await self._take(source)
        snapshot = await self._payloads.bound(request, snapshot, spool, adapter_of)
        deltas = await self._payloads.deltas_for(request, node.session.run, snapshot)
        compressed = await self._payloads.compressed_for(request, snapshot)
        if node is not self._node:  # closed meanwhile
            close_spool(spool)
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
        if deltas is not None or compressed is not None:
            self._expect_to_encode(snapshot.snapshot_bytes)
        return job.publication

    async def rollback(
        self,
        to_version: int,
        version: int | None = None,
        *,
        payload: str = "auto",
        until: float = 1.0,
        topology: str = "auto",
        chains: int = 0,
    ) -> AsyncPublication:
        """Publish the bytes of an older version again, as a new one: a delta to the workers that hold what is out now.

        They are made from what is kept here (the base and the last deltas, see `keep_deltas`), in the spool directory,
        and are the old ones bit for bit. Raises SnapshotError when they cannot be made any more, UsageError.
        """
        return await self.publish(
            Past(to_version), version, payload=payload, until=until, topology=topology, chains=chains
        )

    async def _take(self, source: Source | Past) -> tuple[Snapshot, SpooledSnapshot | None]:
        loop = asyncio.get_running_loop()
        if not isinstance(source, Mapping | Past):
            if not isinstance(source, str | os.PathLike):
                raise UsageError(
                    f"{type(source).__qualname__} is neither a path nor a mapping of names to tensors: publish a "
                    f"module's state_dict()"
                )
            return await loop.run_in_executor(None, scan_to_publish, Path(source)), None
        for job in list(self._jobs):
            if job.spool is not None and job.publication.done:  # or there would be two copies
                job.take_back("the publisher let its copy go, to take the next one")
                await job.release()
        if isinstance(source, Past):
            spool = await self._payloads.revive(self._opened().session.run, source.version)
        else:
            settle_devices()
            spool = await loop.run_in_executor(None, spool_tensors, source, self._spool_directory)
        return spool.snapshot, spool

    def _published(self, job: PublishJob, root: str, making: Making | None) -> None:
        node = self._node
        if node is not None:
            version = job.publication.version or 0
            self._bases.published(node.session.run, job.snapshot, root, version, job.spool, making)


def _built_as(
    make: Callable[P, AsyncPublisher],
) -> Callable[[Callable[[Publisher, AsyncPublisher], None]], Callable[Concatenate[Publisher, P], None]]:
    """A constructor with the arguments of another."""

    def decorate(init: Callable[[Publisher, AsyncPublisher], None]) -> Callable[Concatenate[Publisher, P], None]:
        def build(self: Publisher, /, *args: P.args, **kwargs: P.kwargs) -> None:
            init(self, make(*args, **kwargs))

        update_wrapper(build, AsyncPublisher.__init__)
        return build

    return decorate


def _blocking(
    start: Callable[Concatenate[AsyncPublisher, P], Coroutine[object, object, AsyncPublication]],
) -> Callable[Concatenate[Publisher, P], Publication]:
    def call(self: Publisher, /, *args: P.args, **kwargs: P.kwargs) -> Publication:
        if any(isinstance(given, Mapping) for given in (*args, *kwargs.values())):
            settle_devices()  # of the thread that computed them
        return Publication(self._thread.run(start(self._publisher, *args, **kwargs)), self._thread)

    update_wrapper(call, start)
    return call


class Publisher:
    """`AsyncPublisher` for threads without an event loop: the same methods, blocking. Use it in a `with` block."""

    @_built_as(AsyncPublisher)
    def __init__(self, publisher: AsyncPublisher) -> None:
        self._publisher = publisher
        self._thread: LoopThread = shared_loop()

    publish = _blocking(AsyncPublisher.publish)
    rollback = _blocking(AsyncPublisher.rollback)

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


def settle_devices() -> None:
    """Wait for what this process's GPUs still have to compute: another thread's copy would not."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
