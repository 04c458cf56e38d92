"""How long a worker needs from the last chunk of a delta to the landed version.

In one run, on the same directory: `floor`, writing and syncing as many bytes with as many threads; `at once`, all
chunks come as fast as the store takes them, so that all work is behind the last one; `paced`, they come at a link's
rate and are applied meanwhile. Each landing is a process of its own: its memory is what it took beyond the start.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench import scratch
from bench.updates import Update
from chappe.core.digest import XXH3_128
from chappe.core.manifest import (
    DELTA_FILE,
    LEAF_BYTES,
    FileEntry,
    Manifest,
    ObjectKind,
    TensorEntry,
    file_digest,
    snapshot_root,
)
from chappe.hop.malloc import raise_thresholds
from chappe.hop.store import Store
from chappe.payload.container import Packer
from chappe.payload.delta import encode_delta
from chappe.payload.envelope import Prologue, pack_chunk, pack_prologue
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import SnapshotTable
from chappe.wire.manifest import encode_header, encode_page

Row = dict[str, Any]
SHARDS = 4
_WRITE_BYTES = 2 << 20
_TOUCHED = 5  # versions: those that are there at a time, what is being written, and some more


@dataclass(frozen=True)
class Sharded:
    """One shard, several times: the disk and the cores do not care."""

    shard: memoryview
    root: str

    @staticmethod
    def of(shard: memoryview) -> Sharded:
        leaves = [XXH3_128.once(shard[i : i + LEAF_BYTES]) for i in range(0, len(shard), LEAF_BYTES)]
        digest = file_digest(XXH3_128, len(shard), leaves)
        return Sharded(shard, snapshot_root(XXH3_128, _files(len(shard)), [digest] * SHARDS))

    def manifest(self, number: int) -> Manifest:
        size = len(self.shard)
        tensors = tuple(TensorEntry(f"w{i}", "BF16", (size // 2,), i, 0, size) for i in range(SHARDS))
        return Manifest(f"{number:032x}", XXH3_128, LEAF_BYTES, _files(size), tensors)

    def read(self, _: int, offset: int, length: int) -> memoryview:
        return self.shard[offset : offset + length]


def _files(size: int) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(f"model-{i}.safetensors", size) for i in range(SHARDS))


@dataclass(frozen=True)
class Delivery:
    """An object as it comes to a store, and the version that it leads to."""

    manifest: Manifest
    data: bytes
    version: int
    root: str

    def pages(self) -> Iterator[bytes]:
        for page in range(self.manifest.pages_total):
            yield encode_page(page, [XXH3_128.once(self.chunk(c)) for c in range(*self.manifest.chunks_of_page(page))])

    def chunk(self, number: int) -> bytes:
        place = self.manifest.place(number)
        return self.data[place.offset : place.offset + place.length]


def landings(update: Update, directories: Mapping[str, Path], link_bytes_per_s: float, repeat: int) -> list[Row]:
    """`update` is of one shard. One row a directory, by name; times are medians, in seconds."""
    base, target = (Sharded.of(memoryview(v).cast("B")) for v in (update.base, update.target))
    rows = []
    for name, directory in directories.items():
        directory.mkdir(parents=True, exist_ok=True)
        rows.append({"store": name, **_measure(base, target, directory, link_bytes_per_s, repeat)})
    return rows


def touch_memory(size_bytes: int) -> None:
    """A virtual machine's host gives it a page when it is first written, at some 0.3 GB/s, and may take it back when it
    has been free for a while (free page reporting, after 2 s): that is not measured, so call it right before."""
    size_bytes = min(size_bytes, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4)
    np.ones(size_bytes, np.uint8)


def _measure(base: Sharded, target: Sharded, directory: Path, link_bytes_per_s: float, repeat: int) -> Row:
    floors: list[float] = []
    runs: dict[str, list[Row]] = {"at_once": [], "paced": []}
    with tempfile.TemporaryDirectory(dir=directory, prefix=scratch.prefix("delta")) as top:
        store = Path(top, "store")
        _land_base(store, base)
        version = 2
        for _ in range(repeat):
            _settle(target)
            floors.append(_write_and_sync(Path(top), target))
            for name, rate in (("at_once", 0.0), ("paced", link_bytes_per_s)):
                delivery = _delivery(base, target, version)
                _settle(target)
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    runs[name].append(process.submit(_land, store, delivery, rate).result())
                version += 1
    floor = statistics.median(floors)
    row: Row = {
        "snapshot_bytes": SHARDS * len(target.shard),
        "delta_bytes": len(delivery.data),
        "link_bytes_per_s": link_bytes_per_s,
        "floor_s": floor,
        "floor_s_all": floors,
        "threads": os.cpu_count(),
    }
    for name, found in runs.items():
        seconds = statistics.median(run["seconds"] for run in found)
        row |= {
            f"{name}_s": seconds,
            f"{name}_to_floor": seconds / floor,
            f"{name}_s_all": [r["seconds"] for r in found],
        }
        row[f"{name}_cpu_s"] = statistics.median(run["cpu_s"] for run in found)
    row["memory_bytes"] = max(run["memory_bytes"] for found in runs.values() for run in found)
    return row


def _settle(target: Sharded) -> None:
    """Before a run: nothing of others is left to write, and the pages for what will be written are there."""
    os.sync()
    touch_memory(_TOUCHED * SHARDS * len(target.shard))


def _write_and_sync(top: Path, target: Sharded) -> float:
    """As many bytes into new files, all cores."""
    paths = [top / f"floor-{i}" for i in range(SHARDS)]
    started = time.perf_counter()
    fds = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) for path in paths]
    pieces = [(fd, at) for fd in fds for at in range(0, len(target.shard), _WRITE_BYTES)]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda p: os.pwrite(p[0], target.shard[p[1] : p[1] + _WRITE_BYTES], p[1]), pieces))
        list(pool.map(os.fsync, fds))
    taken = time.perf_counter() - started
    for fd, path in zip(fds, paths, strict=True):
        os.close(fd)
        path.unlink()
    return taken


def _land_base(path: Path, base: Sharded) -> None:
    manifest = base.manifest(1)
    with Store.open(path) as store:
        held = store.create(manifest.object_id)
        held.put_header(encode_header(manifest))
        places = [manifest.place(c) for c in range(manifest.chunks_total)]
        chunks = [base.read(p.file, p.offset, p.length) for p in places]
        for page in range(manifest.pages_total):
            digests = [XXH3_128.once(chunks[c]) for c in range(*manifest.chunks_of_page(page))]
            held.put_page(encode_page(page, digests))
        for number, chunk in enumerate(chunks):
            held.put_chunks([(number, chunk)])
        store.land(manifest.object_id, 1, base.root)


def _delivery(base: Sharded, target: Sharded, version: int) -> Delivery:
    old, new = (SnapshotTable.build(s.manifest(1).files, s.manifest(1).tensors) for s in (base, target))
    plan = DeltaPlan.between(old, new)
    packer = Packer(XXH3_128)
    prologue = Prologue(base.root, old.digest(XXH3_128), encode_header(target.manifest(2 * version)))
    chunks = [*packer.pack(encode_delta(plan, XXH3_128, base.read, target.read)), packer.close(target.root)]
    data = pack_prologue(prologue) + b"".join(map(pack_chunk, chunks))
    manifest = Manifest(
        f"{2 * version + 1:032x}",
        XXH3_128,
        1 << 16,
        (FileEntry(DELTA_FILE, len(data)),),
        kind=ObjectKind.DELTA,
        base_root=base.root,
        target_bytes=SHARDS * len(target.shard),
    )
    return Delivery(manifest, data, version, target.root)


def _land(path: Path, delivery: Delivery, link_bytes_per_s: float) -> Row:
    """Receive and land it; what counts begins with the last chunk."""
    import chappe.hop.applying  # noqa: F401  memory of the modules is not the delta's

    raise_thresholds()
    with Store.open(path) as store:
        held = store.create(delivery.manifest.object_id)
        held.put_header(encode_header(delivery.manifest))
        for page in delivery.pages():
            held.put_page(page)
        chunks = [(c, delivery.chunk(c)) for c in range(delivery.manifest.chunks_total)]
        resident = _status("VmRSS")
        begun, begun_cpu, sent = time.perf_counter(), time.process_time(), 0
        for chunk in chunks:
            sent += len(chunk[1])
            if link_bytes_per_s:
                time.sleep(max(0.0, begun + sent / link_bytes_per_s - time.perf_counter()))
            held.put_chunks([chunk])
            store.apply_ahead(held)
        last = time.perf_counter()
        store.land(held.object_id, delivery.version, delivery.root)
        row = {
            "seconds": time.perf_counter() - last,
            "cpu_s": time.process_time() - begun_cpu,
            "memory_bytes": _status("VmHWM") - resident,
        }
        store.retain([], [1])
        store.empty_trash()
    return row


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise ValueError(f"no {name} in /proc/self/status")
