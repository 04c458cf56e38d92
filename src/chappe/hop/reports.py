"""Tells the coordinator what the hops of this node carry: every two seconds while anything does, at every beginning and
end, and twice a second for a while when one of them has become slow or has ended: the next one may tell why.

    steady ──much less than was said of it, or an end──▶ close ──six seconds without another one──▶ steady
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from chappe.core.events import LinkSample
from chappe.hop.meter import HopMeters
from chappe.hop.source import Signal

REPORT_S = 2.0
LOOKS = 4
"""In each interval: a hop that has become slow is told of after a quarter of it, and then as often."""
CLOSE_LOOKS = 12
"""Long enough to find out whose fault it is."""


async def report_links(
    meters: Sequence[HopMeters],
    signal: Signal,
    send: Callable[[tuple[LinkSample, ...]], None],
    *,
    interval_s: float = REPORT_S,
) -> None:
    """Until cancelled. `signal` is the one that the meters share. Nothing is sent when nothing has flowed."""
    looks = close = 0
    while True:
        seen = signal.count
        now = asyncio.get_running_loop().time()
        news = [direction.look(now) for direction in meters]
        if any(news):
            close = CLOSE_LOOKS
        if looks <= 0 or close > 0:
            samples = tuple(sample for direction in meters for sample in direction.take_samples())
            if samples:
                send(samples)
            looks = LOOKS
        flowing = any(direction.flowing for direction in meters)
        try:
            async with asyncio.timeout(interval_s / LOOKS if flowing else None):
                await signal.wait(seen)
            looks = 0  # a stream has begun or ended
        except TimeoutError:
            looks, close = looks - 1, close - 1
