"""One of our programs as a child process: its log as it is written, when it is ready, how it ends.

    starting ──its log says "ready"──▶ running ──stop: SIGTERM, then SIGKILL──▶ ended
        └── ended before that: FleetError with the last lines of its log

Nothing is waited for by sleeping. Should this process be killed, the kernel sends SIGTERM to the child.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chappe.errors import ChappeError
from chappe.hop.source import Signal

STOP_TIMEOUT_S = 6.0
"""The daemons promise 5 s from SIGTERM."""
START_TIMEOUT_S = 60.0
LOG_LINES_KEPT = 200

# Children exec at once: gRPC's fork handlers have nothing to do and would only complain. gRPC reads it when it starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# Runs in the child between fork and the program, without touching the parent's threads: PR_SET_PDEATHSIG survives exec.
_LAUNCH = """
import ctypes, os, signal, sys
os.setpgid(0, 0)
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started this one is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""

LogLine = dict[str, Any]


class FleetError(ChappeError):
    """A daemon did not start, or ended by itself."""


class Process:
    """A Python program of ours, its log as it is written, and its end."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self.lines: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self.ready: LogLine = {}
        self._process = process
        self._logged = Signal()
        self._events: deque[LogLine] = deque(maxlen=LOG_LINES_KEPT)
        self._reader = asyncio.create_task(self._read(), name=f"log of {name}")
        self._reader.add_done_callback(lambda _: self._logged.fire())

    @classmethod
    async def start(
        cls,
        name: str,
        module: str,
        arguments: Sequence[str],
        log_path: Path,
        *,
        environment: Mapping[str, str] | None = None,
        capture_stdout: bool = False,
        within: Sequence[str] = (),
    ) -> Process:
        """Run `python -m module arguments`, in a process group of its own: Ctrl-C reaches this process only.

        Not in a session: Linux gives each session the same part of the processors, and a relay's threads that step
        back (`chappe.hop.background`) would step back behind nothing but each other.

        `within` is a command that executes the rest of its line (`/sbin/ip netns exec NAME`), by its absolute path.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())),
            *(*within, sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if capture_stdout else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
        return cls(name, process, log_path)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def logged(self, wanted: Callable[[LogLine], bool], timeout_s: float = START_TIMEOUT_S) -> LogLine:
        """The first wanted line of the log, recent or to come. Raises FleetError when the process ends first."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    count, ended = self._logged.count, self._reader.done()
                    for line in self._events:
                        if wanted(line):
                            return line
                    if ended:
                        raise FleetError(f"{self.name} ended with exit code {await self.wait()}:\n{self.tail()}")
                    await self._logged.wait(count)
        except TimeoutError:
            raise FleetError(f"{self.name} is not ready after {timeout_s:g} s:\n{self.tail()}") from None

    async def wait_ready(self) -> LogLine:
        """Where it listens: the fields of its `ready` line."""
        self.ready = await self.logged(lambda line: str(line.get("event")).endswith("ready") and "address" in line)
        return self.ready

    def recent(self) -> list[LogLine]:
        """The last lines of its log that were JSON."""
        return list(self._events)

    async def output(self) -> bytes:
        """What it wrote to stdout, when it has ended by itself. Start with `capture_stdout=True`."""
        assert self._process.stdout is not None
        data = await self._process.stdout.read()
        await self.wait()
        return data

    async def wait(self) -> int:
        """The exit code, when the process has ended and its log is read to the end."""
        code = await self._process.wait()
        await self._reader
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL, as a host that loses power."""
        self.send_signal(signal.SIGKILL)
        await self.wait()

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM, and SIGKILL to its whole group if that does not help in time. Returns the exit code."""
        self.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                return await self.wait()
        except TimeoutError:
            os.killpg(self.pid, signal.SIGKILL)
            return await self.wait()

    def tail(self, lines: int = 20) -> str:
        return "\n".join(f"  {line}" for line in list(self.lines)[-lines:])

    async def _read(self) -> None:
        assert self._process.stderr is not None
        with self.log_path.open("ab") as log:
            while raw := await self._process.stderr.readline():
                log.write(raw)
                log.flush()
                self._take(raw.decode("utf-8", "replace").rstrip())

    def _take(self, text: str) -> None:
        self.lines.append(text)
        if text.startswith("{"):
            try:
                line = json.loads(text)
            except ValueError:
                return
            self._events.append(line)
            self._logged.fire()
