"""`python -m bench publish`: how long a publication takes before and after the bytes travel.

    publish() ──▶ first chunk on the wire ─ ─ ─ ─▶ last chunk at the relay ──▶ installed
     └─ start: a path of any size (sparse), tensors ─┘  └─ end: beside the disk's own ──┘

Real daemons on loopback and the real publisher. A start is over when the origin has sent more than header and first
page together can be. An end lies between two lines of the relay's log: its fetch is complete, the version is installed.
What the disk must do in between is measured right afterwards: a copy of the same bytes, written at the rate at which
they came, and the time of its fsync. What is dirty at the last chunk (cachestat) is shown, and is not all of it: a
device has a cache of its own to flush. Each end says how many bytes the relay read: a second pass over the files would
show.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.table import Table

from bench.fleet import make_snapshot
from bench.hop import make_sparse_snapshot
from bench.results import RESULTS, write_results
from chappe.cli.localfleet import LocalFleet, relay_specs
from chappe.cli.process import LogLine, Process
from chappe.cli.settings import Flat, Rate, Settings, Size
from chappe.errors import ChappeError, UsageError
from chappe.hop.writeback import start_writeback
from chappe.publisher import AsyncPublisher
from chappe.units import format_rate, format_size

SETUP_BYTES = 64 << 10
"""Header and first page of these snapshots are smaller, any chunk is not."""
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 600.0
TENSORS = 16
_LOOK_S = 0.001
_SYS_CACHESTAT = 451  # on all architectures; Linux 6.5 and newer
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BLOCK_BYTES = 8 << 20
_SECOND_PASS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the call of `publish()`: until it returned, and until the first chunk had left."""

    kind: str  # path, numpy, torch
    size_bytes: int
    repeat: int
    returned_s: float
    first_chunk_s: float


@dataclass(frozen=True, slots=True)
class End:
    """From the last chunk to the installed version, at a relay that received at about `limit_bytes_per_s`."""

    size_bytes: int
    limit_bytes_per_s: float
    repeat: int
    landing_s: float
    unwritten_bytes: int
    """Of the store's files, dirty or being written, when the last chunk had come."""
    disk_s: float
    """What the same disk takes to make a copy durable that was written at the rate at which these chunks came."""
    read_bytes: int
    """By the relay, from the last chunk on."""

    @property
    def ratio(self) -> float:
        return self.landing_s / self.disk_s


class _Range(ctypes.Structure):
    _fields_ = (("off", ctypes.c_uint64), ("len", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently"))


def unwritten_bytes(directory: Path) -> int:
    """What of the files below a directory is in memory only. Raises OSError where the kernel cannot say."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    pages = 0
    for path in directory.rglob("*"):
        if not path.is_file():
            continue
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:  # a journal may go meanwhile
            found, whole = _CacheStat(), _Range(0, 0)
            if call(_SYS_CACHESTAT, file.fileno(), ctypes.byref(whole), ctypes.byref(found), 0) != 0:
                raise OSError(ctypes.get_errno(), "cachestat: needs Linux 6.5 or newer")
            pages += found.dirty + found.writeback
    return pages * _PAGE_BYTES


def disk_s(directory: Path, source: Path, bytes_per_s: float) -> float:
    """Seconds from the last byte of a copy to its being durable, as little as a program can do for it.

    Written at this rate into reserved room, the kernel asked to begin with every 8 MiB; then fsync, the directory too.
    """
    path = directory / "disk-probe"
    with source.open("rb", buffering=0) as read, path.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, source.stat().st_size)
        started_s, written = time.perf_counter(), 0
        while block := read.read(_BLOCK_BYTES):
            file.write(block)
            written += len(block)
            start_writeback(file.fileno())
            time.sleep(max(0.0, started_s + written / bytes_per_s - time.perf_counter()))
        complete_s = time.perf_counter()
        os.fsync(file.fileno())
    handle = os.open(directory, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    taken_s = time.perf_counter() - complete_s
    path.unlink()
    return taken_s


class PublishSettings(Settings):
    paths: tuple[Size, ...] = (100_000_000, 1_000_000_000, 16_000_000_000)
    """Sizes of sparse files to start publishing, one --paths for each."""
    tensors: tuple[Size, ...] = (4_000_000_000,)
    """Sizes of state dicts to start publishing, by numpy and by torch, one --tensors for each."""
    landings: tuple[Size, ...] = (1_000_000_000,)
    """Sizes to receive and install, one --landings for each."""
    limits: tuple[Rate, ...] = (50e6, 1.25e9)
    """How fast the landings arrive at most, one --limits for each."""
    repeats: Annotated[int, Field(ge=1)] = 5
    """Runs of each."""
    directory: Path = Path(tempfile.gettempdir())
    """Where snapshots and stores lie: on the disk that landing is to be measured on."""
    short: bool = False
    """Smaller, and two runs of each: what `make bench` runs."""
    output: Path = RESULTS / "publish.json"
    """The JSON to write."""


_DEFAULTS = PublishSettings()
_SHORT: dict[str, Any] = {
    "paths": (100_000_000, 16_000_000_000),
    "tensors": (256_000_000,),
    "landings": (256_000_000,),
    "limits": (50e6, 1.25e9),
    "repeats": 2,
}


def publish(*, settings: Annotated[PublishSettings, Flat] = _DEFAULTS) -> int:
    """From publish() to the first chunk on the wire, and from the last chunk to the installed version."""
    if settings.short:
        settings = settings.model_copy(update=_SHORT)
    if min(*settings.paths, *settings.tensors, *settings.landings) < 1 << 20:
        raise UsageError("--paths, --tensors and --landings must be at least 1MiB")
    starts, ends = asyncio.run(_measure(settings))
    show(starts, ends)
    parameters = settings.model_dump(mode="json", exclude={"output"})
    runs = [{"what": "start", **asdict(s)} for s in starts]
    runs += [{"what": "end", **asdict(e), "ratio": e.ratio} for e in ends]
    write_results(settings.output, "publish", parameters, runs, **summary(starts, ends))
    return 0


async def _measure(settings: PublishSettings) -> tuple[list[Start], list[End]]:
    with tempfile.TemporaryDirectory(prefix="chappe-publish-", dir=settings.directory) as base:
        directory = Path(base)
        snapshot = directory / "model.safetensors"
        starts: list[Start] = []
        async with LocalFleet(directory / "starts", relay_specs(1, ("--downlink", "10gbit"))) as fleet:
            for size in settings.paths:
                make_sparse_snapshot(snapshot, size)
                starts += [await _start(fleet, "path", snapshot, size, repeat) for repeat in range(settings.repeats)]
            for size in settings.tensors:
                for kind in ("numpy", "torch"):
                    state = _state_dict(kind, size)
                    starts += [await _start(fleet, kind, state, size, repeat) for repeat in range(settings.repeats)]
                    del state
        ends: list[End] = []
        for size in settings.landings:
            shutil.rmtree(directory / "model", ignore_errors=True)
            snapshot = make_snapshot(directory / "model", size) / "model.safetensors"
            for limit in settings.limits:
                ends += [await _end(directory, snapshot, size, limit, repeat) for repeat in range(settings.repeats)]
        return starts, ends


def _state_dict(kind: str, size_bytes: int) -> Mapping[str, Any]:
    each = size_bytes // TENSORS // 4
    if kind == "numpy":
        return {f"layer.{i}": np.full(each, i + 1, np.float32) for i in range(TENSORS)}
    import torch

    return {f"layer.{i}": torch.full((each,), float(i + 1)) for i in range(TENSORS)}


async def _start(fleet: LocalFleet, kind: str, source: Path | Mapping[str, Any], size_bytes: int, repeat: int) -> Start:
    """A publication until its first chunk has left; then it is cancelled."""
    async with AsyncPublisher(fleet.address, uplink="10gbit", base_cache=False) as publisher:
        started_s = time.perf_counter()
        publication = await publisher.publish(source, payload="full", chains=1)
        returned_s = time.perf_counter() - started_s
        async with asyncio.timeout(START_TIMEOUT_S):
            while _sent_bytes(publisher) <= SETUP_BYTES:
                if publication.done:
                    raise ChappeError(f"the publication ended before a chunk had left: {await publication.wait(0.0)}")
                await asyncio.sleep(_LOOK_S)
        first_s = time.perf_counter() - started_s
        await publication.cancel()
        start = Start(kind, size_bytes, repeat, returned_s, first_s)
        print(f"{kind} {format_size(size_bytes)}: first chunk after {first_s:.3f} s", file=sys.stderr, flush=True)
        return start


def _sent_bytes(publisher: AsyncPublisher) -> int:
    node = publisher._node  # not for users: they see what arrives
    assert node is not None
    return node._peering.service.streams.forwarded_bytes_total


def _logged_s(line: LogLine) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def _read_bytes(process: Process) -> int:
    return int(Path(f"/proc/{process.pid}/io").read_text().split("rchar:")[1].split()[0])


async def _end(directory: Path, snapshot: Path, size_bytes: int, limit: float, repeat: int) -> End:
    """A whole broadcast to one relay with a fresh store."""
    with tempfile.TemporaryDirectory(dir=directory) as base:
        flags = ("--downlink", "10gbit", "--limit-downlink", f"{round(limit)}B")
        fleet = LocalFleet(Path(base), relay_specs(1, flags))
        async with fleet, AsyncPublisher(fleet.address, uplink="10gbit", base_cache=False) as publisher:
            (worker,) = fleet.workers.values()
            (name,) = fleet.workers
            publication = await publisher.publish(snapshot, version=1, payload="full", chains=1)
            complete = await worker.logged(
                lambda line: line["event"] == "fetch_ended" and line.get("reason") == "complete", END_TIMEOUT_S
            )
            read_before, unwritten = _read_bytes(worker), unwritten_bytes(fleet.store(name))
            await publication.wait(1.0, timeout_s=END_TIMEOUT_S)
            landed = await worker.logged(lambda line: line["event"] == "landed")
            read = _read_bytes(worker) - read_before
            opened = await worker.logged(lambda line: line["event"] == "fetch_opened")
        landing_s = _logged_s(landed) - _logged_s(complete)
        came_bytes_per_s = size_bytes / (_logged_s(complete) - _logged_s(opened))
        alone_s = await asyncio.to_thread(disk_s, Path(base), snapshot, came_bytes_per_s)
        end = End(size_bytes, limit, repeat, landing_s, unwritten, alone_s, read)
    print(
        f"{format_size(size_bytes)} at {format_rate(limit)}: installed {landing_s:.3f} s after the last chunk with"
        f" {format_size(unwritten)} unwritten ({end.disk_s:.3f} s)",
        file=sys.stderr,
        flush=True,
    )
    return end


def summary(starts: Sequence[Start], ends: Sequence[End]) -> dict[str, list[dict[str, Any]]]:
    """Medians, and the least and most, of each kind and size."""
    found: dict[str, list[dict[str, Any]]] = {"starts": [], "ends": []}
    for kind, size in dict.fromkeys((s.kind, s.size_bytes) for s in starts):
        mine = [s for s in starts if (s.kind, s.size_bytes) == (kind, size)]
        found["starts"].append(
            {
                "kind": kind,
                "size_bytes": size,
                "runs": len(mine),
                "returned_s": statistics.median(s.returned_s for s in mine),
                "first_chunk_s": statistics.median(s.first_chunk_s for s in mine),
                "first_chunk_s_low": min(s.first_chunk_s for s in mine),
                "first_chunk_s_high": max(s.first_chunk_s for s in mine),
            }
        )
    for size, limit in dict.fromkeys((e.size_bytes, e.limit_bytes_per_s) for e in ends):
        these = [e for e in ends if (e.size_bytes, e.limit_bytes_per_s) == (size, limit)]
        found["ends"].append(
            {
                "size_bytes": size,
                "limit_bytes_per_s": limit,
                "runs": len(these),
                "landing_s": statistics.median(e.landing_s for e in these),
                "unwritten_bytes": statistics.median(e.unwritten_bytes for e in these),
                "disk_s": statistics.median(e.disk_s for e in these),
                "ratio": statistics.median(e.ratio for e in these),
                "ratio_low": min(e.ratio for e in these),
                "ratio_high": max(e.ratio for e in these),
                "second_pass": any(e.read_bytes > _SECOND_PASS_SHARE * e.size_bytes for e in these),
            }
        )
    return found


def show(starts: Sequence[Start], ends: Sequence[End]) -> None:
    found = summary(starts, ends)
    console = Console(highlight=False, width=140)
    table = Table("what", "size", "publish() returned", "first chunk sent", "least", "most", "runs")
    table.title = "From publish() to the first chunk on the wire, seconds"
    for row in found["starts"]:
        times = (row["returned_s"], row["first_chunk_s"], row["first_chunk_s_low"], row["first_chunk_s_high"])
        table.add_row(row["kind"], format_size(row["size_bytes"]), *(f"{t:.3f}" for t in times), str(row["runs"]))
    console.print(table)
    table = Table("size", "arrives at", "last chunk to installed", "unwritten", "the disk alone", "ratio", "2nd pass")
    table.title = "From the last chunk to the installed version, seconds"
    for row in found["ends"]:
        table.add_row(
            format_size(row["size_bytes"]),
            format_rate(row["limit_bytes_per_s"]),
            f"{row['landing_s']:.3f}",
            format_size(row["unwritten_bytes"]),
            f"{row['disk_s']:.3f}",
            f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})",
            "YES" if row["second_pass"] else "none",
        )
    console.print(table)


def draw(results: dict[str, Any]) -> Any:
    """Both halves, a bar for each kind and size. Returns a matplotlib Figure."""
    from matplotlib.figure import Figure

    starts, ends = results["starts"], results["ends"]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [f"{row['kind']}\n{format_size(row['size_bytes'])}" for row in starts]
    times = [row["first_chunk_s"] for row in starts]
    spread = [
        [t - row["first_chunk_s_low"] for t, row in zip(times, starts, strict=True)],
        [row["first_chunk_s_high"] - t for t, row in zip(times, starts, strict=True)],
    ]
    left.bar(names, times, yerr=spread, capsize=3)
    left.axhline(0.3, linestyle=":", color="black", label="aim for a path")
    left.set_ylabel("s from publish() to the first chunk")
    left.legend()
    places = range(len(ends))
    for shift, key, name in ((-0.2, "disk_s", "the disk alone"), (0.2, "landing_s", "Chappe")):
        right.bar([at + shift for at in places], [row[key] for row in ends], 0.38, label=name)
    labels = [f"{format_size(row['size_bytes'])}\nat {format_rate(row['limit_bytes_per_s'])}" for row in ends]
    right.set_xticks(list(places), labels)
    right.set_ylabel("s from the last chunk to installed")
    right.legend()
    return figure
