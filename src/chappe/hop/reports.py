"""Tells the coordinator what the hops of this node carry: every two seconds while anything does, and at every end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from chappe.core.events import LinkSample
from chappe.hop.meter import HopMeters
from chappe.hop.source import Signal

REPORT_S = 2.0


async def report_links(
    meters: Sequence[HopMeters],
    signal: Signal,
    send: Callable[[tuple[LinkSample, ...]], None],
    *,
    interval_s: float = REPORT_S,
) -> None:
    """Until cancelled. `signal` is the one that the meters share. Nothing is sent when nothing has flowed."""
    while True:
        seen = signal.count
        samples = tuple(sample for direction in meters for sample in direction.take_samples())
        if samples:
            send(samples)
        flowing = any(direction.flowing for direction in meters)
        try:
            async with asyncio.timeout(interval_s if flowing else None):
                await signal.wait(seen)
        except TimeoutError:
            continue
