"""What `chappe status` shows: two tables that fit the terminal, and below each in whole lines what takes words.

from WIDE columns   every figure in a column of its own, of a link also where it is from and how old
below               received/verified/installed in one, without ages, root and number of chains: `--json` has all

Reasons are never in a column: twenty characters wide they would be twenty lines high.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from chappe.cli.progress import alarms
from chappe.core.rates import Source
from chappe.units import format_duration, format_rate, format_size
from chappe.v1 import coordinator_pb2 as pb

PUBLICATIONS_SHOWN_MAX = 10
WIDE = 150
WORDS_MAX = 640
"""Characters of what takes words, of each relay and publication."""
_RANKED = "rank "
"""So begins the reason of a relay of which there is nothing to say but its rank, which has a column."""


class StatusTables:
    """One state, laid out for whatever width it is printed in."""

    def __init__(self, answer: pb.Status) -> None:
        self._answer = answer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        answer, wide = self._answer, options.max_width >= WIDE
        yield Text(f"run {answer.run}")
        yield Text(_origins(answer))
        if answer.HasField("training"):
            yield Text(_training(answer.training))
        yield _relays(answer, wide)
        yield from _said((r.name, r.reason) for r in answer.relays if not r.reason.startswith(_RANKED))
        yield _publications(answer, wide)
        yield from _said((f"version {p.version}", _why(p)) for p in answer.publications[:PUBLICATIONS_SHOWN_MAX])


def _said(lines: Iterator[tuple[str, str]]) -> Iterator[RenderableType]:
    """Of whom, and what. As it is: a hook's last words may look like markup."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for who, what in lines:
        if what:
            grid.add_row(Text(who), Text(_brief(what)))
    if grid.row_count:
        yield grid


def _brief(what: str) -> str:
    """A hook's output says at its end what went wrong; `--json` has all of it."""
    return what if len(what) <= WORDS_MAX else f"{what[: WORDS_MAX // 4]} ... {what[-WORDS_MAX * 3 // 4 :]}"


def _why(p: pb.PublicationStatus) -> str:
    lost = f"lost: {' '.join(p.lost)}" if p.lost else ""
    floor = "the floor stands on assumed rates" if p.floor_source == Source.ASSUMED else ""
    return "; ".join(filter(None, (p.reason, lost, *alarms(p), p.layout_reason, p.payload_reason, floor)))


def _table(title: str, wide: bool, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    if not wide:
        table.box, table.pad_edge, table.padding = None, False, (0, 1, 0, 0)
    for column in columns:
        table.add_column(column, overflow="fold")  # a name that is cut is no name
    return table


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


def _origins(answer: pb.Status) -> str:
    shown = [
        f"origin {o.name} ({o.state}) uplink "
        + _rate(o.uplink_bytes_per_s, o.source, o.age_s if o.HasField("age_s") else None)
        for o in answer.origins
    ]
    return "\n".join(shown) or "no origin"


def _relays(answer: pb.Status, wide: bool) -> Table:
    versions = ("received", "verified", "installed") if wide else ("version",)
    table = _table("Relays", wide, "relay", "state", "rank", "chain", "parent", "held", *versions, "down", "up")
    for r in answer.relays:
        down_age_s = r.downlink_age_s if r.HasField("downlink_age_s") else None
        up_age_s = r.uplink_age_s if r.HasField("uplink_age_s") else None
        row = (
            r.name,
            f"{r.state}, standby" if r.duty == "standby" else r.state,
            f"{r.rank or ''}{' demoted' if r.demoted else ''}",
            f"{r.chain + 1}.{r.position + 1}" if r.chain >= 0 else "",
            f"{r.parent} ({r.transport})" if r.transport else r.parent,
            f"{r.progress:.0%}",
            *_versions(r, wide),
            _link(r.downlink_bytes_per_s, r.downlink_source, down_age_s, wide),
            _link(r.uplink_bytes_per_s, r.uplink_source, up_age_s, wide),
        )
        table.add_row(*map(Text, row))
    return table


def _versions(r: pb.RelayStatus, wide: bool) -> list[str]:
    levels = [str(v or "") for v in (r.received, r.verified, r.installed)]
    if wide:
        return levels
    return [levels[0] if len(set(levels)) == 1 else "/".join(level or "0" for level in levels)]


def _link(bytes_per_s: float, source: str, age_s: float | None, wide: bool) -> str:
    return _rate(bytes_per_s, source, age_s) if wide else f"{format_rate(bytes_per_s)} {source}"


def _publications(answer: pb.Status, wide: bool) -> Table:
    levels = ("received", "verified", "installed") if wide else ("r/v/i",)
    rest = ("chains", "root") if wide else ()
    times = ("T(0.5)", "T(0.9)", "T(1.0)", "floor")
    table = _table("Publications", wide, "version", "state", "size", *levels, *times, *rest)
    for p in answer.publications[:PUBLICATIONS_SHOWN_MAX]:
        f = p.fractions
        shares = [f"{fraction:.0%}" for fraction in (f.received, f.verified, f.installed)]
        row = (
            str(p.version),
            p.state,
            f"{format_size(p.payload_bytes)} {p.kind}",
            *(shares if wide else [shares[0] if len(set(shares)) == 1 else "/".join(shares)]),
            *(format_duration(p.t_bcast[key]) if key in p.t_bcast else "" for key in ("0.5", "0.9", "1.0")),
            format_duration(p.floor_s) if p.HasField("floor_s") else "",
            *((str(len(p.chains)), p.root.partition(":")[2][:12]) if wide else ()),
        )
        table.add_row(*map(Text, row))
    return table
