"""What is put off while the state cannot be written: every event, in order, until it can.

Decisions that cannot be kept must not be made known, and a fleet that goes on deciding without saying so is soon
another one than that of the nodes. So it stands still: transfers go on without it, streams stay open, and nodes that
say something wait to be heard. What would come again and again is not put off but refused: see `reason`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chappe.core.events import Event

RETRY_S_MIN, RETRY_S_MAX = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class PutOff:
    events: Sequence[Event]
    done: asyncio.Future[None] | None


@dataclass(slots=True)
class Standstill:
    """From `begin` until `end`."""

    standing: bool = False
    reason: str = ""
    """Why the state cannot be written; empty while it may only take a moment."""
    _put_off: list[PutOff] = field(default_factory=list)

    def begin(self, reason: str = "") -> bool:
        """Whether this is news."""
        news = not self.standing or bool(reason and not self.reason)
        self.standing, self.reason = True, reason or self.reason
        return news

    def put_off(self, events: Sequence[Event], done: asyncio.Future[None] | None) -> None:
        self._put_off.append(PutOff(events, done))

    def end(self) -> list[PutOff]:
        """What has come meanwhile, to be taken in now."""
        taken, self._put_off = self._put_off, []
        self.standing, self.reason = False, ""
        return taken


def waits_s() -> Iterator[float]:
    """Before each try to write again: longer after each failure, with jitter, as a server has other clients, too."""
    longest_s = RETRY_S_MIN
    while True:
        yield longest_s * random.uniform(0.5, 1.0)  # noqa: S311
        longest_s = min(RETRY_S_MAX, 2 * longest_s)
