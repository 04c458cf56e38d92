"""The engine beside this relay: what is wanted of it, and what it says it generates. No decisions.

Assignment ──▶ duty ──▶ local service ──▶ engine        rollouts/s ──▶ coordinator, again on every new stream
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chappe.core.relay_events import Assignment
from chappe.hop.source import Signal
from chappe.wire.relay_messages import RolloutsReport


@dataclass(frozen=True, slots=True)
class DutyView:
    """`duty` is active, standby, or empty: nobody decides, generate."""

    duty: str = ""
    reason: str = ""


class Engine:
    """`report` sends to the coordinator, if there is one now."""

    def __init__(self, report: Callable[[RolloutsReport], None]) -> None:
        self.changed = Signal()
        """Fires when `duty` may have changed."""
        self.duty = DutyView()
        self.rollouts_per_s: float | None = None
        """As it was reported last; None: never."""
        self._report = report

    def assigned(self, assignment: Assignment) -> None:
        duty = DutyView(assignment.duty, assignment.duty_reason)
        if duty != self.duty:
            self.duty = duty
            self.changed.fire()

    def joined(self) -> None:
        """A coordinator listens, maybe another one than before."""
        if self.rollouts_per_s is not None:
            self._report(RolloutsReport(self.rollouts_per_s))

    def generates(self, rollouts_per_s: float) -> None:
        self.rollouts_per_s = rollouts_per_s
        self._report(RolloutsReport(rollouts_per_s))
