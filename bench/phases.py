"""Where the time of one broadcast goes: what its daemons and its publisher said, and when. They have one clock here.

accepted ─ offered ─ asked for ─┬─ first chunks can leave ─ encoded ─ last chunks can leave      the publisher
                                └─ received by the first, by the last ─ landed                   the relays
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from chappe.cli.process import LogLine

Row = dict[str, Any]
Span = list[float]
"""When the first and when the last of a kind was, in seconds."""

PUBLISHER = "publish"
_OF_RELAYS = {"fetch_opened": "asked for", "fetch_ended": "received", "landing": "landing", "landed": "landed"}
_OF_PUBLISHER = {
    "is accepted": "accepted",
    "is offered": "offered",
    "the first chunks": "first chunks can leave",
    "are encoded": "encoded",
    "is hashed": "root known",
    "the last chunks": "last chunks can leave",
}
ORDER = ("accepted", "offered", "asked for", "first chunks can leave", "encoded", "root known")
ORDER += ("last chunks can leave", "received", "landing", "landed")


def time_s(line: LogLine) -> float:
    return datetime.fromisoformat(str(line["timestamp"])).timestamp()


def phases(lines: Mapping[str, Iterable[LogLine]], after_s: float, zero_s: float) -> dict[str, Span]:
    """From the lines of each process that are later than `after_s`: each kind's first and last, from `zero_s` on."""
    found: dict[str, list[float]] = {}
    for name, said in lines.items():
        for line in said:
            kind = _kind(name, line)
            if kind is not None and time_s(line) > after_s:
                found.setdefault(kind, []).append(time_s(line) - zero_s)
    return {kind: [min(found[kind]), max(found[kind])] for kind in ORDER if kind in found}


def _kind(name: str, line: LogLine) -> str | None:
    event = str(line.get("event", ""))
    if name == PUBLISHER:
        return next((kind for text, kind in _OF_PUBLISHER.items() if text in event), None)
    if event == "fetch_ended" and not received(line):
        return None
    return _OF_RELAYS.get(event)


def received(line: LogLine) -> bool:
    """A relay has all of it."""
    return line.get("event") == "fetch_ended" and line.get("reason") == "complete"


def medians(all_phases: Sequence[Mapping[str, Span]]) -> dict[str, Span]:
    """Of several broadcasts, those phases that each of them had."""
    return {
        kind: [statistics.median(found[kind][end] for found in all_phases) for end in (0, 1)]
        for kind in ORDER
        if all_phases and all(kind in found for found in all_phases)
    }


def cells(found: Mapping[str, Span]) -> list[str]:
    """Milliseconds, as a table's line; `ORDER` has the columns."""
    return [_span(*found[kind]) if kind in found else "-" for kind in ORDER]


def _span(first_s: float, last_s: float) -> str:
    first, last = round(1e3 * first_s), round(1e3 * last_s)
    return f"{first}" if first == last else f"{first} - {last}"
