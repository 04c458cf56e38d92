"""The picture of `chappe diff --plot`: density by layer and kind of tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from chappe.errors import UsageError
from chappe.payload.survey import RegionSurvey, Survey

_LAYER = re.compile(r"^(.*?\.)?(?:layers?|h|blocks?)\.(\d+)\.(.+)$")
_DENSITY_MIN = 1e-5  # the colour scale's end: an unchanged tensor is left white


def density_grid(regions: Iterable[RegionSurvey]) -> tuple[list[str], list[str], np.ndarray]:
    """Rows (layers, then what is in none), columns (kinds of tensors) and densities; NaN where there is no tensor."""
    changed: dict[tuple[str, str], int] = {}
    elements: dict[tuple[str, str], int] = {}
    for r in regions:
        if not (r.dtype and r.compared):
            continue
        match = _LAYER.match(r.name)
        key = (f"{int(match[2]):d}", match[3]) if match else (r.name, "")
        changed[key] = changed.get(key, 0) + r.changed
        elements[key] = elements.get(key, 0) + r.elements
    rows = sorted(
        {row for row, _ in elements}, key=lambda row: (not row.isdigit(), int(row) if row.isdigit() else 0, row)
    )
    columns = sorted({column for _, column in elements})
    grid = np.full((len(rows), len(columns)), np.nan)
    for (row, column), count in elements.items():
        grid[rows.index(row), columns.index(column)] = changed[row, column] / count
    return rows, columns, grid


def need_matplotlib() -> None:
    """Raises UsageError where it is missing: before minutes go into what would be drawn."""
    try:
        from matplotlib.figure import Figure  # noqa: F401
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'chappe[plan]'") from None


def plot_density(survey: Survey, path: Path) -> None:
    """After `need_matplotlib`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    rows, columns, grid = density_grid(survey.regions)
    figure = Figure(figsize=(3 + 0.45 * max(1, len(columns)), 2 + 0.25 * max(1, len(rows))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if grid.size:
        shown = np.ma.masked_where(~(grid > 0), grid)
        image = axes.imshow(shown, aspect="auto", norm=LogNorm(_DENSITY_MIN, 1), cmap="viridis")
        figure.colorbar(image, ax=axes, label="share of changed elements")
    axes.set_yticks(range(len(rows)), [f"layer {row}" if row.isdigit() else row for row in rows], fontsize=7)
    axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize=7)
    axes.set_title(f"{survey.density:.3%} of {survey.elements:,} elements changed", fontsize=9)
    figure.savefig(path, dpi=150)
