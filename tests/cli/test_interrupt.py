"""A signal runs the clean-up, and gives the exit code that was asked for."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from chappe.cli.interrupt import run_interruptible

PROGRAM = """
import asyncio, sys
from chappe.cli.interrupt import run_interruptible

async def command():
    try:
        print("running", flush=True)
        await asyncio.Event().wait()
    finally:
        print("cleaning", flush=True)
        sys.stdin.readline()  # the test sends a second signal meanwhile
        await asyncio.sleep(0)
        print("cleaned", flush=True)

sys.exit(run_interruptible(command(), interrupted_code=int(sys.argv[1])))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_cancels_once_and_the_clean_up_is_not_interrupted(number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "130"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert await process.stdout.readline() == b"running\n"
    process.send_signal(number)
    assert await process.stdout.readline() == b"cleaning\n"
    process.send_signal(number)
    process.stdin.write(b"\n")
    await process.stdin.drain()
    assert await process.stdout.read() == b"cleaned\n"
    assert await process.wait() == 130


def test_the_exit_code_of_the_command_is_returned() -> None:
    async def command() -> int:
        await asyncio.sleep(0)
        return 7

    assert run_interruptible(command()) == 7


def test_an_error_of_the_command_comes_out() -> None:
    async def command() -> int:
        await asyncio.sleep(0)
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        run_interruptible(command())


def test_a_cancellation_from_within_is_no_interrupt() -> None:
    async def command() -> int:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_interruptible(command())
