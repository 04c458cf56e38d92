"""`python -m bench peers`: the same payload over the same links in the same run, by Chappe and by what else people use.

Everything is a ratio to the floor of its own repeat: one bare-TCP stream over one such link.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import Field, field_validator
from rich.console import Console
from rich.table import Table

from bench.results import RESULTS, commit, earlier_runs, write_results
from bench.systems.aria2 import Aria2
from bench.systems.bittorrent import BitTorrent
from bench.systems.chappe import Chappe
from bench.systems.common import FRACTIONS, Course, Outcome, System
from bench.systems.httpstar import HttpStar
from bench.systems.rounds import rounds
from bench.systems.rsync import Rsync
from bench.systems.sockets import FLOOR, SocketChains
from chappe.cli.interrupt import run_interruptible
from chappe.cli.settings import Flat, Rate, Settings, Size
from chappe.units import format_rate, format_size

SYSTEMS: tuple[System, ...] = (
    FLOOR,
    SocketChains(),
    Chappe(),
    BitTorrent(),
    Aria2(),
    Rsync(),
    HttpStar(),
    Rsync("rsync-sequence", "rsync, one host after the other", tree=False),
)
BY_KEY = {system.key: system for system in SYSTEMS}
DEFAULT = tuple(system.key for system in SYSTEMS if system.key != "rsync-sequence")
SHORT_SIZE = 12 << 20


class PeersSettings(Settings):
    """The payload, the links, who takes part."""

    only: tuple[str, ...] = ()
    """Only these systems beside the floor: bare-sockets, chappe, bittorrent, aria2, rsync-tree, http-star, and
    rsync-sequence, which runs only when named. May be repeated."""
    workers: int = 9
    """Relays; Chappe and the bare sockets lay them in floor(B0 / Bw) chains."""
    b0: Rate = 90e6 / 8
    """The trainer's uplink."""
    bw: Rate = 30e6 / 8
    """Every worker's link, up and down."""
    size: Size = 48 << 20
    """The payload."""
    mtu: int = 1500
    """Of every link; 9000 shows what is left without the headers' share."""
    repeats: Annotated[int, Field(ge=1)] = 3
    """Rounds over all systems, each with its own floor."""
    short: Annotated[bool, Parameter(negative="")] = False
    """One round of a quarter of the payload."""
    add: Annotated[bool, Parameter(negative="")] = False
    """Add the rounds to those that the output file holds: a long session in parts."""
    output: Path | None = None
    """Where the JSON goes; bench/results/peers.json (peers-mtuMTU.json, ...-short.json)."""

    @field_validator("only")
    @classmethod
    def _only(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in value:
            if key not in BY_KEY:
                raise ValueError(f"{key!r} is none of {', '.join(BY_KEY)}")
        return value


def peers(
    *,
    settings: Annotated[PeersSettings, Flat] = PeersSettings(),  # noqa: B008  frozen
    json: Annotated[bool, Parameter(negative="", help="Print the path of the JSON only.")] = False,
) -> int:
    """Chappe beside its peers. Needs root, network namespaces and tc; exit code 1 when a copy is wrong or missing."""
    if settings.short:
        settings = settings.model_copy(update={"size": min(settings.size, SHORT_SIZE), "repeats": 1})
    return run_interruptible(_measure(settings, json))


async def _measure(settings: PeersSettings, json: bool) -> int:
    course = Course.equal(settings.b0, settings.bw, settings.workers, settings.mtu)
    keys = ("floor", *(key for key in settings.only or DEFAULT if key != "floor"))
    skipped = {key: why for key in keys if (why := BY_KEY[key].missing())}
    for key, why in skipped.items():
        print(f"{BY_KEY[key].title}: left out, {why}", file=sys.stderr)
    systems = [BY_KEY[key] for key in keys if key not in skipped]
    variant = "" if settings.mtu == 1500 else f"-mtu{settings.mtu}"
    output = settings.output or RESULTS / f"peers{variant}{'-short' if settings.short else ''}.json"
    parameters = settings.model_dump(mode="json", exclude={"output", "add", "only", "repeats", "short"})
    parameters |= {"chains": course.chains}
    earlier = [Outcome.from_json(run) for run in (earlier_runs(output, parameters) if settings.add else [])]
    outcomes = earlier
    for _ in range(settings.repeats):  # written after each: a round that is interrupted costs no other
        number = 1 + max((int(outcome.detail["round"]) for outcome in outcomes), default=-1)
        for outcome in await rounds(course, systems, settings.size, 1):
            outcome.detail |= {"round": number, "commit": commit()}
            outcomes.append(outcome)
        rows = summary(outcomes, course.chains)
        runs = [outcome.to_json() for outcome in outcomes]
        write_results(output, "peers", parameters, runs, summary=rows, skipped=skipped)
    if json:
        print(output)
    else:
        show(rows, skipped, settings, course.chains)
        print(f"written: {output}")
    return 0 if all(outcome.error is None and outcome.identical for outcome in outcomes) else 1


def summary(outcomes: Iterable[Outcome], chains: int) -> list[dict[str, Any]]:
    """Per system medians over the rounds, with the least and the most: T(f) in seconds, over the round's floor and over
    its bare sockets; bytes out of the source over those of one stream; CPU of a relay, and over the bare sockets'."""
    by_round: dict[int, dict[str, Outcome]] = {}
    for outcome in outcomes:
        by_round.setdefault(outcome.detail.get("round", 0), {})[outcome.system] = outcome
    keys = list(dict.fromkeys(key for found in by_round.values() for key in found))
    return [_row(key, list(by_round.values()), chains) for key in keys]


def _row(key: str, rounds_: Sequence[dict[str, Outcome]], chains: int) -> dict[str, Any]:
    runs = [found[key] for found in rounds_ if key in found]
    row: dict[str, Any] = {"system": key, "runs": len(runs), "errors": [run.error for run in runs if run.error]}
    row["identical"] = all(run.identical for run in runs)
    for name in (f"{fraction:.1f}" for fraction in FRACTIONS):
        row[f"t_{name}_s"] = _spread([run.t_s.get(name) for run in runs])
        row[f"t_{name}_to_floor"] = _ratios(rounds_, key, "floor", lambda run, name=name: run.t_s.get(name))
        row[f"t_{name}_to_sockets"] = _ratios(rounds_, key, "bare-sockets", lambda run, name=name: run.t_s.get(name))
    row["streams_out_of_source"] = _ratios(rounds_, key, "floor", lambda run: run.source_wire_bytes)
    row["relay_cpu_s_per_gb"] = _spread([run.relay_cpu_s_per_gb for run in runs])
    row["relay_cpu_to_sockets"] = _ratios(rounds_, key, "bare-sockets", lambda run: run.relay_cpu_s_per_gb)
    row["chains"] = chains
    return row


def _ratios(rounds_: Sequence[dict[str, Outcome]], key: str, base: str, value: Any) -> dict[str, float] | None:
    """Of the same round each."""
    found = []
    for outcomes in rounds_:
        if key in outcomes and base in outcomes:
            one, other = value(outcomes[key]), value(outcomes[base])
            if one is not None and other:
                found.append(one / other)
    return _spread(found)


def _spread(values: Iterable[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"median": statistics.median(known), "least": min(known), "most": max(known)}


def columns_and_cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The table, for the terminal and for the report. Ratios are to the floor of the same round."""
    columns = ["", "T(0.5)", "T(0.9)", "T(1.0)", "least - most", "seconds", "streams out of the source", "CPU s/GB"]
    cells = []
    for row in rows:
        system = BY_KEY.get(row["system"])
        line = [system.title if system else row["system"]]
        line += [_x(row[f"t_{fraction:.1f}_to_floor"]) for fraction in FRACTIONS]
        total = row["t_1.0_to_floor"]
        line += ["" if total is None else f"{total['least']:.3f} - {total['most']:.3f}"]
        line += [_median(row["t_1.0_s"], "{:.1f}"), _median(row["streams_out_of_source"], "{:.2f}")]
        line += [_median(row["relay_cpu_s_per_gb"], "{:.1f}")]
        cells.append([*line[:3], "; ".join(row["errors"]) or line[3], *line[4:]])
    return columns, cells


def _median(value: dict[str, float] | None, form: str) -> str:
    return "" if value is None else form.format(value["median"])


def _x(value: dict[str, float] | None) -> str:
    return "" if value is None else f"x {value['median']:.3f}"


def show(rows: Sequence[dict[str, Any]], skipped: dict[str, str], settings: PeersSettings, chains: int) -> None:
    columns, cells = columns_and_cells(rows)
    table = Table(*columns, title="Time to all workers over the floor of the same round (medians)")
    for line in cells:
        table.add_row(*line)
    for key, why in skipped.items():
        table.add_row(BY_KEY[key].title, f"left out: {why}")
    console = Console(highlight=False, width=150)
    console.print(table)
    console.print(
        f"{settings.workers} workers, {chains} chains, B0 {format_rate(settings.b0)}, Bw {format_rate(settings.bw)},"
        f" {format_size(settings.size)}, MTU {settings.mtu}, {settings.repeats} rounds;"
        f" copies: {'all identical' if all(row['identical'] for row in rows) else 'WRONG OR MISSING'}"
    )
