"""`python -m bench all`: one bench after the other, each in a process of its own, then the report."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bench.results import RESULTS
from bench.sections import SECTIONS
from chappe.cli.interrupt import run_interruptible
from chappe.cli.settings import Flat, Settings

SHORT: dict[str, tuple[str, ...]] = {
    "adapting": ("--fleets", "0"),
    "delta-links": ("--bw", "50mbit", "--size", "32MiB", "--workers", "4", "--repeats", "1"),
    "faults": ("--only", "relay-drops", "--scale", "0.25", "--undisturbed", "1"),
    "hop": ("--size", "256MiB", "--repeats", "1"),
    "layout": ("--fleets", "60"),
    "striping": ("--fleets", "4"),
    "delta": ("--size", "32MiB", "--slow-size", "4MiB", "--repeat", "1", "--no-minilm", "--landing-size", "64MiB"),
}
"""What makes a bench short. The others have `--short`."""


class EverySettings(Settings):
    """Which."""

    only: tuple[str, ...] = ()
    """Only these benches. May be repeated."""
    short: Annotated[bool, Parameter(negative="")] = False
    """The short forms, whose JSON is NAME-short.json: minutes instead of hours."""
    results: Path = RESULTS
    """Where JSON and pictures go."""


_DEFAULTS = EverySettings()


def every(*, settings: Annotated[EverySettings, Flat] = _DEFAULTS) -> int:
    """Run the benches, then the report. Exit code 1 when one of them failed; the others are run all the same."""
    return run_interruptible(_all(settings))


async def _all(settings: EverySettings) -> int:
    from bench.__main__ import COMMANDS  # which imports this module only when it is called

    known, failed = set(COMMANDS), []
    names = [name for name in SECTIONS if name in known and (not settings.only or name in settings.only)]
    for name in names:
        started_s = time.monotonic()
        file = settings.results / f"{name}{'-short' if settings.short else ''}.json"
        flags = (*(SHORT.get(name, ("--short",)) if settings.short else ()), "--output", str(file))
        code = await _bench(name, *flags)
        print(
            f"{name}: {'done' if code == 0 else f'FAILED ({code})'}, {time.monotonic() - started_s:.0f} s", flush=True
        )
        if code != 0:
            failed.append(name)
    code = await _bench("report", "--results", str(settings.results))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed or code != 0 else 0


async def _bench(*arguments: str) -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench", *arguments)
    try:
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()  # it removes what it has made
        await process.wait()
        raise
