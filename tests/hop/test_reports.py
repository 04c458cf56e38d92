from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from chappe.core.events import LinkSample
from chappe.hop.meter import HopMeter, HopMeters
from chappe.hop.reports import report_links
from chappe.hop.source import Signal

Reports = asyncio.Queue[tuple[LinkSample, ...]]


@asynccontextmanager
async def reporting(meters: list[HopMeters], signal: Signal, interval_s: float) -> AsyncIterator[Reports]:
    sent: Reports = asyncio.Queue()
    task = asyncio.create_task(report_links(meters, signal, sent.put_nowait, interval_s=interval_s))
    try:
        yield sent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def signal() -> Signal:
    return Signal()


async def test_the_end_of_a_fetch_is_reported_at_once(signal: Signal) -> None:
    received, sent = HopMeters(sending=False, signal=signal), HopMeters(sending=True, signal=signal)
    async with reporting([received, sent], signal, 3600) as reports:
        with sent.measure("child", HopMeter()) as out:
            with received.measure("parent", HopMeter()) as meter:
                meter.record(10, 1.0)
                out.record(20, 1.0)
            report = await asyncio.wait_for(reports.get(), 30)
        assert {(s.peer, s.sending, s.bytes) for s in report} == {("parent", False, 10), ("child", True, 20)}


async def test_what_flows_is_reported_again_and_again(signal: Signal) -> None:
    meters = HopMeters(sending=True, signal=signal)
    async with reporting([meters], signal, 0.01) as reports:
        with meters.measure("child", HopMeter()) as meter:
            for i in range(3):
                meter.record(10 + i, float(i))
                (sample,) = await asyncio.wait_for(reports.get(), 30)
                assert sample.bytes == 10 + i


async def test_nothing_is_said_when_nothing_has_flowed(signal: Signal) -> None:
    meters = HopMeters(sending=True, signal=signal)
    async with reporting([meters], signal, 0.001) as reports:
        with meters.measure("idle", HopMeter()):
            with meters.measure("child", HopMeter()) as meter:
                meter.record(1, 0.0)
            (sample,) = await asyncio.wait_for(reports.get(), 30)
        assert sample.peer == "child"
        assert reports.empty()


async def test_one_that_has_become_slow_is_reported_at_once_and_more_often(signal: Signal) -> None:
    """The regular report is an hour away: what comes, comes because of the change."""
    meters = HopMeters(sending=False, signal=signal)
    async with reporting([meters], signal, 3600) as reports:
        with meters.measure("parent", HopMeter()) as meter:
            for i in range(20):
                meter.record(1000, i * 0.1)
            signal.fire()  # as when another stream begins
            (usual,) = await asyncio.wait_for(reports.get(), 30)
            for i in range(20, 40):
                meter.record(100, i * 0.1)
            signal.fire()
            (slow,) = await asyncio.wait_for(reports.get(), 30)
    assert usual.bytes_per_s == pytest.approx(10_000)
    assert slow.bytes_per_s == pytest.approx(1000)
