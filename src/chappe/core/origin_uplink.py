"""What an origin's uplink carries, from its reports: how much is evidence.

Its hops share the uplink, so it is measured by their sum, and a sum tells of the uplink only where that was the limit.
A short one does not: half a second holds a few chunks of each hop, a token bucket gives its burst first, the end of a
stream goes into socket buffers, a process pauses. And a figure that is too low mends itself badly: it takes a chain
away, and the heads that are left cannot show that the uplink carries one more.

    report of all heads at once ──▶ spell: SPELL_S busy seconds together, receivers' word and origin's
                                       ├─ more than is known ────────────▶ evidence: the figure follows
                                       ├─ about what the heads can take ─▶ a lower bound only: nothing
                                       ├─ much less has arrived than sent ▶ other seconds, or a lie: nothing
                                       └─ less ─▶ low. After another low one: evidence, the better of the two

What was declared is where measuring starts: it counts like a full estimate (`links.Estimate.exact`). Where nothing is
known there is nothing to lose, and each report is evidence. Short deltas add up to a spell over some versions. Knows
one origin, no hops and no layouts: `measuring` decides which reports are of all heads at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chappe.core.rates import Figure

SPELL_S = 1.5
"""A report of 2 s begins with the time in which buffers fill; later, four of half a second are one."""
SHORT_S = 0.35
"""Less is a burst into buckets and buffers, 5 MB/s where 2.5 are. It says nothing once there is a figure: it would
raise that with every version. A report of half a second has more unless its hops waited."""
AGREED = 0.9  # what has arrived of what an origin says that it sent: from here on it is the same seconds
EXPLAINED = 0.9
FORGOTTEN_S = 3600.0  # a spell goes on over versions, but not over a night


@dataclass(frozen=True, slots=True)
class Carried:
    """What all heads got at once for `busy_s`, in bytes per second: as the origin says, as they say (at most that), and
    what their downlinks take as far as that is known (infinite or what they got where it is not)."""

    busy_s: float = 0.0
    sent: float = 0.0
    got: float = 0.0
    takes: float = 0.0

    @property
    def agreed(self) -> bool:
        return self.got >= AGREED * self.sent

    @property
    def limited_by_receivers(self) -> bool:
        return self.bytes_per_s >= EXPLAINED * self.takes

    @property
    def bytes_per_s(self) -> float:
        return min(self.sent, self.got)

    def __add__(self, other: Carried) -> Carried:
        busy_s = self.busy_s + other.busy_s
        if busy_s <= 0:
            return self
        mine, theirs = self.busy_s / busy_s, other.busy_s / busy_s
        return Carried(
            busy_s,
            mine * self.sent + theirs * other.sent,
            mine * self.got + theirs * other.got,
            mine * self.takes + theirs * other.takes,
        )


@dataclass(slots=True)
class UplinkEvidence:
    """Of one origin. Not stored: after a restart of the coordinator it begins anew."""

    _spell: Carried = Carried()
    _low: Carried | None = None
    _heard_s: float = 0.0

    def take(self, carried: Carried, figure: Figure, now: float) -> Carried | None:
        """Returns what the estimate is to follow, when this report has made it so much."""
        if figure.known is None:
            by_origin = carried.agreed and not carried.limited_by_receivers
            return carried if by_origin or carried.bytes_per_s >= figure.bytes_per_s else None
        if now - self._heard_s > FORGOTTEN_S:
            self._spell, self._low = Carried(), None
        self._heard_s = now
        self._spell += carried
        if self._spell.busy_s < SPELL_S:
            return None
        spell, self._spell = self._spell, Carried()
        return self._judge(spell, figure.known)

    def _judge(self, spell: Carried, known: float) -> Carried | None:
        raises = spell.bytes_per_s >= known
        if raises or (spell.agreed and spell.limited_by_receivers):
            self._low = None
            return spell if raises else None
        if not spell.agreed:
            return None
        before, self._low = self._low, spell
        if before is None:
            return None
        self._low = replace(spell, busy_s=0.0)  # its time has been counted
        better = max(before, spell, key=lambda one: one.bytes_per_s)
        return replace(better, busy_s=before.busy_s + spell.busy_s)
