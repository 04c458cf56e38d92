"""The files of an older version, made again from what the publisher keeps: the base, and the deltas that led to it.

    base ──last step undone──▶ ... ──step undone──▶ the files in a private directory ──hashed──▶ the version's root?

One pass over the bytes however many steps are undone: a block is read of the base, and each step takes off what it had
added. Blocking. What comes out is the old version byte for byte, or an error; nothing of the base is written to.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chappe.core.digest import ALGORITHMS
from chappe.errors import CodecError, DiskFullError, SnapshotError, UsageError
from chappe.hop.ordered import OrderedMap
from chappe.origin.hashing import hash_snapshot
from chappe.origin.reading import Reading
from chappe.origin.scan import Snapshot, scan
from chappe.origin.spool import SpooledSnapshot, choose_directory, make_directory, remove_leftovers
from chappe.origin.steps import Base, OpenStep, Step
from chappe.payload.delta import ReadRange
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import SnapshotTable
from chappe.units import format_size

THREADS_MAX = 8


@dataclass(frozen=True, slots=True)
class Past:
    """A version that was published from here before, as something to publish."""

    version: int


def revive(base: Base, version: int, spool: Path | None) -> SpooledSnapshot:
    """Raises UsageError for the version that is out, SnapshotError for one that cannot be made any more (it says which
    can), DiskFullError."""
    steps = steps_back(base, version)
    with ExitStack() as stack:
        reading = Reading(base.snapshot)
        stack.callback(reading.close)
        read: ReadRange = reading.read
        table = SnapshotTable((), ())
        for step in steps:
            try:
                opened = OpenStep(step)
            except SnapshotError as error:
                raise SnapshotError(
                    f"version {version} cannot be made any more: {error}; publish the old files instead"
                ) from error
            stack.callback(opened.close)
            read, table = opened.before_from(read), opened.before
        home = spool or choose_directory(table.snapshot_bytes)
        remove_leftovers(home)
        directory, lock = make_directory(home)
        try:
            _write(directory, table, read)
            snapshot = _proven(directory, version, steps[-1].base_root)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)
            raise
        return SpooledSnapshot(snapshot, directory, lock)


def steps_back(base: Base, version: int) -> Sequence[Step]:
    """The steps that are to be undone, in that order."""
    if version in base.versions:
        kept_in = os.path.commonpath([file.location.parent for file in base.snapshot.files])
        raise UsageError(
            f"version {version} is what was published last from here: there is nothing to go back from (where it did "
            f"not arrive: its files are kept, `chappe publish {kept_in} --version {version}` sends them again)"
        )
    for number in reversed(range(len(base.steps))):
        if version in base.steps[number].versions:
            return base.steps[number:][::-1]
    kept = ", ".join(str(v) for step in base.steps for v in step.versions)
    raise SnapshotError(
        f"version {version} cannot be made any more: "
        + (f"the ways back that are kept here lead to {kept}" if kept else "no way back is kept here")
        + f", and what was published last is version {base.version}"
        + "; publish the old files instead (--keep-deltas says how many deltas are kept, and one of a version that was "
        "sent in full leads nowhere)"
    )


def _proven(directory: Path, version: int, root: str) -> Snapshot:
    snapshot = scan(directory)
    if hash_snapshot(snapshot, ALGORITHMS[root.partition(":")[0]]) != root:
        raise SnapshotError(
            f"version {version} does not come out as it was: the base or a delta that is kept was altered; publish the "
            "old files instead"
        )
    return snapshot


def _write(directory: Path, table: SnapshotTable, read: ReadRange) -> None:
    """All files of a snapshot, block by block."""
    plan = DeltaPlan.whole(table)
    try:
        with ExitStack() as stack:
            descriptors = []
            for entry in table.files:
                path = directory / entry.path
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptors.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                stack.callback(os.close, descriptors[-1])
                if entry.size_bytes:
                    os.posix_fallocate(descriptors[-1], 0, entry.size_bytes)
            threads = min(os.cpu_count() or 1, THREADS_MAX)
            pool = stack.enter_context(ThreadPoolExecutor(threads, "chappe-rollback"))
            blocks = map(plan.block, range(plan.blocks_total))
            made = OrderedMap(pool, 2 * threads)(lambda b: (b, read(b.file, b.offset, b.length)), blocks)
            for block, data in made:
                os.pwrite(descriptors[block.file], data, block.offset)
    except CodecError as error:
        raise SnapshotError(f"a delta that is kept here cannot be undone: {error}") from error
    except OSError as error:
        raise DiskFullError(
            f"{directory.parent} has no room for {format_size(table.snapshot_bytes)} ({error.strerror}): "
            "name another spool directory"
        ) from error
