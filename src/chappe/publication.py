"""One publication as its publisher sees it: progress, waiting, the result, and every way it can end.

Decides nothing about the fleet: the coordinator says what is reached. Errors about the snapshot (not one, torn) and
about the publication (conflict, cancelled, superseded, failed) come out of `wait`, `progress` and `result`, each time
they are asked.

    opening ──accepted──▶ open ──until reached──▶ finished (wait returns)
       │                   └── cancelled | superseded | failed | the source changed (wait raises)
       └── already published with this root: finished at once, nothing is sent; with another: VersionConflictError
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from chappe.errors import PublicationError, PublicationTimeoutError, UsageError
from chappe.hop.source import Signal
from chappe.loop_thread import LoopThread
from chappe.v1 import coordinator_pb2

T_BCAST_FRACTIONS = ("0.5", "0.9", "1.0")


@dataclass(frozen=True, slots=True)
class PublicationWanted:
    """The coordinator asks for a version (asynchronous mode): the learner is too far ahead of the fleet."""

    learner_version: int
    fleet_version: int
    reason: str


@dataclass(frozen=True, slots=True)
class PublicationStatus:
    """What the coordinator knows of a publication. Times are seconds since the `publish()` call, None until reached."""

    run: str
    version: int
    root: str
    kind: str
    payload_bytes: int
    snapshot_bytes: int
    targeted: int
    installed: int
    lost: tuple[str, ...]
    installed_fraction: float
    t_bcast: dict[str, float | None]
    floor_s: float | None
    chains: tuple[tuple[str, ...], ...]
    received_fraction: float
    verified_fraction: float
    state: str
    reason: str
    objects: tuple[str, ...]
    elapsed_s: float
    topology: str
    floor_source: str
    """What the floor stands on: measured, declared or assumed rates; empty without a floor."""
    message: coordinator_pb2.PublicationStatus = field(repr=False, compare=False)

    @classmethod
    def from_message(cls, message: coordinator_pb2.PublicationStatus) -> PublicationStatus:
        return cls(
            run=message.run,
            version=message.version,
            root=message.root,
            kind=message.kind,
            payload_bytes=message.payload_bytes,
            snapshot_bytes=message.snapshot_bytes,
            targeted=message.targeted,
            installed=message.installed,
            lost=tuple(message.lost),
            installed_fraction=message.installed_fraction,
            t_bcast={f: message.t_bcast.get(f) for f in T_BCAST_FRACTIONS},
            floor_s=message.floor_s if message.HasField("floor_s") else None,
            chains=tuple(tuple(chain.names) for chain in message.chains),
            received_fraction=message.fractions.received,
            verified_fraction=message.fractions.verified,
            state=message.state,
            reason=message.reason,
            objects=tuple(message.objects),
            elapsed_s=message.elapsed_s,
            topology=message.topology,
            floor_source=message.floor_source,
            message=message,
        )


def check_fraction(fraction: float, name: str) -> float:
    """Raises UsageError for a fraction that nobody can wait for."""
    if not 0 < fraction <= 1:
        raise UsageError(f"{name}={fraction!r} must be a fraction above 0 and at most 1")
    return fraction


class AsyncPublication:
    """Returned by `AsyncPublisher.publish`."""

    def __init__(
        self,
        object_id: str,
        version: int | None,
        until: float,
        follow: Callable[[float], Awaitable[PublicationStatus]],
        cancel: Callable[[], Awaitable[None]],
    ) -> None:
        self.object_id = object_id
        self.until = until
        self.version = version
        """None until the coordinator has chosen one, when none was asked for."""
        self.status: PublicationStatus | None = None
        """The newest that was heard."""
        self._signal = Signal()
        self._follow, self._cancel = follow, cancel
        self._done: asyncio.Future[PublicationStatus] = asyncio.get_running_loop().create_future()

    # ---- for the publisher -----------------------------------------------------------------------------------------

    def update(self, status: PublicationStatus) -> None:
        self.status, self.version = status, status.version
        self._signal.fire()

    def accepted(self, version: int) -> None:
        self.version = version
        self._signal.fire()

    def finish(self, status: PublicationStatus) -> None:
        if not self._done.done():
            self.update(status)
            self._done.set_result(status)
            self._signal.fire()

    def fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)
            self._done.exception()  # nobody has to wait for it
            self._signal.fire()

    async def changed(self) -> None:
        """Return when a status has come, or a version, or the end."""
        await self._signal.wait(self._signal.count)

    # ---- for the user ----------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """`until` is reached, or it never will be."""
        return self._done.done()

    @property
    def installed_fraction(self) -> float:
        return self.status.installed_fraction if self.status is not None else 0.0

    def result(self) -> PublicationStatus:
        """The final status, without waiting. Raises the publication's error, or PublicationError while it runs."""
        if not self._done.done():
            raise PublicationError(
                f"version {self.version or '(not chosen yet)'} is still being published: wait() for it"
            )
        return self._done.result()

    async def wait(self, fraction: float | None = None, timeout_s: float | None = None) -> PublicationStatus:
        """Return when `fraction` (default: the `until` of publish) of the targeted workers have installed the version
        and every living chain can finish without the publisher.

        Raises PublicationTimeoutError after `timeout_s` (the publication goes on), SnapshotChangedError,
        VersionConflictError, PublicationCancelledError, SupersededError, PublicationFailedError, RefusedError.
        """
        wanted = self.until if fraction is None else check_fraction(fraction, "fraction")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._reach(wanted)
        except TimeoutError:
            raise PublicationTimeoutError(
                f"version {self.version or '(not accepted yet)'}: {self.installed_fraction:.0%} installed after "
                f"{timeout_s:g} s, not {wanted:.0%}; the publication goes on: wait() again, or cancel()"
            ) from None

    async def _reach(self, wanted: float) -> PublicationStatus:
        if wanted == self.until or (self._done.done() and wanted <= self.until):
            return await asyncio.shield(self._done)
        follower = asyncio.ensure_future(self._follow(wanted))
        try:
            await asyncio.wait((self._done, follower), return_when=asyncio.FIRST_COMPLETED)
            if self._done.done() and (self._done.exception() is not None or wanted <= self.until):
                return self._done.result()
            return await follower
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def progress(self) -> AsyncIterator[PublicationStatus]:
        """Every status as it is heard (a slow reader sees the newest), the final one last. Raises as `wait` does."""
        shown: PublicationStatus | None = None
        while True:
            seen = self._signal.count
            if self.status is not None and self.status is not shown:
                shown = self.status
                yield shown
            if self._done.done():
                final = self._done.result()
                if final is not shown:
                    yield final
                return
            await self._signal.wait(seen)

    async def cancel(self) -> None:
        """Stop it everywhere: workers keep the version they have. Does nothing once it has finished."""
        if not self._done.done():
            await self._cancel()


class Publication:
    """Returned by `Publisher.publish`: `AsyncPublication` for threads without an event loop."""

    def __init__(self, publication: AsyncPublication, thread: LoopThread) -> None:
        self._publication, self._thread = publication, thread

    @property
    def object_id(self) -> str:
        return self._publication.object_id

    @property
    def version(self) -> int | None:
        return self._publication.version

    @property
    def status(self) -> PublicationStatus | None:
        return self._publication.status

    @property
    def done(self) -> bool:
        return self._publication.done

    @property
    def installed_fraction(self) -> float:
        return self._publication.installed_fraction

    def result(self) -> PublicationStatus:
        return self._publication.result()

    def wait(self, fraction: float | None = None, timeout_s: float | None = None) -> PublicationStatus:
        return self._thread.run(self._publication.wait(fraction, timeout_s))

    def progress(self) -> Iterator[PublicationStatus]:
        statuses = self._publication.progress()
        end: Any = object()

        async def step() -> Any:
            return await anext(statuses, end)

        while (status := self._thread.run(step())) is not end:
            yield status

    def cancel(self) -> None:
        self._thread.run(self._publication.cancel())
