"""The benches' pictures, from the JSON that they leave. Each takes a whole report and returns a matplotlib figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench import chainstar, peers, unequal
from bench.systems.common import FRACTIONS

Report = dict[str, Any]
DPI = 90
"""Keeps a picture under 100 KB."""
_COLOURS = {"chains": "tab:blue", "star": "tab:red", "floor": "0.45", "other": "0.7", "second": "tab:orange"}


def chain_vs_star(report: Report) -> Figure:
    """T_bcast against N, a panel for each B0: measured points over the closed forms' curves."""
    rows, parameters = report["summary"], report["parameters"]
    equal = [row for row in rows if not row["label"]]
    b0s = sorted({row["b0"] for row in equal})
    figure = Figure(figsize=(5.2 * len(b0s), 4.2), layout="constrained")
    panels = figure.subplots(1, len(b0s), sharey=True, squeeze=False)[0]
    for panel, b0 in zip(panels, b0s, strict=True):
        mine = sorted((row for row in equal if row["b0"] == b0), key=lambda row: row["workers"])
        floor_s = statistics.median(row["floor_s"] for row in mine)
        goodput = parameters["size_bytes"] * 8 / parameters["bw"] / floor_s
        counts = range(1, max(row["workers"] for row in mine) + 2)
        curves = [
            chainstar.models_s({"b0": b0, "workers": n}, parameters["bw"], parameters["size_bytes"], goodput)
            for n in counts
        ]
        styles = (("tab:red", "-"), ("tab:red", ":"), ("tab:blue", "-"))
        for name, (colour, style) in zip(curves[0], styles, strict=True):
            values = [curve[name] for curve in curves]
            panel.plot(counts, values, style, color=colour, alpha=0.6, linewidth=1.2, label=f"model: {name}")
        for name, marker in (("chains", "o"), ("star", "s")):
            points = [(row["workers"], time) for row in mine for time in row[f"{name}_s"]]
            if points:
                places = zip(*points, strict=True)
                panel.plot(*places, marker, color=_COLOURS[name], label=f"Chappe, {name}", markersize=5)
        panel.plot([row["workers"] for row in mine], [row["floor_s"] for row in mine], "_", color="k", label="floor")
        panel.set_title(f"B0 = {b0 / 1e6:g} Mbit/s")
        panel.set_xlabel("workers")
        panel.set_xticks([row["workers"] for row in mine])
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("T_bcast(1.0), seconds")
    panels[0].legend(fontsize=8)
    figure.suptitle(f"Bw = {parameters['bw'] / 1e6:g} Mbit/s, {parameters['size_bytes'] / 2**20:g} MiB")
    return figure


def peers_picture(report: Report) -> Figure:
    """T(0.5), T(0.9), T(1.0) over the floor, a group of bars for each system."""
    rows = [row for row in report["summary"] if row["t_1.0_to_floor"] is not None]
    figure = Figure(figsize=(8, 0.62 * len(rows) + 1.4), layout="constrained")
    panel = figure.subplots()
    names = [peers.BY_KEY[row["system"]].title if row["system"] in peers.BY_KEY else row["system"] for row in rows]
    for shift, fraction, shade in zip((-0.26, 0, 0.26), FRACTIONS, (0.45, 0.7, 1.0), strict=True):
        values = [row[f"t_{fraction:.1f}_to_floor"] for row in rows]
        middles = [value["median"] for value in values]
        errors = [[v["median"] - v["least"] for v in values], [v["most"] - v["median"] for v in values]]
        places = [at + shift for at in range(len(rows))]
        colours = [_COLOURS["chains"] if row["system"] == "chappe" else _COLOURS["floor"] for row in rows]
        panel.barh(places, middles, 0.24, xerr=errors, color=colours, alpha=shade, label=f"T({fraction:g})")
        if fraction == FRACTIONS[-1]:
            for place, middle in zip(places, middles, strict=True):
                panel.text(middle * 1.02, place, f"{middle:.2f}", va="center", fontsize=8)
    panel.axvline(1, color="k", linewidth=0.8)
    panel.set_yticks(range(len(rows)), names)
    panel.invert_yaxis()
    panel.margins(x=0.08)
    panel.set_xlabel("time over one bare-TCP hop of the same round")
    panel.set_title("until 0.5 (light), 0.9 and 1.0 (dark) of the workers have it", fontsize=9)
    return figure


def unequal_picture(report: Report) -> Figure:
    """T(1.0) over the bound: a line for each fleet, a mark for each system; bars end at the bound of one child."""
    rows = report["summary"]
    fleets = list(dict.fromkeys(row["fleet"] for row in rows))
    systems = list(dict.fromkeys(row["system"] for row in rows))
    figure = Figure(figsize=(8, 0.26 * len(fleets) + 1.6), layout="constrained")
    panel = figure.subplots()
    one_child = {r["fleet"]: r["one_child_s"] / r["bound_s"]["1.0"] for r in rows if r.get("one_child_s")}
    widths = [one_child.get(fleet, 1.0) for fleet in fleets]
    panel.barh(range(len(fleets)), widths, 0.7, color="0.9", label="below: one child in each stripe")
    looks = (("s", _COLOURS["chains"]), ("o", _COLOURS["second"]), ("D", "0.3"))
    for number, system in enumerate(systems):
        found = {row["fleet"]: row["t_1.0_to_bound"] for row in rows if row["system"] == system}
        places = [at for at, fleet in enumerate(fleets) if found.get(fleet)]
        title = unequal.BY_KEY[system].title if system in unequal.BY_KEY else system
        mark, colour = looks[number % 3]
        panel.plot([found[fleets[at]] for at in places], places, mark, color=colour, markersize=5, label=title)
    panel.axvline(1, color="k", linewidth=0.8)
    panel.axvline(1.15, color="0.5", linewidth=0.8, linestyle=":", label="aim of the median")
    panel.set_yticks(range(len(fleets)), fleets, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(left=0.9)
    panel.grid(axis="y", color="0.93")
    panel.set_axisbelow(True)
    panel.set_xlabel("T(1.0) over the physical bound")
    panel.legend(fontsize=8)
    return figure


def faults_picture(report: Report) -> Figure:
    """How long the hit segment got nothing, beside what ECHO-2 took to recover."""
    rows = [row for row in report["runs"] if row.get("title") and row.get("silence_s") is not None]
    figure = Figure(figsize=(8, 0.5 * len(rows) + 1.4), layout="constrained")
    panel = figure.subplots()
    places = range(len(rows))
    bars = panel.barh(places, [row["silence_s"] for row in rows], 0.55, color=_COLOURS["chains"])
    panel.bar_label(bars, [f"{row['silence_s']:.2f} s" for row in rows], fontsize=8, padding=2)
    known = [(place, row["echo_s"]) for place, row in zip(places, rows, strict=True) if row.get("echo_s")]
    if known:
        panel.plot([seconds for _, seconds in known], [place for place, _ in known], "D", color="k", label="ECHO-2")
        panel.legend(fontsize=8)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_yticks(places, [row["title"] for row in rows])
    panel.invert_yaxis()
    panel.margins(x=0.12)
    panel.set_xlabel("longest silence of the watched relays after the fault, seconds")
    return figure


def layout_picture(report: Report) -> Figure:
    """How far planned chains are from the best, and from the bound, over random fleets."""
    rows = report["runs"]
    figure = Figure(figsize=(8, 0.34 * len(rows) + 1.3), layout="constrained")
    panel = figure.subplots()
    places = range(len(rows))
    panel.barh(places, [row["p90"] for row in rows], 0.6, color=_COLOURS["chains"], label="9 of 10 fleets are below")
    panel.plot([row["largest"] for row in rows], places, "|", color=_COLOURS["star"], markersize=10, label="the worst")
    panel.plot([row["mean"] for row in rows], places, "o", color="k", markersize=4, label="mean")
    panel.axvline(1, color="k", linewidth=0.8)
    panel.set_yticks(places, [row["name"] for row in rows], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(left=0)
    panel.set_xlabel("planned time over what is named")
    panel.legend(fontsize=8)
    return figure


def striping_picture(report: Report) -> Figure:
    """T(1.0) of plain chains and of stripes over the bound, a pair of bars for each fleet."""
    rows = report["runs"]
    figure = Figure(figsize=(8, 0.36 * len(rows) + 1.4), layout="constrained")
    panel = figure.subplots()
    for shift, key, name in ((-0.2, "plain_to_bound", "plain chains"), (0.2, "striped_to_bound", "stripes")):
        colour = _COLOURS["second"] if key.startswith("plain") else _COLOURS["chains"]
        bars = panel.barh([at + shift for at in range(len(rows))], [row[key] for row in rows], 0.38, color=colour)
        bars.set_label(name)
        panel.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    panel.axvline(1, color="k", linewidth=0.8)
    panel.set_yticks(range(len(rows)), [row["fleet"] for row in rows], fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.08)
    panel.set_xlabel("T(1.0) over the physical bound")
    panel.legend(fontsize=8)
    return figure


PICTURES: dict[str, Callable[[Report], Figure]] = {
    "chain-vs-star": chain_vs_star,
    "faults": faults_picture,
    "layout": layout_picture,
    "striping": striping_picture,
    "peers": peers_picture,
    "unequal": unequal_picture,
}
_ELSEWHERE = {
    "delta": "bench.deltashow",
    "hop": "bench.hopshow",
    "loop": "bench.loopshow",
    "publish": "bench.publishshow",
    "scale": "bench.scale",
    "wan": "bench.wanshow",
}
"""Benches that draw for themselves: their modules have `draw(report)`."""


def draw(report: Report, path: Path) -> bool:
    """Save the report's picture as PNG. False when this bench has none."""
    name = report["name"]
    picture = import_module(_ELSEWHERE[name]).draw if name in _ELSEWHERE else PICTURES.get(name)
    if picture is None:
        return False
    picture(report).savefig(path, dpi=DPI)
    return True
