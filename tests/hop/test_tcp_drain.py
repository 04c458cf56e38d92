"""A child that goes elsewhere while its parent sends: what is on its way arrives, nothing else is sent.

the parent sends      all that it has handed to the kernel is stored, and it stops
several connections   the same on each of them
TLS                   the same
gRPC only             nothing to wait for: the fetch is to be closed
replaced already      the child hears of it behind what is on its way
it says nothing       not waited for
it goes on for ever   ended from outside, as any fetch
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from fakes import MemoryOrigin, start_node
from tcp_rig import Held, become, payload_of, route_to, serve
from test_inlet import Parent

from chappe.hop.client import Departure
from chappe.hop.limits import TokenBucket
from chappe.hop.net import Tls
from chappe.v1.relay_pb2 import End, EndReason
from chappe.wire.frames import encode_end
from chappe.wire.tcp_frames import encode_chunk_head


@pytest.fixture
async def parent() -> AsyncIterator[Parent]:
    async with AsyncExitStack() as stack:
        yield Parent(stack)


class Moved(Held):
    """Reads much more slowly than its parent sends: most of it is between the two."""

    def __init__(self, source: MemoryOrigin, parent, child, **options) -> None:  # type: ignore[no-untyped-def]
        self.departure = Departure()
        super().__init__(source, parent, child, departure=self.departure, downlink=TokenBucket(16e6), **options)


@pytest.mark.parametrize(("secured", "streams"), [(False, 1), (False, 3), (True, 1)])
async def test_what_is_on_its_way_arrives_and_nothing_else_is_sent(
    stack: AsyncExitStack, fleet_tls: dict[str, Tls], secured: bool, streams: int
) -> None:
    source = MemoryOrigin(payload_of(400))
    parent_tls, child_tls = (fleet_tls["parent"], fleet_tls["child"]) if secured else (None, None)
    parent = await serve(stack, source, parent_tls)
    child = await start_node(stack, "child", tls=child_tls)
    route = route_to(parent, child_tls)
    moved = Moved(source, parent, child, tcp=type(route)(route.host, route.tls, "parent", streams=streams))
    source.release(2)
    moved.start(child_tls)
    await moved.on_tcp()
    source.release()
    await become(lambda: len(child.object.ledger.held) > 20)
    assert len(source.reads) > len(child.object.ledger.held), "something is on its way"
    assert moved.departure.drain()
    end = await asyncio.wait_for(moved.task, 30)
    assert end.reason is None
    await become(lambda: not parent.guard.children())
    sent = set(source.reads)
    assert set(itertools.chain(*(range(*r) for r in child.object.ledger.held.ranges()))) == sent
    assert len(source.reads) == len(sent) < 400
    assert not moved.fallbacks


async def test_on_grpc_there_is_nothing_to_wait_for(stack: AsyncExitStack) -> None:
    source = MemoryOrigin(payload_of(40))
    source.release(2)
    parent, child = await start_node(stack, "parent", source), await start_node(stack, "child")
    departure, connected = Departure(), asyncio.Event()
    assert not departure.drain()
    fetch = asyncio.ensure_future(child.fetch_from(parent, departure=departure, on_connected=connected.set))
    async with asyncio.timeout(30):
        await connected.wait()
    assert not departure.drain()
    source.release()
    assert (await asyncio.wait_for(fetch, 30)).reason is None
    assert child.object.payload() == source.payload()


async def test_who_was_replaced_hears_of_it_behind_what_is_on_its_way(parent: Parent) -> None:
    connection = await parent.connected()
    parent.taker.go.clear()
    connection.sendall(b"".join(encode_chunk_head(chunk, 4) + b"good" for chunk in range(9)))
    parent.say(encode_end(EndReason.END_REASON_EVICTED))
    connection.shutdown(socket.SHUT_RDWR)
    reading = asyncio.ensure_future(parent.reply())
    await asyncio.to_thread(parent.taker.taking.wait, 30)
    parent.taker.go.set()
    end = await reading
    assert isinstance(end, End)
    assert end.reason == EndReason.END_REASON_EVICTED
    assert [chunk for chunk, _ in parent.taker.chunks] == list(range(9))


async def test_a_parent_that_says_nothing_is_not_waited_for(parent: Parent) -> None:
    await parent.connected()
    reading = asyncio.ensure_future(parent.reply())
    await become(lambda: parent.inlet.switched)
    assert parent.inlet.drain()
    assert await reading is None


async def test_a_parent_that_goes_on_is_ended_as_any(parent: Parent) -> None:
    connection = await parent.connected()
    reading = asyncio.ensure_future(parent.reply())
    await become(lambda: parent.inlet.switched)
    over = threading.Event()

    def send() -> None:
        for chunk in itertools.count():
            try:
                connection.sendall(encode_chunk_head(chunk, 4) + b"more")
            except OSError:
                break
        over.set()

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    assert parent.inlet.drain()
    seen = len(parent.taker.chunks)
    await become(lambda: len(parent.taker.chunks) > seen + 100)
    assert not reading.done()
    reading.cancel()
    parent.inlet.close()
    await asyncio.to_thread(over.wait, 30)
    assert over.is_set()
    assert not parent.inlet.drain()


async def test_one_that_is_moved_while_it_asks_whether_its_parent_is_gone(parent: Parent) -> None:
    connection = await parent.connected()
    reading = asyncio.ensure_future(parent.reply())
    await become(lambda: parent.inlet.switched)
    connection.close()  # and nothing is said on gRPC
    await become(lambda: parent.inlet._broken is not None)
    assert parent.inlet.drain()
    assert await reading is None
    assert not parent.fallbacks
