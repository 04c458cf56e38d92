"""Simulated time: an agenda of what happens when, and the clocks of hosts, which are not the same thing.

The agenda's `now` is the time that nobody in the fleet can see. A host has a boot clock (CLOCK_BOOTTIME: monotonic,
from zero at each boot) and a wall clock, which people and NTP set back and forth. Equal times happen in the order in
which they were put down, so that a seed replays.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Action = Callable[..., object]


class Entry:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("action", "arguments", "time_s")

    def __init__(self, time_s: float, action: Action, arguments: tuple[Any, ...]) -> None:
        self.time_s = time_s
        self.action: Action | None = action
        self.arguments = arguments

    def cancel(self) -> None:
        self.action = None
        self.arguments = ()


class Agenda:
    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Entry]] = []
        self._count = 0

    def at(self, time_s: float, action: Action, *arguments: Any) -> Entry:
        """Do it then; a time that has passed means now."""
        entry = Entry(max(time_s, self.now), action, arguments)
        self._count += 1
        heapq.heappush(self._heap, (entry.time_s, self._count, entry))
        return entry

    def after(self, delay_s: float, action: Action, *arguments: Any) -> Entry:
        return self.at(self.now + delay_s, action, *arguments)

    def step(self) -> bool:
        """Let the next thing happen. False when nothing is left to happen."""
        while self._heap:
            time_s, _, entry = heapq.heappop(self._heap)
            action = entry.action
            if action is None:
                continue
            self.now = time_s
            self.events += 1
            entry.action = None
            action(*entry.arguments)
            return True
        return False


@dataclass(slots=True)
class HostClock:
    """What a host's processes see of time."""

    agenda: Agenda
    booted_s: float  # on the agenda; may lie before its beginning
    wall_offset_s: float = 1_700_000_000.0
    boots: int = 1

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def boot(self) -> float:
        return self.agenda.now - self.booted_s

    def wall(self) -> float:
        return self.agenda.now + self.wall_offset_s

    def reboot(self) -> None:
        self.boots += 1
        self.booted_s = self.agenda.now

    def step_wall(self, by_s: float) -> None:
        self.wall_offset_s += by_s
