"""A hop that gets more connections, or another congestion control, when its link turns out to lose packets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from fakes import MemoryOrigin, start_node, until
from tcp_rig import Held, Stuck, become, no_threads_left, outlets_of, payload_of, route_to, serve

from chappe.hop import tcp_lanes
from chappe.hop.linkwatch import STEADY, STREAMS_WHERE_LOSSY, LinkWatch
from chappe.hop.tcp_send import TcpOutlet
from chappe.wire.tcp_frames import STREAMS_AUTO


@pytest.mark.parametrize("has_bbr", [False, True])
async def test_a_link_that_loses_packets_gets_what_helps(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, has_bbr: bool
) -> None:
    """On its own: bbr where it can be had, else more connections, in the middle of a payload."""
    lossy, chosen = False, []
    monkeypatch.setattr(tcp_lanes, "LOOK_S", 0.01)
    monkeypatch.setattr(LinkWatch, "one_is_too_few", lambda *_: lossy)

    def choose(_: TcpOutlet, name: str) -> bool:
        chosen.append(name)
        return has_bbr

    monkeypatch.setattr(TcpOutlet, "choose_congestion_control", choose)
    source = MemoryOrigin(payload_of(60))
    parent, child = await serve(stack, source), await start_node(stack, "child")
    parent.service.connections = STREAMS_AUTO
    held = Held(source, parent, child, tcp=replace(route_to(parent), streams=1))
    source.release(20)
    held.start()
    await until(child.object.signal, lambda: len(child.object.ledger.held) == 20)
    assert len(outlets_of(parent)) == 1
    lossy = True
    await become(lambda: bool(chosen))
    if not has_bbr:
        await become(lambda: len(outlets_of(parent)) == STREAMS_WHERE_LOSSY)
    assert len(outlets_of(parent)) == (1 if has_bbr else STREAMS_WHERE_LOSSY)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == payload_of(60)
    assert sorted(source.reads) == list(range(60))
    assert chosen == [STEADY]
    await become(no_threads_left)


async def test_the_first_of_those_that_came_later_breaks(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was dealt when it was the only one is asked for again, if it did not arrive."""
    lossy = False
    monkeypatch.setattr(tcp_lanes, "LOOK_S", 0.01)
    monkeypatch.setattr(LinkWatch, "one_is_too_few", lambda *_: lossy)
    monkeypatch.setattr(TcpOutlet, "choose_congestion_control", lambda *_: False)
    source = MemoryOrigin(payload_of(60))
    parent, child = await serve(stack, source), await start_node(stack, "child")
    parent.service.connections = STREAMS_AUTO
    held = Held(source, parent, child, tcp=replace(route_to(parent), streams=1))
    source.release(1)
    held.start()
    await held.on_tcp()
    stuck = Stuck(monkeypatch, outlets_of(parent)[0])
    source.release(20)
    await become(stuck.stuck.is_set)
    lossy = True
    await become(lambda: len(outlets_of(parent)) == STREAMS_WHERE_LOSSY)
    stuck.breaks()
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == payload_of(60)


async def test_an_error_of_the_watch_is_told_and_the_stream_goes_on(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object) -> bool:
        raise ZeroDivisionError("in the watch")

    monkeypatch.setattr(LinkWatch, "one_is_too_few", fault)
    source = MemoryOrigin(payload_of(40))
    parent, child = await serve(stack, source), await start_node(stack, "child")
    parent.service.connections = STREAMS_AUTO
    held = Held(source, parent, child, tcp=replace(route_to(parent), streams=1))
    source.release(10)
    held.start()
    await held.on_tcp()
    await become(lambda: "is not watched for losses any more" in caplog.text)
    assert "ZeroDivisionError: in the watch" in caplog.text
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == payload_of(40)
    assert held.fallbacks == []
    await become(no_threads_left)
