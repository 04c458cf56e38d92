"""`python -m bench scale`: many relays, and a coordinator of a large fleet.

relays   hundreds of real relays in a few processes, real Join and Fetch, a small payload: does it all hold, how long
         does a broadcast take that is nothing but control and per-hop cost, what do a relay and a stream cost?
joins    a thousand Join streams of relays without a data plane (`bench.standins`) in a broadcast, from a real
         publisher: how much of a core does the coordinator take, and how long until a lost relay's child has its
         new assignment?

With `--topology striped` something else is measured: see `bench.scalestriped`.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from rich.console import Console
from rich.table import Table

from bench import scratch
from bench.hop import cpu_s, make_sparse_snapshot, rss_max_bytes
from bench.results import RESULTS, write_results
from bench.scalestriped import StripedRun, draw_striped, show_striped, striped_run
from bench.standins import RATE_BYTES_PER_S
from chappe.cli.localfleet import LocalFleet
from chappe.cli.process import FleetError, Process
from chappe.cli.settings import Duration, Flat, Rate, Settings, Size
from chappe.publisher import AsyncPublisher

JOIN_TIMEOUT_S = 300.0
IDLE_S = 5.0
CHUNK_BYTES_DEFAULT = 128 << 10


@dataclass(frozen=True, slots=True)
class RelaysRun:
    """A broadcast to real relays. CPU in seconds, memory in bytes."""

    relays: int
    processes: int
    payload_bytes: int
    joined_s: float
    t_bcast_s: float
    hosts_cpu_s: float
    coordinator_cpu_s: float
    host_rss_max_bytes: int
    coordinator_rss_max_bytes: int


@dataclass(frozen=True, slots=True)
class JoinsRun:
    """A broadcast heard of by a coordinator. Cores are CPU seconds per second of it."""

    joins: int
    joined_s: float
    join_cpu_s: float
    idle_cores: float
    plan_cpu_s: float
    """From publish() until all have their first assignment."""
    broadcast_cores: float
    broadcast_s: float
    decisions_s: list[float]
    """From the break of a relay's stream until its child had another parent, as the child saw it."""
    rss_max_bytes: int


class ScaleSettings(Settings):
    relays: Annotated[int, Field(ge=0)] = 256
    """Real relays; 0 leaves them out."""
    processes: Annotated[int, Field(ge=1)] = 2
    """That they share."""
    payload: Size = 4 << 20
    """That they receive."""
    chains: Annotated[int, Field(ge=1)] = 8
    """Of both broadcasts."""
    joins: Annotated[int, Field(ge=0)] = 1000
    """Join streams without a data plane; 0 leaves them out."""
    broadcast: Duration = 30.0
    """How long their broadcast takes."""
    losses: Annotated[int, Field(ge=0)] = 10
    """Of them, one after the other."""
    repeats: Annotated[int, Field(ge=1)] = 3
    """Runs of each."""
    topology: Literal["chains", "striped"] = "chains"
    """striped: relays with unequal, limited links, once in stripes and once in plain chains; no joins."""
    rate: Rate = 1.5e6 / 8
    """With stripes: a relay's downlink, and the best of their uplinks."""
    directory: Path = Path("/dev/shm")
    """Where stores and the coordinator's state lie."""
    short: bool = False
    """Fewer, and one run of each: what `make bench` runs."""
    output: Path | None = None
    """The JSON to write; bench/results/scale.json, or scale-striped.json."""


_DEFAULTS = ScaleSettings()
_SHORT: dict[str, Any] = {"relays": 64, "chains": 4, "joins": 300, "broadcast": 10.0, "losses": 5, "repeats": 1}


def scale(*, settings: Annotated[ScaleSettings, Flat] = _DEFAULTS) -> int:
    """Hundreds of real relays in a few processes, and a coordinator with a thousand Join streams."""
    if settings.short:
        settings = settings.model_copy(update=_SHORT)
    if settings.topology == "striped":
        output = settings.output or RESULTS / "scale-striped.json"
        kept = {"relays", "processes", "payload", "rate", "repeats", "topology", "directory"}
        runs = asyncio.run(_striped(settings))
        show_striped(runs)
        parameters = settings.model_dump(mode="json", include=kept)
        write_results(output, "scale", parameters, [asdict(run) for run in runs])
        return 0
    relays, joins = asyncio.run(_measure(settings))
    show(relays, joins)
    runs = [{"what": "relays", **asdict(run)} for run in relays] + [{"what": "joins", **asdict(run)} for run in joins]
    parameters = settings.model_dump(mode="json", exclude={"output"})
    write_results(
        settings.output or RESULTS / "scale.json",
        "scale",
        parameters,
        runs,
        **{key: [row] for key, row in summary(relays, joins).items()},
    )
    return 0


async def _striped(settings: ScaleSettings) -> list[StripedRun]:
    runs = []
    for topology in ("striped", "chains") * settings.repeats:
        with tempfile.TemporaryDirectory(prefix=scratch.prefix("scale"), dir=settings.directory) as base:
            sizes = settings.relays, settings.processes, settings.payload, settings.rate
            runs.append(await striped_run(Path(base) / "r", *sizes, topology))
        print(runs[-1], file=sys.stderr, flush=True)
    return runs


async def _measure(settings: ScaleSettings) -> tuple[list[RelaysRun], list[JoinsRun]]:
    relays: list[RelaysRun] = []
    joins: list[JoinsRun] = []
    for _ in range(settings.repeats):
        with tempfile.TemporaryDirectory(prefix=scratch.prefix("scale"), dir=settings.directory) as base:
            if settings.relays:
                relays.append(await relays_run(Path(base) / "r", settings))
                print(relays[-1], file=sys.stderr, flush=True)
            shutil.rmtree(Path(base) / "r", ignore_errors=True)
            if settings.joins:
                joins.append(await joins_run(Path(base) / "j", settings))
                print(joins[-1], file=sys.stderr, flush=True)
    return relays, joins


async def relays_run(directory: Path, settings: ScaleSettings) -> RelaysRun:
    """Real relays, a real broadcast, every copy compared by its relay with the announced root."""
    fleet = LocalFleet(directory, ())
    hosts: list[Process] = []
    async with fleet:
        try:
            began_s = time.perf_counter()
            each = -(-settings.relays // settings.processes)
            for number, first in enumerate(range(0, settings.relays, each)):
                count = min(each, settings.relays - first)
                arguments = (fleet.address, str(directory), str(first), str(count))
                log = directory / "logs" / f"host-{number}.log"
                hosts.append(await Process.start(f"host-{number}", "bench.relayhost", arguments, log))
            for process in hosts:
                await process.logged(lambda line: line["event"] == "relays_ready", JOIN_TIMEOUT_S)
            await fleet.wait_joined(*(f"r{number}" for number in range(settings.relays)))
            joined_s = time.perf_counter() - began_s
            snapshot = directory / "model.safetensors"
            make_sparse_snapshot(snapshot, settings.payload)
            before = [cpu_s(process) for process in (fleet.coordinator, *hosts)]
            async with AsyncPublisher(fleet.address, uplink="10gbit", base_cache=False) as publisher:
                publication = await publisher.publish(snapshot, version=1, payload="full", chains=settings.chains)
                result = await publication.wait(1.0, timeout_s=JOIN_TIMEOUT_S)
            coordinator_s, *hosts_s = (
                cpu_s(process) - then for process, then in zip((fleet.coordinator, *hosts), before, strict=True)
            )
            took_s = result.t_bcast["1.0"]
            if took_s is None or result.installed != settings.relays:
                raise FleetError(f"{result.installed} of {settings.relays} relays installed the version")
            return RelaysRun(
                settings.relays,
                len(hosts),
                settings.payload,
                joined_s,
                took_s,
                sum(hosts_s),
                coordinator_s,
                max(rss_max_bytes(process) for process in hosts),
                rss_max_bytes(fleet.coordinator),
            )
        finally:
            await asyncio.gather(*(process.stop() for process in hosts))


async def joins_run(directory: Path, settings: ScaleSettings) -> JoinsRun:
    """Join streams without a data plane. The publisher is real; nobody fetches from it."""
    fleet = LocalFleet(directory, ())
    payload = round(RATE_BYTES_PER_S * settings.broadcast)
    chunks = -(-payload // CHUNK_BYTES_DEFAULT)
    async with fleet:
        coordinator, started_cpu_s = fleet.coordinator, cpu_s(fleet.coordinator)
        arguments = [fleet.address, "0", *map(str, (settings.joins, chunks, settings.broadcast, settings.losses))]
        load = await Process.start("standins", "bench.standins", arguments, directory / "logs" / "standins.log")
        try:
            began_s = time.perf_counter()
            await load.logged(lambda line: line["event"] == "standins_ready", JOIN_TIMEOUT_S)
            joined_s, join_cpu_s = time.perf_counter() - began_s, cpu_s(coordinator) - started_cpu_s
            idle_cores = await _cores(coordinator, asyncio.sleep(min(IDLE_S, settings.broadcast)))
            snapshot = directory / "model.safetensors"
            make_sparse_snapshot(snapshot, payload)
            async with AsyncPublisher(fleet.address, uplink="10gbit", base_cache=False) as publisher:
                before = cpu_s(coordinator)
                publication = await publisher.publish(snapshot, version=1, payload="full", chains=settings.chains)
                await load.logged(lambda line: line["event"] == "standins_began", JOIN_TIMEOUT_S)
                plan_cpu_s, began_s = cpu_s(coordinator) - before, time.perf_counter()
                done = load.logged(lambda line: line["event"] == "standins_done", JOIN_TIMEOUT_S)
                broadcast_cores = await _cores(coordinator, done)
                took_s = time.perf_counter() - began_s
                await publication.wait(0.5, timeout_s=JOIN_TIMEOUT_S)
            decisions = [line["seconds"] for line in load.recent() if line["event"] == "decided"]
            return JoinsRun(
                settings.joins,
                joined_s,
                join_cpu_s,
                idle_cores,
                plan_cpu_s,
                broadcast_cores,
                took_s,
                decisions,
                rss_max_bytes(coordinator),
            )
        finally:
            await load.kill()


async def _cores(process: Process, until: Any) -> float:
    cpu_before_s, began_s = cpu_s(process), time.perf_counter()
    await until
    return (cpu_s(process) - cpu_before_s) / (time.perf_counter() - began_s)


def summary(relays: Sequence[RelaysRun], joins: Sequence[JoinsRun]) -> dict[str, Any]:
    """Medians over the runs; decisions over all of them together."""
    found: dict[str, Any] = {}
    if relays:
        found["relays"] = {key: statistics.median(asdict(run)[key] for run in relays) for key in asdict(relays[0])}
    if joins:
        keys = [key for key in asdict(joins[0]) if key != "decisions_s"]
        found["joins"] = {key: statistics.median(asdict(run)[key] for run in joins) for key in keys}
        decisions = sorted(seconds for run in joins for seconds in run.decisions_s)
        if decisions:
            found["joins"]["decision_s"] = statistics.median(decisions)
            found["joins"]["decision_s_max"] = decisions[-1]
    return found


def show(relays: Sequence[RelaysRun], joins: Sequence[JoinsRun]) -> None:
    found, console = summary(relays, joins), Console(highlight=False, width=140)
    for key, title in (("relays", "Real relays in few processes"), ("joins", "A coordinator's load")):
        if key in found:
            table = Table("what", "median", title=f"{title}, {len(relays if key == 'relays' else joins)} runs")
            for name, value in found[key].items():
                table.add_row(name, f"{value / 1e6:.0f} MB" if name.endswith("bytes") else f"{value:.3f}".rstrip("0"))
            console.print(table)


def draw(results: dict[str, Any]) -> Any:
    """How long each lost relay's child waited, and what the coordinator took. Returns a matplotlib Figure."""
    from matplotlib.figure import Figure

    if results["parameters"].get("topology") == "striped":
        return draw_striped(results["runs"])
    joins = [run for run in results["runs"] if run["what"] == "joins"]
    decisions = sorted(1e3 * seconds for run in joins for seconds in run["decisions_s"])
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.step(decisions, [(at + 1) / len(decisions) for at in range(len(decisions))], where="post")
    left.axvline(50, linestyle=":", color="black", label="aim")
    left.set_xlabel("ms from a broken stream to the new assignment")
    left.set_ylabel("share of losses")
    left.legend()
    names = {"idle_cores": "idle", "broadcast_cores": "in a broadcast"}
    right.bar(list(names.values()), [results["joins"][0][key] if joins else 0.0 for key in names])
    right.axhline(0.5, linestyle=":", color="black", label="aim")
    right.set_ylabel("cores of the coordinator")
    right.legend()
    return figure
