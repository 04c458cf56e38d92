"""Makes a delta between two snapshots on the publisher's disk, as the one file of an object.

    estimate ──▶ worth it? ──▶ encode: base proven, blocks compared by threads ──▶ close: the target's root ──▶ Snapshot

The file is private, beside the copies of tensors (see `chappe.origin.spool`), and goes with `discard`. Blocking, for an
executor. Knows nothing of workers: who gets the delta is decided elsewhere.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from chappe.core.digest import ALGORITHMS, XXH3_128, Algorithm
from chappe.core.manifest import DELTA_FILE, Manifest
from chappe.errors import DiskFullError, PublicationCancelledError, SnapshotChangedError, SnapshotError
from chappe.hop.disk import store_error
from chappe.hop.ordered import OrderedMap
from chappe.origin.bases import Base
from chappe.origin.hashing import OpenFiles, hash_snapshot
from chappe.origin.scan import Snapshot, read_at, source_file
from chappe.origin.spool import choose_directory, make_directory, remove_leftovers
from chappe.payload.container import Packer
from chappe.payload.delta import encode_block
from chappe.payload.envelope import Prologue, pack_chunk, pack_prologue
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import NO_BASE, SnapshotTable
from chappe.wire.manifest import encode_header

THREADS_MAX = 32
SAMPLE_BLOCKS = 12
WORTH_SHARE = 0.85
"""A delta of more than this share of the snapshot saves less than applying it costs."""


def table_of(snapshot: Snapshot) -> SnapshotTable:
    """Raises ManifestError for a snapshot of more tensors than the codec takes, or of types that it does not know."""
    return SnapshotTable.build(snapshot.entries, snapshot.tensors)


class Reading:
    """Ranges of a snapshot's files, for any thread, as long as they are what they were."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._files = OpenFiles(snapshot.files)

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Raises SnapshotChangedError, SnapshotError."""
        source = self._snapshot.files[file]
        opened = self._files.get(file)
        try:
            data = read_at(source, opened.descriptor, offset, length)
            source.check(os.fstat(opened.descriptor))
        except OSError as error:
            raise SnapshotError(f"{source.location} cannot be read: {error.strerror}") from error
        return data

    def close(self) -> None:
        self._files.close()


def estimate(base: Snapshot, target: Snapshot) -> float:
    """About what share of the snapshot's bytes a delta would have, from a sample of blocks spread over it."""
    plan = DeltaPlan.between(table_of(base), table_of(target))
    ordinals = _sample(plan)
    old, new = Reading(base), Reading(target)
    encoded = covered = 0
    try:
        for ordinal in ordinals:
            block = encode_block(plan, XXH3_128, ordinal, old.read, new.read)
            encoded += sum(map(len, block.pieces))
            covered += plan.block(ordinal).length
    finally:
        old.close()
        new.close()
    return encoded / max(covered, 1)


def _sample(plan: DeltaPlan) -> list[int]:
    """Blocks at equal distances, the largest regions first among neighbours: headers say little."""
    total = plan.blocks_total
    step = max(1, total // SAMPLE_BLOCKS)
    return [
        max(range(start, min(start + min(step, 4), total)), key=lambda i: plan.block(i).length)
        for start in range(0, total, step)
    ]


class DeltaFile:
    """A delta being made. `encode`, `close` with the root, then `snapshot`; `discard` at any time, from any thread."""

    def __init__(self, base: Base, target: Snapshot, manifest: Manifest, spool: Path | None) -> None:
        """`manifest` is that of the full object of `target`."""
        self.base = base
        self._target = target
        self.manifest = manifest
        self._spool = spool
        self._stopped = threading.Event()
        self._working = False
        self._claim = threading.Lock()  # between work in a thread and `discard`
        self._packer = Packer(manifest.algorithm)
        self._file: BinaryIO | None = None
        self._directory: Path | None = None
        self._lock = -1
        self.compared_elements = 0

    @property
    def changed_elements(self) -> int:
        """Of tensor data that has a base."""
        return self._packer.changed

    @property
    def payload_bytes(self) -> int:
        return self._file.tell() if self._file is not None else 0

    def encode(self, threads: int = 0) -> None:
        """Everything but the closing chunk. Raises SnapshotError (also for a base that is not what it was),
        DiskFullError, PublicationCancelledError when it was discarded meanwhile."""
        with self._work():
            self._encode(threads)

    @contextmanager
    def _work(self) -> Iterator[None]:
        with self._claim:
            self._go_on()
            self._working = True
        try:
            yield
        finally:
            with self._claim:
                self._working = False
                if self._stopped.is_set():
                    self._remove()

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise PublicationCancelledError("the delta is not wanted any more")

    def _encode(self, threads: int) -> None:
        algorithm = self.manifest.algorithm
        own = ALGORITHMS[self.base.root.partition(":")[0]]
        if hash_snapshot(self.base.snapshot, own) != self.base.root:
            raise SnapshotChangedError("the kept base of the delta is not what was published: full objects are sent")
        plan = DeltaPlan.between(table_of(self.base.snapshot), table_of(self._target))
        self.compared_elements = _compared(plan)
        prologue = Prologue(self.base.root, plan.base.digest(algorithm), encode_header(self.manifest))
        try:
            self._open()
            assert self._file is not None
            self._file.write(pack_prologue(prologue))
            self._write_blocks(self._file, plan, algorithm, threads or min(os.cpu_count() or 1, THREADS_MAX))
        except OSError as error:
            raise self._trouble(error) from error

    def _open(self) -> None:
        home = self._spool or choose_directory(self.manifest.payload_bytes // 4)
        remove_leftovers(home)
        self._directory, self._lock = make_directory(home)
        self._file = (self._directory / DELTA_FILE).open("xb")

    def _write_blocks(self, file: BinaryIO, plan: DeltaPlan, algorithm: Algorithm, threads: int) -> None:
        with ExitStack() as stack:
            old, new = Reading(self.base.snapshot), Reading(self._target)
            stack.callback(old.close)
            stack.callback(new.close)
            pool = stack.enter_context(ThreadPoolExecutor(threads, "chappe-delta"))
            encoded = OrderedMap(pool, 2 * threads)(
                lambda ordinal: encode_block(plan, algorithm, ordinal, old.read, new.read), range(plan.blocks_total)
            )
            for chunk in self._packer.pack(encoded):
                self._go_on()
                file.write(pack_chunk(chunk))

    def close(self, root: str) -> None:
        """The target's root is known: the file is whole. Raises DiskFullError, SnapshotError."""
        with self._work():
            assert self._file is not None
            try:
                self._file.write(pack_chunk(self._packer.close(root)))
                self._file.flush()
            except OSError as error:
                raise self._trouble(error) from error

    def snapshot(self) -> Snapshot:
        """The file, as what an OriginObject serves."""
        assert self._directory is not None
        return Snapshot((source_file(DELTA_FILE, self._directory / DELTA_FILE),), ())

    def _trouble(self, error: OSError) -> SnapshotError | DiskFullError:
        told = store_error(error, f"a delta of {self.payload_bytes} bytes so far")
        return told if isinstance(told, DiskFullError) else SnapshotError(f"the delta cannot be written: {told}")

    def discard(self) -> None:
        """Idempotent. A thread that is at work stops soon, and cleans up behind itself."""
        with self._claim:
            self._stopped.set()
            if not self._working:
                self._remove()

    def _remove(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _compared(plan: DeltaPlan) -> int:
    """Elements of tensors that have a base."""
    regions = zip(plan.target.regions, plan.mapping, strict=True)
    return sum((r.end - r.begin) // r.width for r, base in regions if base != NO_BASE and r.dtype)
