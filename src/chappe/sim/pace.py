"""What the meters of both ends of a simulated hop are told, as their shells tell them message by message.

busy    there is something to send: all the time counts, also while nothing passes
idle    the hop waits for its own source: only the bytes count
"""

from __future__ import annotations

from chappe.hop.meter import HopMeter


class Pace:
    """Of one stream. Positions are in chunks along its plan."""

    __slots__ = ("_busy", "_chunk_bytes", "_position", "meters")

    def __init__(self, chunk_bytes: int) -> None:
        self.meters: list[HopMeter] = []  # of both ends, while they live
        self._chunk_bytes = chunk_bytes
        self._position = 0.0  # up to which the meters know
        self._busy = False

    def begin(self) -> None:
        """Another plan: positions are counted from its beginning."""
        self._position = 0.0

    def turn(self, now: float, *, busy: bool) -> None:
        """From now on. What was before has been measured."""
        if busy is not self._busy:
            for meter in self.meters:
                (meter.start if busy else meter.idle)(now)
        self._busy = busy

    def measure(self, position: float, now: float) -> None:
        moved = int(position * self._chunk_bytes) - int(self._position * self._chunk_bytes)
        self._position = position
        for meter in self.meters:
            if moved:
                meter.record(moved, now)
            if not self._busy:
                meter.idle(now)
