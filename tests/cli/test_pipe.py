"""Output that nobody reads any more: `chappe ... | head` ends quietly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from chappe.cli.settings import EXIT_NO_READER

LINES = 20_000  # more than any pipe holds
TALKER = f"""
import sys
from chappe.cli.settings import make_app, run_app

app = make_app("talker", "Talks.")

@app.default
def talk() -> int:
    for i in range({LINES}):
        print(i)
    return 0

sys.exit(run_app(app, [], env_prefix="TALKER_"))
"""
RICH = """
import sys
from rich.console import Console
from chappe.cli.settings import make_app, run_app

app = make_app("talker", "Talks.")

@app.default
def talk() -> int:
    Console().print("a table")
    return 0

sys.exit(run_app(app, [], env_prefix="TALKER_"))
"""


def closed(command: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    """Run it with a pipe as its output whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run([sys.executable, *command], stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "command",
    [
        ("-m", "chappe.cli.main", "--help"),
        ("-m", "relayd", "--help"),
        ("-m", "relayd", "--store", "s", "--coordinator", "127.0.0.1:1", "--print-config"),
        ("-c", RICH),
    ],
)
def test_nobody_reads_it(command: Sequence[str]) -> None:
    done = closed(command)
    assert done.stderr == b""
    assert done.returncode == EXIT_NO_READER


def test_head_has_enough() -> None:
    talker = subprocess.Popen([sys.executable, "-c", TALKER], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert talker.stdout is not None
    assert talker.stderr is not None
    assert talker.stdout.readline() == b"0\n"
    talker.stdout.close()
    assert talker.stderr.read() == b""
    talker.stderr.close()
    assert talker.wait() == EXIT_NO_READER


def test_who_is_read_to_the_end_succeeds() -> None:
    done = subprocess.run([sys.executable, "-c", TALKER], capture_output=True, check=False)
    assert done.stderr == b""
    assert done.returncode == 0
    assert done.stdout.count(b"\n") == LINES


def test_a_daemon_whose_log_nobody_reads_ends(tmp_path: object) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = ("-m", "relayd", "--store", str(tmp_path), "--coordinator", "127.0.0.1:1", "--listen", "127.0.0.1:0")
    daemon = subprocess.Popen([sys.executable, *command], stdout=writer, stderr=writer)
    os.close(writer)
    assert daemon.wait(60) == EXIT_NO_READER
