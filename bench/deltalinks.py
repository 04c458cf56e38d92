"""`python -m bench delta-links`: how long a small delta takes to all workers over shaped links.

The workers hold a version, the publisher keeps it as its base, and versions of which about 1 % has changed follow. A
trainer with a publisher open sends them; with --command each is a `chappe publish`, a process that starts. Times are
told apart: from there until the first byte is asked for; from then until the heads of all chains have every chunk,
which waits for the publisher to compare, encode and hash, since a delta travels while it is made; and until the last
worker has. The whole from the first byte on is compared with the time that the payload alone takes over one such link,
and with the same including what Ethernet, IP and TCP add to it; so is what the chains add behind their heads, which is
all that relaying costs. A second table says where the time goes, from what the publisher and the relays log. One
machine plays all hosts: what its relays computed is told as well, and where that, divided by the cores, comes near the
time until all have received it, the cores are measured, not the links (two cores, 8 workers, 128 MiB: 3.2 CPU s of
applying starve the publisher's encoder; at first chunks it does not show). With --late no relay applies before all is
received (`bench.late_relayd`), as if it did that on a host of its own.
"""

from __future__ import annotations

import json as jsonlib
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from bench import phases, scratch
from bench.deltaland import touch_memory
from bench.fleet import ShapedFleet, Worker
from bench.hop import cpu_s
from bench.links import Link
from bench.results import RESULTS, write_results
from bench.trainerhost import GO, Versions
from chappe.cli.interrupt import run_interruptible
from chappe.cli.process import FleetError
from chappe.cli.settings import Flat, Rate, Settings, Size
from chappe.units import format_rate, format_size

Row = dict[str, Any]
AIM = 1.1
MEDIANS = ("payload_bytes", "first_byte_s", "heads_s", "received_s", "wire_s", "to_wire", "to_framed")
MEDIANS += ("chains_to_wire", "installed_s", "relays_cpu_s")
VERSION_S = 1800.0
"""What the first version, in full, may take over the slowest links."""
TOUCHED = 3
"""Versions of a worker that are there at a time."""
FRAME_BYTES, SEGMENT_BYTES = 1514, 1448
"""Of a full segment at MTU 1500: what a link that counts Ethernet carries, and what of it is payload."""


class DeltaLinksSettings(Settings):
    """Which fleet, and how many versions."""

    size: Size = 128 << 20
    """Of one snapshot."""
    density: float = 0.01
    """The share of elements that change between two versions."""
    workers: int = 8
    bw: tuple[Rate, ...] = (50e6 / 8, 20e6 / 8)
    """Every worker's link, up and down: one --bw for each fleet."""
    streams: int = 2
    """The trainer's uplink is so many times a worker's link: so many chains."""
    repeats: int = 5
    """Versions after the first one."""
    command: bool = False
    """Each version by a `chappe publish` of its own, instead of by a trainer that has a publisher open."""
    late: bool = False
    """Relays apply when they have received: what is installed says nothing then."""
    directory: Path = Path("/dev/shm")
    """Where the stores are made: a machine that plays all hosts has one disk for all of them."""
    output: Path = RESULTS / "delta-links.json"
    """Where the results are written."""


def delta_links(
    *,
    settings: Annotated[DeltaLinksSettings, Flat] = DeltaLinksSettings(),  # noqa: B008  frozen
    json: Annotated[bool, Parameter(negative="", help="Print one JSON object.")] = False,
) -> int:
    """A delta over shaped links. Needs root, network namespaces and tc; exit code 1 when a copy is not what it was."""
    return run_interruptible(_measure(settings, json))


async def _measure(settings: DeltaLinksSettings, json: bool) -> int:
    runs: list[Row] = []
    touch_memory(settings.size * TOUCHED * settings.workers)
    for bw in settings.bw:
        with tempfile.TemporaryDirectory(prefix=scratch.prefix("dl"), dir=settings.directory) as name:
            runs += await _fleet(settings, bw, Path(name))
    parameters = settings.model_dump(mode="json", exclude={"directory", "output"})
    rows = summary(runs)
    write_results(settings.output, "delta-links", parameters, runs, summary=rows)
    if json:
        print(jsonlib.dumps({"runs": runs, "summary": rows}, indent=2))
    else:
        show(rows, settings)
    return 0


async def _fleet(settings: DeltaLinksSettings, bw: float, directory: Path) -> list[Row]:
    link = Link(bw, bw)
    workers = [Worker(f"w{number}", link) for number in range(1, settings.workers + 1)]
    runs: list[Row] = []
    uplink = Link(settings.streams * bw, settings.streams * bw)
    module = "bench.late_relayd" if settings.late else "relayd"
    async with ShapedFleet(directory, uplink, workers, relay_module=module) as fleet:
        async for version, before_s, result, relays_cpu_s in _published(settings, directory, fleet):
            if result["kind"] == "delta":
                run = _run(fleet, [w.name for w in workers], bw, version, before_s, result)
                runs.append(run | {"relays_cpu_s": relays_cpu_s})
            elif version > 1:
                raise FleetError(f"version {version} was sent as {result['kind']}: {result.get('payload_reason')}")
    return runs


async def _published(
    settings: DeltaLinksSettings, directory: Path, fleet: ShapedFleet
) -> AsyncIterator[tuple[int, float, Row, float]]:
    """Each version, when its publication was begun, what came of it, and what the relays computed meanwhile."""
    total = settings.repeats + 1
    if settings.command:
        versions = Versions(settings.size, settings.density)
        for version in range(1, total + 1):
            snapshot = versions.write(directory / "snapshot")
            before_s, before_cpu_s = time.time(), _cpu_s(fleet)
            flags = ("--version", str(version), "--log-level", "info", "--log-format", "json")
            publish = await fleet.start_publish(snapshot, *flags, payload="auto", base_cache=str(directory / "base"))
            output = await publish.output()
            if publish.returncode != 0:
                raise FleetError(f"chappe publish failed:\n{publish.tail()}")
            yield version, before_s, jsonlib.loads(output), _cpu_s(fleet) - before_cpu_s
        return
    run = {"directory": str(directory), "size": settings.size, "density": settings.density, "versions": total}
    trainer = await fleet.start_trainer("bench.trainerhost", run)
    await trainer.wait_ready()
    for version in range(1, total + 1):
        if version > 1:
            await trainer.logged(
                lambda line, v=version: (line.get("event"), line.get("version")) == ("trained", v), VERSION_S
            )
        before_cpu_s = _cpu_s(fleet)
        trainer.send_signal(GO)
        said = await trainer.logged(
            lambda line, v=version: (line.get("event"), line.get("version")) == ("published", v), VERSION_S
        )
        yield version, said["started_s"], said["result"], _cpu_s(fleet) - before_cpu_s


def _cpu_s(fleet: ShapedFleet) -> float:
    return sum(cpu_s(fleet.processes[worker.name]) for worker in fleet.workers)


def _run(fleet: ShapedFleet, names: Sequence[str], bw: float, version: int, before_s: float, result: Row) -> Row:
    """Times from the relays' own logs; all processes have one clock here."""
    opened: list[float] = []
    ended: dict[str, float] = {}
    for name in names:
        lines = [line for line in fleet.processes[name].recent() if phases.time_s(line) > before_s]
        opened += [phases.time_s(line) for line in lines if line.get("event") == "fetch_opened"]
        done = [phases.time_s(line) for line in lines if phases.received(line)]
        if not done:
            raise FleetError(f"{name} has received nothing of version {version}:\n{fleet.processes[name].tail()}")
        ended[name] = max(done)
    first_s = min(opened)
    payload = int(result["payload_bytes"])
    received_s = max(ended.values()) - first_s
    heads_s = max(ended[chain[0]] for chain in result["chains"] if chain)
    wire_s = payload / bw
    said = {name: fleet.processes[name].recent() for name in (*names, phases.PUBLISHER)}
    return {
        "bw": bw * 8,
        "workers": len(names),
        "version": version,
        "payload_bytes": payload,
        "chains": result["chains"],
        "first_byte_s": first_s - before_s,
        "heads_s": heads_s - first_s,
        "received_s": received_s,
        "wire_s": wire_s,
        "chains_to_wire": 1 + (max(ended.values()) - heads_s) / wire_s,
        "to_wire": received_s / wire_s,
        "to_framed": received_s / (wire_s * FRAME_BYTES / SEGMENT_BYTES),
        "installed_s": result["t_bcast"]["1.0"],
        "phases": phases.phases(said, before_s, first_s),
    }


def summary(runs: Sequence[Row]) -> list[Row]:
    """Medians of each fleet's versions, and the spread of what is compared."""
    rows: list[Row] = []
    for bw in dict.fromkeys(run["bw"] for run in runs):
        mine = [run for run in runs if run["bw"] == bw]
        row: Row = {"bw": bw, "workers": mine[0]["workers"], "chains": mine[0]["chains"], "versions": len(mine)}
        for key in MEDIANS:
            row[key] = statistics.median(run[key] for run in mine)
        row["phases"] = phases.medians([run["phases"] for run in mine])
        row["to_wire_spread"] = [min(run["to_wire"] for run in mine), max(run["to_wire"] for run in mine)]
        rows.append(row)
    return rows


def columns_and_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The table, for the terminal and for the report."""
    columns = ["link", "workers", "payload", "to the first byte", "wire time", "by the heads", "received by all"]
    columns += ["x wire (spread)", "x wire with frames", "wire + behind the heads", "installed, from publish()"]
    columns += ["relays' CPU"]
    cells = []
    for row in rows:
        low, high = row["to_wire_spread"]
        cells.append(
            [
                format_rate(row["bw"] / 8),
                f"{row['workers']} in {len(row['chains'])} chains",
                format_size(round(row["payload_bytes"])),
                f"{row['first_byte_s']:.2f} s",
                f"{row['wire_s']:.3f} s",
                f"{row['heads_s']:.3f} s",
                f"{row['received_s']:.3f} s",
                f"{row['to_wire']:.3f} ({low:.3f} - {high:.3f})",
                f"{row['to_framed']:.3f}",
                f"x {row['chains_to_wire']:.3f}",
                f"{row['installed_s']:.2f} s",
                f"{row['relays_cpu_s']:.2f} s",
            ]
        )
    return columns, cells


def phase_columns_and_cells(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Milliseconds from the first request on, the first and the last of each kind; likewise."""
    return ["link", *phases.ORDER], [[format_rate(row["bw"] / 8), *phases.cells(row["phases"])] for row in rows]


def show(rows: Sequence[Row], settings: DeltaLinksSettings) -> None:
    columns, cells = columns_and_cells(rows)
    title = f"a delta of {settings.density:.0%} of {format_size(settings.size)}, T(received); aim {AIM} x wire time"
    title += "; applied when received" if settings.late else ""
    _print(title, columns, cells)
    _print("where the time goes: ms from the first request on, first - last", *phase_columns_and_cells(rows))


def _print(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    table = Table(*columns, title=title)
    for line in cells:
        table.add_row(*line)
    Console(highlight=False, width=180).print(table)
