from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from relayd.install import TAIL_BYTES, Outcome, environment, run_command

_PATH = os.pathsep.join(sys.path)


async def _gone(pid: int) -> None:
    """Until the process has ended: the kernel says so."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ended.set)
    try:
        async with asyncio.timeout(20):
            await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _fifo(directory: Path) -> Path:
    path = directory / "fifo"
    os.mkfifo(path)
    return path


async def _said(fifo: Path) -> int:
    """The number that a command writes, as soon as it does."""
    return int(await asyncio.to_thread(fifo.read_text))


def test_the_environment_names_both_versions() -> None:
    assert environment(3, Path("/s/3"), 2, Path("/s/2")) == {
        "CHAPPE_VERSION": "3",
        "CHAPPE_PATH": "/s/3",
        "CHAPPE_PREVIOUS_VERSION": "2",
        "CHAPPE_PREVIOUS_PATH": "/s/2",
    }
    for previous in ((0, None), (2, None)):
        seen = environment(3, Path("/s/3"), *previous)
        assert (seen["CHAPPE_PREVIOUS_VERSION"], seen["CHAPPE_PREVIOUS_PATH"]) == ("", "")


async def test_exit_codes_and_signals_are_the_answer() -> None:
    assert await run_command("true", {}, 10) == Outcome(True)
    assert await run_command("exit 3", {}, 10) == Outcome(False, "exit code 3")
    assert await run_command("kill -SEGV $$", {}, 10) == Outcome(False, "killed by signal SIGSEGV")
    assert await run_command("no-such-command-at-all", {}, 10) != Outcome(True)


async def test_the_reason_ends_with_what_it_wrote_last() -> None:
    outcome = await run_command("seq 1 100000; echo the end >&2; exit 1", {}, 30)
    assert outcome.reason.endswith("99999\n100000\nthe end")
    assert len(outcome.reason) <= TAIL_BYTES + 100


async def test_it_sees_its_environment_and_no_stdin() -> None:
    outcome = await run_command('cat; echo "$CHAPPE_VERSION $HOME"; exit 1', {"CHAPPE_VERSION": "12"}, 10)
    assert outcome.reason == f"exit code 1: 12 {os.environ.get('HOME', '')}".rstrip()


async def test_a_timeout_kills_the_whole_group_even_what_ignores_sigterm(tmp_path: Path) -> None:
    fifo = _fifo(tmp_path)
    command = f"trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > {fifo}; sleep 1000 & wait' & wait"
    task = asyncio.create_task(run_command(command, {}, 2.0))
    pid = await _said(fifo)
    outcome = await task
    assert outcome == Outcome(False, "not done within 2 s, killed")
    await _gone(pid)


async def test_cancelling_kills_it(tmp_path: Path) -> None:
    fifo = _fifo(tmp_path)
    task = asyncio.create_task(run_command(f"echo $$ > {fifo}; sleep 1000", {}, 1000))
    pid = await _said(fifo)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _gone(pid)


async def test_a_child_that_it_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    outcome = await run_command(f"sleep 1000 & echo $! > {pid_file}", {}, 60)
    assert outcome == Outcome(True)
    os.kill(
        int(await asyncio.to_thread(pid_file.read_text)), 9
    )  # it was left alone: an engine that the command started goes on


_RELAYD = """
import asyncio, sys
from relayd.install import run_command
asyncio.run(run_command(sys.argv[1], {}, 60))
print("ended", flush=True)
sys.stdin.read()
"""


async def _relayd(command: str) -> asyncio.subprocess.Process:
    """A process of its own that runs the command, and lives until its input ends."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RELAYD, command, stdin=pipe, stdout=pipe, env={**os.environ, "PYTHONPATH": _PATH}
    )


@pytest.mark.parametrize("ignores", ["", "trap '' TERM; "])
async def test_it_does_not_outlive_a_relayd_that_is_killed(tmp_path: Path, ignores: str) -> None:
    fifo = _fifo(tmp_path)
    relayd = await _relayd(f"{ignores}sh -c '{ignores}echo $$ > {fifo}; exec sleep 1000' & wait")
    pid = await _said(fifo)
    relayd.kill()
    await relayd.wait()
    await _gone(pid)


async def test_what_it_leaves_running_lives_on_whatever_becomes_of_relayd(tmp_path: Path) -> None:
    fifo = _fifo(tmp_path)
    relayd = await _relayd(f"(echo $$ > /dev/null; exec sh -c 'echo $$ > {fifo}; exec sleep 1000') >/dev/null 2>&1 &")
    pid = await _said(fifo)
    assert relayd.stdout is not None
    assert await relayd.stdout.readline() == b"ended\n"
    relayd.kill()
    await relayd.wait()
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


async def test_a_command_sees_no_child_that_it_has_not_started() -> None:
    waits = "import os\ntry:\n  os.wait()\nexcept ChildProcessError:\n  raise SystemExit(7)"
    assert await run_command(f"exec {sys.executable} -c '{waits}'", {}, 30) == Outcome(False, "exit code 7")
