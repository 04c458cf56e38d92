"""What a striped stream sees of its parent, and how far its own chunks are on a way that brings those of all stripes.

A relay's chunks of one stripe come down one stream, so its child in that stripe follows that one track. A publisher
hashes all of them in a row: there a stripe's chunks lie in between others, and are taken as evenly spread over spans
of a thirty-second of the payload: an event for every span, not for every run of chunks.

The order of things at a copy that several streams fill: what a page says counts from when the first of them brought it,
and a chunk that does not match it is not stored, whatever its own parent's page says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chappe.core.ranges import Range
from chappe.sim.copies import Copy
from chappe.sim.tracks import View

if TYPE_CHECKING:
    from chappe.sim.flow import Stream

SPANS = 32

Live = tuple[int, int, int, int]
"""Own position, parent's position, and how many chunks that is of each."""


def view_of(copy: Copy, stripe: int, now: float) -> View:
    return View(copy.header, copy.held.copy(), copy.track(stripe), now, copy.pages_known)


def spans(pieces: list[Live]) -> list[Live]:
    """In a few, of what is in short runs all over the parent's plan."""
    if len(pieces) <= 2 * SPANS:
        return pieces
    size = -(-len(pieces) // SPANS)
    found: list[Live] = []
    for i in range(0, len(pieces), size):
        own, at, _, _ = pieces[i]
        last_own, last_at, length, span = pieces[min(i + size, len(pieces)) - 1]
        found.append((own, at, last_own + length - own, last_at + span - at))
    return found


def sound(stream: Stream, ranges: list[Range]) -> tuple[list[Range], int | None]:
    """Those before the first chunk that is not what its page says, and that chunk."""
    bad = stream.copy.mismatches(stream.source)
    kept: list[Range] = []
    for start, stop in ranges:
        first = min((chunk for chunk in bad if start <= chunk < stop), default=None)
        if first is not None:
            return [*kept, *([(start, first)] if start < first else [])], first
        kept.append((start, stop))
    return kept, None
