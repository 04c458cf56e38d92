"""For which landed version the install hook is due. It must not know what the hook is, nor how it is run.

         landed            due              yes
    ──────────▶ pending ────────▶ asked ──────────▶ installed
                   ▲                │ no / overdue
                   │ newer          ▼
                   └────────── (version failed: never asked again by this process)

A command runs one at a time, for the newest version there is when it may start. A confirmation is the engine's own
business in its own time: asking for a newer version replaces asking for the older one, and a late yes still counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chappe.core.relay_events import Install


class InstallMode(StrEnum):
    NONE = "none"  # installed follows verified
    COMMAND = "command"
    CONFIRM = "confirm"


@dataclass(slots=True)
class Installs:
    mode: InstallMode
    timeout_s: float
    current: int = 0  # the newest that has landed: what readers follow
    installed: int = 0  # the newest that is installed
    pending: int = 0  # landed, and the hook is yet to be asked
    asked: int = 0
    deadline: float | None = None  # of a confirmation

    def restore(self, version: int, installed: bool) -> None:
        """What a former process left."""
        self.current = max(self.current, version)
        if installed:
            self.installed = max(self.installed, version)
        self.pending = self.current if self.current > self.installed else 0

    def on_landed(self, version: int) -> bool:
        """True when there is nothing to ask and the version counts as installed at once."""
        if version <= self.current:
            return False
        self.current = version
        if self.mode is InstallMode.NONE:
            self.installed = version
            return True
        self.pending = version
        return False

    def due(self, now: float) -> Install | None:
        """The hook to start now. A confirmation needs no start, only a deadline."""
        if self.pending == 0 or (self.mode is InstallMode.COMMAND and self.asked != 0):
            return None
        self.asked, self.pending = self.pending, 0
        if self.mode is InstallMode.CONFIRM:
            self.deadline = now + self.timeout_s
            return None
        return Install(self.asked, self.installed)

    def on_ended(self, version: int, ok: bool) -> bool:
        """Whether this answer means anything."""
        if self.mode is InstallMode.CONFIRM:
            expected = self.installed < version <= self.current
        else:
            expected = version == self.asked != 0
        if not expected:
            return False
        if version == self.asked:
            self.asked, self.deadline = 0, None
        if ok:
            self.installed = max(self.installed, version)
        return True

    def overdue(self, now: float) -> int | None:
        """The version whose confirmation did not come in time."""
        return self.asked if self.deadline is not None and now >= self.deadline else None
