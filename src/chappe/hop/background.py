"""Threads whose work can wait step back behind those that somebody on the network waits for.

On Linux niceness is a thread's own. Without privileges a thread that has stepped back stays there: what becomes urgent
goes to other threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STEP = 10
"""Steps of niceness: where there is not enough for both, a thread has a tenth of the processor time of one that has not
stepped back (sched(7)). Less would be worse: it holds Python's lock at times, which the others then wait for longer
than for a processor. Of eight relays on two busy cores the last one had a delta after 1.7 times its wire time, without
stepping back after 3.6, with SCHED_IDLE after 2.3 to 2.6 (`python -m bench delta-links --bw 20mbit`)."""


def step_back() -> None:
    """The calling thread, and every thread that it starts. Where a sandbox forbids even that, it stays where it is."""
    thread = threading.get_native_id()
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + STEP))


class Background(Executor):
    """Threads that have stepped back, until it is urgent: what is submitted from then on goes to others."""

    def __init__(self, threads: int, name: str, urgent: Callable[[], bool]) -> None:
        self._urgent = urgent
        self._back = ThreadPoolExecutor(threads, f"{name}-back", initializer=step_back)
        self._front = ThreadPoolExecutor(threads, name)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return (self._front if self._urgent() else self._back).submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._front.shutdown(wait, cancel_futures=cancel_futures)
        self._back.shutdown(wait, cancel_futures=cancel_futures)
