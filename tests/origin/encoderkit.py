"""What tests of encoders share: two versions of a small model, and processes that are up."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from chappe.core.digest import XXH3_128
from chappe.core.manifest import LEAF_BYTES, Manifest
from chappe.origin import encoder
from chappe.origin.blocksources import Compared, Whole
from chappe.origin.deltas import DeltaFile
from chappe.origin.encoder import Task
from chappe.origin.encoders import Encoders
from chappe.origin.scan import Snapshot, scan

SIZES = {"a": 6_000_001, "b": 3_000_000, "c": 5, "d": 2_500_000}
ROOT = "xxh3_128:" + "0" * 32


def snapshot(path: Path, changed: float = 0.0, **files: str) -> Snapshot:
    """Some ten blocks in two files, a share of their elements one step further."""
    path.mkdir()
    names = files or {"a": "m", "b": "m", "c": "m", "d": "n"}
    for file in sorted(set(names.values())):
        tensors = {}
        for name in (name for name in names if names[name] == file):
            generator = np.random.default_rng(ord(name))
            tensors[name] = generator.normal(0, 0.02, SIZES[name]).astype(np.float16).view(np.uint16)
            tensors[name] += generator.random(SIZES[name]) < changed
        save_file(tensors, path / f"{file}.safetensors")
    return scan(path)


def all_are_up(made: Encoders) -> None:
    assert len(made._all) == made.processes
    for process in made._all:
        assert process.ready or process._connection.poll(30.0)
        assert process.look()


def program(folder: Path, text: str) -> str:
    """To be started in place of Python; `text` may name that as {python}."""
    path = folder / "python"
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def pids(made: Encoders) -> list[int]:
    return [process.pid for process in made._all]


def encoded(source: Compared | Whole, target: Snapshot, spool: Path, threads: int = 2) -> bytes:
    spool.mkdir(exist_ok=True)
    full = Manifest("0" * 32, XXH3_128, LEAF_BYTES, target.entries, target.tensors)
    file = DeltaFile(source, full, spool)
    try:
        file.encode(threads)
        file.close(ROOT)
        return file.path.read_bytes()
    finally:
        file.discard()


def count_runs(made: Encoders) -> list[bool]:
    """Of each run, whether a process has made it."""
    asked: list[bool] = []
    inner = made._encode

    def counting(number: int, task: Task, run: range) -> encoder.Encoded | None:
        result = inner(number, task, run)
        asked.append(result is not None)
        return result

    made._encode = counting  # type: ignore[method-assign]
    return asked
