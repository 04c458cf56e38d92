"""How far an object is, told from its signal; and what a relay does about rot, lies and other names."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from relay_fleet import Fleet, PeerAt, assignment, edge, make_snapshot, peer_of, same_files, target
from relayd.edges import fault_of, watch

from chappe.core.relay_events import ChunksDropped, LocalFault, Progress, RelayEvent
from chappe.errors import DiskFullError, StoreError
from chappe.hop.client import FetchEnd, fetch
from chappe.hop.objects import StoredObject
from chappe.hop.source import SourceState
from chappe.hop.store import Store
from chappe.v1 import coordinator_pb2 as pb

A = "a" * 32
CHUNK = 1 << 16


def test_faults_of_the_store() -> None:
    assert fault_of(DiskFullError("no room")) is LocalFault.DISK_FULL
    assert fault_of(StoreError("EIO")) is LocalFault.STORE


async def test_header_last_chunk_and_rot_are_told_at_once(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.origin.offer(make_snapshot(tmp_path / "m", 4 * CHUNK), A)
        origin = fleet.origin.objects[0]
        with Store.open(tmp_path / "s") as store:
            held = store.create(A)
            events: asyncio.Queue[RelayEvent] = asyncio.Queue()
            task = asyncio.create_task(watch(held, events.put_nowait))
            held.put_header(origin.header_bytes)
            total = origin.manifest.chunks_total
            assert await events.get() == Progress(A, (), total)
            for page in range(origin.pages_held):
                held.put_page(origin.page_bytes(page))
            held.put_chunks([(i, origin.read_chunk(i)) for i in range(total)])
            assert await events.get() == Progress(A, ((0, total),), total)
            held.ledger.drop(1, 3)
            held.signal.fire()
            assert await events.get() == ChunksDropped(A, ((0, 1), (3, total)))
            store.discard(A)
            await task  # a dropped object is watched no longer
            assert events.empty()


async def test_rot_is_told_also_when_more_has_come_than_has_rotted(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.origin.offer(make_snapshot(tmp_path / "m", 20 * CHUNK), A)
        origin = fleet.origin.objects[0]
        with Store.open(tmp_path / "s") as store:
            held = store.create(A)
            held.put_header(origin.header_bytes)
            total = origin.manifest.chunks_total
            for page in range(origin.pages_held):
                held.put_page(origin.page_bytes(page))
            held.put_chunks([(i, origin.read_chunk(i)) for i in range(5)])
            events: asyncio.Queue[RelayEvent] = asyncio.Queue()
            task = asyncio.create_task(watch(held, events.put_nowait))
            held.ledger.drop(1, 3)
            held.put_chunks([(i, origin.read_chunk(i)) for i in range(5, 15)])
            assert await events.get() == ChunksDropped(A, ((0, 1), (3, 15)))
            held.put_chunks([(i, origin.read_chunk(i)) for i in (1, 2, *range(15, total))])
            assert await events.get() == Progress(A, ((0, total),), total)
            store.discard(A)
            await task
            assert events.empty()


async def test_rot_in_a_landed_copy_is_found_by_a_child_and_mended(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 20 * CHUNK)
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        first = await fleet.relay("r1")
        s1 = await coordinator.joined("r1")
        root = await fleet.origin.offer(snapshot, A)
        s1.say(assignment(1, [target(A, 1, root)], [edge(s1, fleet.origin.peer, A, 1)]))
        await coordinator.state("r1", pb.OBJECT_STATE_INSTALLED)
        path = tmp_path / "r1" / "snapshots" / "1" / "model.safetensors"
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(5 * CHUNK)
            file.write(b"rot!")
        reader = path.open("rb")  # who has the file open keeps it
        await fleet.relay("r2")
        s2 = await coordinator.joined("r2")
        s2.say(assignment(2, [target(A, 1, root)], [edge(s2, peer_of(s1), A, 2)]))
        await coordinator.told("r2", "parent_lost", lambda m: m.reason == "corrupt")
        await coordinator.state("r2", pb.OBJECT_STATE_INSTALLED)
        assert same_files(snapshot, tmp_path / "r2" / "current")
        await coordinator.told("r1", "holding", lambda m: "rotted" in m.holding.reason)
        held = first.relay.machine.holdings()[0]
        assert held.chunks == ((0, held.chunks_total),)
        mending = [task for task in first.relay.tasks if task.get_name().startswith("mending")]
        await asyncio.gather(*mending)
        assert same_files(snapshot, tmp_path / "r1" / "current")
        reader.seek(5 * CHUNK)
        assert reader.read(4) == b"rot!"
        reader.close()


async def test_rot_that_shows_in_the_root_costs_the_chunks_that_have_rotted(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 40 * CHUNK)
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        process = await fleet.relay("r1")
        s1 = await coordinator.joined("r1")
        root = await fleet.origin.offer(snapshot, A)
        s1.say(assignment(1, [target(A, 1)], [edge(s1, fleet.origin.peer, A, 1)]))
        await coordinator.state("r1", pb.OBJECT_STATE_RECEIVED)
        held = process.relay._store.get(A)
        assert held is not None
        assert held.manifest is not None
        (path,) = (tmp_path / "r1").glob("objects/*/files/model.safetensors")
        with path.open("r+b") as file:
            for chunk in (5, 6, 30):
                file.seek(held.manifest.place(chunk).offset + 100)
                file.write(b"rot!")
        assert held.recheck([5]) == [5]  # a child has complained; of its neighbour, and of another leaf, nobody has
        received = process.relay._peering.received
        await held.signal.wait(held.signal.count)
        await coordinator.state("r1", pb.OBJECT_STATE_RECEIVED)
        s1.say(assignment(2, [target(A, 1, root)], [edge(s1, fleet.origin.peer, A, 1)]))
        await coordinator.state("r1", pb.OBJECT_STATE_INSTALLED)
        assert same_files(snapshot, tmp_path / "r1" / "current")
        assert received.bytes_total < 45 * CHUNK


async def test_a_fetch_that_ends_after_its_object_was_given_up_claims_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root was wrong, so what it has brought is not here any more: it is fetched again, and not landed again."""
    given_up: list[object] = []

    async def fetch_late(channel: Any, request: Any, sink: StoredObject, **options: Any) -> FetchEnd:
        end = await fetch(channel, request, sink, **options)
        if not given_up:
            while sink.state is SourceState.OPEN:
                await sink.signal.wait(sink.signal.count)
            given_up.append(sink)
        return end

    monkeypatch.setattr("relayd.edges.fetch", fetch_late)
    async with Fleet(tmp_path) as fleet:
        await fleet.relay("r1")
        s1 = await fleet.coordinator.joined("r1")
        await fleet.origin.offer(make_snapshot(tmp_path / "m", 4 * CHUNK), A)
        lie = "xxh3_128:" + "0" * 32
        s1.say(assignment(1, [target(A, 1, lie)], [edge(s1, fleet.origin.peer, A, 1)]))
        failed = await fleet.coordinator.state("r1", pb.OBJECT_STATE_FAILED)
        assert "second transfer" in failed.reason
    assert len(given_up) == 1


async def test_a_parent_with_an_impossible_address_is_unreachable(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.relay("r1")
        s1 = await fleet.coordinator.joined("r1")
        s1.say(assignment(1, [target(A, 1)], [edge(s1, PeerAt("id-x", "x", "not an address"), A, 1)]))
        lost = await fleet.coordinator.told("r1", "parent_lost")
        assert (lost.parent, lost.reason) == ("id-x", "unreachable")


async def test_a_token_for_another_child_is_refused(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        await fleet.relay("r1")
        s1 = await fleet.coordinator.joined("r1")
        fleet.origin.offer(make_snapshot(tmp_path / "m", CHUNK), A)
        wrong = edge(s1, fleet.origin.peer, A, 1)
        wrong.token.claims = wrong.token.claims + b" "
        s1.say(assignment(1, [target(A, 1)], [wrong]))
        assert (await fleet.coordinator.told("r1", "parent_lost")).reason == "bad_token"


async def test_the_same_chain_under_mutual_tls(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 4 * CHUNK)
    async with Fleet(tmp_path, tls=True) as fleet:
        coordinator = fleet.coordinator
        for name in ("r1", "r2"):
            await fleet.relay(name)
        s1, s2 = await coordinator.joined("r1"), await coordinator.joined("r2")
        root = await fleet.origin.offer(snapshot, A)
        s1.say(assignment(1, [target(A, 1, root)], [edge(s1, fleet.origin.peer, A, 1)]))
        s2.say(assignment(2, [target(A, 1, root)], [edge(s2, peer_of(s1), A, 2)]))
        for name in ("r1", "r2"):
            await coordinator.state(name, pb.OBJECT_STATE_INSTALLED)
        assert same_files(snapshot, tmp_path / "r2" / "current")
        impostor = PeerAt(s1.hello.worker_id, "r3", s1.hello.address)  # r1 cannot show the certificate of r3
        other = "b" * 32
        s2.say(assignment(3, [target(other, 2)], [edge(s2, impostor, other, 3)]))
        assert (await coordinator.told("r2", "parent_lost")).reason == "unreachable"


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1])
async def test_small_and_empty_snapshots_land(tmp_path: Path, size: int) -> None:
    snapshot = make_snapshot(tmp_path / "model", size)
    (snapshot / "empty.txt").touch()
    async with Fleet(tmp_path) as fleet:
        await fleet.relay("r1")
        s1 = await fleet.coordinator.joined("r1")
        root = await fleet.origin.offer(snapshot, A)
        s1.say(assignment(1, [target(A, 1, root)], [edge(s1, fleet.origin.peer, A, 1)]))
        await fleet.coordinator.state("r1", pb.OBJECT_STATE_INSTALLED)
        assert same_files(snapshot, tmp_path / "r1" / "current")
