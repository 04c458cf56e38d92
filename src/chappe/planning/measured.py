"""T_bcast of the next broadcast from those that were measured.

What a broadcast takes over the floor that no topology beats (headers, hashing, landing, the install hook, faults) stays
about the same from version to version of a fleet; payload and links change, and the floor follows them. So

    expected T_bcast(f) = floor of the next payload over the present links * median(T_bcast(f) / floor) of the last ones

The median, because a fault in one broadcast says little about the next. Derived here; ECHO-2 publishes 1437 s over a
floor of 1312 s, an overhead of 1.095.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from chappe.planning.errors import positive

LAST = 5
"""So many of the newest broadcasts count: what the fleet was like before says little."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One broadcast: its time until the fraction in question was installed, and its floor, in seconds."""

    version: int
    t_bcast_s: float
    floor_s: float

    def __post_init__(self) -> None:
        positive("t_bcast_s", self.t_bcast_s)
        positive("floor_s", self.floor_s)

    @property
    def overhead(self) -> float:
        """T_bcast(f) over the floor. Below one where a fraction was reached before the floor of all."""
        return self.t_bcast_s / self.floor_s


def usual_overhead(measured: Sequence[Measured]) -> float | None:
    """The median of the newest ones; None without any."""
    newest = sorted(measured, key=lambda m: m.version)[-LAST:]
    return statistics.median(m.overhead for m in newest) if newest else None


def expected_t_bcast_s(floor_s: float, measured: Sequence[Measured]) -> float | None:
    """Seconds until the fraction is installed, for a payload and links of this floor; None without any measurement."""
    overhead = usual_overhead(measured)
    return None if overhead is None else positive("floor_s", floor_s) * overhead
