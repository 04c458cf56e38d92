"""What a person sees while a publication runs: bars on a terminal, plain lines in a pipe. Always on stderr.

Shows what the coordinator's status says and decides nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from chappe.clock import boot_now
from chappe.core.rates import Source
from chappe.core.views import RelayState
from chappe.units import format_duration, format_size
from chappe.v1 import coordinator_pb2 as pb

RELAYS_SHOWN_MAX = 16
"""A larger fleet is summed up: a screen has some 40 lines."""
LINE_INTERVAL_S = 1.0


class ProgressView(AbstractContextManager["ProgressView"], Protocol):
    """Takes every state as it comes; shows what is worth showing."""

    def show(self, publication: pb.PublicationStatus, relays: Sequence[pb.RelayStatus]) -> None: ...


def progress_view(title: str) -> ProgressView:
    """Bars when stderr is a terminal, lines when it is not."""
    console = Console(stderr=True)
    return BarView(console, title) if console.is_terminal else LineView(title)


def targets(relays: Sequence[pb.RelayStatus]) -> list[pb.RelayStatus]:
    """The relays that have a place in a chain, in the order of the chains."""
    return sorted((r for r in relays if r.chain >= 0), key=lambda r: (r.chain, r.position))


def summary(publication: pb.PublicationStatus) -> str:
    """One line: how many have received, verified and installed it, and how long it has taken."""
    counts = " ".join(
        f"{name} {fraction:.0%}"
        for name, fraction in (
            ("received", publication.fractions.received),
            ("verified", publication.fractions.verified),
            ("installed", publication.fractions.installed),
        )
    )
    assumed = " (assumed rates)" if publication.floor_source == Source.ASSUMED else ""
    floor = f", floor {format_duration(publication.floor_s)}{assumed}" if publication.HasField("floor_s") else ""
    lost = f", lost {' '.join(publication.lost)}" if publication.lost else ""
    return (
        f"version {publication.version or '?'} ({_payloads(publication)}) to {publication.targeted}: "
        f"{counts} of workers after {format_duration(publication.elapsed_s)}{floor}{lost}"
        f"{''.join(f'; {alarm}' for alarm in alarms(publication))}"
    )


def alarms(publication: pb.PublicationStatus) -> list[str]:
    """What is unusual about its deltas."""
    return list(dict.fromkeys(f"ALARM: {payload.alarm}" for payload in publication.payloads if payload.alarm))


_KINDS = {"delta": " delta of {}", "full-compressed": " compressed of {}"}


def _payloads(publication: pb.PublicationStatus) -> str:
    """What travels: `1.2 MB delta of 170 MB to 5, 170 MB to 1`; plainly a size for a full snapshot."""
    if publication.kind in ("full", ""):
        return format_size(publication.payload_bytes)
    whole = format_size(publication.snapshot_bytes)
    return ", ".join(
        f"{format_size(p.payload_bytes)}{_KINDS.get(p.kind, '').format(whole)} to {p.targeted}"
        for p in publication.payloads
    )


def no_room(relays: Sequence[pb.RelayStatus]) -> list[str]:
    """What holds everybody up who waits for these: each with how much it lacks."""
    return [f"{r.name} has a full disk: {r.reason}" for r in relays if r.state == RelayState.DISK_FULL]


class LineView:
    """A line when the counts change, and at most one a second while bytes move."""

    def __init__(
        self,
        title: str,
        write: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
        now: Callable[[], float] = boot_now,
    ) -> None:
        self._title, self._write, self._now = title, write, now
        self._last_counts: tuple[float, float, float, str, tuple[str, ...]] | None = None
        self._last_s = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    def show(self, publication: pb.PublicationStatus, relays: Sequence[pb.RelayStatus]) -> None:
        fractions = publication.fractions
        full = tuple(r.name for r in relays if r.state == RelayState.DISK_FULL)
        counts = (fractions.received, fractions.verified, fractions.installed, publication.state, full)
        if counts == self._last_counts and self._now() < self._last_s + LINE_INTERVAL_S:
            return
        self._last_counts, self._last_s = counts, self._now()
        short = "".join(f"; {line}" for line in no_room(relays))
        self._write(f"{self._title}: {summary(publication)}{self._bytes_held(relays)}{short}")

    @staticmethod
    def _bytes_held(relays: Sequence[pb.RelayStatus]) -> str:
        placed = targets(relays)
        if not placed:
            return ""
        if len(placed) > RELAYS_SHOWN_MAX:
            held = sorted(r.progress for r in placed)
            return f"; held: least {held[0]:.0%}, median {held[len(held) // 2]:.0%}, most {held[-1]:.0%}"
        return "; held: " + " ".join(f"{r.name} {r.progress:.0%}" for r in placed)


class BarView:
    """One bar for each relay, chain by chain, and the counts below."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._live = Live(console=console, refresh_per_second=10, transient=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, publication: pb.PublicationStatus, relays: Sequence[pb.RelayStatus]) -> None:
        self._live.update(self.render(publication, relays))

    def render(self, publication: pb.PublicationStatus, relays: Sequence[pb.RelayStatus]) -> RenderableType:
        placed = targets(relays)
        rows = Table.grid(padding=(0, 2))
        for relay in placed[:RELAYS_SHOWN_MAX]:
            rows.add_row(*self._row(relay, publication.version))
        if len(placed) > RELAYS_SHOWN_MAX:
            rows.add_row("", f"and {len(placed) - RELAYS_SHOWN_MAX} more")
        whole = Table.grid(padding=(0, 2))
        whole.add_row("installed", ProgressBar(1.0, publication.installed_fraction, width=40), summary(publication))
        return Group(Text(self._title, style="bold"), rows, whole, *(Text(s, style="yellow") for s in no_room(relays)))

    @staticmethod
    def _row(relay: pb.RelayStatus, version: int) -> tuple[RenderableType, ...]:
        if relay.installed == version:
            state = Text("installed", style="green")
        elif relay.verified == version:
            state = Text("verified", style="cyan")
        elif relay.received == version:
            state = Text("received")
        else:
            state = Text(relay.state, style="dim")
        bar = ProgressBar(1.0, relay.progress, width=40)
        source = f"from {relay.parent}" if relay.parent else ""
        return f"chain {relay.chain + 1}.{relay.position + 1}", relay.name, bar, f"{relay.progress:4.0%}", state, source
