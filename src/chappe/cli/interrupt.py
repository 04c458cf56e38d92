"""Commands that start processes, or stay until stopped: a signal becomes a cancellation, so that `finally` runs.

The first SIGINT, SIGTERM or SIGHUP cancels the command, which then stops what it started and removes what it made;
further ones change nothing, because the clean-up is bounded in time.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop

from chappe.cli.settings import EXIT_INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_interruptible(command: Coroutine[Any, Any, int], *, interrupted_code: int = EXIT_INTERRUPTED) -> int:
    """Run the command on a new event loop and return its exit code; `interrupted_code` when a signal ended it."""

    async def supervised() -> int:
        task = asyncio.current_task()
        assert task is not None
        interrupted = False

        def interrupt() -> None:
            nonlocal interrupted
            if not interrupted:
                interrupted = True
                task.cancel()

        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, interrupt)
        try:
            return await command
        except asyncio.CancelledError:
            if interrupted:
                return interrupted_code
            raise

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(supervised())
