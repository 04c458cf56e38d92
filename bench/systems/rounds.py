"""Rounds over systems: each brings the same payload over the same links, one after the other, on fresh hosts."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import scratch
from bench.links import unavailable_reason
from bench.systems.common import Course, Outcome, Payload, System
from chappe.errors import ChappeError, UsageError

_PATIENCE = 1.5
"""A system may take so many times a download per worker, one after the other, over the slowest link, and a minute."""


async def rounds(
    course: Course, systems: Sequence[System], size_bytes: int, repeats: int, *, label: str = ""
) -> list[Outcome]:
    """Each system once per round (`detail["round"]`), over fresh hosts. One that fails does not end the rest.

    Raises UsageError where shaped links cannot be made.
    """
    if (reason := unavailable_reason()) is not None:
        raise UsageError(reason)
    directory = scratch.make("peers")
    outcomes = []
    slowest_bw = min(min(link.down_bytes_per_s or course.b0, course.b0) for link in course.links)
    slowest_up = min(link.up_bytes_per_s or course.b0 for link in course.links)
    limit_s = 60 + _PATIENCE * len(course.links) * size_bytes / min(slowest_bw, slowest_up)
    try:
        for number in range(repeats):
            payload = await asyncio.to_thread(
                Payload.make, directory / "source" / "model.safetensors", size_bytes, number
            )
            for system in systems:
                outcome = await _one(system, course, payload, directory / system.key, limit_s)
                outcome.detail["round"] = number
                outcomes.append(outcome)
                took = outcome.t_s.get("1.0")
                said = outcome.error or f"T(1.0) {took:.2f} s" if took is not None else outcome.error
                print(f"{label}{system.title}: {said}", file=sys.stderr, flush=True)
        return outcomes
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _one(system: System, course: Course, payload: Payload, directory: Path, limit_s: float) -> Outcome:
    await asyncio.to_thread(directory.mkdir)
    try:
        async with asyncio.timeout(limit_s):
            return await system.run(course, payload, directory)
    except (ChappeError, TimeoutError) as error:
        return Outcome(system.key, error=str(error) or f"did not finish within {limit_s:.0f} s")
    finally:
        await asyncio.to_thread(shutil.rmtree, directory)
