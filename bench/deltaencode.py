"""How soon a publisher has encoded a delta of files: with one thread, with two, and with two processes.

All that it does is timed: reading both snapshots, proving the base, comparing, packing, writing the file. Rounds
alternate, so that what else the machine does counts for all three; processes are up before, as with a trainer's second
snapshot. The file is the same, byte for byte.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bench import scratch
from bench.updates import Update
from chappe.core.digest import XXH3_128
from chappe.core.manifest import LEAF_BYTES, Manifest
from chappe.origin.blocksources import Compared
from chappe.origin.deltas import DeltaFile
from chappe.origin.encoders import Encoders
from chappe.origin.hashing import hash_snapshot
from chappe.origin.scan import Snapshot, scan
from chappe.origin.steps import Base

Row = dict[str, Any]
HANDS = 2


def encoding(update: Update, directory: Path, repeat: int, root: str, encoders: Encoders) -> Row:
    """`directory` holds both snapshots and the delta's file. Speeds are of the full size, scalings medians."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=scratch.prefix("de"), dir=directory)))
        base, target = (_written(home / name, v) for name, v in (("base", update.base), ("target", update.target)))
        kept = Base(hash_snapshot(base), (1,), base)
        ways: dict[str, Callable[[], float]] = {
            "thread": lambda: _encode(Compared(kept, target), target, home, 1, root),
            "threads": lambda: _encode(Compared(kept, target), target, home, HANDS, root),
            "processes": lambda: _encode(Compared(kept, target, encoders), target, home, HANDS, root),
        }
        for way in ways.values():
            way()
        took = [{name: way() for name, way in ways.items()} for _ in range(repeat)]
    best = min(seconds["thread"] for seconds in took)
    return {
        "publisher_gb_per_s": target.snapshot_bytes / best / 1e9,
        **{
            f"publisher_scaling_{HANDS}_{name}": statistics.median(s["thread"] / s[name] for s in took)
            for name in ("threads", "processes")
        },
    }


@contextmanager
def two_encoders() -> Iterator[Encoders]:
    """That have begun."""
    with closing(Encoders(HANDS)) as encoders:
        encoders.start()
        encoders.wait()
        yield encoders


def _written(folder: Path, values: np.ndarray[Any, Any]) -> Snapshot:
    folder.mkdir()
    save_file({"weight": values.view(np.uint16)}, folder / "model.safetensors")
    return scan(folder)


def _encode(source: Compared, target: Snapshot, spool: Path, threads: int, root: str) -> float:
    file = DeltaFile(source, Manifest("0" * 32, XXH3_128, LEAF_BYTES, target.entries, target.tensors), spool)
    try:
        started = time.perf_counter()
        file.encode(threads)
        file.close(root)
        return time.perf_counter() - started
    finally:
        file.discard()
