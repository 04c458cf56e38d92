"""`python -m bench faults`: one relay's death must cost the fleet that relay and about a second.

Eight workers on shaped links, real daemons in network namespaces. Each row is a broadcast of its own with one fault at
half of the bytes; the first one is undisturbed, and what the others are held against. With `--topology striped` uplinks
are unequal, so that there are stripes: a death costs each stripe of the dead one an edge, and a weak uplink the worker
its inner places, not its membership.

All of it takes 12 minutes; `--only` and `--add` measure it in parts, each beside all undisturbed runs of the file.
"""

from __future__ import annotations

import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from pydantic import field_validator
from rich.console import Console
from rich.table import Table

from bench import scratch
from bench.faultcases import CASES, Case
from bench.faultrun import Run, Setup, run_case
from bench.fleet import make_snapshot
from bench.links import Link
from bench.results import RESULTS, earlier_runs, write_results
from chappe.cli.interrupt import run_interruptible
from chappe.cli.settings import Flat, Rate, Settings
from chappe.units import format_rate, format_size

GOODPUT = 0.955
"""Share of a link that is payload: headers of Ethernet, IP, TCP at an MTU of 1500, as tbf counts them."""
KEYS = tuple(case.key for case in CASES)
UPLINKS = (1.0, 2 / 3, 2 / 3, 2 / 3, 1 / 2, 1 / 3, 1 / 5, 1 / 5)
"""Of the rate, with stripes: the second fleet of `python -m bench unequal`."""


class FaultSettings(Settings):
    """What is broadcast, over which links, and what happens."""

    only: tuple[str, ...] = ()
    """Only these faults (after the undisturbed runs): see the rows' keys; may be repeated."""
    workers: int = 8
    """Relays, in chains of workers / chains."""
    chains: int = 2
    """The origin's uplink is so many times a worker's link."""
    rate: Rate = 1.25e6
    """A worker's link, up and down. Slow links keep the CPU out of the figures."""
    topology: Literal["chains", "striped"] = "chains"
    """striped: the workers' uplinks are all of that, two thirds (three times), half, a third, a fifth (twice)."""
    broadcast_s: float = 40.0
    """About how long the undisturbed broadcast takes: the payload follows from it."""
    undisturbed: int = 2
    """Runs in which nothing happens; the others are held against their mean. They tell the noise."""
    scale: float = 1.0
    """Of that time: 0.25 makes runs of 10 s, in which a fault weighs four times as much."""
    add: Annotated[bool, Parameter(negative="")] = False
    """Keep the runs that the file holds, except those of the same faults; with --undisturbed 0 for no more of these."""
    output: Path | None = None
    """Where the JSON goes; bench/results/faults.json, or faults-striped.json, or faults-KEYS.json with --only alone."""
    logs: Path | None = None
    """Directory for the daemons' logs, one folder per run; not kept when not given."""

    @field_validator("only")
    @classmethod
    def _only(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in value:
            if key not in KEYS:
                raise ValueError(f"{key!r} is none of {', '.join(KEYS)}")
        return value


def faults(
    *,
    settings: Annotated[FaultSettings, Flat] = FaultSettings(),  # noqa: B008  frozen
    json: Annotated[bool, Parameter(negative="", help="Print the path of the JSON only.")] = False,
) -> int:
    """Measure what faults cost. Needs root, network namespaces and tc; exit code 1 when a copy is wrong or missing."""
    cases = [case for case in CASES if not settings.only or case.key in settings.only]
    return run_interruptible(_measure(settings, cases, json))


async def _measure(settings: FaultSettings, cases: Sequence[Case], json: bool) -> int:
    striped = ["striped"] if settings.topology == "striped" else []
    part = [] if settings.add else settings.only
    output = settings.output or RESULTS / f"{'-'.join(['faults', *striped, *part])}.json"
    varied = {"output", "logs", "add"} | ({"only", "undisturbed"} if settings.add or not settings.only else set())
    parameters = settings.model_dump(mode="json", exclude=varied)
    kept = [restored(run) for run in earlier_runs(output, parameters)] if settings.add else []
    report = await _session(settings, cases, kept)
    rows = [row.to_json() for row in report.rows]
    write_results(output, "faults", parameters, rows, payload_bytes=report.payload_bytes)
    if json:
        print(output)
    else:
        show(report, settings)
        print(f"written: {output}")
    return 0 if all(row.run.error is None and row.run.identical for row in report.rows) else 1


@dataclass(frozen=True, slots=True)
class Row:
    """A run beside the undisturbed ones."""

    case: Case | None
    run: Run
    t_ratio: float | None
    others_ratio: float | None
    twice_bytes: float | None
    wire_extra_bytes: float | None

    def to_json(self) -> dict[str, Any]:
        case = self.case
        said = {} if case is None else {"title": case.title, "aim": case.aim, "echo_s": case.echo_s}
        ratios = {
            "t_bcast_ratio": self.t_ratio,
            "t_others_ratio": self.others_ratio,
            "bytes_received_twice": self.twice_bytes,
            "wire_extra_bytes": self.wire_extra_bytes,
        }
        return {**said, **ratios, **self.run.to_json()}


@dataclass(frozen=True, slots=True)
class Report:
    rows: list[Row]
    payload_bytes: int


def restored(row: Mapping[str, Any]) -> Run:
    """As `Row.to_json` wrote it."""
    return Run(**{part.name: row[part.name] for part in fields(Run)})


async def _session(settings: FaultSettings, cases: Sequence[Case], kept: Sequence[Run] = ()) -> Report:
    """`kept`: runs of before."""
    link = Link(settings.rate, settings.rate)
    planned_s = settings.broadcast_s * settings.scale
    known = {case.key: case for case in CASES}
    directory = scratch.make("faults-source")
    try:
        snapshot = make_snapshot(directory / "model", round(GOODPUT * settings.rate * planned_s))
        payload = sum(path.stat().st_size for path in snapshot.rglob("*") if path.is_file())
        trainer = Link(up_bytes_per_s=settings.chains * settings.rate)
        setup = Setup(
            *(snapshot, payload, settings.workers, link, trainer),
            timeout_s=60.0 + 4 * planned_s,
            topology=settings.topology,
            uplinks=UPLINKS if settings.topology == "striped" else (),
        )
        fresh = {case.key for case in cases}
        runs = [(known.get(run.key), run) for run in kept if run.key not in fresh]
        for case in (*[None] * settings.undisturbed, *cases):
            print(f"{case.title if case else 'undisturbed'} ...", file=sys.stderr, flush=True)
            run = await run_case(case, setup, settings.logs)
            runs.append((case, run))
            print(f"  T(1.0) {_s(run.t_bcast_s.get('1.0'))} {run.error or ''}", file=sys.stderr, flush=True)
        order = [None, *CASES]
        runs.sort(key=lambda row: order.index(row[0]))
        calm = [run for case, run in runs if case is None and run.error is None]
        rows = [beside(case, run, calm) for case, run in runs]
        return Report(rows, payload)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def beside(case: Case | None, run: Run, calm: Sequence[Run]) -> Row:
    """What it took and sent more than the undisturbed runs. What framing adds to the payload is taken from them."""
    if not calm or run.error is not None:
        return Row(case, run, None, None, None, None)
    usual_s = statistics.fmean(t for other in calm if (t := other.t_bcast_s["1.0"]) is not None)
    total_s = run.t_bcast_s.get("1.0")
    received = statistics.median(size for other in calm for size in other.received_bytes.values())
    wire = statistics.fmean(size for other in calm for size in other.wire_received_bytes.values())
    return Row(
        case,
        run,
        None if total_s is None else total_s / usual_s,
        None if run.t_others_s is None else run.t_others_s / usual_s,
        sum(max(0.0, size - received) for size in run.received_bytes.values()),
        sum(size - wire for size in run.wire_received_bytes.values()),
    )


def show(report: Report, settings: FaultSettings) -> None:
    columns = ("fault at half of the bytes", "receiving again", "silent for", "the fleet's answer", "sent twice")
    table = Table(*columns, "T(1.0) of the living", "all others", "aim", "ECHO-2", title="What a fault costs")
    for row in report.rows:
        run, case = row.run, row.case
        table.add_row(
            case.title if case else "none",
            _s(run.receiving_again_s) if case else "",
            _s(run.silence_s),
            f"{_s(run.answer_s)} {run.answer}" if run.answer else "",
            "" if row.twice_bytes is None or case is None else format_size(row.twice_bytes),
            run.error or f"{_s(run.t_bcast_s.get('1.0'))} {_x(row.t_ratio)}",
            _x(row.others_ratio) if case else "",
            case.aim if case else "",
            f"{case.echo_s:g} s" if case and case.echo_s else "",
        )
    console = Console(highlight=False, width=200)
    console.print(table)
    wrong = [row.run.key for row in report.rows if not row.run.identical]
    console.print(
        f"{settings.workers} workers, {_shape(report, settings)}, {format_rate(settings.rate)} each way,"
        f" {format_size(report.payload_bytes)}; copies: {'all identical' if not wrong else 'WRONG in ' + str(wrong)}"
    )


def _shape(report: Report, settings: FaultSettings) -> str:
    stripes = max((row.run.stripes for row in report.rows), default=1)
    return (
        f"{settings.chains} chains" if stripes == 1 else f"{stripes} stripes, uplinks of a fifth of that to all of it"
    )


def _x(ratio: float | None) -> str:
    return "" if ratio is None else f"(x {ratio:.3f})"


def _s(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"
