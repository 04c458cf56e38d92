"""Children: ready by their log, stopped for certain, and gone when this process is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from chappe.cli.process import FleetError, Process

READY = 'import sys; print(\'{"event": "x_ready", "address": "127.0.0.1:1"}\', file=sys.stderr, flush=True)\n'
WAIT = "import signal; signal.pause()\n"


async def start(tmp_path: Path, source: str, *, capture_stdout: bool = False) -> Process:
    (tmp_path / "child_program.py").write_text(source)
    environment = {"PYTHONPATH": str(tmp_path)}
    return await Process.start(
        "child", "child_program", [], tmp_path / "log", environment=environment, capture_stdout=capture_stdout
    )


async def test_ready_is_what_the_log_says(tmp_path: Path) -> None:
    child = await start(tmp_path, READY + WAIT)
    assert (await child.wait_ready())["address"] == "127.0.0.1:1"
    assert await child.stop() == -signal.SIGTERM
    assert "x_ready" in (tmp_path / "log").read_text()


async def test_one_that_ends_before_it_is_ready_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    child = await start(tmp_path, "import sys; sys.exit('the port is taken')")
    with pytest.raises(FleetError, match=r"(?s)exit code 1.*the port is taken"):
        await child.wait_ready()


async def test_one_that_never_says_anything_is_given_up(tmp_path: Path) -> None:
    child = await start(tmp_path, "import sys; print('{', file=sys.stderr, flush=True)\n" + WAIT)
    with pytest.raises(FleetError, match=r"not ready after 0\.5 s"):
        await child.logged(lambda line: True, timeout_s=0.5)
    await child.stop()


async def test_one_has_a_group_of_its_own_and_no_session(tmp_path: Path) -> None:
    child = await start(tmp_path, READY + WAIT)
    await child.wait_ready()
    assert os.getpgid(child.pid) == child.pid
    assert os.getsid(child.pid) == os.getsid(0)
    await child.stop()


async def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    child = await start(tmp_path, ignore + READY + "while True: signal.pause()\n")
    await child.wait_ready()
    assert await child.stop(timeout_s=0.2) == -signal.SIGKILL
    assert await child.stop() == -signal.SIGKILL  # a second time changes nothing


async def test_output(tmp_path: Path) -> None:
    child = await start(tmp_path, "print('result')", capture_stdout=True)
    assert await child.output() == b"result\n"
    assert child.returncode == 0


PARENT = """
import asyncio, sys
from pathlib import Path
from chappe.cli.process import Process

async def main():
    child = await Process.start("child", "child_program", [], Path(sys.argv[1]) / "log")
    await child.wait_ready()
    print(child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_children_end_when_this_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "child_program.py").write_text(READY + WAIT)
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    # The child holds the fifo's writing end: a read ends when the child has ended.
    (tmp_path / "child_program.py").write_text(f"held = open({str(fifo)!r}, 'w')\n" + READY + WAIT)
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    reader = asyncio.get_running_loop().run_in_executor(None, fifo.read_bytes)
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    assert await asyncio.wait_for(reader, 30) == b""
    assert pid > 0
