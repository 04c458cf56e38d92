"""A trainer that has given SIGPIPE its default back lives on when a peer dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

_BEGIN = """
import asyncio, errno, os, signal, socket, sys, tempfile, threading
from contextlib import contextmanager
from pathlib import Path
signal.signal(signal.SIGPIPE, signal.SIG_DFL)

def gone():
    "A connection whose peer has reset it, and the error of that has been seen."
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\\1\\0\\0\\0\\0\\0\\0\\0")
    far.close()
    try:
        near.recv(1)
    except ConnectionResetError:
        pass
    return near
"""

_CASES = {
    "plain": """
near = gone()
near.send(b"x")
""",
    "outlet": """
from chappe.hop.tcp_send import TcpLostError, TcpOutlet
async def main():
    outlet = TcpOutlet(gone())
    try:
        await outlet.run(lambda: outlet.write(b"x"))
    except TcpLostError:
        print("lost")
asyncio.run(main())
""",
    "sendfile": """
from chappe.hop.tcp_send import TcpLostError, TcpOutlet
async def main():
    near = gone()
    outlet = TcpOutlet(near)
    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 100)
        file.flush()
        try:
            await outlet.run(lambda: os.sendfile(near.fileno(), file.fileno(), 0, 100))
        except OSError as error:
            assert error.errno == errno.EPIPE, error
            print("lost")
asyncio.run(main())
""",
    "step": """
from chappe.hop.tcp_sockets import step
async def main():
    near = gone()
    near.setblocking(False)
    try:
        await step(near, lambda: near.sendall(b"x"))
    except BrokenPipeError:
        print("lost")
asyncio.run(main())
assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "the caller's thread is as it was"
assert signal.SIGPIPE not in signal.sigpending()
""",
    "loop": """
from chappe.loop_thread import shared_loop
async def main():
    try:
        gone().send(b"x")
    except BrokenPipeError:
        print("lost")
shared_loop().run(main())
""",
}


def _run(case: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _BEGIN + _CASES[case]]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def test_without_care_it_is_killed() -> None:
    """Or the cases below would prove nothing."""
    assert _run("plain").returncode == -signal.SIGPIPE


@pytest.mark.parametrize("case", ["outlet", "sendfile", "step", "loop"])
def test_it_lives_on(case: str) -> None:
    ended = _run(case)
    assert (ended.returncode, ended.stdout) == (0, "lost\n"), ended.stderr
