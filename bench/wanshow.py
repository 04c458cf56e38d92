"""What `python -m bench wan` found, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from chappe.units import format_rate

Row = dict[str, Any]


def columns_and_cells(points: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """A row for each round trip and loss; a column for each number of streams that was measured."""
    several = [(key, name, count) for key, name in _SEVERAL for count in _counts(points, key)]
    columns = ["RTT ms", "loss %", "bare TCP", "Chappe", "ratio", "lowest", "highest", "windows"]
    columns += [f"{name} x {count}" for _, name, count in several]
    cells = [
        [
            f"{point['rtt_s'] * 1e3:g}",
            f"{point['loss'] * 100:g}",
            format_rate(point["bare_bytes_per_s"]),
            format_rate(point["chappe_bytes_per_s"]),
            *(f"{point[key]:.3f}" for key in ("ratio", "ratio_low", "ratio_high")),
            str(point["repeats"]),
            *(format_rate(rate) if (rate := point.get(key, {}).get(count)) else "" for key, _, count in several),
        ]
        for point in points
    ]
    return columns, cells


_SEVERAL = (("bare_streams", "bare"), ("chappe_streams", "Chappe"))


def _counts(points: Sequence[Row], key: str) -> list[str]:
    return sorted({count for point in points for count in point.get(key, {})}, key=int)


def show(points: Sequence[Row], rate_bytes_per_s: float) -> None:
    columns, cells = columns_and_cells(points)
    table = Table(*columns, title=f"One hop at {format_rate(rate_bytes_per_s)}")
    for row in cells:
        table.add_row(*row)
    Console(highlight=False, width=160).print(table)


def _bars(points: Sequence[Row], of_all: Sequence[Row]) -> dict[str, list[float]]:
    """Bytes per second at each point, by what it is of: the same for every panel."""
    bars = {
        "bare TCP": [point["bare_bytes_per_s"] for point in points],
        "Chappe": [point["chappe_bytes_per_s"] for point in points],
    }
    for key, name in _SEVERAL:
        for count in _counts(of_all, key):
            bars[f"{name} x {count}"] = [point.get(key, {}).get(count, 0.0) for point in points]
    return bars


def draw(results: dict[str, Any]) -> Any:
    """Goodput of Chappe and of bare TCP over the round trip, a panel for each loss. Returns a matplotlib Figure."""
    from matplotlib.figure import Figure

    points = results["points"]
    losses = sorted({point["loss"] for point in points})
    figure = Figure(figsize=(3.6 * len(losses) + 1, 3.8), layout="constrained")
    panels = figure.subplots(1, len(losses), sharey=True, squeeze=False)[0]
    for panel, loss in zip(panels, losses, strict=True):
        mine = [point for point in points if point["loss"] == loss]
        places = range(len(mine))
        bars = _bars(mine, points)
        width = 0.76 / len(bars)
        for number, (name, rates) in enumerate(bars.items()):
            shift = (number - (len(bars) - 1) / 2) * width
            panel.bar([at + shift for at in places], [rate * 8e-6 for rate in rates], width, label=name)
            if name == "Chappe":
                for at, point in zip(places, mine, strict=True):
                    panel.annotate(f"{point['ratio']:.2f}", (at + shift, rates[at] * 8e-6), ha="center", va="bottom")
        panel.set_xticks(list(places), [f"{point['rtt_s'] * 1e3:g}" for point in mine])
        panel.set_title(f"loss {loss * 100:g} %")
        panel.set_xlabel("round trip, ms")
    panels[0].set_ylim(top=panels[0].get_ylim()[1] * 1.06)  # room for the ratios; all panels have it
    panels[0].set_ylabel("goodput, Mbit/s")
    if len(_bars(points, points)) > 3:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    else:
        panels[0].legend(loc="lower left")
    return figure
