"""One of the processes that encode for a publisher, and the blocks that it makes: see `chappe.origin.encoders`.

    publisher                Task ──▶ run ──▶            run ──▶             ... None: the task's files are let go of
    encoder    INSTALLED ──▶               Encoded ──▶         an error ──▶

Orders name their task by a number. A run is a row of blocks, asked for and answered one at a time; the answer has fewer
of them where they became large (`chappe.origin.runs`). Both ends are one installation of Chappe, on one host, of one
user: messages are pickled. The process ends when the publisher has closed the connection or is no more.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import numpy as np

import chappe
from chappe.core.digest import ALGORITHMS, XXH3_128, Algorithm
from chappe.core.manifest import LEAF_BYTES
from chappe.errors import ChappeError
from chappe.hop.malloc import raise_thresholds
from chappe.hop.ordered import one_at_a_time
from chappe.origin.reading import Reading
from chappe.origin.runs import RUN_BYTES_MAX
from chappe.origin.scan import Snapshot
from chappe.payload.container import EncodedBlock
from chappe.payload.delta import encode_block
from chappe.payload.plan import BLOCK_ELEMENTS, DeltaPlan
from chappe.payload.table import SnapshotTable


@dataclass(frozen=True, slots=True)
class Task:
    """What is compared with what; `base` None: with nothing. `prove_by` names the algorithm of the base's root, and is
    empty where the base is proven in another way."""

    base: Snapshot | None
    target: Snapshot
    algorithm: str
    prove_by: str = ""


def _installed() -> bytes:
    """Names the program's files as they are: they may be others by the time a process is started from them."""
    home = Path(chappe.__file__).parent
    hasher = XXH3_128.start()
    for path in sorted(home.rglob("*.py")):
        with contextlib.suppress(FileNotFoundError):  # an editor's lock is a symlink to nowhere
            now = path.stat()
            hasher.update(f"{path.relative_to(home)} {now.st_size} {now.st_mtime_ns}\n".encode())
    return hasher.digest()


INSTALLED = _installed()
"""The first message. Of another installation, made since the publisher was started, a process is of no use."""

SeenLeaf: TypeAlias = tuple[int, int, bytes]
"""A leaf of the base, all of which was read: its file, its number there, its digest."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The blocks of a run, in order, from the first on, and the base's leaves that lie in what was read for them."""

    blocks: list[EncodedBlock]
    leaves: list[SeenLeaf]


def table_of(snapshot: Snapshot) -> SnapshotTable:
    """Raises ManifestError for a snapshot of more tensors than the codec takes, or of types that it does not know."""
    return SnapshotTable.build(snapshot.entries, snapshot.tensors)


def plan_of(base: Snapshot | None, target: Snapshot) -> DeltaPlan:
    """The same in every process. Raises ManifestError."""
    if base is None:
        return DeltaPlan.whole(table_of(target))
    return DeltaPlan.between(table_of(base), table_of(target))


class LeavesInARow:
    """Leaves of files that are read forward: those of which every byte comes, in order. The others are left out."""

    def __init__(self, algorithm: Algorithm, sizes: Sequence[int]) -> None:
        self._algorithm, self._sizes = algorithm, sizes
        self._restart(-1, 0)
        self.leaves: list[SeenLeaf] = []

    def feed(self, file: int, offset: int, data: memoryview) -> None:
        if (file, offset) != (self._file, self._at):
            self._restart(file, offset)
        while len(data):
            leaf, inner = divmod(self._at, LEAF_BYTES)
            stop = min(self._sizes[file], (leaf + 1) * LEAF_BYTES)
            part, data = data[: stop - self._at], data[stop - self._at :]
            if inner == 0:
                self._open = self._algorithm.start()
                self._whole = True
            if self._whole:
                self._open.update(part)
            self._at += len(part)
            if self._at == stop and self._whole:
                self.leaves.append((file, leaf, self._open.digest()))

    def _restart(self, file: int, offset: int) -> None:
        self._file, self._at = file, offset
        self._whole = False  # of the open leaf, all bytes so far have come
        self._open = self._algorithm.start()


class BlockMaker:
    """A task with its files open. `encode` from any thread."""

    def __init__(self, task: Task, plan: DeltaPlan | None = None) -> None:
        """`plan` is `plan_of` the task, where it is known. Raises ManifestError."""
        self._plan = plan_of(task.base, task.target) if plan is None else plan
        self._algorithm = ALGORITHMS[task.algorithm]
        self._task = task
        self._local = threading.local()
        self._block_bytes_max = BLOCK_ELEMENTS * max((region.width for region in self._plan.target.regions), default=1)
        self._new = Reading(task.target)
        self._old = self._new if task.base is None else Reading(task.base)

    def encode(self, run: range) -> Encoded:
        """All of them, or so many that they have `RUN_BYTES_MAX` with the last one, and at least one. Raises
        SnapshotError, SnapshotChangedError."""
        row: LeavesInARow | None = None
        if self._task.base is not None and self._task.prove_by:
            row = LeavesInARow(ALGORITHMS[self._task.prove_by], [file.size_bytes for file in self._task.base.files])
        old_buffer, new_buffer = self._two_buffers()

        def read_base(file: int, offset: int, length: int) -> memoryview:
            data = old_buffer[:length]
            self._old.read_into(file, offset, data)
            if row is not None:
                row.feed(file, offset, data)
            return data

        def read_target(file: int, offset: int, length: int) -> memoryview:
            data = new_buffer[:length]
            self._new.read_into(file, offset, data)
            return data

        blocks: list[EncodedBlock] = []
        encoded_bytes = 0
        for ordinal in run:
            block = encode_block(self._plan, self._algorithm, ordinal, read_base, read_target, brief=one_at_a_time)
            blocks.append(block)
            encoded_bytes += block.piece_bytes
            if encoded_bytes >= RUN_BYTES_MAX:
                break
        return Encoded(blocks, row.leaves if row is not None else [])

    def _two_buffers(self) -> tuple[memoryview, memoryview]:
        """The calling thread's, for a block of either side: pages that are new each time take longer than reading."""
        buffers: tuple[memoryview, memoryview] | None = getattr(self._local, "buffers", None)
        if buffers is None:
            old, new = (np.empty(self._block_bytes_max, np.uint8).data for _ in range(2))
            buffers = self._local.buffers = (old, new)
        return buffers

    def close(self) -> None:
        self._new.close()
        self._old.close()


def serve(connection: Connection) -> None:
    """Until the connection ends."""
    tasks: dict[int, Task] = {}
    makers: dict[int, BlockMaker] = {}
    connection.send_bytes(INSTALLED)
    while True:
        number, order = connection.recv()
        if isinstance(order, Task):
            tasks[number] = order
        elif order is None:
            del tasks[number]
            if number in makers:
                makers.pop(number).close()
        else:
            try:
                if number not in makers:
                    makers[number] = BlockMaker(tasks[number])
                answer: Encoded | ChappeError = makers[number].encode(order)
            except ChappeError as error:
                answer = error
            connection.send(answer)


def _end_with(publisher: int) -> None:
    """Also where the connection does not end, because a child that the publisher forked holds that, and while an answer
    is sent that nobody reads. Where a sandbox lets no process be watched, the end of the connection has to do."""
    try:
        watched = os.pidfd_open(publisher)
    except ProcessLookupError:
        os._exit(0)
    except OSError:
        return
    if os.getppid() == publisher:  # or it has ended, and its number may be another's
        select.select([watched], [], [])
    os._exit(0)


def main() -> None:
    """Arguments: the connection's descriptor, and the publisher's process. Not a module to run: messages name their
    classes by where both ends find them."""
    raise_thresholds()
    connection = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    # The publisher is closed, or was killed:
    with closing(connection), contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        serve(connection)
