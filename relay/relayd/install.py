"""Runs the install command: one shell command in a process group of its own, bounded by a timeout.

It decides nothing about when or for which version (`chappe.core.installing`), only how such a run ends:

    started ──exit 0──▶ yes
       ├── exit N, or a signal ──▶ no, with the end of what it wrote
       ├── timeout ──▶ SIGTERM, 2 s, SIGKILL to the group ──▶ no
       ├── relayd stops (cancelled) ──▶ the same, and no answer: the next relayd starts it again
       └── relayd is killed ──▶ SIGTERM, 1 s, SIGKILL to the group, by a shell in it that waits for that

The shell holds one end of a pipe whose other end only relayd has. It is in the group that it ends, so the number of the
group cannot be another's by then; once CMD has ended it is gone, and what CMD leaves running is let alone.

CMD sees CHAPPE_VERSION, CHAPPE_PATH, CHAPPE_PREVIOUS_VERSION and CHAPPE_PREVIOUS_PATH (empty when nothing was installed
before, or it is gone). It may be killed at any moment together with this process, so it must bear being run again; what
it leaves running must have its output elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_GUARDED = """
exec 3<&0 4>&2 </dev/null 2>/dev/null
trap : TERM
ulimit -c 0
(trap '' TERM; read -r _ <&3 || { kill -TERM 0; sleep 1; kill -KILL 0; }) 4>&- >/dev/null &
guard=$!
(exec /bin/sh -c "$1" 2>&4 3<&- 4>&-)
code=$?
kill -KILL $guard
wait $guard
if [ $code -gt 128 ]; then
  trap - TERM
  kill -$((code - 128)) $$
fi
exit $code
"""
"""Its standard input is the pipe. A TERM is for CMD alone, whose end is told as it was, a signal included."""
TAIL_BYTES = 2000
KILL_GRACE_S = 2.0
STOP_GRACE_S = 0.5


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
    tail = _Tail(asyncio.get_running_loop())
    watched_end, our_end = os.pipe()  # the kernel closes ours when this process ends, however it does
    try:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            _GUARDED,
            "sh",
            command,
            stdin=watched_end,
            stdout=tail.write_end,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **extra_environment},
        )
        tail.started()
        try:
            async with asyncio.timeout(timeout_s):
                code = await process.wait()
        except TimeoutError:
            await _kill(process, KILL_GRACE_S)
            return Outcome(False, tail.after(f"not done within {timeout_s:g} s, killed"))
        except asyncio.CancelledError:
            await _kill(process, STOP_GRACE_S)
            raise
        if code == 0:
            return Outcome(True)
        ended = f"exit code {code}" if code > 0 else f"killed by signal {signal.Signals(-code).name}"
        return Outcome(False, tail.after(ended))
    except OSError as error:
        return Outcome(False, f"cannot start the install command: {error}")
    finally:
        tail.close()
        os.close(watched_end)
        os.close(our_end)


class _Tail:
    """The end of what the command writes. A pipe of our own: asyncio's would keep `wait` until everybody has closed it,
    and a process that the command leaves behind may never do that."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._output = bytearray()
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        loop.add_reader(self._read_end, self._read)

    def started(self) -> None:
        """The command has its copy of the write end."""
        os.close(self.write_end)
        self.write_end = -1

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            piece = os.read(self._read_end, 1 << 16)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._read_end)
        self._output += piece
        del self._output[:-TAIL_BYTES]
        return bool(piece)

    def after(self, what: str) -> str:
        """`what`, and what the command wrote last before it ended."""
        for _ in range(64):  # more than a pipe holds: what was left behind may write for ever
            if not self._read():
                break
        text = self._output.decode("utf-8", "replace").strip()
        return f"{what}: {text}" if text else what

    def close(self) -> None:
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        if self.write_end >= 0:
            os.close(self.write_end)


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
