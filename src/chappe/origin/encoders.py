"""Processes that encode for a publisher: threads that make numpy's short calls wait for Python's lock most of the time.

    thread ──run──▶ a process that is free ──▶ its blocks        (`chappe.origin.encoder`)
       └── none is free, or it was lost with the run ──▶ the thread makes the blocks itself

What comes out is the same whoever made it. A process is started, not forked: the publisher lives in a trainer that has
threads and a GPU. It opens the files itself, so that only encoded blocks go through the connection.

    a process   cannot start, or of other files       the threads encode; told once, with what it printed
                dies or is killed with a run          the run is made again here; the others go on
                stops answering                       killed after `ANSWER_S`, also in the middle of a message; as above
                reads what has changed                raises the same error as a thread would
    publisher   is closed, or dies                    the connection ends, and with it the process
                forks, and dies                       the process watches it, and ends with it
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias

from chappe.errors import ChappeError
from chappe.origin.encoder import Encoded, Task
from chappe.origin.encoderprocess import CLOSE_S, EncoderLostError, EncoderProcess

log = logging.getLogger(__name__)  # a library in somebody's trainer: nothing is printed uninvited

PROCESSES_MAX = 8
"""Each has some 40 MB, and encodes 3 GB/s: more only wait for the memory bus."""
BYTES_MIN = 64 << 20
"""Smaller snapshots are encoded before a run has been handed over twice."""
BYTES_AT_ONCE = 4 << 30
"""From here on it pays to start them for a single publication: a start takes 0.3 s of a core."""
ANSWER_S = 30.0
"""A run takes a tenth of a second at most, unless the host swaps or a network file system hangs."""
STARTS_MAX = 3
"""Of each process, those counted that were lost: what dies that often is not started again."""

EncodeRun: TypeAlias = Callable[[range], Encoded | None]
"""From any thread. None: nobody is free for it. Raises what reading the snapshots raises."""


class Encoders:
    """Safe from any thread. `start` returns at once: until processes are up, whoever asks is told to do it alone."""

    def __init__(self, processes: int | None = None, *, executable: str | None = None) -> None:
        """`processes` None: as many as this process may use cores, up to `PROCESSES_MAX`; with one core, or 0, none.
        `executable` None: this process's Python; none are started where that is not known."""
        self._executable = _python() if executable is None else executable
        cores = len(os.sched_getaffinity(0)) if self._executable else 0
        self.processes = processes if processes is not None else min(cores, PROCESSES_MAX) if cores > 1 else 0
        if not self._executable:
            self.processes = 0
        self.answer_s = ANSWER_S
        self._seen = False
        self._lock = threading.Lock()
        self._all: list[EncoderProcess] = []
        self._free: list[EncoderProcess] = []
        self._starts_left = STARTS_MAX * self.processes
        self._told = False
        self._closed = False
        self._numbers = count(1)
        self._live: set[int] = set()

    def open(self) -> None:
        """`start` may be called, also after `close`."""
        with self._lock:
            self._closed = False

    def expect(self, snapshot_bytes: int) -> None:
        """A snapshot of this size may have to be encoded: start if that pays. A publisher that has published before
        will do so again."""
        again, self._seen = self._seen, True
        if snapshot_bytes >= (BYTES_MIN if again else BYTES_AT_ONCE):
            self.start()

    def start(self) -> None:
        """As many as there should be. Does not wait for them."""
        with self._lock:
            missing = 0 if self._closed else min(self.processes - len(self._all), self._starts_left)
            try:
                for _ in range(missing):
                    self._starts_left -= 1
                    process = EncoderProcess(self._executable)
                    self._all.append(process)
                    self._free.append(process)
            except OSError as error:
                self._starts_left = 0
                self._tell(f"{self._executable}: {error.strerror}")

    def wait(self) -> None:
        """Until every process that was started has begun, or is lost: for a bench."""
        with self._lock:
            for process in list(self._free):
                process.wait()

    @contextmanager
    def encoding(self, task: Task) -> Iterator[EncodeRun]:
        """While it lasts, runs of the task can be asked for."""
        number = next(self._numbers)
        with self._lock:
            self._live.add(number)
        try:
            yield lambda run: self._encode(number, task, run)
        finally:
            with self._lock:
                self._live.discard(number)
                for process in self._free:
                    process.forget(self._live)

    def _encode(self, number: int, task: Task, run: range) -> Encoded | None:
        process = self._take()
        if process is None:
            return None
        try:
            encoded = process.encode(number, task, run, self.answer_s)
        except EncoderLostError as error:
            self._drop(process, error)
            return None
        except ChappeError:
            self._give_back(process)
            raise
        except BaseException as error:  # no memory for the answer, say: the rest of it is still to come
            self._drop(process, repr(error))
            raise
        self._give_back(process)
        return encoded

    def close(self) -> None:
        """End all of them, and wait for those that are free; a thread that waits for another reaps it. Idempotent."""
        with self._lock:
            self._closed = True
            processes, self._all = self._all, []
            free, self._free = self._free, []
            self._starts_left += len(processes)  # they were not lost
        for process in processes:
            process.end()
        until_s = time.monotonic() + CLOSE_S
        for process in free:
            process.reap(max(0.0, until_s - time.monotonic()))

    def _take(self) -> EncoderProcess | None:
        lost: list[EncoderProcess] = []
        found: EncoderProcess | None = None
        with self._lock:
            for process in reversed(self._free):  # the one whose turn was last: its files are open
                try:
                    if process.look():
                        found = process
                        break
                except EncoderLostError as error:
                    lost.append(process)
                    self._tell(error)
            for process in lost:
                self._free.remove(process)
                self._all.remove(process)
            if found is not None:
                self._free.remove(found)
        for process in lost:
            process.reap(0)
        return found

    def _give_back(self, process: EncoderProcess) -> None:
        with self._lock:
            known = process in self._all
            if known:
                process.forget(self._live)
                self._free.append(process)
        if not known:  # closed meanwhile
            process.reap()

    def _drop(self, process: EncoderProcess, why: object) -> None:
        with self._lock:
            if process in self._all:
                self._all.remove(process)
                self._tell(why)
        process.reap(0)

    def _tell(self, why: object) -> None:
        if not self._told:
            self._told = True
            log.warning("an encoder is lost, and its blocks are made by threads, more slowly: %s", why)


def _python() -> str:
    """Empty where there is none to start: in a program that has Python built in, and may be started by its own name."""
    return "" if getattr(sys, "frozen", False) else sys.executable or ""
