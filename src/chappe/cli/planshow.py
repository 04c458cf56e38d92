"""How `chappe plan` answers: one table for people or one JSON object, a picture beside it, exit code 1 for a no."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.table import Table

from chappe.cli.plankeys import Scenario, read_scenario
from chappe.cli.settings import EXIT_FAILED, Settings
from chappe.errors import UsageError
from chappe.planning.errors import Infeasible

PIPE_WIDTH = 160
PICTURES = (".png", ".svg", ".pdf")


class Output(Settings):
    """Where from and where to."""

    scenario: Path | None = None
    """TOML file with the same keys as the flags (underscores for hyphens); flags win."""
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False
    """Print one JSON object instead of tables."""
    plot: Path | None = None
    """Write a picture to this file (png, svg or pdf; needs matplotlib)."""


DEFAULT_OUTPUT = Output()
Answer = tuple[dict[str, Any], RenderableType, Callable[[Path], None]]
"""The JSON object, the tables, and what draws the picture."""


def answer(output: Output, command: Callable[[Scenario], Answer]) -> int:
    """Run a command and print its answer. Infeasible is an answer too: the remedy, exit code 1.

    Raises UsageError; a picture that cannot be drawn is refused before anything is printed.
    """
    if output.plot is not None and output.plot.suffix not in PICTURES:
        raise UsageError(f"--plot: {output.plot} does not end in {', '.join(PICTURES)}")
    scenario = read_scenario(output.scenario)
    try:
        found, shown, draw = command(scenario)
    except Infeasible as no:
        if not output.as_json:
            raise
        print(jsonlib.dumps(_infeasible(no), indent=2))
        print(f"chappe: {no}", file=sys.stderr)
        return EXIT_FAILED
    if output.plot is not None:
        try:
            draw(output.plot)
        except OSError as error:
            raise UsageError(f"--plot: {output.plot} cannot be written: {error.strerror}") from error
    if output.as_json:
        print(jsonlib.dumps(_finite({"feasible": True} | found), indent=2, allow_nan=False))
    else:
        console().print(shown)
    return 0


def _infeasible(no: Infeasible) -> dict[str, Any]:
    return {
        "feasible": False,
        "reason": str(no),
        "kappa_min": no.kappa_min,
        "payload_fraction_max": no.payload_fraction_max,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: what never happens is null."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def console() -> Console:
    """stdout; wide when it is not a terminal, so that nothing is cut in a pipe."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=PIPE_WIDTH, highlight=False)


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and values, one below the other."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    """A plain table; all columns but the first are figures. A column without any is left out."""
    lines = [tuple(row) for row in rows]
    used = [i for i in range(len(columns)) if columns[i] == "" or any(line[i] for line in lines)]
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for i in used:
        table.add_column(columns[i], justify="right" if i else "left")
    for line in lines:
        table.add_row(*(line[i] for i in used))
    return table


def stack(*parts: RenderableType) -> Group:
    """Parts with an empty line between them."""
    lines: list[RenderableType] = []
    for part in parts:
        lines += [part] if not lines else ["", part]
    return Group(*lines)
