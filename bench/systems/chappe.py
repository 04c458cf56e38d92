"""Chappe itself: its daemons and `chappe publish`, as a user starts them, in chains or as a star.

The clock is the publication's own: from the `publish()` call, hashing included, until a version is installed (verified,
synced to the disk, current). Everybody else's starts when all programs are up, and ends with the last byte.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

from bench.fleet import ShapedFleet, Worker
from bench.systems.common import Course, Outcome, Payload, identical_copies
from bench.systems.metering import Meter
from bench.systems.programs import PeerError


@dataclass(frozen=True, slots=True)
class Chappe:
    """`topology` is what `chappe publish --topology` takes; `flags` are more of its flags."""

    key: str = "chappe"
    title: str = "Chappe"
    topology: str = "chains"
    flags: tuple[str, ...] = ()
    relay_flags: tuple[str, ...] = ()

    def missing(self) -> str | None:
        return None

    async def run(self, course: Course, payload: Payload, directory: Path) -> Outcome:
        workers = [Worker(n, link, self.relay_flags) for n, link in zip(course.names, course.links, strict=True)]
        async with ShapedFleet(directory, course.trainer, workers) as fleet:
            meter = Meter(fleet.network, course.names)
            publish = await fleet.start_publish(payload.path, "--topology", self.topology, *self.flags)
            output = await publish.output()
            source, cpu = meter.read(payload.size_bytes)
            if publish.returncode != 0:
                raise PeerError(f"chappe publish ended with {publish.returncode}:\n{publish.tail()}")
            result = json.loads(output)
            copies = {n: fleet.store(n) / "current" / payload.path.name for n in course.names}
            identical = await asyncio.to_thread(identical_copies, copies, course.names, payload)
            detail = {"chains": result["chains"], "kind": result["kind"], "lost": result["lost"]}
            return Outcome(self.key, result["t_bcast"], source, cpu, identical, detail=detail)
