"""What `python -m bench hop` measured: medians by what carried the payload, the table and the picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

BARE = "bare sockets"
_MEDIANS = ("goodput_gb_per_s", "middle_cpu_s_per_gb", "tail_cpu_s_per_gb")
Row = dict[str, Any]


def carrier(run: Row) -> str:
    """Results from before there were data connections say only which malloc it was."""
    return str(run["kind"]) if "kind" in run else "gRPC" if run["thresholds"] else "gRPC, glibc's malloc"


def medians(runs: Sequence[Row]) -> list[Row]:
    """By carrier, in the order of the runs: medians of rates and CPU times, how many runs, and the most memory."""
    rows: list[Row] = []
    for kind in dict.fromkeys(map(carrier, runs)):
        mine = [run for run in runs if carrier(run) == kind]
        row: Row = {"kind": kind, "runs": len(mine)}
        row |= {key: statistics.median(run[key] for run in mine) for key in _MEDIANS}
        row["rss_max_bytes"] = max(max(run["middle_rss_max_bytes"], run["tail_rss_max_bytes"]) for run in mine)
        rows.append(row)
    return rows


def columns_and_cells(runs: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """For the terminal and the report. `of bare` is over the bare sockets of the same session, where they ran."""
    rows = medians(runs)
    bare = next((row for row in rows if row["kind"] == BARE), None)
    columns = ["payload over", "goodput GB/s", "of bare", "middle relay CPU s/GB", "of bare", "last relay CPU s/GB"]
    cells = []
    for row in rows:
        line = [row["kind"]]
        for key in _MEDIANS[:2]:
            line += [f"{row[key]:.2f}", "" if bare is None else f"{row[key] / bare[key]:.2f}"]
        cells.append([*line, f"{row['tail_cpu_s_per_gb']:.2f}", f"{row['rss_max_bytes'] / 1e6:.0f} MB"])
    return [*columns, "most memory"], cells


def show(runs: Sequence[Row], rates: dict[str, list[float]], size_bytes: int) -> None:
    columns, cells = columns_and_cells(runs)
    repeats = min(row["runs"] for row in medians(runs))
    table = Table(title=f"origin -> relay -> relay, {size_bytes / 1e9:.2f} GB, medians of {repeats}")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == columns[0] else "right")
    for line in cells:
        table.add_row(*line)
    console = Console(width=140)
    console.print(table)
    for name, values in rates.items():
        console.print(f"{name}: {statistics.median(values):.2f}")


def draw(report: dict[str, Any]) -> Any:
    """Goodput, and CPU time on the middle relay, a bar for each carrier and a dot for each run. A matplotlib Figure."""
    from matplotlib.figure import Figure

    rows = medians(report["runs"])
    figure = Figure(figsize=(9, 0.42 * len(rows) + 1.3), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    labels = {"goodput_gb_per_s": "goodput, GB/s", "middle_cpu_s_per_gb": "CPU of the middle relay, s/GB"}
    places = range(len(rows))
    for panel, (key, label) in zip(panels, labels.items(), strict=True):
        colours = ["0.6" if row["kind"] == BARE else "tab:blue" for row in rows]
        bars = panel.barh(places, [row[key] for row in rows], 0.6, color=colours)
        panel.bar_label(bars, fmt="%.2f", fontsize=8, padding=4)
        for place, row in zip(places, rows, strict=True):
            single = [run[key] for run in report["runs"] if carrier(run) == row["kind"]]
            panel.plot(single, [place] * len(single), ".", color="k", markersize=3)
        panel.set_xlabel(label)
        panel.margins(x=0.15)
    panels[0].set_yticks(places, [row["kind"] for row in rows])
    panels[0].invert_yaxis()
    return figure
