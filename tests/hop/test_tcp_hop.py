"""A hop whose payload goes over a data connection: real gRPC, real sockets. It works, and its store may be slow."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fakes import MemoryObject, MemoryOrigin, start_node, until
from tcp_rig import CHUNK, LOOPBACK, FileOrigin, Held, MuteChild, become, payload_of, route_to, serve, started

from chappe.core.reasons import ParentLossReason
from chappe.errors import DiskFullError
from chappe.hop import outlet as outlets
from chappe.hop import tcp_send
from chappe.hop.limits import TokenBucket
from chappe.hop.meter import GRPC, TCP, HopMeter
from chappe.hop.net import Tls
from chappe.hop.source import Data
from chappe.hop.tcp_listen import TcpListener
from chappe.v1.relay_pb2 import HeaderPart
from chappe.wire.frames import ChunkBatch
from chappe.wire.tcp_frames import encode_chunk_head


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("in_files", [False, True])
async def test_the_payload_goes_over_tcp(
    stack: AsyncExitStack, tmp_path: Path, fleet_tls: dict[str, Tls], secured: bool, in_files: bool
) -> None:
    payload = payload_of(60)[:-777]
    source = FileOrigin(payload, tmp_path / "payload") if in_files else MemoryOrigin(payload)
    parent_tls, child_tls = (fleet_tls["parent"], fleet_tls["child"]) if secured else (None, None)
    parent = await serve(stack, source, parent_tls)
    child = await start_node(stack, "child", tls=child_tls)
    held = Held(source, parent, child)
    source.release(2)
    held.start(child_tls)
    await held.on_tcp()
    await become(lambda: parent.service.streams.meters.transports() == [TCP])
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is None
    assert child.object.payload() == payload
    assert not held.fallbacks
    if isinstance(source, FileOrigin):
        assert len(source.opened) >= 58


async def test_without_a_listener_or_an_accepting_child_it_is_grpc(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    source.release()
    parent = await start_node(stack, "parent", source)
    for options in ({"tcp": route_to(parent)}, {}):
        child = await start_node(stack, "child")
        meter = HopMeter()
        assert (await child.fetch_from(parent, meter=meter, **options)).reason is None
        assert meter.transport == GRPC
        assert child.object.payload() == source.payload()
        parent.service.tcp = listener = await TcpListener.open(LOOPBACK, None)  # and now the child does not accept
        stack.push_async_callback(listener.close)


async def test_bytes_that_are_wrong_are_not_stored(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source)
    await held.on_tcp()
    source.release(12)
    read = source.read_chunk
    source.read_chunk = lambda chunk: bytes(CHUNK) if chunk == 18 else read(chunk)  # type: ignore[method-assign]
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is ParentLossReason.CORRUPT
    assert end.rejected == (18,)
    assert 18 not in held.child.object.ledger.held
    assert held.child.object.read_chunk(15) == source._all[15]


async def test_chunks_wait_for_a_connection_that_is_on_its_way(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would go out on gRPC meanwhile is in the way of the data connection's first packets."""
    monkeypatch.setattr(outlets, "HOLD_S", 30.0)
    source = MemoryOrigin(payload_of(40))
    source.release()
    child = MuteChild(await serve(stack, source))
    stack.push_async_callback(child.close)
    async with asyncio.timeout(30):
        await child.connect()
    assert any(isinstance(reply, HeaderPart) for reply in child.heard)
    assert not any(isinstance(reply, ChunkBatch) for reply in child.heard)


async def test_it_begins_at_the_pace_that_the_hop_should_carry(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces: list[float | None] = []
    set_pace = tcp_send.limit_pace

    def limit_pace(connection: socket.socket, bytes_per_s: float | None) -> None:
        set_pace(connection, bytes_per_s)
        paces.append(bytes_per_s)
        source.signal.fire()

    monkeypatch.setattr(tcp_send, "limit_pace", limit_pace)
    monkeypatch.setattr(tcp_send, "BEGIN_S", 0.01)
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source, expected_bytes_per_s=4e6)
    await held.on_tcp()
    await until(source.signal, lambda: len(paces) == 2)
    assert paces == [5e6, None]  # a quarter above it, then as fast as may be
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None


@pytest.mark.parametrize("expected_bytes_per_s", [None, 1.25e9])
async def test_without_a_figure_or_on_a_fast_link_nothing_is_paced(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, expected_bytes_per_s: float | None
) -> None:
    paces: list[float | None] = []
    monkeypatch.setattr(tcp_send, "limit_pace", lambda connection, pace: paces.append(pace))
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source, expected_bytes_per_s=expected_bytes_per_s)
    await held.on_tcp()
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert not paces


async def test_limits_hold_on_tcp_too(stack: AsyncExitStack) -> None:
    """The threads of both ends book what they carry, and nothing of the time that they waited is a silence."""
    source = MemoryOrigin(payload_of(20))
    up, down = TokenBucket(4e6), TokenBucket(8e6)
    parent = await serve(stack, source, uplink=up)
    child = await start_node(stack, "child")
    held = Held(source, parent, child, downlink=down)
    source.release(2)
    held.start()
    await held.on_tcp()
    booked = up._booked_until, down._booked_until
    source.release()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert child.object.payload() == source.payload()
    assert up._booked_until - booked[0] >= 17 * CHUNK / 4e6
    assert down._booked_until - booked[1] >= 17 * CHUNK / 8e6


class SlowSink(MemoryObject):
    """A disk that is stuck while a thread writes to it: once, when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.stick = False
        self.stuck, self.go = threading.Event(), threading.Event()

    def put_chunks(self, chunks: Sequence[tuple[int, Data]], *, lent: bool = False) -> None:
        if lent and self.stick:
            self.stick = False
            self.stuck.set()
            assert self.go.wait(30)
        super().put_chunks(chunks, lent=lent)


async def stuck_in_the_disk(stack: AsyncExitStack, source: MemoryOrigin) -> tuple[Held, SlowSink]:
    parent = await serve(stack, source)
    sink = SlowSink()
    child = await start_node(stack, "child", sink)
    held = Held(source, parent, child, stall_floor_s=0.3)
    source.release(2)
    held.start()
    await held.on_tcp()
    sink.stick = True
    source.release()
    assert await asyncio.to_thread(sink.stuck.wait, 30)
    return held, sink


async def test_a_disk_that_is_slow_is_not_a_parent_that_has_stalled(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    held, sink = await stuck_in_the_disk(stack, source)
    done, _ = await asyncio.wait({held.task}, timeout=1.0)  # three times what a parent may be silent
    assert not done
    sink.go.set()
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert sink.payload() == source.payload()


async def test_a_fetch_that_is_cancelled_while_its_thread_writes_does_not_wait_for_it(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    held, sink = await stuck_in_the_disk(stack, source)
    before = len(sink.ledger.held)
    held.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(held.task, 30)
    sink.go.set()
    await become(lambda: not any(thread.name == "chappe-tcp-receive" for thread in threading.enumerate()))
    assert len(sink.ledger.held) == before + 1  # the one that it had in hand is whole, and no other came
    end = await asyncio.wait_for(held.child.fetch_from(held.parent, tcp=route_to(held.parent)), 60)
    assert end.reason is None
    assert sink.payload() == source.payload()


async def test_trouble_with_the_own_store_is_nobody_elses(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source)
    await held.on_tcp()
    held.child.object.put_error = DiskFullError("no room")
    source.release()
    with pytest.raises(DiskFullError):
        await asyncio.wait_for(held.task, 60)
    assert not held.fallbacks


async def test_chunks_that_were_not_asked_for_on_tcp(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemoryOrigin(payload_of(20))
    held = await started(stack, source)
    await held.on_tcp()
    monkeypatch.setattr("chappe.hop.tcp_feed.encode_chunk_head", lambda chunk, length: encode_chunk_head(0, length))
    source.release()
    end = await asyncio.wait_for(held.task, 60)
    assert end.reason is ParentLossReason.PROTOCOL
    assert "chunk 0" in end.detail


async def test_a_chunk_that_rots_at_the_parent_is_sent_when_it_has_come_again(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """It cannot be read: the thread says so, the loop drops it, and the thread goes on without it."""
    source = FileOrigin(payload_of(20), tmp_path / "payload")
    held = await started(stack, source)
    await held.on_tcp()
    source.broken.add(7)
    recheck = source.recheck

    def lose(chunks: Sequence[int]) -> list[int]:
        source.rechecked += chunks
        for chunk in chunks:
            source.ledger.drop(chunk, chunk + 1)
        return list(chunks)

    source.recheck = lose  # type: ignore[method-assign]
    source.release()
    await become(lambda: len(held.child.object.ledger.held) == 19)
    assert source.rechecked == [7]
    source.recheck = recheck  # type: ignore[method-assign]
    source.broken.clear()
    source.put_chunks([(7, source._all[7])])
    assert (await asyncio.wait_for(held.task, 60)).reason is None
    assert held.child.object.payload() == payload_of(20)
