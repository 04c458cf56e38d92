"""How those who wait hear that something changed: coroutines of an event loop, and threads.

    fire()          ──▶ bells of threads, and every coroutine, now
    fire(soon=True) ──▶ bells of threads, and coroutines without patience, now
                        coroutines with patience: when the least of it is over, once for all that has happened

An event loop costs more to wake than a chunk costs to store. Who only reports what has come says so by its patience,
and is woken once for hundreds of chunks; who sends them on is a thread with a bell of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Bell:
    """Wakes one thread. A ring before it waits is not lost, a second one adds nothing."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while there is nothing to hear
        self._lock.acquire()

    def ring(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # rung before, and not heard yet
            self._lock.release()

    def wait(self, timeout_s: float) -> None:
        """Return when it was rung since the last return, or when the time is over."""
        self._lock.acquire(timeout=max(0.0, timeout_s))


class Signal:
    """Wakes every waiter when something changed. Nothing is lost between looking and waiting: compare `count`."""

    __slots__ = ("_all", "_bells", "_called", "_lock", "_loop", "_patient", "_thread", "_timer", "_urgent", "count")

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._urgent: set[asyncio.Future[None]] = set()
        self._patient: dict[asyncio.Future[None], float] = {}
        self._bells: tuple[Bell, ...] = ()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the coroutines, and its thread
        self._thread = 0
        self._called = False  # the loop is on its way to `_hear`
        self._all = False  # ... and is to wake the patient ones as well
        self._timer: asyncio.TimerHandle | None = None

    def fire(self, *, soon: bool = False) -> None:
        """From any thread. `soon`: coroutines that have patience may hear of it when that is over."""
        with self._lock:
            self.count += 1
            bells = self._bells
            self._all = self._all or not soon
            wanted = bool(self._urgent or (self._patient and (self._all or self._timer is None)))
            here = self._thread == threading.get_ident()
            call = wanted and not here and not self._called
            self._called = self._called or call
            loop = self._loop
        for bell in bells:
            bell.ring()
        if wanted and here:
            self._hear()
        elif call and loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._hear)

    async def wait(self, seen: int, patience_s: float = 0.0) -> int:
        """Return the count once it is not `seen`: at once, or after the patience where that is all the same."""
        while True:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            with self._lock:
                if self.count != seen:
                    return self.count
                self._loop, self._thread = loop, threading.get_ident()
                if patience_s > 0:
                    self._patient[waiter] = patience_s
                else:
                    self._urgent.add(waiter)
            try:
                await waiter
            finally:
                with self._lock:
                    self._urgent.discard(waiter)
                    self._patient.pop(waiter, None)

    @contextlib.contextmanager
    def ringing(self, bell: Bell) -> Iterator[None]:
        """For a thread, while the block runs: look, then wait for its bell."""
        with self._lock:
            self._bells = (*self._bells, bell)
        try:
            yield
        finally:
            with self._lock:
                self._bells = tuple(other for other in self._bells if other is not bell)

    # ---- on the loop -----------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        with self._lock:
            self._called = False
            woken, self._urgent = list(self._urgent), set()
            if self._all:
                woken += self._take_patient()
            elif self._patient and self._timer is None:
                assert self._loop is not None
                self._timer = self._loop.call_later(min(self._patient.values()), self._end_patience)
            self._all = False
        _wake(woken)

    def _end_patience(self) -> None:
        with self._lock:
            woken = self._take_patient()
        _wake(woken)

    def _take_patient(self) -> list[asyncio.Future[None]]:
        woken = list(self._patient)
        self._patient.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return woken


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
