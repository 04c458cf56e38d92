"""`python -m bench relay-cpu`: what carrying a payload at a link's rate costs a relay, beside bare sockets.

    trainer ──link──▶ relay ──link──▶ last        the middle one is measured, from the start until all have the payload

On a slow link a relay is woken for every chunk, and a packet is 1500 bytes: what counts is how much a wake-up costs.
Both systems are those of `python -m bench peers`, over the same links, alternated; ratios are of the same round.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from pydantic import Field
from rich.console import Console
from rich.table import Table

from bench.results import RESULTS, write_results
from bench.systems.chappe import Chappe
from bench.systems.common import Course, Outcome
from bench.systems.rounds import rounds
from bench.systems.sockets import SocketChains
from chappe.cli.interrupt import run_interruptible
from chappe.cli.settings import Flat, Rate, Settings, Size

SYSTEMS = (
    SocketChains(),
    Chappe(),
    Chappe("chappe-grpc", "Chappe over gRPC", relay_flags=("--transport", "grpc")),
)
TITLES = {system.key: system.title for system in SYSTEMS}
SHORT_SIZE = 12 << 20
_WORKERS = 2


class RelayCpuSettings(Settings):
    """The link and the payload."""

    rate: Rate = 50e6 / 8
    """Of every link, both ways."""
    size: Size = 64 << 20
    """The payload: ten seconds of the link, so that the beginning and the landing weigh little."""
    mtu: int = 1500
    """Of every link."""
    repeats: Annotated[int, Field(ge=1)] = 3
    """Rounds over the systems."""
    short: Annotated[bool, Parameter(negative="")] = False
    """One round of a small payload."""
    output: Path = RESULTS / "relay-cpu.json"
    """The JSON to write."""


_DEFAULTS = RelayCpuSettings()


def relay_cpu(*, settings: Annotated[RelayCpuSettings, Flat] = _DEFAULTS) -> int:
    """CPU of a relay at a link's rate. Needs root, network namespaces and tc; exit code 1 when a copy is wrong."""
    if settings.short:
        settings = settings.model_copy(update={"size": min(settings.size, SHORT_SIZE), "repeats": 1})
    return run_interruptible(_measure(settings))


async def _measure(settings: RelayCpuSettings) -> int:
    course = Course.equal(settings.rate, settings.rate, _WORKERS, settings.mtu)
    outcomes = await rounds(course, SYSTEMS, settings.size, settings.repeats)
    rows = summary(outcomes)
    parameters = settings.model_dump(mode="json", exclude={"output", "short"})
    write_results(settings.output, "relay-cpu", parameters, [outcome.to_json() for outcome in outcomes], summary=rows)
    columns, cells = columns_and_cells(rows)
    table = Table(*columns, title="CPU of the relay in the middle")
    for line in cells:
        table.add_row(*line)
    Console(highlight=False).print(table)
    return 0 if all(outcome.error is None and outcome.identical for outcome in outcomes) else 1


def summary(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Per system the medians: CPU seconds per 10^9 bytes, and over the bare sockets' of the same round."""
    found = list(outcomes)
    bare = {o.detail["round"]: o.relay_cpu_s_per_gb for o in found if o.system == SYSTEMS[0].key}
    rows = []
    for key in dict.fromkeys(outcome.system for outcome in found):
        mine = [o for o in found if o.system == key]
        known = [o for o in mine if o.relay_cpu_s_per_gb is not None]
        ratios = [o.relay_cpu_s_per_gb / base for o in known if (base := bare.get(o.detail["round"]))]
        rows.append(
            {
                "system": key,
                "runs": len(known),
                "errors": [o.error for o in mine if o.error],
                "cpu_s_per_gb": _spread([o.relay_cpu_s_per_gb for o in known if o.relay_cpu_s_per_gb is not None]),
                "to_sockets": _spread([ratio for ratio in ratios if ratio is not None]),
            }
        )
    return rows


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def columns_and_cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The table, for the terminal and for the report."""
    columns = ["", "CPU s/GB", "least - most", "of bare sockets", "least - most", "runs"]
    cells = []
    for row in rows:
        line = [TITLES.get(row["system"], row["system"])]
        for key, form in (("cpu_s_per_gb", "{:.1f}"), ("to_sockets", "x {:.2f}")):
            value = row[key]
            line += [form.format(value["median"]), f"{value['least']:.2f} - {value['most']:.2f}"] if value else ["", ""]
        cells.append([*line, "; ".join(row["errors"]) or str(row["runs"])])
    return columns, cells
