"""What `python -m bench delta` measured: the tables for a terminal, and the picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.rivals import EXACT, SLOW

Row = dict[str, Any]
SCALINGS = ("publisher_scaling_2_threads", "publisher_scaling_2_processes", "machine_scaling_2")
"""Of encoding files, over a publisher on one core, and over one process without."""


def show_landings(rows: Sequence[Row]) -> None:
    if not rows:
        return
    table = Table(
        "store", "write + fsync", "all chunks at once", "100 Mbit/s", "memory", title="last chunk to landed, s"
    )
    for row in rows:
        timed = [f"{row[f'{name}_s']:.3f} ({row[f'{name}_to_floor']:.2f} x)" for name in ("at_once", "paced")]
        table.add_row(row["store"], f"{row['floor_s']:.3f}", *timed, f"{row['memory_bytes'] >> 20} MiB")
    Console(highlight=False, width=200).print(table)


def show_first(rows: Sequence[Row]) -> None:
    if not rows:
        return
    table = Table("payload", "snapshot", "bytes", "first bytes", "landed", title="from publish() to a worker, s")
    for row in rows:
        sizes = (f"{row[key] >> 20} MiB" for key in ("snapshot_bytes", "payload_bytes"))
        table.add_row(row["payload"], *sizes, f"{row['first_s']:.3f}", f"{row['all_s']:.3f}")
    Console(highlight=False, width=200).print(table)


def show(rows: Sequence[Row], size: int) -> None:
    console = Console(highlight=False, width=200)
    names = [*EXACT, *(name for name in ("delta, same part", *SLOW) if name in rows[0])]
    sizes = Table("data", "density", "delta", "aim", "B/changed", *names, title="payload, share of the full size")
    speeds = Table(
        "data",
        "encode GB/CPU-s",
        "GB/s",
        "2 threads",
        "decode GB/CPU-s",
        "GB/s",
        "2 threads",
        "2 processes alone",
        "copy GB/CPU-s",
        "GB/s",
        "2 threads",
        title="speed of the codec, from memory to memory, of full size",
    )
    columns = ("data", "1 core, GB/s", "2 threads", "2 processes", "2 processes without a publisher over one")
    published = Table(*columns, title="a publisher's files encoded")
    for row in rows:
        aim = "" if row["aim"] is None else f"{row['aim']:.2%}"
        others = ("-" if row[name] is None else f"{row[name]:.2%}" for name in names)
        sizes.add_row(
            row["data"], f"{row['density']:.2%}", f"{row['delta']:.3%}", aim, f"{row['bytes_per_changed']:.2f}", *others
        )
        figures = []
        for name in ("encode", "decode", "copy"):
            figures += [row[f"{name}_gb_per_cpu_s"], row[f"{name}_gb_per_s"]]
            figures.append(row[f"{name}_scaling_2"])
            if name == "decode":
                figures.append(row.get("decode_machine_scaling_2"))
        speeds.add_row(row["data"], *("-" if figure is None else f"{figure:.2f}" for figure in figures))
        scalings = (f"x {row[name]:.2f}" for name in SCALINGS)
        published.add_row(row["data"], f"{row['publisher_gb_per_s']:.2f}", *scalings)
    console.print(sizes)
    console.print(speeds)
    console.print(published)
    console.print(f"synthetic snapshots of {size >> 20} MiB; {os.cpu_count()} cores; chunks of up to 64 KiB")


def draw(report: dict[str, Any]) -> Any:
    """Each format's share of the full size against the share of changed elements. Returns a matplotlib Figure."""
    from matplotlib.figure import Figure

    rows = sorted((row for row in report["runs"] if row["aim"] is not None), key=lambda row: row["density"])
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    panel = figure.subplots()
    densities = [100 * row["density"] for row in rows]
    for name in (*EXACT, *SLOW):
        known = [(d, 100 * row[name]) for d, row in zip(densities, rows, strict=True) if row.get(name) is not None]
        if known:
            panel.plot(*zip(*known, strict=True), "o--", markersize=4, linewidth=1, alpha=0.7, label=name)
    panel.plot(densities, [100 * row["delta"] for row in rows], "o-", color="k", linewidth=2, label="Chappe's delta")
    panel.plot(densities, [100 * row["aim"] for row in rows], "_", color="tab:red", markersize=12, label="aim")
    panel.set_xscale("log")
    panel.set_yscale("log")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter("{x:g}")
    panel.set_xlabel("changed elements, %")
    panel.set_ylabel("payload, % of the full size")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    return figure
