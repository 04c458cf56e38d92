"""Whom a fault can befall now, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chappe.sim.relay import Relay

if TYPE_CHECKING:
    from chappe.sim.copies import Copy
    from chappe.sim.scenario import Run


class Victims:
    def __init__(self, run: Run) -> None:
        self.run = run
        self.world = run.world
        self.random = run.random
        self.agenda = run.world.agenda
        self.last_s = 0.0  # when the last fault is over

    def struck(self, what: str, end_s: float) -> None:
        """A fault has befallen somebody."""
        self.world.disturbed()
        self.last_s = max(self.last_s, end_s)
        self.world.note("fault", what, f"until {end_s:.1f}")

    def relays(self) -> list[Relay]:
        return [r for r in self.world.relays if r.running and not r.paused and not r.leaving]

    def relay(self) -> Relay | None:
        relays = self.relays()
        return self.random.choice(relays) if relays else None

    def sender(self) -> Relay | None:
        """A relay that has somebody behind it; any other one only where there is none."""
        relays = [r for r in self.relays() if r.serving]
        return self.random.choice(relays) if relays else self.relay()

    def holder(self) -> tuple[Relay, Copy] | None:
        found = [(r, c) for r in self.relays() for c in r.copies.values() if c.held]
        return self.random.choice(found) if found else None

    def later(self, low_s: float, high_s: float, undo: Callable[[], object]) -> float:
        """Undo it in a while; returns when."""
        end_s = self.agenda.now + self.random.uniform(low_s, high_s)
        self.agenda.at(end_s, self._undo, undo)
        return end_s

    def _undo(self, undo: Callable[[], object]) -> None:
        self.world.disturbed()
        undo()
