"""`python -m bench unequal`: fleets of unequal links, with plain chains, BitTorrent and the physical bound.

A plain chain is as good as its slowest inner uplink. The bound is max(F/B0, F/d_q, N*F/(B0 + sum u)) of whole link
rates: headers take 4.6 % of them at MTU 1500, so nobody gets below 1.046. `1 child` is that of one child in each
stripe, of whole rates as well: above the other one where uplinks are above what everybody receives.

All of it takes half an hour; `--add --most 3` measures three fleets that the file lacks, and again until none are left.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import field_validator
from rich.console import Console
from rich.table import Table

from bench.links import Link
from bench.results import RESULTS, commit, earlier_runs, write_results
from bench.systems.bittorrent import BitTorrent
from bench.systems.chappe import Chappe
from bench.systems.common import FRACTIONS, Course, System
from bench.systems.rounds import rounds
from chappe.cli.interrupt import run_interruptible
from chappe.cli.settings import Flat, Settings
from chappe.planning.fluid import Host
from chappe.planning.stripes import striped_rate
from chappe.planning.topology import broadcast_floor
from chappe.units import format_size

MBIT = 1e6 / 8
MIB = 1 << 20
STRIPED = "chappe-striped"
SYSTEMS: tuple[System, ...] = (
    Chappe("chappe", "Chappe, plain chains"),
    Chappe(STRIPED, "Chappe, striped", topology="striped"),
    BitTorrent(),
)
BY_KEY = {system.key: system for system in SYSTEMS}


@dataclass(frozen=True, slots=True)
class Fleet:
    """Rates in Mbit/s."""

    name: str
    b0: float
    down: float
    up: tuple[float, ...]
    size_bytes: int

    def course(self, mtu: int) -> Course:
        links = tuple(Link(up * MBIT, self.down * MBIT, mtu) for up in self.up)
        return Course(self.b0 * MBIT, links, mtu)

    def bound_s(self, fraction: float) -> float:
        """What no topology beats."""
        ups = [up * MBIT for up in self.up]
        return broadcast_floor(self.size_bytes, self.b0 * MBIT, ups, [self.down * MBIT] * len(ups), fraction)

    def one_child_s(self) -> float:
        """What nobody beats in whose stripes everybody has one child at most."""
        hosts = [Host(f"w{i}", up * MBIT, self.down * MBIT) for i, up in enumerate(self.up)]
        return self.size_bytes / striped_rate(self.b0 * MBIT, hosts, ack_share=0.0)


KNOWN = (
    Fleet("30 x5, 8 x4", 90, 30, (30, 30, 30, 30, 30, 8, 8, 8, 8), 32 * MIB),
    Fleet("30 20 20 20 15 10 6 6", 60, 30, (30, 20, 20, 20, 15, 10, 6, 6), 24 * MIB),
    Fleet("30 15 15 15 10 6 6 6", 60, 30, (30, 15, 15, 15, 10, 6, 6, 6), 24 * MIB),
    Fleet("30 x4, 20 15 10 10", 60, 30, (30, 30, 30, 30, 20, 15, 10, 10), 24 * MIB),
    Fleet("10 x8, 60 down", 90, 60, (10,) * 8, 24 * MIB),
    Fleet("30 x8, 300 down", 300, 300, (30,) * 8, 32 * MIB),
)
"""The first five are those of the issue that brings stripes; the last is what consumers buy."""


def drawn(count: int, seed: int) -> list[Fleet]:
    """Random fleets: 5 to 10 workers, 30 Mbit/s down, uplinks from 5 to 30."""
    dice = random.Random(seed)
    fleets = []
    for number in range(1, count + 1):
        ups = tuple(float(dice.choice((5, 8, 10, 15, 20, 30))) for _ in range(dice.randint(5, 10)))
        b0 = float(dice.choice((30, 60, 90)))
        fleets.append(Fleet(f"random {number}", b0, 30, tuple(sorted(ups, reverse=True)), 32 * MIB))
    return fleets


class UnequalSettings(Settings):
    """Which fleets."""

    only: tuple[str, ...] = ()
    """Only these of the known fleets, by number from 1, or `none`. May be repeated."""
    random: int = 20
    """So many random fleets."""
    most: int = 0
    """With --add, of the fleets that are not measured yet only so many in this call; 0 for all."""
    systems: tuple[str, ...] = ()
    """Only these: chappe, chappe-striped, bittorrent. May be repeated."""
    skip: int = 0
    """Leave out so many of the random ones from the start: a long session in parts, with --add."""
    seed: int = 1
    """Of the random fleets."""
    repeats: int = 1
    """Of each fleet."""
    mtu: int = 1500
    """Of every link."""
    short: Annotated[bool, Parameter(negative="")] = False
    """Two of the known fleets at a sixth of their payload."""
    add: Annotated[bool, Parameter(negative="")] = False
    """Add to the runs that the output file holds: a long session in parts."""
    output: Path | None = None
    """Where the JSON goes; bench/results/unequal.json (-short.json)."""

    @field_validator("only")
    @classmethod
    def _only(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = ("none", *(str(number) for number in range(1, len(KNOWN) + 1)))
        for one in value:
            if one not in known:
                raise ValueError(f"{one!r} is none of {', '.join(known)}")
        return value

    @field_validator("systems")
    @classmethod
    def _systems(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if one not in BY_KEY:
                raise ValueError(f"{one!r} is none of {', '.join(BY_KEY)}")
        return value

    def fleets(self) -> list[Fleet]:
        if self.short:
            return [Fleet(f.name, f.b0, f.down, f.up, f.size_bytes // 6) for f in (KNOWN[0], KNOWN[3])]
        known = [fleet for number, fleet in enumerate(KNOWN, 1) if not self.only or str(number) in self.only]
        return known + drawn(self.random, self.seed)[self.skip :]


def unequal(
    *,
    settings: Annotated[UnequalSettings, Flat] = UnequalSettings(),  # noqa: B008  frozen
    json: Annotated[bool, Parameter(negative="", help="Print the path of the JSON only.")] = False,
) -> int:
    """Unequal links. Needs root, network namespaces and tc; exit code 1 when a copy is wrong or missing."""
    return run_interruptible(_measure(settings, json))


async def _measure(settings: UnequalSettings, json: bool) -> int:
    output = settings.output or RESULTS / f"unequal{'-short' if settings.short else ''}.json"
    fixed = {"mtu": settings.mtu, "seed": settings.seed}
    runs = earlier_runs(output, fixed) if settings.add else []
    wanted = settings.systems or tuple(BY_KEY)
    systems = [system for system in SYSTEMS if system.key in wanted and system.missing() is None]
    skipped = {system.key: why for system in SYSTEMS if (why := system.missing())}
    fine = True
    begun = 0
    for fleet in settings.fleets():
        lacking = [system for system in systems if not measured(runs, fleet, system, settings.repeats)]
        if not lacking or (settings.most and begun == settings.most):
            continue
        begun += 1
        place = {"fleet": fleet.name, "b0": fleet.b0, "down": fleet.down, "up": list(fleet.up)}
        place |= {"size_bytes": fleet.size_bytes}
        place["bound_s"] = {f"{fraction:.1f}": fleet.bound_s(fraction) for fraction in FRACTIONS}
        place["one_child_s"] = fleet.one_child_s()
        for outcome in await rounds(
            fleet.course(settings.mtu), lacking, fleet.size_bytes, settings.repeats, label=f"{fleet.name}: "
        ):
            fine = fine and outcome.error is None and outcome.identical
            outcome.detail["commit"] = commit()
            runs.append(place | outcome.to_json())
        write_results(output, "unequal", fixed, runs, summary=summary(runs), skipped=skipped)
    rows = summary(runs)
    if json:
        print(output)
    else:
        show(rows)
        print(f"written: {output}")
    return 0 if fine else 1


def measured(runs: Sequence[dict[str, Any]], fleet: Fleet, system: System, repeats: int) -> bool:
    """Whether the file has it already: runs that failed do not count."""
    key = (fleet.name, list(fleet.up), fleet.size_bytes, system.key)
    found = [run for run in runs if (run["fleet"], run["up"], run["size_bytes"], run["system"]) == key]
    return sum(run["error"] is None for run in found) >= repeats


def overall(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per system: over all its fleets, T(f) over the bound, and over that of striped chains."""
    ours = {row["fleet"]: row for row in rows if row["system"] == STRIPED}
    found = []
    for system in dict.fromkeys(row["system"] for row in rows):
        mine = [row for row in rows if row["system"] == system]
        line: dict[str, Any] = {"system": system, "fleets": len(mine)}
        for name in (f"{fraction:.1f}" for fraction in FRACTIONS):
            to_bound = [row[f"t_{name}_to_bound"] for row in mine if row[f"t_{name}_to_bound"]]
            line[f"t_{name}_to_bound"] = _middle_and_worst(to_bound, max)
            to_ours = [
                row[f"t_{name}_s"] / other
                for row in mine
                if row[f"t_{name}_s"] and (other := ours.get(row["fleet"], {}).get(f"t_{name}_s"))
            ]
            line[f"t_{name}_to_striped"] = _middle_and_worst(to_ours, min)
        to_one_child = [
            row["t_1.0_s"] / row["one_child_s"] for row in mine if row["t_1.0_s"] and row.get("one_child_s")
        ]
        line["t_1.0_to_one_child"] = _middle_and_worst(to_one_child, max)
        found.append(line)
    return found


def _middle_and_worst(values: list[float], worst: Callable[[list[float]], float]) -> list[float] | None:
    return [statistics.median(values), worst(values)] if values else None


def overall_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Median / worst."""
    columns = ["", "fleets", *(f"T({fraction:.1f}) / bound" for fraction in FRACTIONS), "T(1.0) / 1 child"]
    columns += [f"T({fraction:.1f}) / striped's" for fraction in FRACTIONS]
    keys = [f"t_{fraction:.1f}_to_bound" for fraction in FRACTIONS] + ["t_1.0_to_one_child"]
    keys += [f"t_{fraction:.1f}_to_striped" for fraction in FRACTIONS]
    cells = []
    for line in overall(rows):
        system = BY_KEY.get(line["system"])
        pairs = [line[key] for key in keys]
        shown = ["" if pair is None else " / ".join(f"{value:.2f}" for value in pair) for pair in pairs]
        cells.append([system.title if system else line["system"], str(line["fleets"]), *shown])
    return columns, cells


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per fleet and system: medians of T(f), and over the bound for that fraction."""
    rows = []
    for fleet, system in dict.fromkeys((run["fleet"], run["system"]) for run in runs):
        mine = [run for run in runs if (run["fleet"], run["system"]) == (fleet, system)]
        row = {key: mine[0][key] for key in ("fleet", "b0", "down", "up", "size_bytes", "bound_s", "system")}
        for name in (f"{fraction:.1f}" for fraction in FRACTIONS):
            known = [t for run in mine if (t := run["t_s"].get(name)) is not None]
            row[f"t_{name}_s"] = statistics.median(known) if known else None
            row[f"t_{name}_to_bound"] = statistics.median(known) / row["bound_s"][name] if known else None
        row["one_child_s"] = mine[0].get("one_child_s")
        row["identical"] = all(run["identical"] for run in mine)
        rows.append(row)
    return rows


def columns_and_cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The table, for the terminal and for the report."""
    columns = [
        "uplinks, Mbit/s",
        "B0",
        "payload",
        "bound",
        "1 child",
        "",
        "T(0.5)",
        "T(0.9)",
        "T(1.0)",
        "T(1.0) / bound",
    ]
    cells = []
    for row in rows:
        system = BY_KEY.get(row["system"])
        line = [_uplinks(row), f"{row['b0']:g}", format_size(row["size_bytes"]), f"{row['bound_s']['1.0']:.2f} s"]
        line += [f"{row['one_child_s']:.2f} s" if row.get("one_child_s") else ""]
        line += [system.title if system else row["system"]]
        times = [row[f"t_{fraction:.1f}_s"] for fraction in FRACTIONS]
        line += ["failed" if t is None else f"{t:.1f} s" for t in times]
        ratio = row["t_1.0_to_bound"]
        cells.append([*line, "" if ratio is None else f"x {ratio:.2f}"])
    return columns, cells


def _uplinks(row: dict[str, Any]) -> str:
    name: str = row["fleet"]
    return name if not name.startswith("random") else f"{name}: {' '.join(f'{up:g}' for up in row['up'])}"


def show(rows: Sequence[dict[str, Any]]) -> None:
    columns, cells = columns_and_cells(rows)
    table = Table(*columns, title="Unequal links")
    for line in cells:
        table.add_row(*line)
    console = Console(highlight=False, width=150)
    console.print(table)
    whole = Table(*overall_table(rows)[0], title="Over all fleets: median / worst")
    for line in overall_table(rows)[1]:
        whole.add_row(*line)
    console.print(whole)
    wrong = sorted({row["fleet"] for row in rows if not row["identical"]})
    console.print(f"copies: {'all identical' if not wrong else f'WRONG OR MISSING in {wrong}'}")
