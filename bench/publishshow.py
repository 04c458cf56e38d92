"""What `python -m bench publish` measured: its rows, their medians, the tables and the picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich.console import Console
from rich.table import Table

from chappe.units import format_rate, format_size

_SECOND_PASS_SHARE = 0.5
STEPS = "decide + durable + name + current + tell"


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the call of `publish()`: until it returned, and until the first chunk had left."""

    kind: str  # path, numpy, torch
    size_bytes: int
    repeat: int
    returned_s: float
    first_chunk_s: float


@dataclass(frozen=True, slots=True)
class Steps:
    """Where the time of a landing goes, seconds each, one after the other."""

    decide_s: float
    """From the last chunk's being stored until the landing begins; the device is at work meanwhile."""
    durable_s: float
    """Until the last byte is on the device."""
    name_s: float
    """Until it has its name, and `current` is to follow."""
    current_s: float
    """Until that is on the device."""
    tell_s: float
    """Until the relay says so."""


@dataclass(frozen=True, slots=True)
class End:
    """From the last chunk to the installed version, at a relay that received at about `limit_bytes_per_s`."""

    size_bytes: int
    limit_bytes_per_s: float
    repeat: int
    landing_s: float
    unwritten_bytes: int
    """Of the store's files, dirty or being written, when the last chunk had come."""
    disk_s: float
    """What the same disk takes to make a copy durable that was written at the rate at which these chunks came."""
    named_s: float
    """The same, and to make it durable under its name."""
    read_bytes: int
    """By the relay, from the last chunk on."""
    steps: Steps

    @property
    def ratio(self) -> float:
        return self.landing_s / self.disk_s

    @property
    def named_ratio(self) -> float:
        return self.landing_s / self.named_s


def summary(starts: Sequence[Start], ends: Sequence[End]) -> dict[str, list[dict[str, Any]]]:
    """Medians, and the least and most, of each kind and size."""
    found: dict[str, list[dict[str, Any]]] = {"starts": [], "ends": []}
    for kind, size in dict.fromkeys((s.kind, s.size_bytes) for s in starts):
        mine = [s for s in starts if (s.kind, s.size_bytes) == (kind, size)]
        found["starts"].append(
            {
                "kind": kind,
                "size_bytes": size,
                "runs": len(mine),
                "returned_s": statistics.median(s.returned_s for s in mine),
                "first_chunk_s": statistics.median(s.first_chunk_s for s in mine),
                "first_chunk_s_low": min(s.first_chunk_s for s in mine),
                "first_chunk_s_high": max(s.first_chunk_s for s in mine),
            }
        )
    for size, limit in dict.fromkeys((e.size_bytes, e.limit_bytes_per_s) for e in ends):
        these = [e for e in ends if (e.size_bytes, e.limit_bytes_per_s) == (size, limit)]
        found["ends"].append(
            {
                "size_bytes": size,
                "limit_bytes_per_s": limit,
                "runs": len(these),
                "landing_s": statistics.median(e.landing_s for e in these),
                "unwritten_bytes": statistics.median(e.unwritten_bytes for e in these),
                "disk_s": statistics.median(e.disk_s for e in these),
                "named_s": statistics.median(e.named_s for e in these),
                "named_ratio": statistics.median(e.named_ratio for e in these),
                "steps": {f.name: statistics.median(getattr(e.steps, f.name) for e in these) for f in fields(Steps)},
                "ratio": statistics.median(e.ratio for e in these),
                "ratio_low": min(e.ratio for e in these),
                "ratio_high": max(e.ratio for e in these),
                "second_pass": any(e.read_bytes > _SECOND_PASS_SHARE * e.size_bytes for e in these),
            }
        )
    return found


def tables(found: dict[str, Any]) -> list[tuple[list[str], list[list[str]], str]]:
    """Columns, cells and a title, for the terminal and the report."""
    starts = [
        [
            row["kind"],
            format_size(row["size_bytes"]),
            *(f"{row[key]:.3f}" for key in ("returned_s", "first_chunk_s", "first_chunk_s_low", "first_chunk_s_high")),
            str(row["runs"]),
        ]
        for row in found["starts"]
    ]
    ends = [
        [
            format_size(row["size_bytes"]),
            format_rate(row["limit_bytes_per_s"]),
            f"{row['landing_s'] * 1e3:.1f}",
            format_size(row["unwritten_bytes"]),
            " + ".join(f"{value * 1e3:.1f}" for value in row["steps"].values()) if "steps" in row else "",
            f"{row['disk_s'] * 1e3:.1f}",
            f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})",
            f"{row['named_s'] * 1e3:.1f} ({row['named_ratio']:.2f})" if "named_s" in row else "",
            "YES" if row["second_pass"] else "none",
            str(row["runs"]),
        ]
        for row in found["ends"]
    ]
    start_columns = ["what", "size", "publish() returned", "first chunk sent", "least", "most", "runs"]
    end_columns = [
        "size",
        "arrives at",
        "installed after",
        "unwritten",
        STEPS,
        "disk: fsync",
        "ratio",
        "fsync, rename, fsync",
    ]
    about = "From the last chunk to the installed version, ms; the disk alone: fsync, and with a name (ratio)."
    return [
        (start_columns, starts, "From publish() to the first chunk on the wire, seconds."),
        ([*end_columns, "2nd pass", "runs"], ends, about),
    ]


def show(starts: Sequence[Start], ends: Sequence[End]) -> None:
    console = Console(highlight=False, width=140)
    for columns, cells, title in tables(summary(starts, ends)):
        table = Table(*columns, title=title)
        for line in cells:
            table.add_row(*line)
        console.print(table)


def draw(results: dict[str, Any]) -> Any:
    """Both halves, a bar for each kind and size. Returns a matplotlib Figure."""
    from matplotlib.figure import Figure

    starts, ends = results["starts"], results["ends"]
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [f"{row['kind']}\n{format_size(row['size_bytes'])}" for row in starts]
    times = [row["first_chunk_s"] for row in starts]
    spread = [
        [t - row["first_chunk_s_low"] for t, row in zip(times, starts, strict=True)],
        [row["first_chunk_s_high"] - t for t, row in zip(times, starts, strict=True)],
    ]
    left.bar(names, times, yerr=spread, capsize=3)
    left.axhline(0.3, linestyle=":", color="black", label="aim for a path")
    left.set_ylabel("s from publish() to the first chunk")
    left.legend()
    places = range(len(ends))
    bars = (("disk_s", "the disk: fsync"), ("named_s", "the disk: fsync, rename, fsync"), ("landing_s", "Chappe"))
    for shift, (key, name) in zip((-0.27, 0.0, 0.27), bars, strict=True):
        right.bar([at + shift for at in places], [row[key] for row in ends], 0.25, label=name)
    labels = [f"{format_size(row['size_bytes'])}\nat {format_rate(row['limit_bytes_per_s'])}" for row in ends]
    right.set_xticks(list(places), labels)
    right.set_ylabel("s from the last chunk to installed")
    right.legend()
    return figure
