"""A process that encodes, as its publisher sees it: started, asked, found lost, ended. See `chappe.origin.encoders`.

A program is started, not forked: the publisher lives in a trainer that has threads and a GPU. What it prints is kept
for the message that says how it was lost. Blocking; no wait is without an end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Container
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

import chappe
from chappe.errors import ChappeError
from chappe.origin.encoder import INSTALLED, Encoded, Task

CLOSE_S = 2.0
_PRINTED_BYTES = 2000
_GREETING_BYTES_MAX = 200
_PROGRAM = "import sys; sys.path = sys.argv[3:]; from chappe.origin.encoder import main; main()"


class EncoderLostError(ChappeError):
    """A process has ended, or does not answer. The message says which, and what it had printed."""


class EncoderProcess:
    """One encoder. Used by one thread at a time, but for `end`."""

    def __init__(self, executable: str) -> None:
        """Raises OSError."""
        self.ready = False
        self._tasks: set[int] = set()  # that it has been told of
        with ExitStack() as undo:
            self._socket, theirs = socket.socketpair()
            undo.callback(self._socket.close)
            with closing(theirs):
                self._connection = Connection(os.dup(self._socket.fileno()))
                undo.callback(self._connection.close)
                self._printed: IO[bytes] = undo.enter_context(tempfile.TemporaryFile())
                self._process = subprocess.Popen(  # the last that may fail: nobody would wait for its end
                    [executable, *_flags(), "-c", _PROGRAM, str(theirs.fileno()), str(os.getpid()), *_path()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._printed,
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # it must not hear what interrupts the trainer at its terminal
                    env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},  # numpy's own, of no use
                )
            undo.pop_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def look(self) -> bool:
        """Whether it has begun. Does not wait. Raises EncoderLostError."""
        try:
            if not self.ready and self._connection.poll():
                if self._connection.recv_bytes(_GREETING_BYTES_MAX) != INSTALLED:
                    raise EncoderLostError("chappe was installed anew since this publisher was started")
                self.ready = True
            elif not self.ready and self._process.poll() is not None:  # and something forked holds its end
                raise self._lost()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        return self.ready

    def wait(self) -> None:
        """Until it has begun, or has ended."""
        if not self.ready:
            self._connection.poll(None)

    def encode(self, number: int, task: Task, run: range, answer_s: float) -> Encoded:
        """Raises EncoderLostError, and what the process raised of the snapshot."""
        self._wait_at_most(answer_s)
        silent = f"process {self.pid} has not answered for {answer_s:g} s"
        try:
            if number not in self._tasks:
                self._tasks.add(number)
                self._connection.send((number, task))
            self._connection.send((number, run))
            if not self._connection.poll(answer_s):
                raise EncoderLostError(silent)
            answer = self._connection.recv()
        except BlockingIOError as error:
            raise EncoderLostError(silent) from error
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if isinstance(answer, ChappeError):
            raise answer
        assert isinstance(answer, Encoded)
        return answer

    def forget(self, live: Container[int]) -> None:
        """All tasks but these are over: their files are let go of."""
        over = [number for number in self._tasks if number not in live]
        self._tasks.difference_update(over)
        with contextlib.suppress(OSError):  # it is found lost when it is asked again
            for number in over:
                self._connection.send((number, None))

    def _wait_at_most(self, wait_s: float) -> None:
        """For each part of a message: a process that is stopped, or hangs, is so in the middle of one as well."""
        limit = struct.pack("@ll", int(wait_s), round(wait_s % 1 * 1e6))
        for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, way, limit)

    def _lost(self) -> EncoderLostError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - _PRINTED_BYTES))
        printed = self._printed.read().decode(errors="replace").strip()
        said = f": {printed}" if printed else ""
        return EncoderLostError(f"process {self.pid} has ended with code {self._process.returncode}{said}")

    def end(self) -> None:
        """It ends when it is free; a thread that waits for its answer sees it lost at once. From any thread."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def reap(self, wait_s: float = CLOSE_S) -> None:
        """After `end`, or with `wait_s` 0 for one that is of no use."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel does not let it go: a file system hangs
                self._process.wait(CLOSE_S)
        self._connection.close()
        self._socket.close()
        self._printed.close()


def _flags() -> list[str]:
    return ["-I"] if sys.flags.isolated else ["-E"] if sys.flags.ignore_environment else []


def _path() -> list[str]:
    """Where modules are found here, in this order: site-packages before Python's own would hide some of those."""
    path = [entry for entry in sys.path if isinstance(entry, str) and entry]
    home = str(Path(chappe.__file__).parent.parent)
    return path if home in path else [home, *path]  # found from a folder that may not be the current one any more
