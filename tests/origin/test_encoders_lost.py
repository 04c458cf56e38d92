"""Processes that encode are killed, stop, fail or answer too much: their runs are made all the same."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from chappe.origin import encoderprocess, encoders
from chappe.origin.blocksources import Compared
from chappe.origin.encoder import Task
from chappe.origin.encoderprocess import EncoderProcess
from chappe.origin.encoders import Encoders
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base
from tests.origin.encoderkit import all_are_up, count_runs, encoded, pids, program


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("count", [1, 2])
def test_processes_lost_with_their_runs(
    tmp_path: Path,
    two: tuple[Base, Snapshot],
    running: Encoders,
    caplog: pytest.LogCaptureFixture,
    how: signal.Signals,
    count: int,
) -> None:
    """Killed, or stopped for good, after their first runs."""
    base, target = two
    running.answer_s = 2.0 if how == signal.SIGSTOP else 30.0  # the other one is in time, also on a busy host
    victims = pids(running)[:count]
    one = encoded(Compared(base, target), target, tmp_path / "one")
    asked = count_runs(running)

    inner = running._take

    def taking() -> EncoderProcess | None:
        if len(asked) >= 2:
            while victims:
                os.kill(victims.pop(), how)
        return inner()

    running._take = taking  # type: ignore[method-assign]
    assert encoded(Compared(base, target, running), target, tmp_path / "two") == one
    assert not all(asked) or len(pids(running)) == 2 - count
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "an encoder is lost" in told[0]
    assert ("ended with code -9" if how == signal.SIGKILL else "has not answered for 2 s") in told[0]
    assert len(pids(running)) == 2 - count
    running.start()  # the next large snapshot
    all_are_up(running)
    assert encoded(Compared(base, target, running), target, tmp_path / "three") == one


FAILS = """\
#!{python}
import sys
from chappe.origin import encoder

def fail(self, run):
    raise ValueError("what nobody has thought of")

encoder.BlockMaker.encode = fail
sys.argv[1:3] = []
encoder.main()
"""


def test_an_error_that_nobody_has_thought_of_is_a_lost_process(
    tmp_path: Path, two: tuple[Base, Snapshot], caplog: pytest.LogCaptureFixture
) -> None:
    base, target = two
    instead = program(tmp_path, FAILS)
    one = encoded(Compared(base, target), target, tmp_path / "one")
    with closing(Encoders(2, executable=instead)) as made:
        made.start()
        all_are_up(made)
        begun = pids(made)
        assert encoded(Compared(base, target, made), target, tmp_path / "two") == one
        assert not made._all
    assert not any(Path(f"/proc/{pid}").exists() for pid in begun)
    assert "ValueError: what nobody has thought of" in caplog.text


STOPS_IN_AN_ANSWER = """\
#!{python}
import os, signal, struct, sys
from multiprocessing.connection import Connection
from chappe.origin.encoder import INSTALLED
connection = Connection(int(sys.argv[3]))
connection.send_bytes(INSTALLED)
connection.recv(), connection.recv()
os.write(connection.fileno(), struct.pack("!i", 1000) + b"half")
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_stopped_in_the_middle_of_an_answer(
    tmp_path: Path, two: tuple[Base, Snapshot], caplog: pytest.LogCaptureFixture
) -> None:
    base, target = two
    instead = program(tmp_path, STOPS_IN_AN_ANSWER)
    with closing(Encoders(1, executable=instead)) as made:
        made.answer_s = 0.3
        made.start()
        all_are_up(made)
        one = encoded(Compared(base, target), target, tmp_path / "one")
        assert encoded(Compared(base, target, made), target, tmp_path / "two") == one
        assert not made._all
    assert "has not answered for 0.3 s" in caplog.text


def test_stopped_before_a_task_that_fills_the_connection(
    two: tuple[Base, Snapshot], running: Encoders, caplog: pytest.LogCaptureFixture
) -> None:
    target = two[1]
    many = Snapshot(target.files, tuple(replace(target.tensors[0], name=f"tensor {i}") for i in range(50_000)))
    running.answer_s = 0.3
    for pid in pids(running):
        os.kill(pid, signal.SIGSTOP)
    with running.encoding(Task(None, many, "xxh3_128")) as encode:
        assert encode(range(1)) is None
        assert encode(range(1)) is None
    assert not running._all
    assert "has not answered for 0.3 s" in caplog.text


def test_one_that_the_kernel_does_not_let_go_is_left_behind(running: Encoders, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (encoders, encoderprocess):
        monkeypatch.setattr(module, "CLOSE_S", 0.1)
    stopped = running._all[0]
    os.kill(stopped.pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(stopped._process, "kill", lambda: None)
        running.close()
    assert stopped._process.poll() is None
    stopped._process.kill()
    stopped._process.wait()


def test_an_answer_for_which_there_is_no_memory(
    two: tuple[Base, Snapshot], running: Encoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is in the middle of a message: the process is of no use any more, and does not stay behind."""
    begun = pids(running)

    def no_room() -> object:
        raise MemoryError

    for process in running._all:
        monkeypatch.setattr(process._connection, "recv", no_room)
    with running.encoding(Task(None, two[1], "xxh3_128")) as encode, pytest.raises(MemoryError):
        encode(range(1))
    assert len(running._all) == len(running._free) == 1
    running.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in begun)
