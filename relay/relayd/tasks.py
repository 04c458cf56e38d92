"""What a relay has running: tasks by name, and threads that are waited for. The first task to fail ends the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """On one event loop. `stopped` gets the error of the first task that fails."""

    def __init__(self, stopped: asyncio.Future[None]) -> None:
        self._stopped = stopped
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: set[asyncio.Future[Any]] = set()

    @property
    def running(self) -> frozenset[asyncio.Task[None]]:
        return frozenset(self._tasks)

    async def close(self, grace_s: float) -> bool:
        """Stop all tasks. False when a thread is still at it after the grace."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._threads:
            await asyncio.wait(self._threads, timeout=grace_s)
        return not self._threads

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.watch(name, asyncio.create_task(work))

    def watch(self, name: str, task: asyncio.Task[None]) -> None:
        """A task that fails ends the daemon: nothing here fails in a way that it could go on from."""
        task.set_name(name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._stopped.done():
            self._stopped.set_exception(error)

    def in_thread(self, work: Callable[[], T]) -> Awaitable[T]:
        """Begin it now, and run it to its end, even when whoever awaits it is cancelled: `close` waits for it."""
        future = asyncio.get_running_loop().run_in_executor(None, work)
        self._threads.add(future)
        future.add_done_callback(self._threads.discard)
        return asyncio.shield(future)
