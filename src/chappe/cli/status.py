"""`chappe status`: the fleet, its chains and the publications, once or as they change."""

from __future__ import annotations

import asyncio
import json as jsonlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.live import Live

from chappe.cli.client import DEFAULT_COORDINATOR, CoordinatorAddress, connect, get_status
from chappe.cli.interrupt import run_interruptible
from chappe.cli.settings import NO_TLS, Flat, TlsSettings
from chappe.cli.statustables import StatusTables
from chappe.clock import boot_now
from chappe.coordinator.status import status_json
from chappe.errors import CoordinatorUnavailableError
from chappe.v1 import coordinator_pb2 as pb

RETRY_S = 1.0
LINES_INTERVAL_S = 1.0
"""Between two states in a pipe; the coordinator sends one a second even when nothing changes."""
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
        console().print(StatusTables(answer))
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
            yield lambda change: live.update(StatusTables(change), refresh=True)
    else:
        shown_s = float("-inf")

        def print_tables(change: pb.Status) -> None:
            nonlocal shown_s
            if boot_now() >= shown_s + LINES_INTERVAL_S:
                shown_s = boot_now()
                screen.print(StatusTables(change))

        yield print_tables
