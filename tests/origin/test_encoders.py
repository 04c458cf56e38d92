"""Processes that encode: what comes out is what threads make, and they let go of what they were given."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from chappe.core.digest import XXH3_128
from chappe.errors import SnapshotChangedError
from chappe.hop.ordered import OrderedMap
from chappe.origin import encoder, runs
from chappe.origin.blocksources import Compared, Whole
from chappe.origin.encoder import Task, plan_of
from chappe.origin.encoderprocess import EncoderProcess
from chappe.origin.encoders import Encoders
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base
from tests.origin.encoderkit import all_are_up, count_runs, encoded, pids, program, snapshot


@pytest.mark.parametrize("moved", [{}, {"d": "k", "a": "n", "b": "n"}], ids=["the same tensors", "other shards"])
def test_processes_make_what_threads_make(
    tmp_path: Path, two: tuple[Base, Snapshot], running: Encoders, moved: dict[str, str]
) -> None:
    base, target = two
    if moved:
        target = snapshot(tmp_path / "moved", 0.01, **moved)
    asked = count_runs(running)
    for number, (alone, together) in enumerate(
        [(Compared(base, target), Compared(base, target, running)), (Whole(target), Whole(target, running))]
    ):
        one = encoded(alone, target, tmp_path / f"one {number}")
        assert encoded(together, target, tmp_path / f"two {number}") == one
    assert asked
    assert all(asked)  # not one run was left to a thread


SMALL_RUNS = """\
#!{python}
import sys
from chappe.origin import encoder

encoder.RUN_BYTES_MAX = 1
sys.argv[1:3] = []
encoder.main()
"""


def test_the_rest_of_a_run_that_became_large_is_asked_for(
    tmp_path: Path, two: tuple[Base, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one block in each answer, whoever gives it: by processes, where they are lost in between, by threads."""
    base, target = two
    one = encoded(Compared(base, target), target, tmp_path / "one")
    instead = program(tmp_path, SMALL_RUNS)
    monkeypatch.setattr(encoder, "RUN_BYTES_MAX", 1)
    monkeypatch.setattr(runs.Runs, "_blocks_max", lambda self: min(5, self._total - self._next))
    with closing(Encoders(2, executable=instead)) as made:
        made.start()
        all_are_up(made)
        asked = count_runs(made)
        assert encoded(Compared(base, target, made), target, tmp_path / "two") == one
        blocks, answers = plan_of(base.snapshot, target).blocks_total, len(asked)
        assert blocks // 5 + 3 < answers <= blocks  # of what has not changed, one answer has more than one
        assert asked.count(True) > answers // 2
        assert len(pids(made)) == 2
        inner, victims = made._take, pids(made)

        def taking() -> EncoderProcess | None:
            if len(asked) >= answers + 2:
                while victims:
                    os.kill(victims.pop(), signal.SIGKILL)
            return inner()

        made._take = taking  # type: ignore[method-assign]
        assert encoded(Compared(base, target, made), target, tmp_path / "three") == one
        assert len(asked) == 2 * answers
        assert not made._all
        assert not asked[-1]
    assert encoded(Compared(base, target), target, tmp_path / "four") == one


def test_the_rest_of_a_run_is_made_by_all_hands(
    tmp_path: Path, two: tuple[Base, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever packs waits for it, and what is behind it has been made by then."""
    base, target = two
    one = encoded(Compared(base, target), target, tmp_path / "one")
    monkeypatch.setattr(encoder, "RUN_BYTES_MAX", 1)
    monkeypatch.setattr(runs.Runs, "_blocks_max", lambda self: min(5, self._total - self._next))
    inner, together, met = encoder.BlockMaker.encode, threading.Barrier(2), list[threading.Thread]()

    def encode(self: encoder.BlockMaker, run: range) -> encoder.Encoded:
        if run.start % 5 and len(met) < 2:  # two parts of the rest of the first run
            met.append(threading.current_thread())
            together.wait(20)
        return inner(self, run)

    monkeypatch.setattr(encoder.BlockMaker, "encode", encode)
    assert encoded(Compared(base, target), target, tmp_path / "two") == one
    assert len({*met}) == 2
    assert threading.current_thread() not in met


def test_given_up_in_the_rest_of_a_run(two: tuple[Base, Snapshot], monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been asked for of it is not begun any more, and the files are let go of."""
    base, target = two
    monkeypatch.setattr(encoder, "RUN_BYTES_MAX", 1)
    monkeypatch.setattr(runs.Runs, "_blocks_max", lambda self: min(5, self._total - self._next))
    inner, begun, go_on = encoder.BlockMaker.encode, list[int](), threading.Event()

    def encode(self: encoder.BlockMaker, run: range) -> encoder.Encoded:
        begun.append(run.start)
        if run.start == 3:
            go_on.wait(20)
        return inner(self, run)

    monkeypatch.setattr(encoder.BlockMaker, "encode", encode)
    with Compared(base, target).opened() as (_, blocks), ThreadPoolExecutor(1) as pool:
        made = blocks(XXH3_128, OrderedMap(pool, 2), 1)
        assert [next(made).ordinal for _ in range(3)] == [0, 1, 2]
        assert isinstance(made, Generator)
        ours = {str(file.location) for of in (base.snapshot, target) for file in of.files}
        assert open_files() & ours
        made.close()
        assert not open_files() & ours
        go_on.set()
    assert set(begun) <= {0, 2, 3, 5, 10}


def open_files() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # other threads have files, too
            found.add(str(link.readlink()))
    return found


def test_a_base_that_rotted_is_found(tmp_path: Path, two: tuple[Base, Snapshot], running: Encoders) -> None:
    base, target = two
    path = tmp_path / "base" / "m.safetensors"
    before = path.stat()
    for at in (200, 7_000_000, before.st_size - 1):
        flip(path, at)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(SnapshotChangedError, match="is not what was published"):
            encoded(Compared(base, target, running), target, tmp_path / "spool")
        flip(path, at)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert encoded(Compared(base, target, running), target, tmp_path / "spool")


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes((byte ^ 1,)))


def test_files_that_change_are_an_error_not_a_lost_process(
    tmp_path: Path, two: tuple[Base, Snapshot], running: Encoders
) -> None:
    base, target = two
    with (tmp_path / "target" / "n.safetensors").open("ab") as file:
        file.write(b" ")
    with pytest.raises(SnapshotChangedError, match=r"n\.safetensors changed while"):
        encoded(Compared(base, target, running), target, tmp_path / "spool")
    all_are_up(running)


def test_files_are_let_go_of(tmp_path: Path, two: tuple[Base, Snapshot], running: Encoders) -> None:
    base, target = two
    other = snapshot(tmp_path / "other")
    encoded(Compared(base, target, running), target, tmp_path / "spool")
    for process in running._all:
        process.encode(99, Task(None, other, "xxh3_128"), range(1), 30.0)  # what came before it has been heard
        links = [link.readlink() for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert {link.parent.name for link in links if tmp_path in link.parents} == {"other"}


def test_tasks_side_by_side(tmp_path: Path, two: tuple[Base, Snapshot], running: Encoders) -> None:
    """A delta and a compressed snapshot of one publication share the processes."""
    base, target = two
    sources: list[Compared | Whole] = [Compared(base, target, running), Whole(target, running)]
    plain = [encoded(Compared(base, target), target, tmp_path / "a"), encoded(Whole(target), target, tmp_path / "b")]
    made: dict[int, bytes] = {}

    def work(number: int) -> None:
        made[number] = encoded(sources[number], target, tmp_path / str(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [made[0], made[1]] == plain


def test_closed_while_they_work(tmp_path: Path, two: tuple[Base, Snapshot], running: Encoders) -> None:
    """Threads that wait for an answer make the run themselves; nothing is left behind."""
    base, target = two
    one = encoded(Compared(base, target), target, tmp_path / "one")
    begun = pids(running)
    asked = count_runs(running)
    inner = running._take

    def taking() -> EncoderProcess | None:
        process = inner()
        if len(asked) >= 3:  # both threads may have made one since
            running.close()
        return process

    running._take = taking  # type: ignore[method-assign]
    assert encoded(Compared(base, target, running), target, tmp_path / "two") == one
    assert not any(Path(f"/proc/{pid}").exists() for pid in begun)
    running.start()
    assert pids(running) == []
    running.open()
    running.start()
    assert len(pids(running)) == 2
