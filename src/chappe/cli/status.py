"""`chappe status`: the fleet, its chains and the publications, once or as they change."""

from __future__ import annotations

import asyncio
import json as jsonlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from chappe.cli.client import DEFAULT_COORDINATOR, CoordinatorAddress, connect, get_status
from chappe.cli.interrupt import run_interruptible
from chappe.cli.settings import NO_TLS, Flat, TlsSettings
from chappe.clock import boot_now
from chappe.coordinator.status import status_json
from chappe.errors import CoordinatorUnavailableError
from chappe.units import format_duration, format_rate, format_size
from chappe.v1 import coordinator_pb2 as pb

RETRY_S = 1.0
LINES_INTERVAL_S = 1.0
"""Between two states in a pipe; the coordinator sends one a second even when nothing changes."""
PUBLICATIONS_SHOWN_MAX = 10
PIPE_WIDTH = 160
"""Columns when nobody's terminal sets them: the widest table without wrapped cells."""


def status(
    *,
    watch: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
    where: Annotated[CoordinatorAddress, Flat] = DEFAULT_COORDINATOR,
    tls: Annotated[TlsSettings, Flat] = NO_TLS,
) -> int:
    """Show the fleet, its chains and how far each publication is.

    Parameters
    ----------
    watch
        Go on and show every change, until interrupted; with --json one object per line.
    json
        Print JSON instead of tables.
    """
    if watch:
        return run_interruptible(_watch(json, where, tls), interrupted_code=0)
    answer = asyncio.run(get_status(where, tls))
    if json:
        print(jsonlib.dumps(status_json(answer), indent=2))
    else:
        console().print(render(answer))
    return 0


def console() -> Console:
    """stdout; wide when it is not a terminal, so that nothing is cut in a pipe."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPE_WIDTH)


async def _watch(json: bool, where: CoordinatorAddress, tls: TlsSettings) -> int:
    """Until interrupted. A coordinator that goes away is waited for, once it has answered."""
    with _screen(json) as show:
        seen = False
        while True:
            try:
                async with connect(where, tls) as stub:
                    async for change in stub.WatchStatus(pb.StatusRequest()):
                        seen = True
                        show(change)
            except CoordinatorUnavailableError as error:
                if not seen:
                    raise
                print(f"{error}; waiting for it", file=sys.stderr)
            await asyncio.sleep(RETRY_S)


@contextmanager
def _screen(json: bool) -> Iterator[Callable[[pb.Status], None]]:
    screen = console()
    if json:
        yield lambda change: print(jsonlib.dumps(status_json(change)), flush=True)
    elif screen.is_terminal:
        with Live(console=screen, auto_refresh=False, vertical_overflow="visible") as live:
            yield lambda change: live.update(render(change), refresh=True)
    else:
        shown_s = float("-inf")

        def print_tables(change: pb.Status) -> None:
            nonlocal shown_s
            if boot_now() >= shown_s + LINES_INTERVAL_S:
                shown_s = boot_now()
                screen.print(render(change))

        yield print_tables


def render(answer: pb.Status) -> RenderableType:
    parts = [f"run {answer.run}", _origins(answer)]
    if answer.HasField("training"):
        parts.append(_training(answer.training))
    return Group(*parts, _relays(answer), _publications(answer))


_WARNINGS = ("drifting", "thin", "short", "infeasible")


def _training(t: pb.TrainingStatus) -> str:
    """One line of figures, one that says what they mean."""

    def known(name: str, show: Callable[[float], str]) -> str:
        return show(getattr(t, name)) if t.HasField(name) else "unknown"

    def rate(value: float) -> str:
        return f"{value:.4g} rollouts/s"

    tail = f" (all {format_duration(t.tail_s)})" if t.HasField("tail_s") and t.fraction < 1 else ""
    figures = [
        f"kappa {t.kappa}, R {t.batch:g}",
        f"T_train {known('t_train_s', format_duration)}",
        f"T_bcast({t.fraction:g}) {known('t_bcast_s', format_duration)}{tail}",
        f"slack {known('slack_s', _signed)}",
        f"required {known('required_rollouts_per_s', rate)}",
        f"pool {known('pool_rollouts_per_s', rate)}",
        f"workers {t.active_workers} active, {known('required_workers', '{:.0f}'.format)} required",
    ]
    warning = "WARNING: " if t.verdict in _WARNINGS else ""
    return f"training {', '.join(figures)}\n{warning}{t.verdict}: {t.reason}"


def _signed(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 0 else f"-{format_duration(-seconds)}"


def _rate(bytes_per_s: float, source: str, age_s: float | None) -> str:
    age = "" if age_s is None else f", {format_duration(age_s)} ago"
    return f"{format_rate(bytes_per_s)} ({source}{age})"


def _origins(answer: pb.Status) -> RenderableType:
    shown = [
        f"origin {o.name} ({o.state}) uplink "
        + _rate(o.uplink_bytes_per_s, o.source, o.age_s if o.HasField("age_s") else None)
        for o in answer.origins
    ]
    return "\n".join(shown) or "no origin"


def _relays(answer: pb.Status) -> Table:
    columns = ("relay", "state", "rank", "chain", "parent", "held", "received", "verified", "installed", "down", "up")
    table = Table(*columns, "reason", title="Relays", title_justify="left")
    for r in answer.relays:
        table.add_row(
            r.name,
            f"{r.state}, standby" if r.duty == "standby" else r.state,
            f"{r.rank or ''}{' demoted' if r.demoted else ''}",
            f"{r.chain + 1}.{r.position + 1}" if r.chain >= 0 else "",
            f"{r.parent} ({r.transport})" if r.transport else r.parent,
            f"{r.progress:.0%}",
            *(str(v or "") for v in (r.received, r.verified, r.installed)),
            _rate(
                r.downlink_bytes_per_s, r.downlink_source, r.downlink_age_s if r.HasField("downlink_age_s") else None
            ),
            _rate(r.uplink_bytes_per_s, r.uplink_source, r.uplink_age_s if r.HasField("uplink_age_s") else None),
            r.reason,
        )
    return table


def _publications(answer: pb.Status) -> Table:
    columns = ("version", "state", "size", "received", "verified", "installed", "lost", "T(0.5)", "T(0.9)", "T(1.0)")
    table = Table(*columns, "floor", "chains", "root", "reason", title="Publications", title_justify="left")
    for p in answer.publications[:PUBLICATIONS_SHOWN_MAX]:
        f = p.fractions
        table.add_row(
            str(p.version),
            p.state,
            f"{format_size(p.payload_bytes)} {p.kind}",
            *(f"{fraction:.0%}" for fraction in (f.received, f.verified, f.installed)),
            " ".join(p.lost),
            *(format_duration(p.t_bcast[key]) if key in p.t_bcast else "" for key in ("0.5", "0.9", "1.0")),
            format_duration(p.floor_s) if p.HasField("floor_s") else "",
            str(len(p.chains)),
            p.root.partition(":")[2][:12],
            "; ".join(filter(None, (p.reason, p.layout_reason))),
        )
    return table
