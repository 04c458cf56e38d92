from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
import pytest
from fakes import KEY, RUN, claims

from chappe.clock import boot_now
from chappe.core.effects import PeerRef
from chappe.core.probes import ProbeOrder, ProbeOutcome
from chappe.errors import UsageError
from chappe.hop.catalog import Catalog
from chappe.hop.guard import EdgeGuard
from chappe.hop.limits import TokenBucket
from chappe.hop.net import RunningServer, open_channel, open_server, parse_address
from chappe.hop.probe import BUSY, ProbeDesk
from chappe.hop.probeflow import PROBE_BYTES_MAX, WINDOW_MIN_BYTES, Arrivals, Limits, Window
from chappe.hop.server import RELAY_SERVICE, RelayService
from chappe.v1.relay_pb2 import EdgeToken, ProbeMessage


@dataclass
class Prober:
    """A node that can be probed and can probe; `flows` is what it says of itself."""

    worker_id: str
    desk: ProbeDesk
    server: RunningServer
    flows: bool = False

    def channel(self) -> grpc.aio.Channel:
        return open_channel(self.server.address, None, self.worker_id)

    async def probe(self, peer: Prober, **changes: Any) -> ProbeOutcome:
        order = an_order(peer.worker_id, self.worker_id, str(peer.server.address), **changes)
        return await self.desk.run(order, peer.channel)


def an_order(parent: str, child: str, address: str, **changes: Any) -> ProbeOrder:
    options = {"bytes_max": 1 << 20, "seconds_max": 2.0}
    options |= {key: changes.pop(key) for key in list(changes) if key in options}
    token = KEY.sign(claims(parent, child, **({"object_id": ""} | changes)))
    return ProbeOrder("order-1", PeerRef(parent, parent, address), token.SerializeToString(), **options)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def start(stack: AsyncExitStack, worker_id: str, **buckets: TokenBucket) -> Prober:
    guard = EdgeGuard(worker_id)
    guard.set_run(RUN, KEY.public_bytes())
    desk = ProbeDesk(guard, lambda: prober.flows, **buckets)
    service = RelayService(Catalog(), guard, probes=desk)
    server = await open_server(parse_address("127.0.0.1:0"), None, {RELAY_SERVICE: service.add_to})
    stack.push_async_callback(server.stop, 0)
    prober = Prober(worker_id, desk, server)
    return prober


async def pair(stack: AsyncExitStack) -> tuple[Prober, Prober]:
    return await start(stack, "r1"), await start(stack, "r2")


async def test_both_directions_are_measured(stack: AsyncExitStack) -> None:
    r1, r2 = await pair(stack)
    outcome = await r1.probe(r2)
    assert (outcome.order, outcome.error) == ("order-1", "")
    assert outcome.bytes == 2 << 20
    assert outcome.up_bytes_per_s > 0
    assert outcome.down_bytes_per_s > 0
    assert outcome.seconds > 0


async def test_each_direction_is_measured_by_itself(stack: AsyncExitStack) -> None:
    r1 = await start(stack, "r1", uplink=TokenBucket(1e6))
    r2 = await start(stack, "r2")
    outcome = await r1.probe(r2, bytes_max=512 << 10)
    assert 0 < outcome.up_bytes_per_s < outcome.down_bytes_per_s
    assert outcome.bytes == 1 << 20


async def test_time_ends_it_before_the_bytes_do(stack: AsyncExitStack) -> None:
    r1 = await start(stack, "r1", uplink=TokenBucket(1e6))
    r2 = await start(stack, "r2", uplink=TokenBucket(1e6))
    outcome = await r1.probe(r2, bytes_max=PROBE_BYTES_MAX, seconds_max=1.0)
    assert outcome.error == ""
    assert 0 < outcome.bytes < PROBE_BYTES_MAX  # at its rate, one direction alone would take eight seconds


async def test_no_order_can_ask_for_more_than_the_limit(stack: AsyncExitStack) -> None:
    r1, r2 = await pair(stack)
    outcome = await r1.probe(r2, bytes_max=1 << 40)
    assert outcome.bytes <= 2 * PROBE_BYTES_MAX


@pytest.mark.parametrize("busy", ["r1", "r2"])
async def test_never_while_something_flows(stack: AsyncExitStack, busy: str) -> None:
    r1, r2 = await pair(stack)
    {"r1": r1, "r2": r2}[busy].flows = True
    outcome = await r1.probe(r2)
    assert outcome == ProbeOutcome("order-1", error=BUSY)


@pytest.mark.parametrize("busy", ["r1", "r2"])
async def test_it_gives_way_to_a_publication_that_begins(stack: AsyncExitStack, busy: str) -> None:
    r1 = await start(stack, "r1", uplink=TokenBucket(2e6))
    r2 = await start(stack, "r2", uplink=TokenBucket(2e6))
    nodes = {"r1": r1, "r2": r2}
    with arrivals() as arrived:
        probing = asyncio.ensure_future(r1.probe(r2, bytes_max=PROBE_BYTES_MAX))
        await asyncio.wait_for(arrived.wait(), 30)
        nodes[busy].flows = True
        outcome = await probing
    assert outcome.error == BUSY
    assert not (await r2.probe(r1)).up_bytes_per_s  # still refused while it flows
    nodes[busy].flows = False
    async with asyncio.timeout(30):
        await r1.desk.idle()
        await r2.desk.idle()
    assert (await r2.probe(r1)).error == ""  # and nothing of the first probe is left


@pytest.mark.parametrize("busy", ["r1", "r2"])
async def test_it_gives_way_also_on_the_way_back(
    stack: AsyncExitStack, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    r1, r2 = await pair(stack)
    nodes = {"r1": r1, "r2": r2}
    sent = Window.sent

    def watched(self: Window, size_bytes: int, now: float) -> None:
        sent(self, size_bytes, now)
        nodes[busy].flows = nodes[busy].flows or (turned and self.sent_bytes >= 256 << 10)

    turned = False
    send_back = ProbeDesk._send_back

    async def turning(self: ProbeDesk, first: ProbeMessage, context: Any) -> None:
        nonlocal turned
        turned = True
        await send_back(self, first, context)

    monkeypatch.setattr(Window, "sent", watched)
    monkeypatch.setattr(ProbeDesk, "_send_back", turning)
    assert (await r1.probe(r2)).error == BUSY
    async with asyncio.timeout(30):  # the other end may be at its next piece
        await r1.desk.idle()
        await r2.desk.idle()
    monkeypatch.undo()
    nodes[busy].flows = False
    assert (await r2.probe(r1)).error == ""


@contextmanager
def arrivals() -> Iterator[asyncio.Event]:
    """Set when the first filler has arrived anywhere."""
    came = asyncio.Event()
    add = Arrivals.add

    def watched(self: Arrivals, size_bytes: int, now: float) -> None:
        add(self, size_bytes, now)
        came.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "add", watched)
        yield came


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"object_id": "a" * 32}, "not for a probe of this node"),
        ({"parent": "other"}, "not for a probe of this node"),
        ({"run": "other"}, "for run 'other'"),
    ],
)
async def test_a_token_for_something_else_is_refused(stack: AsyncExitStack, changes: dict[str, Any], says: str) -> None:
    r1, r2 = await pair(stack)
    order = an_order("r2", "r1", str(r2.server.address))
    wrong = KEY.sign(claims(changes.get("parent", "r2"), "r1", **({"object_id": ""} | changes)))
    outcome = await r1.desk.run(
        ProbeOrder(order.order, order.peer, wrong.SerializeToString(), order.bytes_max, order.seconds_max), r2.channel
    )
    assert says in outcome.error


async def test_a_token_is_good_once(stack: AsyncExitStack) -> None:
    r1, r2 = await pair(stack)
    assert (await r1.probe(r2, epoch=5)).error == ""
    assert "made before" in (await r1.probe(r2, epoch=5)).error
    assert (await r1.probe(r2, epoch=6)).error == ""


async def test_a_forged_token_is_refused(stack: AsyncExitStack) -> None:
    r1, r2 = await pair(stack)
    order = an_order("r2", "r1", "")
    forged = EdgeToken(claims=EdgeToken.FromString(order.token).claims, signature=os.urandom(64))
    outcome = await r1.desk.run(ProbeOrder("order-2", order.peer, forged.SerializeToString(), 1 << 20, 1.0), r2.channel)
    assert "not signed" in outcome.error


async def test_a_caller_that_sends_more_than_is_allowed_is_stopped(stack: AsyncExitStack) -> None:
    r2 = await start(stack, "r2")
    async with r2.channel() as channel:
        call = a_call(channel)
        token = KEY.sign(claims("r2", "r1", object_id=""))
        await call.write(ProbeMessage(protocol_version=1, token=token))

        async def send_for_ever() -> None:
            while True:
                await call.write(ProbeMessage(filler=bytes(1 << 20)))

        with pytest.raises((asyncio.InvalidStateError, grpc.aio.AioRpcError)):
            await asyncio.wait_for(send_for_ever(), 30)


async def test_who_cannot_be_reached_is_an_error_in_the_outcome(stack: AsyncExitStack) -> None:
    r1, r2 = await pair(stack)
    await r2.server.stop(0)
    assert (await r1.probe(r2)).error

    def nobody() -> grpc.aio.Channel:
        raise UsageError("not an address")

    assert (await r1.desk.run(an_order("r2", "r1", ""), nobody)).error == "not an address"


def test_the_first_quarter_does_not_count() -> None:
    arrived = Arrivals()
    assert arrived.bytes_per_s() == 0.0
    for i in range(4):
        arrived.add(1000, 10.0 + i)  # slow start
    for i in range(12):
        arrived.add(1000, 13.1 + 0.1 * i)
    assert arrived.bytes_per_s() == pytest.approx(10_000)


def a_call(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream(
        "/chappe.v1.Relay/Probe",
        request_serializer=ProbeMessage.SerializeToString,
        response_deserializer=ProbeMessage.FromString,
    )()


async def test_a_caller_of_an_older_version_is_answered_as_ever(stack: AsyncExitStack) -> None:
    r2 = await start(stack, "r2")
    async with r2.channel() as channel:
        call = a_call(channel)
        token = KEY.sign(claims("r2", "r1", object_id=""))
        await call.write(ProbeMessage(protocol_version=1, token=token, want_bytes=3 << 20, seconds_max=2.0))
        for _ in range(16):
            await call.write(ProbeMessage(filler=bytes(64 << 10)))
        await call.done_writing()
        messages = [message async for message in call]
    assert messages[0].got_bytes == 1 << 20
    assert not any(message.HasField("taken_bytes") for message in messages)
    assert sum(len(message.filler) for message in messages) == 3 << 20  # nothing of it was acknowledged


async def serve_otherwise(stack: AsyncExitStack, answer: Callable[[Any], Awaitable[None]]) -> RunningServer:
    """A node whose Probe is `answer`."""

    async def probe(_requests: object, context: Any) -> None:
        await answer(context)

    handler = grpc.stream_stream_rpc_method_handler(
        probe, request_deserializer=ProbeMessage.FromString, response_serializer=ProbeMessage.SerializeToString
    )

    def add_to(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(RELAY_SERVICE, {"Probe": handler}),))

    server = await open_server(parse_address("127.0.0.1:0"), None, {RELAY_SERVICE: add_to})
    stack.push_async_callback(server.stop, 0)
    return server


async def test_a_peer_of_an_older_version_gets_a_half_close(stack: AsyncExitStack) -> None:
    async def older(context: Any) -> None:
        got = 0
        while isinstance(message := await context.read(), ProbeMessage):
            got += len(message.filler)
        await context.write(ProbeMessage(got_bytes=got, got_seconds=1.0))
        for _ in range(8):
            await context.write(ProbeMessage(filler=bytes(64 << 10)))

    server = await serve_otherwise(stack, older)
    r1 = await start(stack, "r1")
    outcome = await r1.desk.run(
        an_order("r2", "r1", str(server.address)), lambda: open_channel(server.address, None, "r2")
    )
    assert (outcome.error, outcome.bytes, outcome.up_bytes_per_s) == ("", (1 << 20) + (512 << 10), 1 << 20)


async def test_a_peer_that_has_taken_what_was_never_sent_ends_it(stack: AsyncExitStack) -> None:
    async def liar(context: Any) -> None:
        await context.write(ProbeMessage(protocol_version=1, taken_bytes=0))
        await context.write(ProbeMessage(taken_bytes=1 << 40))
        while isinstance(await context.read(), ProbeMessage):
            pass

    server = await serve_otherwise(stack, liar)
    r1 = await start(stack, "r1")
    outcome = await r1.desk.run(
        an_order("r2", "r1", str(server.address)), lambda: open_channel(server.address, None, "r2")
    )
    assert "that were sent" in outcome.error


async def test_little_is_under_way_to_a_peer_that_takes_nothing_more(stack: AsyncExitStack) -> None:
    came: list[int] = []

    async def stuck(context: Any) -> None:
        await context.write(ProbeMessage(protocol_version=1, taken_bytes=0))
        while isinstance(message := await context.read(), ProbeMessage):
            came.append(len(message.filler))
            if message.all_sent:
                await context.write(ProbeMessage(got_bytes=sum(came), got_seconds=1.0))
                return

    server = await serve_otherwise(stack, stuck)
    r1 = await start(stack, "r1")
    order = an_order("r2", "r1", str(server.address), bytes_max=8 << 20, seconds_max=0.3)
    outcome = await r1.desk.run(order, lambda: open_channel(server.address, None, "r2"))
    assert sum(came) == WINDOW_MIN_BYTES
    assert outcome.up_bytes_per_s == WINDOW_MIN_BYTES


async def test_a_peer_that_dies_while_it_sends_back_is_an_error_in_the_outcome(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its filler is here, its call is over, and what is acknowledged then finds no call any more."""

    async def dies(context: Any) -> None:
        await context.write(ProbeMessage(protocol_version=1, taken_bytes=0))
        while isinstance(message := await context.read(), ProbeMessage) and not message.all_sent:
            pass
        await context.write(ProbeMessage(got_bytes=1 << 20, got_seconds=1.0))
        await context.write(ProbeMessage(filler=bytes(64 << 10)))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    calls: list[Any] = []

    async def until_it_is_over(self: ProbeDesk, arrived: Arrivals, message: ProbeMessage) -> None:
        await calls[0].code()
        arrived.add(len(message.filler), 1.0)

    converse = ProbeDesk._converse

    async def seen(self: ProbeDesk, probe: Any, call: Any) -> str:
        calls.append(call)
        return await converse(self, probe, call)

    monkeypatch.setattr(ProbeDesk, "_converse", seen)
    monkeypatch.setattr(ProbeDesk, "_take", until_it_is_over)
    server = await serve_otherwise(stack, dies)
    r1 = await start(stack, "r1")
    outcome = await r1.desk.run(
        an_order("r2", "r1", str(server.address)), lambda: open_channel(server.address, None, "r2")
    )
    assert outcome.error == "gone"


async def test_a_first_acknowledgement_that_is_late_counts(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both go on with acknowledgements: without them the peer would have no more than its smallest window."""
    filler = Limits.filler

    async def not_waited_for(*_: object) -> None:
        pass

    async def from_then_on(self: Limits, bucket: TokenBucket | None, window: Window) -> AsyncIterator[bytes]:
        async for piece in filler(self, bucket, window):
            yield piece
            await window._until(boot_now() + 30, lambda: window.acknowledged)

    monkeypatch.setattr(Window, "opened", not_waited_for)
    monkeypatch.setattr(Limits, "filler", from_then_on)
    r1, r2 = await pair(stack)
    outcome = await r1.probe(r2)
    assert (outcome.error, outcome.bytes) == ("", 2 << 20)
