"""How soon a publisher has encoded a delta of files: on one core, on two with two threads, and with two processes.
Beside it what two processes gain that do the same and have nothing to do with each other (`bench.encodealone`): this
machine's bound.

All that it does is timed: reading both snapshots, proving the base, comparing, packing, writing the file. Rounds
alternate, so that what else the machine does counts for all three; processes are up before, as with a trainer's second
snapshot. The file is the same, byte for byte.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bench import scratch
from bench.encodealone import alone_s, processes
from bench.updates import Update
from chappe.core.digest import XXH3_128
from chappe.core.manifest import LEAF_BYTES, Manifest
from chappe.origin.blocksources import Compared
from chappe.origin.deltas import DeltaFile
from chappe.origin.encoder import Task
from chappe.origin.encoders import Encoders
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import Snapshot, scan
from chappe.origin.steps import Base

Row = dict[str, Any]
HANDS = 2


@dataclass(frozen=True, slots=True)
class Hands:
    """Processes of a publisher, and such as belong to nobody."""

    encoders: Encoders
    alone: Pool


def encoding(update: Update, directory: Path, repeat: int, root: str, hands: Hands) -> Row:
    """`directory` holds both snapshots and the delta's file. Speeds are of the full size, scalings medians."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=scratch.prefix("de"), dir=directory)))
        base, target = (_written(home / name, v) for name, v in (("base", update.base), ("target", update.target)))
        kept = Base(hash_snapshot(base), (1,), base)
        task = Task(base, target, XXH3_128.name, XXH3_128.name)
        ways: dict[str, Callable[[], float]] = {
            "core": lambda: _on_one_core(lambda: _encode(Compared(kept, target), target, home, 1, root)),
            "threads": lambda: _encode(Compared(kept, target), target, home, HANDS, root),
            "processes": lambda: _encode(Compared(kept, target, hands.encoders), target, home, HANDS, root),
            "one alone": lambda: alone_s(hands.alone, task, 1),
            "both alone": lambda: alone_s(hands.alone, task, HANDS),
        }
        for way in ways.values():
            way()
        took = [{name: way() for name, way in ways.items()} for _ in range(repeat)]
    best = min(seconds["core"] for seconds in took)
    return {
        "publisher_gb_per_s": target.snapshot_bytes / best / 1e9,
        **{
            f"publisher_scaling_{HANDS}_{name}": statistics.median(s["core"] / s[name] for s in took)
            for name in ("threads", "processes")
        },
        f"machine_scaling_{HANDS}": statistics.median(s["one alone"] / s["both alone"] for s in took),
    }


@contextmanager
def two_hands() -> Iterator[Hands]:
    """That have begun."""
    with closing(Encoders(HANDS)) as encoders, processes(HANDS) as alone:
        encoders.start()
        encoders.wait()
        yield Hands(encoders, alone)


def _written(folder: Path, values: np.ndarray[Any, Any]) -> Snapshot:
    folder.mkdir()
    save_file({"weight": values.view(np.uint16)}, folder / "model.safetensors")
    return scan(folder)


def _on_one_core(encode: Callable[[], float]) -> float:
    """With all threads that it starts: one thread encodes, another packs and writes what it has made."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # of this thread, and what it starts
    try:
        return encode()
    finally:
        os.sched_setaffinity(0, cores)


def _encode(source: Compared, target: Snapshot, spool: Path, threads: int, root: str) -> float:
    file = DeltaFile(source, Manifest("0" * 32, XXH3_128, LEAF_BYTES, target.entries, target.tensors), spool)
    try:
        started = time.perf_counter()
        file.encode(threads)
        file.close(root)
        return time.perf_counter() - started
    finally:
        file.discard()
