"""What a relay's bytes over time say: how fast it received, how long it got nothing, when it was itself again.

A curve is a list of (time in seconds, bytes so far), times growing. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

Curve = Sequence[tuple[float, float]]

WINDOW_S = 1.0
START_S = 0.3
"""A window counts from where bytes really come again: its first part must not be a silence."""
SHARE = 0.75
"""Of the rate before the fault: above it a link that was halved is not halved any more, and noise is not a fault."""


def bytes_at(curve: Curve, time_s: float) -> float:
    """Interpolated; the first or last value outside. Raises ValueError for an empty curve."""
    if not curve:
        raise ValueError("an empty curve")
    at = bisect_left(curve, time_s, key=lambda point: point[0])
    if at == 0:
        return curve[0][1]
    if at == len(curve):
        return curve[-1][1]
    (t0, b0), (t1, b1) = curve[at - 1], curve[at]
    return b0 + (b1 - b0) * (time_s - t0) / (t1 - t0)


def rate(curve: Curve, start_s: float, stop_s: float) -> float:
    """Mean bytes per second between two times."""
    return (bytes_at(curve, stop_s) - bytes_at(curve, start_s)) / (stop_s - start_s)


def complete_s(curve: Curve) -> float:
    """When the last byte was first seen."""
    return next(time for time, size in curve if size >= curve[-1][1])


def longest_silence(curve: Curve, since_s: float) -> tuple[float, float]:
    """(start, length) of the longest time without new bytes that ends after `since_s` and before the curve is complete.

    A silence begins at the last sample that still brought bytes, `since_s` at the earliest.
    """
    stop_s = complete_s(curve)
    found, last_s = (since_s, 0.0), since_s
    before = bytes_at(curve, since_s)
    for time, size in curve[bisect_right(curve, since_s, key=lambda point: point[0]) :]:
        if time > stop_s:
            break
        if size > before:
            if time - last_s > found[1]:
                found = (last_s, time - last_s)
            before, last_s = size, time
    return found


def receiving_again_s(curve: Curve, fault_s: float, rate_before: float, share: float = SHARE) -> float | None:
    """Seconds from the fault until bytes come at `share` of the rate before it, for a second and from its start on.

    None when that never happened before the curve was complete. 0 when it was never slower.
    """
    stop_s = complete_s(curve)
    starts = [fault_s, *(time for time, _ in curve if time > fault_s)]
    for start in starts:
        end = min(start + WINDOW_S, stop_s)
        if end - start < START_S:
            return None
        least = share * rate_before
        if rate(curve, start, end) >= least and rate(curve, start, start + START_S) >= least:
            return start - fault_s
    return None
