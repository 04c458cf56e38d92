"""`python -m bench chain-vs-star`: Chappe's chains, Chappe's own star and the floor, over N workers.

The shape of ECHO-2's Figure 4 at a tenth of the rates: same daemons, same flags, same verification; only `--topology`
differs. The floor is measured in the same run: one bare-TCP stream over one such link. `--only chains --only bare`
leaves the star out and runs the same chains of bare sockets instead: by how much they grow with N is the links' and
the machine's part of what Chappe's do.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from bench.links import Link
from bench.results import RESULTS, commit, earlier_runs, write_results
from bench.systems.chappe import Chappe
from bench.systems.common import Course, System
from bench.systems.rounds import rounds
from bench.systems.sockets import FLOOR, SocketChains
from chappe.cli.interrupt import run_interruptible
from chappe.cli.settings import Flat, Rate, Settings, Size
from chappe.planning import broadcast
from chappe.units import format_rate, format_size

CHAINS = Chappe("chappe-chains", "Chappe, chains")
STAR = Chappe("chappe-star", "Chappe, star", topology="star")
BARE = SocketChains()
SYSTEMS: dict[str, System] = {"chains": CHAINS, "star": STAR, "bare": BARE}
UNEQUAL = "unequal uplinks"
_TITLES = {"chains": "chains", "star": "star", "bare": "bare-socket chains"}
SLOW_UPLINK = 0.4
"""Of Bw: the uplink of every third worker where uplinks are unequal."""
SHORT = {"b0": (30e6 / 8,), "workers": (4, 9), "size": 4 << 20, "repeats": 1, "unequal": 0}


class ChainStarSettings(Settings):
    """Which fleets."""

    b0: tuple[Rate, ...] = (30e6 / 8, 80e6 / 8)
    """The trainer's uplinks, one --b0 for each."""
    bw: Rate = 10e6 / 8
    """Every worker's link, up and down."""
    workers: tuple[int, ...] = (4, 6, 9, 20)
    """Numbers of workers, one --workers for each."""
    unequal: int = 9
    """Also a fleet of so many workers, of which every third has an uplink of 0.4 Bw; 0 leaves it out."""
    size: Size = 12 << 20
    """The payload. On links of 10 Mbit/s a chunk takes 50 ms, which a chain pays once for each hop: a small payload
    makes that look large."""
    only: tuple[Literal["chains", "star", "bare"], ...] = ("chains", "star")
    """What is measured beside the floor, one --only for each; bare: the same chains of bare sockets."""
    repeats: int = 3
    """Of each fleet."""
    mtu: int = 1500
    """Of every link."""
    short: Annotated[bool, Parameter(negative="")] = False
    """One trainer uplink, 4 and 9 workers, 4 MiB, once."""
    add: Annotated[bool, Parameter(negative="")] = False
    """Add to the runs that the output file holds, when payload and links are the same: a long session in parts."""
    output: Path | None = None
    """Where the JSON goes; bench/results/chain-vs-star.json (-short.json)."""


def chain_vs_star(
    *,
    settings: Annotated[ChainStarSettings, Flat] = ChainStarSettings(),  # noqa: B008  frozen
    json: Annotated[bool, Parameter(negative="", help="Print the path of the JSON only.")] = False,
) -> int:
    """Chains against a star. Needs root, network namespaces and tc; exit code 1 when a copy is wrong or missing."""
    if settings.short:
        settings = settings.model_copy(update=SHORT)
    return run_interruptible(_measure(settings, json))


def courses(settings: ChainStarSettings) -> list[tuple[str, Course]]:
    """(label, course) of every fleet to measure; the label is "" where all links are equal."""
    found = [("", Course.equal(b0, settings.bw, n, settings.mtu)) for b0 in settings.b0 for n in settings.workers]
    if settings.unequal:
        fast = Link(settings.bw, settings.bw, settings.mtu)
        slow = Link(SLOW_UPLINK * settings.bw, settings.bw, settings.mtu)
        links = tuple(slow if i % 3 == 2 else fast for i in range(settings.unequal))
        found += [(UNEQUAL, Course(b0, links, settings.mtu)) for b0 in settings.b0]
    return found


async def _measure(settings: ChainStarSettings, json: bool) -> int:
    output = settings.output or RESULTS / f"chain-vs-star{'-short' if settings.short else ''}.json"
    fixed = {"bw": settings.bw * 8, "size_bytes": settings.size, "mtu": settings.mtu}
    runs = earlier_runs(output, fixed) if settings.add else []
    systems: tuple[System, ...] = (FLOOR, *(SYSTEMS[name] for name in dict.fromkeys(settings.only)))
    fine = True
    for label, course in courses(settings):
        place = {"label": label, "b0": course.b0 * 8, "workers": len(course.links)}
        name = f"B0 {format_rate(course.b0)}, N {len(course.links)} {label}: "
        outcomes = await rounds(course, systems, settings.size, settings.repeats, label=name)
        fine = fine and all(outcome.error is None and outcome.identical for outcome in outcomes)
        first = 1 + max((run["round"] for run in runs if _place(run) == _place(place)), default=-1)
        for outcome in outcomes:
            number = first + int(outcome.detail.pop("round"))
            outcome.detail["commit"] = commit()
            runs.append(place | {"round": number} | outcome.to_json())
        write_results(output, "chain-vs-star", fixed, runs, summary=summary(runs))  # also after an interruption
    if json:
        print(output)
    else:
        show(summary(runs), settings)
        print(f"written: {output}")
    return 0 if fine else 1


def _place(run: dict[str, Any]) -> tuple[str, float, int]:
    return run["label"], run["b0"], run["workers"]


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per fleet: medians of T(1.0) over the repeats, and over the same repeat's floor."""
    rows = []
    for place in dict.fromkeys(map(_place, runs)):
        mine = [run for run in runs if _place(run) == place]
        row: dict[str, Any] = dict(zip(("label", "b0", "workers"), place, strict=True))
        floors = {run["round"]: run["t_s"].get("1.0") for run in mine if run["system"] == FLOOR.key}
        row["floor_s"] = statistics.median(t for t in floors.values() if t)
        for name, key in (("chains", CHAINS.key), ("star", STAR.key), ("bare", BARE.key)):
            ours = [run for run in mine if run["system"] == key]
            times = [(run["t_s"].get("1.0"), floors.get(run["round"])) for run in ours]
            ratios = [time / floor for time, floor in times if time and floor]
            row[f"{name}_s"] = [time for time, _ in times if time]
            row[f"{name}_to_floor"] = statistics.median(ratios) if ratios else None
            row[f"{name}_spread"] = [min(ratios), max(ratios)] if ratios else None
        row["identical"] = all(run["identical"] for run in mine)
        rows.append(row)
    return rows


def growth(rows: Sequence[dict[str, Any]], b0: float, name: str = "chains") -> float | None:
    """T(largest N) / T(smallest N) of equal fleets, in floors."""
    mine = sorted((row for row in rows if row["b0"] == b0 and not row["label"]), key=lambda row: row["workers"])
    known = [row[f"{name}_to_floor"] for row in mine if row.get(f"{name}_to_floor")]
    return known[-1] / known[0] if len(known) > 1 else None


def models_s(row: dict[str, Any], bw: float, size_bytes: int, goodput: float = 1.0) -> dict[str, float]:
    """The closed forms for a row's fleet. `goodput`: the share of a link that is payload, as the floor measured it."""
    fleet = broadcast.EqualFleet(size_bytes, row["b0"] / 8 * goodput, bw / 8 * goodput, row["workers"])
    return {
        "star, limited by B0": broadcast.star_limited_s(fleet),
        "star, unlimited": broadcast.star_unlimited_s(fleet),
        "chains, pipelined": broadcast.chain_pipelined_s(fleet),
    }


def columns_and_cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The table, for the terminal and for the report."""
    names = [name for name in _TITLES if any(row.get(f"{name}_s") for row in rows) or name == "chains"]
    columns = ["B0 Mbit/s", "workers", "floor", *(text for name in names for text in (_TITLES[name], ""))]
    both = "star" in names
    columns += ["star / chains"] if both else []
    cells = []
    for row in rows:
        line = [f"{row['b0'] / 1e6:g}", f"{row['workers']}{' ' + row['label'] if row['label'] else ''}"]
        line += [f"{row['floor_s']:.2f} s"]
        for name in names:
            times, ratio, spread = (row.get(f"{name}_{what}") for what in ("s", "to_floor", "spread"))
            line += (
                ["failed" if times is not None else "", ""]
                if ratio is None
                else [f"{statistics.median(times):.2f} s", f"x {ratio:.3f}"]
            )
            if spread is not None and len(times) > 1:
                line[-1] += f" ({spread[0]:.3f} - {spread[1]:.3f})"
        one, other = row["star_to_floor"], row["chains_to_floor"]
        cells.append([*line, *([f"{one / other:.2f}" if one and other else ""] if both else [])])
    return columns, cells


def growths(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is to be said of each B0."""
    said = []
    for b0 in dict.fromkeys(row["b0"] for row in rows):
        factors = {_TITLES[name]: growth(rows, b0, name) for name in ("chains", "bare")}
        parts = [f"{title} grow by x {factor:.3f}" for title, factor in factors.items() if factor is not None]
        if parts:
            said.append(f"B0 {b0 / 1e6:g} Mbit/s: from the fewest workers to the most, {', '.join(parts)}")
    return said


def show(rows: Sequence[dict[str, Any]], settings: ChainStarSettings) -> None:
    columns, cells = columns_and_cells(rows)
    table = Table(*columns, title="T_bcast(1.0), and over the floor of the same round (medians)")
    for line in cells:
        table.add_row(*line)
    console = Console(highlight=False, width=140)
    console.print(table)
    for line in growths(rows):
        console.print(line)
    wrong = [row for row in rows if not row["identical"]]
    console.print(
        f"Bw {format_rate(settings.bw)}, {format_size(settings.size)}, MTU {settings.mtu};"
        f" copies: {'all identical' if not wrong else 'WRONG OR MISSING'}"
    )
    if wrong:
        print(wrong, file=sys.stderr)
