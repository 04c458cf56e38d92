"""From the last chunk to the installed version, beside what the same disk needs at least: a half of `bench publish`.

A whole broadcast to one relay with a fresh store, which says when each step of the landing was done
(`bench.timed_relayd`). The coordinator keeps its database in memory here: in a fleet it is on another host, and its
commits do not wait in the journal of the relay's disk. What is dirty is looked at in a run of its own, because looking
takes as long as the landing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from bench import scratch
from bench.diskalone import disk_alone, unwritten_bytes
from bench.publishshow import End, Steps
from chappe.cli.localfleet import LocalFleet, RelaySpec, relay_specs
from chappe.cli.process import LogLine, Process
from chappe.publisher import AsyncPublisher
from chappe.units import format_rate, format_size

END_TIMEOUT_S = 600.0
_MEMORY = Path("/dev/shm")
_STEPS = ("begun", "durable", "named", "current")


@dataclass
class LandingFleet(LocalFleet):
    """Its stores are on the disk that is measured, everything else is not."""

    stores: Path = Path()

    def store(self, name: str) -> Path:
        return self.stores / name

    async def start_relay(self, spec: RelaySpec, *, module: str = "bench.timed_relayd") -> Process:
        return await super().start_relay(spec, module=module)


def logged_s(line: LogLine) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def _read_bytes(process: Process) -> int:
    return int(Path(f"/proc/{process.pid}/io").read_text().split("rchar:")[1].split()[0])


def _complete(line: LogLine) -> bool:
    """The parent's last word may come before or after the relay has begun to land."""
    return line["event"] == "landing" or (line["event"] == "fetch_ended" and line.get("reason") == "complete")


async def land(directory: Path, snapshot: Path, size_bytes: int, limit: float, repeats: int) -> list[End]:
    """`repeats` landings of a file that comes at so many bytes per second at most, on the disk of `directory`."""
    looked = await _broadcast(directory, snapshot, size_bytes, limit, -1, 0)
    return [
        await _broadcast(directory, snapshot, size_bytes, limit, repeat, looked.unwritten_bytes)
        for repeat in range(repeats)
    ]


async def _broadcast(
    directory: Path, snapshot: Path, size_bytes: int, limit: float, repeat: int, unwritten: int
) -> End:
    """Looks at what is dirty when `repeat` is negative: the times are then no measurement."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else directory
    with (
        tempfile.TemporaryDirectory(dir=directory) as stores,
        tempfile.TemporaryDirectory(prefix=scratch.prefix("publish"), dir=memory) as beside,
    ):
        flags = ("--downlink", "10gbit", "--limit-downlink", f"{round(limit)}B")
        fleet = LandingFleet(Path(beside), relay_specs(1, flags), stores=Path(stores))
        async with fleet, AsyncPublisher(fleet.address, uplink="10gbit", base_cache=False) as publisher:
            (worker,) = fleet.workers.values()
            (name,) = fleet.workers
            publication = await publisher.publish(snapshot, version=1, payload="full", chains=1)
            complete = await worker.logged(_complete, END_TIMEOUT_S)
            read_before = _read_bytes(worker)
            if repeat < 0:
                unwritten = unwritten_bytes(fleet.store(name))
            await publication.wait(1.0, timeout_s=END_TIMEOUT_S)
            landed = await worker.logged(lambda line: line["event"] == "landed")
            read = _read_bytes(worker) - read_before
            opened = await worker.logged(lambda line: line["event"] == "fetch_opened")
            steps = await worker.logged(lambda line: line["event"] == "landing_steps")
        came_bytes_per_s = size_bytes / (logged_s(complete) - logged_s(opened))
        alone = await asyncio.to_thread(disk_alone, Path(stores), snapshot, came_bytes_per_s)
    moments = [steps["stored"], *(steps[step] for step in _STEPS), logged_s(landed)]
    parts = Steps(*(later - earlier for earlier, later in pairwise(moments)))
    end = End(
        size_bytes, limit, repeat, moments[-1] - moments[0], unwritten, alone.synced_s, alone.named_s, read, parts
    )
    if repeat >= 0:
        print(
            f"{format_size(size_bytes)} at {format_rate(limit)}: installed {end.landing_s * 1e3:.1f} ms after the last"
            f" chunk; the disk alone {end.disk_s * 1e3:.1f} ms, with a name {end.named_s * 1e3:.1f} ms",
            file=sys.stderr,
            flush=True,
        )
    return end
