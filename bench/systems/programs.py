"""Programs of other systems in a host's namespace, and the lines by which a helper is told to go and says it is done.

A helper speaks lines: it writes `ready`, is told to go by a line on its stdin, writes `done SECONDS` (CLOCK_MONOTONIC,
which all processes share) and stays until its stdin ends, so that its CPU time can be read.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

from chappe.errors import ChappeError

START_TIMEOUT_S = 60.0


class PeerError(ChappeError):
    """A system of the comparison did not start or did not finish."""


def needs_program(program: str, package: str) -> str | None:
    return None if shutil.which(program) else f"{program} is not installed (apt install {package})"


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise PeerError(f"{name} is not installed")
    return found


class Helper:
    """A process in a host's namespace, and the lines that it writes."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path, stdin: int | None) -> None:
        """`stdin` is the writing end of its stdin, which this object owns; None where it has none."""
        self.name = name
        self._process, self._log, self._stdin = process, log, stdin

    async def line(self, word: str) -> list[str]:
        """The words after `word` on the first line that begins with it. Raises PeerError when it ends before."""
        assert self._process.stdout is not None
        while raw := await self._process.stdout.readline():
            words = raw.decode("utf-8", "replace").split()
            if words and words[0] == word:
                return words[1:]
            if words and words[0] == "failed":
                break
        raise PeerError(f"{self.name} did not get to {word!r}:\n{self._log.read_text(errors='replace')[-400:]}")

    def tell(self, text: str = "go") -> None:
        assert self._stdin is not None
        os.write(self._stdin, text.encode() + b"\n")

    async def done_s(self) -> float:
        """When it had everything, on CLOCK_MONOTONIC."""
        return float((await self.line("done"))[0])

    async def finish(self) -> None:
        """Close its stdin and wait for its end."""
        self.close()
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._process.wait()

    async def interrupt(self) -> None:
        """Ctrl-C, and wait for its end."""
        self._process.send_signal(signal.SIGINT)
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._process.wait()

    def close(self) -> None:
        """End its stdin."""
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None

    async def wait(self) -> None:
        """Wait for its end."""
        self.close()
        await self._process.wait()
