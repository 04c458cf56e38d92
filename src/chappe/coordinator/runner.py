"""The one owner of the fleet machine: events in, effects carried out in order, nothing said that is not written first.

    post(event) ──▶ fleet.handle ──▶ effects ─┬─ Persist*, ForgetWorker ──▶ writer thread ─┐
                    (on the loop)             └─ the rest waits for them ──────────────────┴──▶ deliver

Events that come while a transaction is being written share the next one, and news that nobody is to be told of gathers
for a moment first. What is written is the state after the last of them: a row is made once for a transaction, and only
when it differs from what was written before.

While a database cannot be reached, or takes long, nothing is decided: the same transaction is tried until it is
written, and events wait (`standstill`). When the state cannot be written for good, or the machine raises, the runner
stops: a coordinator that goes on from what it could not write would hand out epochs and versions twice. The runner
decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from chappe.coordinator.runclock import RunClock
from chappe.coordinator.standstill import Standstill, waits_s
from chappe.coordinator.state import Batch
from chappe.core import effects as fx
from chappe.core.effects import Effect
from chappe.core.events import Event, StoodStill, Tick
from chappe.core.rows import Json, RowKey
from chappe.errors import ChappeError, StateAwayError, StoreError
from chappe.hop.source import Signal

log = structlog.get_logger()

GATHER_S = 0.02
"""What nobody waits for to be written may wait so long for company: in a broadcast every relay has such news."""
SLOW_WRITE_S = 1.0
"""A write that takes longer stops decisions: nodes whose words wait for it would be taken for silent."""
_TIMER_MAX_S = 3600.0  # a Tick that comes early is harmless, and the loop's clock stands still while the host sleeps


class RunnerStoppedError(ChappeError):
    """The coordinator stops: nothing is decided any more."""


class Machine(Protocol):
    """The fleet, and how its parts are written down. What is None is gone.

    `publication_rows` gives what has changed since it was last asked: whoever asks has to write it.
    """

    def handle(self, event: Event, now: float) -> list[Effect]: ...
    def worker_document(self, worker_id: str) -> Json | None: ...
    def publication_rows(self, object_id: str) -> dict[RowKey, Json | None] | None: ...


@dataclass(slots=True)
class _Entry:
    """The effects of one `post`, waiting for their turn."""

    done: asyncio.Future[None] | None
    effects: list[Effect] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)  # whose documents have changed
    publications: list[str] = field(default_factory=list)
    epoch_reserved: int | None = None

    @property
    def must_write(self) -> bool:
        return bool(self.workers or self.publications or self.epoch_reserved is not None)

    @property
    def urgent(self) -> bool:
        """Somebody is to be told something that is not only progress."""
        return any(not isinstance(effect, fx.PublishProgress) for effect in self.effects)


class Runner:
    """`write` blocks and is called in a thread of its own; `deliver` is called on the loop and must not block."""

    def __init__(
        self,
        machine: Machine,
        *,
        write: Callable[[Batch], None],
        deliver: Callable[[Effect], None],
        count: Callable[[fx.Count], None],
        clock: RunClock,
    ) -> None:
        self._machine = machine
        self._write = write
        self._deliver = deliver
        self._count = count
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="chappe-state")
        self._pending: list[_Entry] = []
        self._writing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()  # what is pending cannot wait for company
        self._timer: asyncio.TimerHandle | None = None
        self._standstill = Standstill()
        self._closed = False
        self._closing = asyncio.Event()
        self.failure: ChappeError | None = None
        self.stopped = asyncio.Event()
        """Set when the runner has failed: see `failure`."""
        self.changed = Signal()
        """Fires after every batch of events: somebody's view of the fleet may be old now."""

    @property
    def standstill(self) -> str:
        """Why nothing can be decided now; empty when it can. Who asks for something then is refused, and asks again."""
        return self._standstill.reason

    def post(self, *events: Event) -> None:
        """Handle these events now; their effects follow in order. Ignored once the runner has stopped."""
        if not self._closed:
            self._take(events, None)

    async def submit(self, *events: Event) -> None:
        """Handle these events and return when their effects are written and delivered. Raises RunnerStoppedError."""
        if self._closed:
            raise self._stopped_error()
        done = asyncio.get_running_loop().create_future()
        self._take(events, done)
        await done

    async def check(self, probe: Callable[[], None]) -> None:
        """Ask, in the writer's thread, whether what is decided can still be written: until it can, or for good not."""
        if self._writing is not None or self._closed:
            return  # who writes finds out
        self._writing = asyncio.get_running_loop().create_task(self._write_pending(probe))
        await asyncio.wait([self._writing])

    def _take(self, events: Sequence[Event], done: asyncio.Future[None] | None) -> None:
        if self._standstill.standing:
            self._standstill.put_off(events, done)
            return
        entry = _Entry(done)
        for event in events:
            self._handle(event, entry)
        self._pending.append(entry)
        if entry.urgent:
            self._hurry.set()
        if self._writing is None:
            # Nearly all events change nothing that must be written: no thread, no task, no wait.
            if entry.must_write:
                self._writing = asyncio.get_running_loop().create_task(self._write_pending())
            else:
                self._deliver_all(self._pending)

    def _handle(self, event: Event, entry: _Entry) -> None:
        try:
            effects = self._machine.handle(event, self._clock.now())
        except BaseException as error:
            # The fleet may be half changed: only what is on disk can be trusted now.
            self._fail(RunnerStoppedError(f"the fleet machine failed on {type(event).__name__}: {error!r}"))
            raise
        for effect in effects:
            match effect:
                case fx.PersistWorker(worker_id) | fx.ForgetWorker(worker_id):
                    entry.workers.append(worker_id)
                case fx.PersistPublication(object_id):
                    entry.publications.append(object_id)
                case fx.PersistEpoch(reserved):
                    entry.epoch_reserved = reserved
                case fx.WakeAt(time_s):
                    self._wake_at(time_s)
                case fx.Log(name, reason, fields, warning):
                    (log.warning if warning else log.info)(name, reason=reason, **fields)
                case fx.Count():
                    self._count(effect)
                case _:
                    entry.effects.append(effect)

    async def _write_pending(self, first: Callable[[], None] | None = None) -> None:
        """`first` comes before all that is pending; without it, this is only for what is."""
        entries: list[_Entry] = []
        try:
            if first is not None:
                await self._insist(first)
                self._go_on()
            while self._pending:
                await self._gather()
                entries, self._pending = self._pending, []
                self._hurry.clear()
                if any(entry.must_write for entry in entries):
                    await self._insist(functools.partial(self._write, self._batch(entries)))
                self._deliver_all(entries)
                self._go_on()
        except StateAwayError as error:
            # It was asked to stop meanwhile. What could not be written was told to nobody: it has not happened.
            log.warning("state_not_written", reason="asked_to_stop", error=str(error))
            self._give_up(entries)
        except BaseException as error:
            # Also what nobody has thought of: callers would wait for ever for a writer that is no more.
            self._pending = entries + self._pending
            if isinstance(error, StoreError):
                self._fail(error)
                return
            if self.failure is None:
                self._fail(RunnerStoppedError(f"what was decided could not be written: {error!r}"))
            raise
        self._writing = None

    async def _insist(self, call: Callable[[], None]) -> None:
        """Until it is done. Raises StateAwayError only once it is closed, StoreError for what no waiting can mend."""
        for wait_s in waits_s():
            attempt = asyncio.get_running_loop().run_in_executor(self._writer, call)
            try:
                await asyncio.wait([attempt], timeout=SLOW_WRITE_S)
                if not attempt.done():
                    self._stand_still("state_slow", "")
                await attempt
            except StateAwayError as error:
                self._stand_still("state_away", str(error))
                if self._closed:
                    raise
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._closing.wait()
                if self._closed:
                    raise
            else:
                return

    def _stand_still(self, name: str, error: str) -> None:
        if self._standstill.begin(error):
            log.warning(name, reason="nothing is decided until the state can be written", error=error)
            self.changed.fire()

    def _go_on(self) -> None:
        """Whatever stood still goes on: what is decided can be written again."""
        if not self._standstill.standing or self._closed:
            return
        log.info("state_back", reason="decisions go on")
        put_off = self._standstill.end()
        try:
            self._take((StoodStill(),), None)
            for each in put_off:
                self._take(each.events, each.done)
        except BaseException:  # the machine's
            self._tell_stopped(each.done for each in put_off)
            raise

    async def _gather(self) -> None:
        if not self._closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    await self._hurry.wait()

    def _batch(self, entries: Sequence[_Entry]) -> Batch:
        """The state now, in all that these entries changed: nothing has been handled that is not among them."""
        workers = dict.fromkeys(key for entry in entries for key in entry.workers)
        publications = dict.fromkeys(key for entry in entries for key in entry.publications)
        return Batch(
            {key: self._machine.worker_document(key) for key in workers},
            {key: self._machine.publication_rows(key) for key in publications},
            max((entry.epoch_reserved or 0 for entry in entries), default=0) or None,
            self._clock.mark(),
        )

    def _deliver_all(self, entries: list[_Entry]) -> None:
        taken = entries[:]
        entries.clear()
        for entry in taken:
            for effect in entry.effects:
                self._deliver(effect)
            if entry.done is not None and not entry.done.done():
                entry.done.set_result(None)
        self.changed.fire()

    # ---- time ------------------------------------------------------------------------------------------------------

    def _wake_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = min(max(0.0, time_s - self._clock.now()), _TIMER_MAX_S)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.post(Tick())

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _fail(self, error: ChappeError) -> None:
        log.error("coordinator_stopped", reason="state_lost", error=str(error))
        self.failure = error
        self._stop_taking()
        self._give_up(())
        self.stopped.set()

    def _give_up(self, entries: Sequence[_Entry]) -> None:
        """Nobody waits for what will not be."""
        self._tell_stopped(entry.done for entry in (*entries, *self._pending))
        self._tell_stopped(each.done for each in self._standstill.end())
        self._pending.clear()

    def _tell_stopped(self, waiting: Iterable[asyncio.Future[None] | None]) -> None:
        for done in waiting:
            if done is not None and not done.done():
                done.set_exception(self._stopped_error())

    def _stop_taking(self) -> None:
        self._closed = True
        self._closing.set()
        self._hurry.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stopped_error(self) -> RunnerStoppedError:
        return RunnerStoppedError(f"the coordinator stops: {self.failure or 'it was asked to'}")

    async def close(self) -> None:
        """Take no more events, write what is pending. A fleet that hears of its own shutdown would repair it."""
        self._stop_taking()
        if self._writing is not None:
            await asyncio.wait([self._writing])  # if it has failed, `failure` says so
        self._give_up(())
        self._writer.shutdown()
