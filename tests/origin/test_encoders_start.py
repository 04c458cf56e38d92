"""When processes that encode are started, and from what; what becomes of those that cannot be, and when they end."""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from chappe.origin import encoder, encoderprocess, encoders
from chappe.origin.blocksources import Compared
from chappe.origin.encoders import BYTES_AT_ONCE, BYTES_MIN, Encoders
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base
from tests.origin.encoderkit import encoded, program, snapshot


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
    instead = program(tmp_path, "#!/bin/sh\necho no room for numpy >&2\nexit 3\n")
    with closing(Encoders(1, executable=instead)) as made:
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


def test_another_installation_is_of_no_use(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(encoderprocess, "INSTALLED", b"an older one")
    with closing(Encoders(1)) as made:
        made.start()
        select.select([made._all[0]._connection], [], [])
        assert made._take() is None
        assert not made._all
    assert "installed anew" in caplog.text


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
            patched.setattr(getattr(encoderprocess, module), name, lambda *_, **__: _no_more_files())
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
