"""What relays say of their links, how they probe idle ones, and hops on which the parent dials. Real daemons."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from relay_fleet import (
    KEY,
    RUN,
    Fleet,
    Gate,
    PeerAt,
    Session,
    assignment,
    edge,
    make_snapshot,
    peer_of,
    same_files,
    target,
    token,
)

from chappe.cli.process import Process
from chappe.hop.meter import GRPC, TCP
from chappe.hop.probe import BUSY
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import relay_pb2

A = "a" * 32
CHUNK = 1 << 16
NOWHERE = "127.0.0.1:1"


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path, uplink_bytes_per_s=4e6) as made:
        yield made


class Relays:
    """Daemons in processes of their own."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.processes: dict[str, Process] = {}

    async def start(self, name: str, *flags: str) -> Session:
        arguments = ["--coordinator", self.fleet.address, "--store", str(self.fleet.directory / name), "--name", name]
        arguments += ["--listen", "127.0.0.1:0", "--log-format", "json", *flags]
        self.processes[name] = await Process.start(name, "relayd", arguments, self.fleet.directory / f"{name}.log")
        return await self.fleet.coordinator.joined(name)


@pytest.fixture
async def relays(fleet: Fleet) -> AsyncIterator[Relays]:
    made = Relays(fleet)
    yield made
    for process in made.processes.values():
        if process.returncode is None:
            await process.kill()


def pushed(child: Session, parent: PeerAt, object_id: str, epoch: int) -> pb.Edge:
    """The child's edge: its parent dials, and cannot be dialled."""
    made = edge(child, PeerAt(parent.worker_id, parent.name, NOWHERE), object_id, epoch)
    made.dialer = pb.DIALER_PARENT
    return made


def pushing(parent_edge: pb.Edge, parent: Session, child: Session, epoch: int) -> pb.Edge:
    """The parent's edge, with a child to dial."""
    made = pb.Edge()
    made.CopyFrom(parent_edge)
    made.children.add(
        child=peer_of(child).message(),
        generation=child.hello.generation,
        epoch=epoch,
        dialer=pb.DIALER_PARENT,
        token=token(
            parent.hello.worker_id, child.hello.worker_id, parent_edge.object_id, epoch, child.hello.generation
        ),
    )
    return made


def samples(fleet: Fleet, name: str, *, sending: bool) -> list[pb.LinkSample]:
    heard = fleet.coordinator.sessions[name].heard
    reports = [m.links for m in heard if m.WhichOneof("message") == "links"]
    return [sample for report in reports for sample in report.samples if sample.sending is sending]


async def test_both_ends_of_a_hop_report_it(fleet: Fleet, relays: Relays, tmp_path: Path) -> None:
    size = 80 * CHUNK
    s1, s2 = await relays.start("r1"), await relays.start("r2")
    root = await fleet.origin.offer(make_snapshot(tmp_path / "model", size), A)
    s1.say(assignment(1, [target(A, 1, root)], [edge(s1, fleet.origin.peer, A, 1)]))
    s2.say(assignment(2, [target(A, 1, root)], [edge(s2, peer_of(s1), A, 2)]))
    for name in ("r1", "r2"):
        await fleet.coordinator.state(name, pb.OBJECT_STATE_INSTALLED)

    def total(name: str, sending: bool) -> int:
        return sum(sample.bytes for sample in samples(fleet, name, sending=sending))

    for name, sending in (("r1", False), ("r1", True), ("r2", False)):
        await fleet.coordinator.until(lambda name=name, sending=sending: total(name, sending) >= size)
        assert total(name, sending) < size * 1.05
    received = samples(fleet, "r1", sending=False)
    assert {sample.peer for sample in received} == {fleet.origin.worker_id}
    busy_s = sum(sample.busy_s for sample in received)
    assert busy_s > 0
    mean = sum(sample.bytes_per_s * sample.busy_s for sample in received) / busy_s
    assert 0 < mean < 4e6 * 5  # the origin's limit, and room for a machine that lets a relay wait and then catch up
    assert {sample.peer for sample in samples(fleet, "r1", sending=True)} == {s2.hello.worker_id}


def probe(peer: Session, child: Session, epoch: int, **changes: Any) -> pb.JoinReply:
    claims = relay_pb2.EdgeClaims(
        run=RUN,
        parent=peer.hello.worker_id,
        child=child.hello.worker_id,
        child_generation=child.hello.generation,
        epoch=epoch,
    )
    order = pb.ProbeOrder(
        order=f"order-{epoch}",
        peer=peer_of(peer).message(),
        token=KEY.sign(claims),
        bytes_max=1 << 20,
        seconds_max=1.0,
    )
    return pb.JoinReply(probe=order)


async def test_an_idle_link_is_probed_and_one_in_use_is_not(fleet: Fleet, relays: Relays, tmp_path: Path) -> None:
    s1, s2 = await relays.start("r1"), await relays.start("r2")
    s1.say(probe(s2, s1, 1))
    result = await fleet.coordinator.told("r1", "probe_result")
    assert (result.order, result.error) == ("order-1", "")
    assert result.up_bytes_per_s > 0
    assert result.down_bytes_per_s > 0
    assert 0 < result.bytes <= 2 << 20
    gate = Gate(128)
    offered = fleet.origin.offer(make_snapshot(tmp_path / "model", 300 * CHUNK), A, gate)
    s2.say(assignment(1, [target(A, 1)], [edge(s2, fleet.origin.peer, A, 1)]))
    await fleet.coordinator.told("r2", "parent_connected")
    for asked, other, name, epoch in ((s1, s2, "r1", 2), (s2, s1, "r2", 3)):
        asked.say(probe(other, asked, epoch))
        order = f"order-{epoch}"
        refused = await fleet.coordinator.told(name, "probe_result", lambda m, order=order: m.order == order)
        assert (refused.error, refused.bytes) == (BUSY, 0)
    gate.open()
    await offered


async def test_a_parent_that_cannot_be_dialled_dials(fleet: Fleet, relays: Relays, tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 20 * CHUNK)
    s1, s2 = await relays.start("r1", "--no-dial-in"), await relays.start("r2")
    assert [s.hello.dialable for s in (s1, s2)] == [pb.DIALABLE_NO, pb.DIALABLE_UNSPECIFIED]
    root = await fleet.origin.offer(snapshot, A)
    s2.say(assignment(1, [target(A, 1, root)], [pushed(s2, peer_of(s1), A, 2)]))
    head = edge(s1, fleet.origin.peer, A, 1)
    s1.say(assignment(2, [target(A, 1, root)], [pushing(head, s1, s2, 2)]))
    for name in ("r1", "r2"):
        await fleet.coordinator.state(name, pb.OBJECT_STATE_INSTALLED)
        assert same_files(snapshot, tmp_path / name / "current")
    connected = await fleet.coordinator.told("r2", "parent_connected")
    assert (connected.parent, connected.epoch) == (s1.hello.worker_id, 2)


@pytest.mark.parametrize(("transport", "carried"), [("auto", TCP), ("grpc", GRPC)])
async def test_a_parent_that_dials_opens_the_data_connection_too(
    fleet: Fleet, tmp_path: Path, transport: str, carried: str
) -> None:
    snapshot = make_snapshot(tmp_path / "model", 150 * CHUNK)
    parent, child = await fleet.relay("r1"), await fleet.relay("r2", transport=transport)
    s1, s2 = [await fleet.coordinator.joined(name) for name in ("r1", "r2")]
    gate = Gate(128)  # a page
    offered = fleet.origin.offer(snapshot, A, gate)
    s2.say(assignment(1, [target(A, 1)], [pushed(s2, peer_of(s1), A, 2)]))
    s1.say(assignment(2, [target(A, 1)], [pushing(edge(s1, fleet.origin.peer, A, 1), s1, s2, 2)]))
    await fleet.coordinator.told("r2", "holding", lambda m: m.holding.chunks)
    async with asyncio.timeout(30):
        while {*child.relay._read().hops["downlink"], *parent.relay._read().hops["uplink"]} != {carried}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    gate.open()
    s2.say(assignment(3, [target(A, 1, await offered)], [pushed(s2, peer_of(s1), A, 2)]))
    await fleet.coordinator.state("r2", pb.OBJECT_STATE_INSTALLED)
    assert same_files(snapshot, tmp_path / "r2" / "current")


async def test_a_child_is_moved_from_a_parent_that_dialled_to_one_that_it_dials(
    fleet: Fleet, relays: Relays, tmp_path: Path
) -> None:
    snapshot = make_snapshot(tmp_path / "model", 150 * CHUNK)
    s1, s2 = await relays.start("r1"), await relays.start("r2")
    gate = Gate(128)  # a page
    offered = fleet.origin.offer(snapshot, A, gate)
    s2.say(assignment(1, [target(A, 1)], [pushed(s2, peer_of(s1), A, 2)]))
    s1.say(assignment(2, [target(A, 1)], [pushing(edge(s1, fleet.origin.peer, A, 1), s1, s2, 2)]))
    await fleet.coordinator.told("r2", "holding", lambda m: m.holding.chunks)
    await relays.processes["r1"].kill()
    lost = await fleet.coordinator.told("r2", "parent_lost", lambda m: m.reason == "broken")
    assert lost.parent == s1.hello.worker_id
    gate.open()
    s2.say(assignment(3, [target(A, 1, await offered)], [edge(s2, fleet.origin.peer, A, 3)]))
    await fleet.coordinator.state("r2", pb.OBJECT_STATE_INSTALLED)
    assert same_files(snapshot, tmp_path / "r2" / "current")


async def test_a_parent_that_was_to_dial_and_does_not_is_unreachable(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relayd.edges.PUSH_WAIT_S", 0.1)
    snapshot = make_snapshot(tmp_path / "model", 4 * CHUNK)
    await fleet.relay("r2")
    s2 = await fleet.coordinator.joined("r2")
    root = await fleet.origin.offer(snapshot, A)
    waiting = pushed(s2, PeerAt("id-x", "x", NOWHERE), A, 2)
    fallback = token(fleet.origin.worker_id, s2.hello.worker_id, A, 3, fallback=True)
    waiting.fallbacks.add(parent=fleet.origin.peer.message(), token=fallback)
    s2.say(assignment(1, [target(A, 1, root)], [waiting]))
    lost = await fleet.coordinator.told("r2", "parent_lost")
    assert (lost.parent, lost.reason) == ("id-x", "unreachable")
    await fleet.coordinator.state("r2", pb.OBJECT_STATE_INSTALLED)  # from the fallback, which it dials
    assert same_files(snapshot, tmp_path / "r2" / "current")


async def test_a_stopped_parent_has_stalled(fleet: Fleet, relays: Relays, tmp_path: Path) -> None:
    s1, s2 = await relays.start("r1"), await relays.start("r2", "--stall-timeout", "1s")
    gate = Gate(128)  # a page
    offered = fleet.origin.offer(make_snapshot(tmp_path / "model", 150 * CHUNK), A, gate)
    s1.say(assignment(1, [target(A, 1)], [edge(s1, fleet.origin.peer, A, 1)]))
    s2.say(assignment(2, [target(A, 1)], [edge(s2, peer_of(s1), A, 2)]))
    await fleet.coordinator.told("r2", "holding", lambda m: m.holding.chunks)
    relays.processes["r1"].send_signal(signal.SIGSTOP)
    lost = await fleet.coordinator.told("r2", "parent_lost", lambda m: m.reason == "stalled")
    assert lost.parent == s1.hello.worker_id
    relays.processes["r1"].send_signal(signal.SIGCONT)
    gate.open()
    await offered
