"""On the rollout host: which weights a rollout was made with, and how many this worker makes.

    session.dispatch(learner_version) ──▶ behind by more than max_gap? wait for a newer one, load it (sequential mode)
         │                            └─▶ else what is loaded (asynchronous mode; `refresh` takes what has landed)
         ▼
    Dispatch: version, snapshot ──▶ trajectory(data)* ──▶ the learner: `chappe.Admission`

A trajectory bears the version at dispatch: what lands or is loaded while it is made does not change it. Weights change
in `load` only, and nothing is stamped meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from chappe.clock import boot_now
from chappe.errors import ChappeError, RelaydUnavailableError, UsageError
from chappe.relayd_calls import Duty
from chappe.snapshot import Snapshot
from chappe.subscriber import RELAYD_GRACE_S, Subscriber

log = logging.getLogger(__name__)  # a library in somebody's engine: nothing is printed uninvited

REPORT_S = 30.0
REPORT_ROLLOUTS_MIN = 8
"""A rate from fewer is mostly noise: a report waits for so many."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What a worker made, and with which weights. Plain data: pickle it, or send the fields.

    `session` and `sequence` name it: one that is delivered twice is recognized.
    """

    worker: str
    version: int
    session: str
    sequence: int
    data: Any


class Dispatch:
    """One piece of work: a prompt, or a group of them. Leave its `with` block when it is done, or call `close`."""

    def __init__(self, session: RolloutSession, snapshot: Snapshot) -> None:
        self._session = session
        self._open = True
        self.snapshot = snapshot

    @property
    def version(self) -> int:
        """Of the weights at dispatch."""
        return self.snapshot.version

    def trajectory(self, data: Any = None) -> Trajectory:
        """Stamp a finished rollout. Any number of them."""
        return self._session._finished(self, data)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._session._closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Pace:
    """Rollouts/s while at least one dispatch was open: a worker without work is not a slow one. Not thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._open = 0
        self._since_s = 0.0
        self._busy_s = 0.0
        self._rollouts = 0

    def opened(self) -> None:
        if not self._open:
            self._since_s = self._now()
        self._open += 1

    def closed(self) -> None:
        self._open -= 1
        if not self._open:
            self._busy_s += self._now() - self._since_s

    def finished(self) -> None:
        self._rollouts += 1

    def take(self, after_s: float) -> float | None:
        """The rate since the last one taken; None while there is too little to tell one from."""
        busy_s = self._busy_s + (self._now() - self._since_s if self._open else 0.0)
        if self._rollouts < REPORT_ROLLOUTS_MIN or busy_s < after_s or busy_s <= 0:
            return None
        rate = self._rollouts / busy_s
        self._busy_s, self._rollouts, self._since_s = 0.0, 0, self._now()
        return rate


class RolloutSession:
    """One engine's view of its weights and its work. Safe to share between threads.

    - `store`: of the relayd on this host.
    - `load`: called with each snapshot before the first dispatch that uses it, never twice at once. When it raises, the
      version before stays in use and the error is the caller's. An engine whose running requests do not bear new
      weights waits for them there.
    - `max_gap`: versions that this worker may be behind the learner of a request (sequential mode).
    - `confirm`: under `relayd --install confirm`, say after `load` how it went; what a relayd that is absent does not
      hear, the next `refresh` or `dispatch` says.
    - `report_s`: how long a rate is measured before it is reported; zero never reports.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        load: Callable[[Snapshot], object] | None = None,
        max_gap: int = 1,
        confirm: bool = False,
        worker: str | None = None,
        report_s: float = REPORT_S,
        relayd_grace_s: float = RELAYD_GRACE_S,
        now: Callable[[], float] = boot_now,
    ) -> None:
        if max_gap < 0:
            raise UsageError(f"max_gap={max_gap}: give the versions that a worker may be behind, zero or more")
        if not report_s >= 0:
            raise UsageError(f"report_s={report_s}: give seconds, or zero to report nothing")
        self._subscriber = Subscriber(store, relayd_grace_s=relayd_grace_s)
        self._load, self._max_gap, self._confirm, self._report_s = load, max_gap, confirm, report_s
        self._worker = worker
        self._id = uuid4().hex
        self._sequence = itertools.count()
        self._snapshot: Snapshot | None = None
        self._unheard = 0  # a version that is loaded, and no relayd was there to be told
        self._loading = threading.Lock()  # held while weights change: whoever is stamped meanwhile would lie
        self._counting = threading.Lock()
        self._pace = _Pace(now)

    # ---- weights ---------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """What is loaded; 0 before the first."""
        snapshot = self._snapshot
        return 0 if snapshot is None else snapshot.version

    def refresh(self) -> bool:
        """Load what has landed, if it is newer than what is loaded. Raises RelaydUnavailableError, what `load` does."""
        with self._loading:
            newest = self._subscriber.current()
            taken = newest is not None and self._take(newest)
            self._say_again()
            return taken

    def dispatch(self, learner_version: int | None = None, timeout_s: float | None = None) -> Dispatch:
        """Begin a piece of work, with weights at most `max_gap` versions behind `learner_version` when that is given.

        Waits for the first version, and in sequential mode for one that is new enough. Raises WaitTimeoutError after
        `timeout_s`, RelaydUnavailableError, UsageError, and what `load` raises.
        """
        if learner_version is not None and learner_version < 0:
            raise UsageError(f"learner_version={learner_version} is not a version")
        wanted = max(1, (learner_version or 0) - self._max_gap)
        newer = None
        if self.version < wanted:  # waited for without the lock: another request may do with what there is
            newer = self._subscriber.wait(newer_than=wanted - 1, timeout_s=timeout_s)
        with self._loading:
            if newer is not None:
                self._take(newer)
            self._say_again()
            assert self._snapshot is not None
            dispatch = Dispatch(self, self._snapshot)
            with self._counting:
                self._pace.opened()
            return dispatch

    def _take(self, snapshot: Snapshot) -> bool:
        if snapshot.version <= self.version:
            return False
        try:
            if self._load is not None:
                self._load(snapshot)
        except Exception as error:
            if self._confirm:
                self._refuse(snapshot.version, f"{type(error).__name__}: {error}")
            raise
        self._snapshot = snapshot
        self._unheard = 0
        if self._confirm:
            try:
                self._subscriber.confirm(snapshot.version)
            except RelaydUnavailableError as error:
                self._unheard = snapshot.version
                log.info("version %d is loaded, not yet confirmed: %s", snapshot.version, error)
        return True

    def _refuse(self, version: int, reason: str) -> None:
        """The caller gets what `load` raised, whoever hears this."""
        try:
            self._subscriber.confirm(version, ok=False, reason=reason)
        except ChappeError as error:
            log.warning("version %d is refused, which relayd did not hear: %s", version, error)

    def _say_again(self) -> None:
        """What the relayd has not heard."""
        if not self._unheard:
            return
        try:
            self._subscriber.confirm(self._unheard)
            self._unheard = 0
        except ChappeError as error:  # absent, just starting, or it has newer ones only, which the engine will take
            log.debug("version %d is still not confirmed: %s", self._unheard, error)

    # ---- work ------------------------------------------------------------------------------------------------------

    @property
    def worker(self) -> str:
        """This worker's name in the fleet. Raises RelaydUnavailableError when it has never been asked for before."""
        if self._worker is None:
            self._worker = self._subscriber.duty().worker
        return self._worker

    def duty(self) -> Duty:
        """Whether this worker's rollouts are wanted now: a worker on standby keeps its weights new and waits."""
        return self._subscriber.duty()

    def wait_active(self, timeout_s: float | None = None) -> Duty:
        """Return once they are. Raises WaitTimeoutError, RelaydUnavailableError."""
        return self._subscriber.wait_active(timeout_s)

    def _finished(self, dispatch: Dispatch, data: Any) -> Trajectory:
        made = Trajectory(self.worker, dispatch.version, self._id, next(self._sequence), data)
        with self._counting:
            self._pace.finished()
            rate = self._pace.take(self._report_s) if self._report_s else None
        if rate is not None:
            self._report(rate)
        return made

    def _closed(self) -> None:
        with self._counting:
            self._pace.closed()

    def _report(self, rate: float) -> None:
        """A rate that nobody hears is no reason to stop generating."""
        try:
            self._subscriber.report(rate)
        except RelaydUnavailableError as error:
            log.info("rollouts/s not reported: %s", error)
        except ChappeError as error:
            log.warning("rollouts/s not reported: %s", error)
