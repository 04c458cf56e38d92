"""Bugs to plant in what becomes of objects with an open end, and of what a damaged base gave all the same."""

from __future__ import annotations

from typing import Any

import pytest
from planted import Bug, _nothing, _set

from chappe.core import progress
from chappe.core.events import Offered
from chappe.core.holding import Held
from chappe.core.lanes import Lanes
from chappe.core.publication import Publication
from chappe.sim import salvage
from chappe.sim.copies import Copy
from chappe.sim.encoding import Encoder
from chappe.sim.streamed import STREAMED

SALVAGE = ("base", "base", "base", "partassigned")


def _honest_word_doubted(patch: pytest.MonkeyPatch) -> None:
    """What a relay says of an object whose end is open is compared with an estimate."""
    true = progress.check

    def check(publication: Publication, holding: Any) -> str:
        kept, publication.open_end = publication.open_end, False
        try:
            return true(publication, holding)
        finally:
            publication.open_end = kept

    patch.setattr(progress, "check", check)


def _end_not_taken(patch: pytest.MonkeyPatch) -> None:
    """That an object is made is heard, and what it has by then is not."""

    def close_end(self: Lanes, lane: Publication, event: Offered) -> list[Any]:
        assert not event.open_end
        lane.open_end = False
        self._context.update(lane)
        return []

    patch.setattr(Lanes, "close_end", close_end)


def _end_not_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lanes, "close_end", lambda *_: [])


def _part_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The weakness that was there: an assignment that crosses the news takes what came out right."""
    true = Held.on_delta_failed
    patch.setattr(Held, "on_delta_failed", lambda self, detail, _: true(self, detail, ""))


def _end_is_what_is_here(patch: pytest.MonkeyPatch) -> None:
    """A relay takes the end of what its parent has for the end of the object."""

    def total(self: Copy) -> int | None:
        held = list(self.held)
        return held[-1][1] if self.header and held else None

    patch.setattr(Copy, "total", property(total))


def _believed_unproven(patch: pytest.MonkeyPatch) -> None:
    """What a delta made is held, and served, before any page has come."""
    true = salvage.keep_part

    def keep_part(relay: Any, delta: Copy) -> str:
        made = relay.world.checks.streamed.salvaged
        relay.world.checks.streamed.salvaged = lambda relay, part: (part.prove(1 << 40, set()), made(relay, part))
        try:
            return true(relay, delta)
        finally:
            relay.world.checks.streamed.salvaged = made

    patch.setattr("chappe.sim.applying.keep_part", keep_part)


STREAM_BUGS = [
    Bug(
        "told-before-its-end",
        _set(progress, "is_still_made", lambda *_: False),
        ("joins", "kill", "openjoins", "kill"),
        "no end yet",
        first=7,
    ),
    Bug("honest-word-doubted", _honest_word_doubted, ("openjoins",), "called a liar", 3),
    Bug("end-not-taken", _end_not_taken, ("openjoins",), "is taken as one of"),
    Bug("end-not-heard", _end_not_heard, ("openjoins",), "was told .* and is not known|does not end"),
    Bug("end-is-what-is-here", _end_is_what_is_here, STREAMED, "no end yet|called a liar|does not end|is taken", 2),
    Bug("part-forgotten", _part_forgotten, SALVAGE, "throws away what came out right"),
    Bug("believed-unproven", _believed_unproven, SALVAGE, "nothing has proven"),
    Bug("withdrawn-not-said", _set(Encoder, "_say_failed", _nothing), ("outgrows",), "was withdrawn|does not end"),
]
