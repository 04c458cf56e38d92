"""Processes that encode: what comes out is what threads make, whatever becomes of a process on the way."""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from chappe.core.digest import XXH3_128
from chappe.core.manifest import LEAF_BYTES, Manifest
from chappe.errors import SnapshotChangedError
from chappe.origin import encoder, encoders
from chappe.origin.blocksources import Compared, Whole
from chappe.origin.deltas import DeltaFile
from chappe.origin.encoder import BlockMaker, LeavesInARow, Task, plan_of, runs_of
from chappe.origin.encoders import BYTES_AT_ONCE, BYTES_MIN, Encoders
from chappe.origin.hashing import SnapshotHasher, hash_snapshot
from chappe.origin.scan import Snapshot, scan
from chappe.origin.steps import Base

SIZES = {"a": 6_000_001, "b": 3_000_000, "c": 5, "d": 2_500_000}
ROOT = "xxh3_128:" + "0" * 32


def snapshot(path: Path, changed: float = 0.0, **files: str) -> Snapshot:
    """Some ten blocks in two files, a share of their elements one step further."""
    path.mkdir()
    names = files or {"a": "m", "b": "m", "c": "m", "d": "n"}
    for file in sorted(set(names.values())):
        tensors = {}
        for name in (name for name in names if names[name] == file):
            generator = np.random.default_rng(ord(name))
            tensors[name] = generator.normal(0, 0.02, SIZES[name]).astype(np.float16).view(np.uint16)
            tensors[name] += generator.random(SIZES[name]) < changed
        save_file(tensors, path / f"{file}.safetensors")
    return scan(path)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Base, Snapshot]:
    kept = snapshot(tmp_path / "base")
    return Base(hash_snapshot(kept), (1,), kept), snapshot(tmp_path / "target", 0.01)


@pytest.fixture
def running() -> Iterator[Encoders]:
    """Two processes that are up."""
    with closing(Encoders(2)) as made:
        made.start()
        all_are_up(made)
        yield made


def all_are_up(made: Encoders) -> None:
    assert len(made._all) == made.processes
    for process in made._all:
        assert process.ready or process._connection.poll(30.0)
        assert process.look()


def pids(made: Encoders) -> list[int]:
    return [process.pid for process in made._all]


def encoded(source: Compared | Whole, target: Snapshot, spool: Path, threads: int = 2) -> bytes:
    spool.mkdir(exist_ok=True)
    full = Manifest("0" * 32, XXH3_128, LEAF_BYTES, target.entries, target.tensors)
    file = DeltaFile(source, full, spool)
    try:
        file.encode(threads)
        file.close(ROOT)
        return file.path.read_bytes()
    finally:
        file.discard()


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


def count_runs(made: Encoders) -> list[bool]:
    """Of each run, whether a process has made it."""
    asked: list[bool] = []
    inner = made._encode

    def counting(number: int, task: Task, run: range) -> encoder.Encoded | None:
        result = inner(number, task, run)
        asked.append(result is not None)
        return result

    made._encode = counting  # type: ignore[method-assign]
    return asked


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

    def taking() -> encoders._Process | None:
        if len(asked) == 2 and victims:
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


@pytest.mark.parametrize(
    ("executable", "told"),
    [("/nonexistent/python", "/nonexistent/python: No such file"), ("/bin/false", "ended with code 1")],
)
def test_processes_that_cannot_start(
    tmp_path: Path, two: tuple[Base, Snapshot], caplog: pytest.LogCaptureFixture, executable: str, told: str
) -> None:
    base, target = two
    with closing(Encoders(2, executable=executable)) as made:
        for number in range(5):
            made.start()
            for process in made._all:
                process._process.wait()
            assert encoded(Compared(base, target, made), target, tmp_path / str(number))
        assert not made._all
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert told in messages[0]


def test_what_a_process_printed_is_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho no room for numpy >&2\nexit 3\n")
    program.chmod(0o755)
    with closing(Encoders(1, executable=str(program))) as made:
        made.start()
        made._all[0]._process.wait()
        assert made._take() is None
    assert "has ended with code 3: no room for numpy" in caplog.text


def test_one_that_ended_while_something_forked_holds_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fork between two steps of its start: the connection does not tell of the end."""
    pairs: list[socket.socket] = []

    def pair() -> tuple[socket.socket, socket.socket]:
        ours, theirs = made_pair()
        pairs.append(theirs.dup())
        return ours, theirs

    made_pair = socket.socketpair
    monkeypatch.setattr(socket, "socketpair", pair)
    with closing(Encoders(1, executable="/bin/false")) as made:
        made.start()
        made._all[0]._process.wait()
        assert made._take() is None
        assert not made._all
    assert "ended with code 1" in caplog.text
    pairs[0].close()


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
    program = tmp_path / "python"
    program.write_text(FAILS.format(python=sys.executable))
    program.chmod(0o755)
    one = encoded(Compared(base, target), target, tmp_path / "one")
    with closing(Encoders(2, executable=str(program))) as made:
        made.start()
        all_are_up(made)
        begun = pids(made)
        assert encoded(Compared(base, target, made), target, tmp_path / "two") == one
        assert not made._all
    assert not any(Path(f"/proc/{pid}").exists() for pid in begun)
    assert "ValueError: what nobody has thought of" in caplog.text


def test_another_installation_is_of_no_use(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(encoders, "INSTALLED", b"an older one")
    with closing(Encoders(1)) as made:
        made.start()
        select.select([made._all[0]._connection], [], [])
        assert made._take() is None
        assert not made._all
    assert "installed anew" in caplog.text


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

    def taking() -> encoders._Process | None:
        process = inner()
        if len(asked) == 3:
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
    program = tmp_path / "python"
    program.write_text(STOPS_IN_AN_ANSWER.format(python=sys.executable))
    program.chmod(0o755)
    with closing(Encoders(1, executable=str(program))) as made:
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
    monkeypatch.setattr(encoders, "CLOSE_S", 0.1)
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


def test_closed_and_opened_often() -> None:
    """What was not lost is started each time."""
    with closing(Encoders(1)) as made:
        for _ in range(encoders.STARTS_MAX + 1):
            made.open()
            made.start()
            assert len(made._all) == 1
            made.close()


def _no_more_files(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("call", ["os.dup", "tempfile.TemporaryFile", "subprocess.Popen", "socket.socketpair"])
def test_where_no_more_files_can_be_open(
    call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, name = call.split(".")
    before = set(os.listdir("/proc/self/fd"))
    with closing(Encoders(2)) as made:
        with monkeypatch.context() as patched:
            patched.setattr(getattr(encoders, module), name, lambda *_, **__: _no_more_files())
            made.start()
        assert not made._all
        assert set(os.listdir("/proc/self/fd")) == before
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("executable", [None, ""])
def test_a_program_that_has_python_built_in(executable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    assert Encoders().processes == Encoders(2).processes == 0


def test_a_frozen_program_is_not_started_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert Encoders().processes == Encoders(2).processes == 0


IMPORTER = """
import os, sys
before = next(number for number, entry in enumerate(sys.path) if "site-packages" in entry)
{how}
os.chdir("/")
from chappe.origin.encoders import Encoders
encoders = Encoders(1)
encoders.start()
encoders._all[0]._connection.poll(None)
print(encoders._take() is not None)
"""


@pytest.mark.parametrize("flags", [["-I"], ["-E"], []])
def test_modules_are_found_as_in_the_publisher(tmp_path: Path, flags: list[str]) -> None:
    """Where the packages are there is also something by the name of a module of Python's; what the environment names
    counts as little as it did there."""
    site = packages_in(tmp_path)
    (site / "dataclasses.py").write_text("raise ImportError('of another Python')")
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "numpy.py").write_text("raise ImportError('not the one')")
    how, given = f"sys.path.insert(before, {str(site)!r})", {"PYTHONPATH": str(hostile)} if flags else {}
    assert imported([*flags, "-c", IMPORTER.format(how=how)], tmp_path, given) == ("True\n", "")


def test_modules_that_were_found_from_another_folder(tmp_path: Path) -> None:
    how = f"sys.path.insert(before, {packages_in(tmp_path).name!r}); import chappe.origin.encoders"
    assert imported(["-c", IMPORTER.format(how=how)], tmp_path, {}) == ("True\n", "")


def packages_in(folder: Path) -> Path:
    site = folder / "site:packages"
    site.mkdir()
    (site / "chappe").symlink_to(Path(encoders.__file__).parents[1])
    return site


def imported(arguments: list[str], folder: Path, given: dict[str, str]) -> tuple[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | given
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    return done.stdout, done.stderr


def test_an_editor_s_lock_is_no_file_of_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text("")
    monkeypatch.setattr(encoder.chappe, "__file__", str(tmp_path / "__init__.py"))
    alone = encoder._installed()
    (tmp_path / ".#one.py").symlink_to("me@host.1234")
    assert encoder._installed() == alone
    (tmp_path / "two.py").write_text("")
    assert encoder._installed() != alone


PUBLISHER = """
import os, sys
from pathlib import Path
from chappe.origin.encoder import Task
from chappe.origin.encoders import Encoders
from chappe.origin.scan import scan
encoders = Encoders(2)
encoders.start()
for process in encoders._all:
    process._connection.poll(None)
    process.look()
if sys.argv[1] == "forks":  # while one of them waits, and the other one's answer is not read
    connection = encoders._all[0]._connection
    connection.send((1, Task(None, scan(Path(sys.argv[2])), "xxh3_128")))
    connection.send((1, range(1, 4)))  # more than the connection holds
    connection.poll(None)
if sys.argv[1] == "forks" and os.fork() == 0:
    os.read(0, 1)  # as long as the test: holds the connections
    os._exit(0)
print(*[process.pid for process in encoders._all], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("case", ["alone", "forks"])
def test_they_end_with_the_publisher(case: str, tmp_path: Path) -> None:
    snapshot(tmp_path / "published")
    with subprocess.Popen(
        [sys.executable, "-c", PUBLISHER, case, str(tmp_path / "published")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as publisher:
        assert publisher.stdout is not None
        children = [int(pid) for pid in publisher.stdout.readline().split()]
        assert len(children) == 2
        assert all(os.getpgid(pid) == pid for pid in children)  # what interrupts the publisher is not theirs to hear
        watched = [os.pidfd_open(pid) for pid in children]
        try:
            publisher.kill()
            for process in watched:
                assert select.select([process], [], [], 30.0)[0], "it goes on"
        finally:
            for process in watched:
                os.close(process)


def test_when_they_are_started() -> None:
    def started(*sizes: int) -> int:
        with closing(Encoders(2)) as made:
            for size in sizes:
                made.expect(size)
            return len(made._all)

    assert started(BYTES_AT_ONCE - 1) == 0
    assert started(BYTES_AT_ONCE) == 2
    assert started(BYTES_MIN, BYTES_MIN) == 2
    assert started(BYTES_MIN, BYTES_MIN - 1) == 0
    assert Encoders(0).processes == 0
    assert Encoders().processes in (0, min(len(os.sched_getaffinity(0)), encoders.PROCESSES_MAX))


@pytest.mark.parametrize("hands", [1, 2, 8, 32])
@pytest.mark.parametrize("total", [0, 1, 7, 64, 500, 10_000])
def test_runs_are_all_blocks_in_order(total: int, hands: int) -> None:
    runs = list(runs_of(total, hands, lambda _: 2 << 20))
    assert [ordinal for run in runs for ordinal in run] == list(range(total))
    assert all(len(run) == 1 for run in runs[: 2 * hands])
    assert all(len(run) <= encoder.RUN_BLOCKS_MAX for run in runs)


def test_runs_are_bounded_by_their_bytes() -> None:
    """Of wide elements as well: what does not get smaller is in memory as it is."""
    sizes = [100, *[8 << 20] * 300, *[4 << 20] * 300, 7, *[40 << 20] * 2, *[1 << 20] * 300]
    runs = list(runs_of(len(sizes), 2, sizes.__getitem__))
    assert [ordinal for run in runs for ordinal in run] == list(range(len(sizes)))
    assert all(len(run) == 1 or sum(sizes[ordinal] for ordinal in run) <= encoder.RUN_BYTES_MAX for run in runs)
    assert {len(run) for run in runs} == {1, 2, 3, 4, 8}


def test_leaves_of_what_is_read_in_a_row(tmp_path: Path) -> None:
    source = snapshot(tmp_path / "one")
    with SnapshotHasher(source) as hasher:
        results = [future.result() for future in hasher.results()]
    digests = [[leaf for r in results if r.span.file == file for leaf in r.leaves] for file in range(2)]
    sizes = [file.size_bytes for file in source.files]
    data = [file.location.read_bytes() for file in source.files]
    row = LeavesInARow(XXH3_128, sizes)
    asked = [(0, 0, 100), (0, 100, 3 * LEAF_BYTES), (0, 5 * LEAF_BYTES - 7, LEAF_BYTES), (0, 6 * LEAF_BYTES - 7, 7)]
    asked += [(1, 9, sizes[1] - 9), (0, sizes[0] - sizes[0] % LEAF_BYTES, sizes[0] % LEAF_BYTES), (0, 0, LEAF_BYTES)]
    for file, offset, length in asked:
        row.feed(file, offset, memoryview(data[file])[offset : offset + length])
    whole = [(0, 0), (0, 1), (0, 2), (0, 5), *((1, i) for i in range(1, len(digests[1]))), (0, len(digests[0]) - 1)]
    assert row.leaves == [(file, leaf, digests[file][leaf]) for file, leaf in [*whole, (0, 0)]]


def test_a_maker_and_its_task(two: tuple[Base, Snapshot]) -> None:
    base, target = two
    plan = plan_of(base.snapshot, target)
    with closing(BlockMaker(Task(base.snapshot, target, "xxh3_128", "xxh3_128"))) as maker:
        made = maker.encode(range(plan.blocks_total))
    assert [block.ordinal for block in made.blocks] == list(range(plan.blocks_total))
    assert sum(block.changed for block in made.blocks) > 50_000
    assert len(made.leaves) == sum(-(-file.size_bytes // LEAF_BYTES) for file in base.snapshot.files)
