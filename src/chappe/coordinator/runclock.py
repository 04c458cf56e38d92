"""The fleet's clock: CLOCK_BOOTTIME, carried on over restarts of the coordinator and of its host.

Times are kept in the state (when a publication started, say), so the clock must mean the same for the next process.
Within one boot it is the boot clock itself plus a constant. After a reboot the boot clock starts at zero again: the
constant is chosen anew, with the time between from the wall clock, which is the only one that knows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chappe.clock import boot_now
from chappe.errors import StoreCorruptError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    return _BOOT_ID.read_text().strip()


@dataclass(frozen=True, slots=True)
class RunClock:
    """`now()` never goes back in the life of a run, whatever becomes of the host's clocks."""

    boot_id: str
    offset_s: float
    saved_s: float  # `now()` at the last write before this process; 0 for a new run
    boot: Callable[[], float] = boot_now
    wall: Callable[[], float] = time.time

    @classmethod
    def resume(
        cls,
        mark: Mapping[str, Any] | None,
        boot_id: str,
        boot: Callable[[], float] = boot_now,
        wall: Callable[[], float] = time.time,
    ) -> RunClock:
        """From the mark of the last write, or anew. Raises StoreCorruptError."""
        if mark is None:
            return cls(boot_id, 0.0, 0.0, boot, wall)
        try:
            saved_s, saved_wall_s, offset_s = (float(mark[key]) for key in ("saved_s", "wall_s", "offset_s"))
            same_boot = mark["boot_id"] == boot_id
        except (KeyError, TypeError, ValueError) as error:
            raise StoreCorruptError(f"the coordinator's state has a damaged clock {mark!r}") from error
        if not same_boot:
            offset_s = saved_s + max(0.0, wall() - saved_wall_s) - boot()
        return cls(boot_id, offset_s, saved_s, boot, wall)

    def now(self) -> float:
        """Seconds; compare only with other values of the same run."""
        return self.boot() + self.offset_s

    def mark(self) -> dict[str, Any]:
        """To be stored with every write, and given to `resume` by the next process."""
        return {"boot_id": self.boot_id, "offset_s": self.offset_s, "saved_s": self.now(), "wall_s": self.wall()}
