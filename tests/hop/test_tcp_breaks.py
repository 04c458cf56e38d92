"""A data connection that breaks, says nothing, or is not read."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes import MemoryOrigin, Node, start_node, until
from tcp_rig import CHUNK, FileOrigin, MuteChild, become, payload_of, serve, started

from chappe.core.reasons import ParentLossReason
from chappe.hop.meter import GRPC
from chappe.hop.tcp_sockets import shut_down
from chappe.v1.relay_pb2 import EndReason


def outlet_of(node: Node) -> Any:
    (stream,) = node.service.streams._streams
    return stream._outlet._tcp


async def test_a_connection_that_breaks_is_done_without(stack: AsyncExitStack) -> None:
    """The same fetch goes on over gRPC: no loss is reported to anybody."""
    source = MemoryOrigin(payload_of(40))
    connected: list[int] = []
    held = await started(stack, source, on_connected=lambda: connected.append(1))
    await held.on_tcp()
    source.release(20)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 20)
    shut_down(outlet_of(held.parent)._connection)
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is None
    assert held.child.object.payload() == payload_of(40)
    assert held.fallbacks
    assert held.meter.transport == GRPC
    assert connected == [1]


async def test_a_parent_that_is_gone_is_a_loss(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(40))
    held = await started(stack, source)
    await held.on_tcp()
    await held.parent.server.stop(0)
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is ParentLossReason.BROKEN


async def test_a_chunk_that_cannot_be_opened_is_left_out_and_sent_later(stack: AsyncExitStack, tmp_path: Path) -> None:
    source = FileOrigin(payload_of(40), tmp_path / "payload")
    held = await started(stack, source)
    await held.on_tcp()
    source.broken = {25}
    original = source._all[25]
    source.release(25)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 25)
    source.release()
    source.rot(25)  # so that looking again finds it rotten
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 39)
    source.broken = set()
    source.put_chunks([(25, original)])
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(40)
    assert not held.fallbacks


async def test_a_file_that_is_cut_short_ends_the_connection_and_the_chunk_is_looked_at(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    source = FileOrigin(payload_of(40), tmp_path / "payload")
    held = await started(stack, source)
    await held.on_tcp()
    source.release(20)
    await until(held.child.object.signal, lambda: len(held.child.object.ledger.held) == 20)
    with source.path.open("r+b") as file:
        file.truncate(30 * CHUNK + 100)
    source.release()
    await asyncio.wait_for(held.fell_back.wait(), 30)
    assert (await asyncio.wait_for(held.task, 60)).reason is None  # over gRPC: what it has in memory is sound
    assert 30 in source.rechecked


@pytest.mark.parametrize("how", ["leave", "evict"])
async def test_a_child_that_does_not_read_is_not_waited_for(stack: AsyncExitStack, tmp_path: Path, how: str) -> None:
    source = FileOrigin(payload_of(400), tmp_path / "payload")
    parent = await serve(stack, source)
    mute = MuteChild(parent)
    stack.push_async_callback(mute.close)
    source.release(2)
    async with asyncio.timeout(30):
        await mute.connect()
    source.release()
    outlet = outlet_of(parent)
    await become(lambda: outlet._pending is not None)
    if how == "leave":
        parent.service.leave()
        assert (await mute.end()).reason == EndReason.END_REASON_LEAVING
    else:
        child = await start_node(stack, "child")
        end = await asyncio.wait_for(child.fetch_from(parent, edge={"epoch": 2}), 60)
        assert end.reason is None
        assert (await mute.end()).reason == EndReason.END_REASON_EVICTED
    await asyncio.to_thread(outlet._thread.join, 30)
    assert not outlet._thread.is_alive()


async def test_silence_on_tcp_is_a_stall_and_the_connection_is_blamed(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when something between the hosts forgets the connection: gRPC stays, nothing comes."""
    source = MemoryOrigin(payload_of(40))
    held = await started(stack, source, stall_floor_s=3.0)
    await held.on_tcp()
    outlet = outlet_of(held.parent)
    stuck = threading.Event()
    monkeypatch.setattr(outlet, "write", lambda data: stuck.wait())  # no watermark, and so nothing behind it
    try:
        end = await asyncio.wait_for(held.task, 60)
    finally:
        stuck.set()
    assert end.reason is ParentLossReason.STALLED
    assert held.fallbacks


async def test_a_fetch_that_is_cancelled_leaves_no_thread(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(40))
    held = await started(stack, source)
    await held.on_tcp()
    held.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await held.task
    await become(lambda: not any(thread.name.startswith("chappe-tcp") for thread in threading.enumerate()))
