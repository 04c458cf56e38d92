"""How long a hop may be silent before it counts as stalled: from what this hop should carry, never under a floor.

A parent says something at least twice a second, unless a message is on its way: so what bounds the silence is how long
one chunk takes. The expected rate is the coordinator's figure, or less where this hop has shown less. A host may be
slower still than anybody thought: each stall in a row doubles the patience, so that no chunk is cut off for ever.
"""

from __future__ import annotations

STALL_FLOOR_S = 2.0
CHUNK_TIMES = 4.0
ASSUMED_BYTES_PER_S = 12.5e6  # as the coordinator assumes it
PATIENCE_S_MAX = 60.0


def stall_timeout_s(floor_s: float, chunk_bytes: int, expected_bytes_per_s: float | None) -> float:
    """`max(floor, 4 chunk times)`, and never above a minute."""
    rate = expected_bytes_per_s or ASSUMED_BYTES_PER_S
    return min(max(floor_s, CHUNK_TIMES * chunk_bytes / rate), max(floor_s, PATIENCE_S_MAX))


class StallRule:
    """What this node has learnt about the patience that each parent needs. One per node."""

    def __init__(self, floor_s: float = STALL_FLOOR_S) -> None:
        self.floor_s = floor_s
        self._stalls: dict[str, int] = {}

    def floor_for(self, parent: str) -> float:
        """Twice as long after each stall in a row."""
        return min(self.floor_s * 2.0 ** self._stalls.get(parent, 0), max(self.floor_s, PATIENCE_S_MAX))

    def ended(self, parent: str, *, stalled: bool, progressed: bool) -> None:
        """A fetch from this parent is over."""
        if stalled and not progressed:
            self._stalls[parent] = min(self._stalls.get(parent, 0) + 1, 16)
        else:
            self._stalls.pop(parent, None)
