"""An origin that is open: it serves, keeps its session with the coordinator, and tells it how far the learner is.

open ──▶ node serves and has joined ──▶ jobs come and go ──▶ close: what has not finished fails
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chappe.errors import PublicationFailedError, UsageError
from chappe.hop.net import Tls
from chappe.hop.streams import Streams
from chappe.origin.bases import DELTAS_KEPT, Bases
from chappe.origin.choosing import Payloads
from chappe.origin.encoders import Encoders
from chappe.origin.job import PublishJob
from chappe.origin.node import OriginNode, OriginSettings
from chappe.origin.options import OnWanted, checked_encoders, checked_kept
from chappe.publication import PublicationWanted

log = logging.getLogger("chappe.publisher")  # a library in somebody's trainer: nothing is printed uninvited

CLOSE_TIMEOUT_S = 3.0


class OpenOrigin:
    """What a publisher is between publications. Arguments as in `chappe.publisher.AsyncPublisher`."""

    def __init__(
        self,
        coordinator: str,
        *,
        listen: str = "127.0.0.1:0",
        data_listen: str | None = None,
        streams: Streams = "auto",
        advertise: str | None = None,
        uplink: str | float | None = None,
        limit_uplink: str | float | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        name: str | None = None,
        spool: str | os.PathLike[str] | None = None,
        base_cache: str | os.PathLike[str] | bool | None = None,
        keep_deltas: int = DELTAS_KEPT,
        encoders: int | None = None,
        on_wanted: OnWanted | None = None,
        open_timeout_s: float = 10.0,
    ) -> None:
        self._settings = OriginSettings.parse(
            coordinator=coordinator,
            listen=listen,
            data_listen=data_listen,
            streams=streams,
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
        folder = None if base_cache is None or isinstance(base_cache, bool) else Path(base_cache)
        self._bases = Bases(folder, enabled=base_cache is not False, deltas_kept=checked_kept(keep_deltas))
        self._encoders = Encoders(checked_encoders(encoders))
        self._payloads = Payloads(self._bases, self._spool_directory, self._encoders)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Serve, and join the fleet. Raises CoordinatorUnavailableError, RefusedError, ConfigError."""
        if self._node is None:
            node = OriginNode(self._settings, self._unwanted, self._want)
            self._node = node
            self._encoders.open()
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
        try:
            await node.leave(CLOSE_TIMEOUT_S)
            for job in list(self._jobs):
                await job.release()
            await node.close(CLOSE_TIMEOUT_S)
            await self._bases.close()
            self._payloads.close()
        finally:  # also when nobody waits for all that any more
            await asyncio.get_running_loop().run_in_executor(None, self._encoders.close)

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

    def _expect_to_encode(self, snapshot_bytes: int) -> None:
        """Does not wait until processes are started."""
        asyncio.get_running_loop().run_in_executor(None, self._encoders.expect, snapshot_bytes)

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

    def _unwanted(self, object_id: str) -> None:
        for job in [job for job in self._jobs if job.owns(object_id)]:
            job.unwanted(object_id)

    def _forget(self, job: PublishJob) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
