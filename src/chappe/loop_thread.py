"""One event loop in a background thread, shared by everything synchronous in a process.

Shared, because gRPC's asyncio runtime has one completion queue per process: every further loop is woken for the others'
events. That is also why the spurious BlockingIOError of the losers (https://github.com/grpc/grpc/issues/25364), which a
trainer with loops of its own would see in its log, is dropped here.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from chappe.sigpipe import block_sigpipe

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads that have no loop. A daemon thread: it does not keep the process alive."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.loop.set_exception_handler(_drop_spurious_wakeups)
        self._thread = threading.Thread(target=self._run, name="chappe", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        block_sigpipe()
        self.loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end and return the result; an interrupt of the waiting thread cancels the coroutine."""
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("called from chappe's own event loop: use AsyncPublisher there")
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _drop_spurious_wakeups(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), BlockingIOError) and "PollerCompletionQueue" in repr(context.get("handle")):
        return
    loop.default_exception_handler(context)


_shared: LoopThread | None = None
_lock = threading.Lock()


def shared_loop() -> LoopThread:
    """The process's loop thread, started by the first caller."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = LoopThread()
        return _shared


def _forget_after_fork() -> None:
    global _shared, _lock
    _shared, _lock = None, threading.Lock()  # the thread exists in the parent only


os.register_at_fork(after_in_child=_forget_after_fork)
