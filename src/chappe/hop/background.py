"""Threads whose work can wait step back behind those that somebody on the network waits for.

On Linux niceness is a thread's own. Without privileges a thread that has stepped back stays there: what becomes urgent
goes to other threads. Niceness alone is not enough where processors are scarce: a thread that is put aside may hold
Python's lock, and whoever receives in the same process then waits for it. So a thread looks how long it has waited for
a processor, and rests before the next piece of work where that was long.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STEP = 10
"""Steps of niceness: where there is not enough for both, a thread has a tenth of the processor time of one that has not
stepped back (sched(7)). Less would be worse: it holds Python's lock at times, which the others then wait for longer
than for a processor. Of eight relays on two busy cores the last one had a delta after 1.7 times its wire time, without
stepping back after 3.6, with SCHED_IDLE after 2.3 to 2.6 (`python -m bench delta-links --bw 20mbit`)."""

WAITED_SHARE = 0.5
"""Of the time that a piece of work takes: from here on processors are scarce."""
REST_TIMES = 4.0
"""As long as the piece of work had to wait. Of eight relays on two cores the last one had a delta after 1.19 and 1.37
times its wire time at 10 and 20 Mbit/s, without a rest after 1.26 and 1.73 (`python -m bench delta-links`); it was
installed after 1.91 and 1.62 s, without after 1.66 and 1.60."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def step_back() -> None:
    """The calling thread, and every thread that it starts. Where a sandbox forbids even that, it stays where it is."""
    thread = threading.get_native_id()
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + STEP))


def waited_s() -> float:
    """How long the calling thread has waited for a processor so far (proc_pid_schedstat(5)); 0 where the kernel does
    not say."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except OSError:
        return 0.0


def rest_s(took_s: float, waited_s: float) -> float:
    """How long to rest after a piece of work that took so long, and waited for a processor for a part of that."""
    return REST_TIMES * waited_s if waited_s > WAITED_SHARE * took_s else 0.0


class Urgency(Protocol):
    """Whose work it is."""

    def urgent(self) -> bool: ...

    def rest(self, seconds: float) -> None:
        """Return after so long, or as soon as it is urgent, or not wanted any more."""
        ...


class _Due(threading.local):
    """A thread's rest before its next piece of work."""

    seconds = 0.0


class Background(Executor):
    """Threads that have stepped back, until it is urgent: what is submitted from then on goes to others."""

    def __init__(self, threads: int, name: str, urgency: Urgency) -> None:
        self._urgency = urgency
        self._due = _Due()
        self._back = ThreadPoolExecutor(threads, f"{name}-back", initializer=step_back)
        self._front = ThreadPoolExecutor(threads, name)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._urgency.urgent():
            return self._front.submit(fn, *args, **kwargs)
        return self._back.submit(self._politely, fn, *args, **kwargs)

    def _politely(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Rests before the work, not behind it: its result is waited for."""
        self._urgency.rest(self._due.seconds)
        began_s, waited_before_s = time.perf_counter(), waited_s()
        try:
            return fn(*args, **kwargs)
        finally:
            self._due.seconds = rest_s(time.perf_counter() - began_s, waited_s() - waited_before_s)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._front.shutdown(wait, cancel_futures=cancel_futures)
        self._back.shutdown(wait, cancel_futures=cancel_futures)
