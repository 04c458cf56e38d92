"""Runs the install command: one shell command in a process group of its own, bounded by a timeout.

It decides nothing about when or for which version (`chappe.core.installing`), only how such a run ends:

    started ──exit 0──▶ yes
       ├── exit N, or a signal ──▶ no, with the end of what it wrote
       ├── timeout ──▶ SIGTERM, 2 s, SIGKILL to the group ──▶ no
       └── relayd stops (cancelled) ──▶ the same, and no answer: the next relayd starts it again

CMD sees CHAPPE_VERSION, CHAPPE_PATH, CHAPPE_PREVIOUS_VERSION and CHAPPE_PREVIOUS_PATH (empty when nothing was installed
before, or it is gone). It may be killed at any moment together with this process, so it must bear being run again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TAIL_BYTES = 2000
KILL_GRACE_S = 2.0
STOP_GRACE_S = 0.5
_DRAIN_S = 0.2  # a child that the command left behind may keep the pipe open for ever


@dataclass(frozen=True, slots=True)
class Outcome:
    ok: bool
    reason: str = ""


def environment(version: int, path: Path, previous_version: int, previous_path: Path | None) -> dict[str, str]:
    """What the command sees beyond relayd's own environment."""
    known = previous_version > 0 and previous_path is not None
    return {
        "CHAPPE_VERSION": str(version),
        "CHAPPE_PATH": str(path),
        "CHAPPE_PREVIOUS_VERSION": str(previous_version) if known else "",
        "CHAPPE_PREVIOUS_PATH": str(previous_path) if known else "",
    }


async def run_command(command: str, extra_environment: Mapping[str, str], timeout_s: float) -> Outcome:
    """Run it to its end. Cancelling kills the whole group."""
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **extra_environment},
        )
    except OSError as error:
        return Outcome(False, f"cannot start the install command: {error}")
    assert process.stdout is not None
    output = bytearray()
    reader = asyncio.create_task(_keep_tail(process.stdout, output))
    try:
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        except TimeoutError:
            await _kill(process, KILL_GRACE_S)
            return Outcome(False, _with_tail(f"not done within {timeout_s:g} s, killed", output))
        except asyncio.CancelledError:
            await _kill(process, STOP_GRACE_S)
            raise
        await asyncio.wait([reader], timeout=_DRAIN_S)
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    if code == 0:
        return Outcome(True)
    ended = f"exit code {code}" if code > 0 else f"killed by signal {signal.Signals(-code).name}"
    return Outcome(False, _with_tail(ended, output))


async def _keep_tail(stream: asyncio.StreamReader, output: bytearray) -> None:
    while piece := await stream.read(1 << 16):
        output += piece
        del output[:-TAIL_BYTES]


def _with_tail(what: str, output: bytearray) -> str:
    tail = output.decode("utf-8", "replace").strip()
    return f"{what}: {tail}" if tail else what


async def _kill(process: asyncio.subprocess.Process, grace_s: float) -> None:
    """SIGTERM to the group, SIGKILL after the grace: also to what the command itself left running."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
