"""One hop on several data connections: what is slow, breaks, says nothing or never comes costs the others nothing."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes import MemoryOrigin, start_node, until
from tcp_rig import (
    CHUNK,
    FileOrigin,
    Held,
    MuteChild,
    Stuck,
    become,
    listener_of,
    no_threads_left,
    outlets_of,
    payload_of,
    route_to,
    serve,
    stream_of,
)

from chappe.core.reasons import ParentLossReason
from chappe.hop.course import Dry
from chappe.hop.meter import GRPC, TCP
from chappe.hop.net import Tls
from chappe.hop.tcp_deal import Deal
from chappe.hop.tcp_receive import TcpInlet
from chappe.hop.tcp_sockets import shut_down
from chappe.v1.relay_pb2 import EndReason
from chappe.wire.tcp_frames import STREAMS_MAX, FrameKind, decode_head


async def started_on(
    stack: AsyncExitStack, source: MemoryOrigin, streams: int = 3, tls: tuple[Tls, Tls] | None = None, **options: Any
) -> Held:
    """All connections are there, and two chunks are."""
    parent_tls, child_tls = (None, None) if tls is None else tls
    parent = await serve(stack, source, parent_tls)
    child = await start_node(stack, "child", tls=child_tls)
    held = Held(source, parent, child, tcp=replace(route_to(parent, child_tls), streams=streams), **options)
    source.release(2)
    held.start(child_tls)
    await held.on_tcp()

    def there() -> bool:
        assert not held.task.done(), held.task.result()
        return len(outlets_of(parent)) == streams

    await become(there)
    return held


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("in_files", [False, True])
async def test_several_connections_carry_one_payload_and_nothing_twice(
    stack: AsyncExitStack, tmp_path: Path, fleet_tls: dict[str, Tls], secured: bool, in_files: bool
) -> None:
    payload = payload_of(60)[:-777]
    source = FileOrigin(payload, tmp_path / "payload") if in_files else MemoryOrigin(payload)
    held = await started_on(stack, source, tls=(fleet_tls["parent"], fleet_tls["child"]) if secured else None)
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is None
    assert held.child.object.payload() == payload
    assert held.meter.transport == TCP
    assert not held.fallbacks
    assert sorted(source.opened if isinstance(source, FileOrigin) else source.reads) == list(range(60))


@pytest.mark.parametrize("streams", [0, 1, 3])
async def test_pages_that_have_gone_on_grpc_do_not_go_again(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    """The connection is there when chunks have waited for it long enough, and gone on gRPC."""
    connect, go = TcpInlet._connect, threading.Event()
    monkeypatch.setattr(TcpInlet, "_connect", lambda inlet: go.wait(30) and connect(inlet))
    source = MemoryOrigin(payload_of(40))
    parent, child = await serve(stack, source), await start_node(stack, "child")
    held = Held(source, parent, child, tcp=replace(route_to(parent), streams=streams))
    source.release(20)
    held.start()
    await until(child.object.signal, lambda: len(child.object.ledger.held) == 20)
    go.set()
    await held.on_tcp()
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == payload_of(40)


@pytest.mark.parametrize("which", [0, 2])
async def test_a_chunk_that_is_long_under_way_keeps_no_other_waiting(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    source = MemoryOrigin(payload_of(60))
    held = await started_on(stack, source)
    stuck = Stuck(monkeypatch, outlets_of(held.parent)[which])
    source.release()
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 59)
    assert not held.task.done()
    stuck.go.set()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(60)
    assert len(source.reads) == 60


async def test_a_connection_without_work_is_no_progress_of_one_that_is_stuck(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a child that takes nothing any more keeps its slot."""
    step, dry = Deal.next, threading.Semaphore(0)

    def stepped(*arguments: Any) -> Any:
        if isinstance(found := step(*arguments), Dry):
            dry.release()
        return found

    source = MemoryOrigin(payload_of(60))
    held = await started_on(stack, source, streams=2, stall_floor_s=30.0)
    stuck = Stuck(monkeypatch, outlets_of(held.parent)[1])
    source.release()
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 59)
    (ticket,) = held.parent.guard.children()
    monkeypatch.setattr(Deal, "next", stepped)
    await asyncio.to_thread(dry.acquire)  # from now on it has nothing else to do
    ticket.progressed_s = 0.0
    for _ in range(2):
        await asyncio.to_thread(dry.acquire)
    assert ticket.progressed_s == 0.0
    stuck.go.set()
    assert (await asyncio.wait_for(held.task, 60)).reason is None


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("how", ["breaks", "answers nothing"])
async def test_what_a_connection_that_is_gone_had_goes_on_the_others(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, which: int, how: str
) -> None:
    source = MemoryOrigin(payload_of(60))
    held = await started_on(stack, source)
    outlet = outlets_of(held.parent)[which]
    stuck = Stuck(monkeypatch, outlet)
    source.release()
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 59)
    if how == "breaks":
        stuck.breaks()
    else:
        monkeypatch.setattr(outlet, "unanswered", count(2, 2).__next__)
        await asyncio.to_thread(outlet._connection.recv, 1)  # the others notice, and shut it down
        stuck.go.set()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(60)
    assert not held.fallbacks
    assert held.meter.transport == TCP
    assert len(source.reads) == 61


async def test_the_last_one_is_not_broken_off(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemoryOrigin(payload_of(60))
    held = await started_on(stack, source, streams=2)
    for outlet in outlets_of(held.parent):
        monkeypatch.setattr(outlet, "unanswered", lambda: 4)
    await become(lambda: len(stream_of(held.parent)._outlet._connections()) == 2)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(60)
    assert not held.fallbacks


async def test_when_all_break_grpc_goes_on(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(60))
    connected: list[int] = []
    held = await started_on(stack, source, on_connected=lambda: connected.append(1))
    for outlet in outlets_of(held.parent):
        shut_down(outlet._connection)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(60)
    assert held.meter.transport == GRPC
    assert len(held.fallbacks) == 1
    assert connected == [1]


async def test_connections_that_cannot_be_opened_are_done_without(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemoryOrigin(payload_of(60))
    parent = await serve(stack, source)
    listener, closed = listener_of(parent), await serve(stack, MemoryOrigin(payload_of(1)))
    port = listener_of(closed).address.port
    await listener_of(closed).close()
    offer, offers = listener.offer, []

    def offered(*arguments: Any) -> Any:
        offers.append(found := offer(*arguments))
        if len(offers) > 1:
            found.port = port
        return found

    monkeypatch.setattr(listener, "offer", offered)
    child = await start_node(stack, "child")
    held = Held(source, parent, child, tcp=replace(route_to(parent), streams=4))
    source.release(2)
    held.start()
    await held.on_tcp()
    await become(lambda: len(offers) == 4)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == payload_of(60)
    assert not held.fallbacks


async def test_a_silent_one_at_the_end_is_no_parent_that_has_stalled(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network has swallowed the last of it, and its end: the child asks for what it lacks."""
    source = MemoryOrigin(payload_of(60))
    held = await started_on(stack, source, streams=2, stall_floor_s=1.0)
    outlet = outlets_of(held.parent)[1]
    swallowed: list[bytes] = []
    monkeypatch.setattr(outlet, "write", swallowed.append)
    close = outlet.close
    monkeypatch.setattr(outlet, "close", lambda: None)
    stack.callback(close)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert any(decode_head(data[:16]).kind is FrameKind.CHUNK for data in swallowed)
    assert not held.fallbacks
    assert held.child.object.payload() == payload_of(60)


async def test_a_parent_that_says_all_is_sent_and_has_not_sent_it(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MemoryOrigin(payload_of(60))
    held = await started_on(stack, source)
    outlet = outlets_of(held.parent)[1]
    write, kept = outlet.write, []

    def keep_chunks(data: bytes) -> None:
        (kept.append if decode_head(data[:16]).kind is FrameKind.CHUNK else write)(data)

    monkeypatch.setattr(outlet, "write", keep_chunks)
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert kept
    assert end.reason is ParentLossReason.PROTOCOL


async def test_a_source_that_is_dropped_ends_all_of_them(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(60))
    held = await started_on(stack, source)
    source.drop()
    assert (await asyncio.wait_for(held.task, 60)).reason is ParentLossReason.DROPPED
    await become(no_threads_left)


async def test_a_fetch_that_is_cancelled_leaves_no_thread(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(60))
    held = await started_on(stack, source, streams=5)
    held.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await held.task
    await become(no_threads_left)


async def test_a_chunk_that_cannot_be_read_goes_when_it_has_come_again(stack: AsyncExitStack, tmp_path: Path) -> None:
    """The others do not say meanwhile that all is sent."""
    source = FileOrigin(payload_of(40), tmp_path / "payload")
    held = await started_on(stack, source)
    source.broken = {25}
    original = source._all[25]
    source.release(25)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 25)
    source.release()
    source.rot(25)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 39)
    source.broken = set()
    source.put_chunks([(25, original)])
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(40)
    assert not held.fallbacks


async def test_a_file_that_is_cut_short_ends_its_connection_and_the_chunk_is_looked_at(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    source = FileOrigin(payload_of(40), tmp_path / "payload")
    held = await started_on(stack, source)
    source.release(20)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 20)
    with source.path.open("r+b") as file:
        file.truncate(39 * CHUNK + 100)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None  # over gRPC in the end: what is in memory is sound
    assert 39 in source.rechecked
    assert held.child.object.payload() == payload_of(40)


async def test_a_child_that_reads_none_of_them_is_not_waited_for(stack: AsyncExitStack, tmp_path: Path) -> None:
    source = FileOrigin(payload_of(400), tmp_path / "payload")
    parent = await serve(stack, source)
    mute = MuteChild(parent, streams=3)
    stack.push_async_callback(mute.close)
    source.release(2)
    async with asyncio.timeout(30):
        await mute.connect()
    await become(lambda: len(outlets_of(parent)) == 3)
    outlets = outlets_of(parent)
    source.release()
    await become(lambda: all(outlet._pending is not None for outlet in outlets))
    child = await start_node(stack, "child")
    assert (await asyncio.wait_for(child.fetch_from(parent, edge={"epoch": 2}), 60)).reason is None
    assert (await mute.end()).reason == EndReason.END_REASON_EVICTED
    for outlet in outlets:
        await asyncio.to_thread(outlet._thread.join, 30)
        assert not outlet._thread.is_alive()


@pytest.mark.parametrize(
    ("parents", "asked", "given"), [(1, 4, 4), (4, 1, 4), (3, 2, 3), (8, 0, 1), (1, 9999, STREAMS_MAX)]
)
async def test_how_many_there_are(stack: AsyncExitStack, parents: int, asked: int, given: int) -> None:
    """As many as the side wants that wants more; one with a child that does not know of several."""
    source = MemoryOrigin(payload_of(20))
    parent = await serve(stack, source)
    parent.service.connections = parents
    child = await start_node(stack, "child")
    held = Held(source, parent, child, tcp=replace(route_to(parent), streams=asked))
    source.release(2)
    held.start()
    await held.on_tcp()
    await become(lambda: len(outlets_of(parent)) == given)
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == payload_of(20)
