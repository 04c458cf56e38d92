"""Relays in this process against a coordinator that does as it is told, and a real origin."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from relay_fleet import Fleet, Gate, assignment, edge, make_snapshot, peer_of, same_files, target

from chappe.core.events import ObjectState
from chappe.core.relay_events import StopRequested
from chappe.errors import RefusedError, WrongRunError
from chappe.subscriber import AsyncSubscriber
from chappe.v1 import coordinator_pb2 as pb

A, B = "a" * 32, "b" * 32
CHUNK = 1 << 16


async def test_a_snapshot_goes_down_a_chain_of_two_and_lands(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 3_000_000)
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        first = await fleet.relay("r1", http="127.0.0.1:0")
        await fleet.relay("r2")
        s1, s2 = await coordinator.joined("r1"), await coordinator.joined("r2")
        hashing = fleet.origin.offer(snapshot, A)
        s1.say(assignment(1, [target(A, 7)], [edge(s1, fleet.origin.peer, A, 1)]))
        s2.say(assignment(2, [target(A, 7)], [edge(s2, peer_of(s1), A, 2)]))
        root = await hashing
        for name in ("r1", "r2"):
            received = await coordinator.state(name, pb.OBJECT_STATE_RECEIVED)
            assert [(r.start, r.stop) for r in received.chunks] == [(0, received.chunks_total)]
            assert (received.version, received.root) == (0, "")
        for session, parent in ((s1, fleet.origin.peer), (s2, peer_of(s1))):
            epoch = 3 if session is s1 else 4
            edge_epoch = 1 if session is s1 else 2
            session.say(assignment(epoch, [target(A, 7, root)], [edge(session, parent, A, edge_epoch)]))
        for name in ("r1", "r2"):
            installed = await coordinator.state(name, pb.OBJECT_STATE_INSTALLED)
            assert (installed.version, installed.root) == (7, root)
            store = tmp_path / name
            assert (store / "current").readlink() == Path("snapshots/7")
            assert same_files(snapshot, store / "current")
        assert (await coordinator.told("r2", "parent_connected")).parent == s1.hello.worker_id
        assert (await coordinator.told("r2", "acknowledge", lambda m: m.epoch == 4)).epoch == 4
        assert first.http is not None
        async with aiohttp.ClientSession() as client, client.get(f"{first.http.url}/metrics") as reply:
            text = await reply.text()
        assert 'relayd_snapshot_version{state="installed"} 7.0' in text
        sent = sum(p.stat().st_size for p in snapshot.iterdir())
        counters = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert sent <= float(counters["relayd_received_bytes_total"]) < sent * 1.01
        assert sent <= float(counters["relayd_forwarded_bytes_total"]) < sent * 1.01
        async with aiohttp.ClientSession() as client, client.get(f"{first.http.url}/readyz") as reply:
            assert (reply.status, await reply.text()) == (200, "version 7 is installed\n")


async def test_chunks_are_passed_on_before_the_origin_has_more(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 200 * CHUNK)
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        names = ["r1", "r2", "r3", "r4"]
        for name in names:
            await fleet.relay(name)
        sessions = [await coordinator.joined(name) for name in names]
        gate = Gate(128)
        hashing = fleet.origin.offer(snapshot, A, gate)
        parent = fleet.origin.peer
        for epoch, session in enumerate(sessions, 1):
            session.say(assignment(epoch, [target(A, 1)], [edge(session, parent, A, epoch)]))
            parent = peer_of(session)
        held = len(fleet.origin.objects[0].ledger.held)

        def has(message: pb.HoldingChanged) -> bool:
            return sum(r.stop - r.start for r in message.holding.chunks) >= max(
                1, len(fleet.origin.objects[0].ledger.held)
            )

        for name in names:
            await coordinator.told(name, "holding", has)
        held = len(fleet.origin.objects[0].ledger.held)
        assert 0 < held < fleet.origin.objects[0].manifest.chunks_total
        gate.open()
        await hashing
        for name in names:
            await coordinator.state(name, pb.OBJECT_STATE_RECEIVED)


async def test_a_child_whose_parent_dies_heals_by_its_fallback_without_a_coordinator(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 100 * CHUNK)
    async with Fleet(tmp_path) as fleet, AsyncExitStack() as mortal:
        coordinator = fleet.coordinator
        await fleet.relay("r1", mortal)
        await fleet.relay("r2")
        s1, s2 = await coordinator.joined("r1"), await coordinator.joined("r2")
        gate = Gate(64)
        hashing = fleet.origin.offer(snapshot, A, gate)
        s1.say(assignment(1, [target(A, 1)], [edge(s1, fleet.origin.peer, A, 1)]))
        s2.say(assignment(2, [target(A, 1)], [edge(s2, peer_of(s1), A, 2, (fleet.origin.peer,))]))
        await coordinator.told("r2", "parent_connected")
        await coordinator.stop()  # nobody is there to help
        await mortal.aclose()
        gate.open()
        root = await hashing
        address = await coordinator.start(fleet.address)
        assert address == fleet.address
        again = await coordinator.until(lambda: coordinator.sessions["r2"] is not s2 and coordinator.sessions["r2"])
        again.say(assignment(3, [target(A, 1, root)], [edge(again, fleet.origin.peer, A, 3)]))
        await coordinator.state("r2", pb.OBJECT_STATE_INSTALLED)
        assert again.hello.assignment_epoch == 2
        assert same_files(snapshot, tmp_path / "r2" / "current")


async def test_hello_shows_what_is_here_and_the_streams_that_are(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 100 * CHUNK)
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        daemon = await fleet.relay("r1", uplink="10MB", price_per_hour=2.5)
        s1 = await coordinator.joined("r1")
        assert (s1.hello.uplink_bytes_per_s, s1.hello.downlink_bytes_per_s, s1.hello.price_per_hour) == (1e7, 0, 2.5)
        assert (s1.hello.generation, s1.hello.run, s1.hello.address) == (1, "", str(daemon.server.address))
        gate = Gate(64)
        fleet.origin.offer(snapshot, A, gate)
        s1.say(assignment(5, [target(A, 1)], [edge(s1, fleet.origin.peer, A, 4)]))
        await coordinator.told("r1", "holding", lambda m: m.holding.chunks_total > 0)
        s1.end()
        again = await coordinator.until(lambda: coordinator.sessions["r1"] is not s1 and coordinator.sessions["r1"])
        assert [(e.object_id, e.parent, e.epoch) for e in again.hello.edges] == [(A, "origin-id", 4)]
        assert [(h.object_id, h.state) for h in again.hello.holdings] == [(A, pb.OBJECT_STATE_RECEIVING)]
        assert (again.hello.assignment_epoch, again.hello.run) == (5, "run-1")
        received = daemon.relay.metrics.registry.get_sample_value("relayd_received_bytes_total")
        again.say(assignment(5, [target(A, 1)], [edge(again, fleet.origin.peer, A, 4)]))
        await coordinator.told("r1", "acknowledge")
        assert len(daemon.relay.machine.edges()) == 1  # the stream went on
        gate.open()
        await coordinator.state("r1", pb.OBJECT_STATE_RECEIVED)
        assert received is not None


async def test_a_restart_lands_what_was_received_and_fetches_nothing_again(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 40 * CHUNK)
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        async with AsyncExitStack() as mortal:
            await fleet.relay("r1", mortal)
            s1 = await coordinator.joined("r1")
            root = await fleet.origin.offer(snapshot, A)
            s1.say(assignment(1, [target(A, 1)], [edge(s1, fleet.origin.peer, A, 1)]))
            await coordinator.state("r1", pb.OBJECT_STATE_RECEIVED)
        daemon = await fleet.relay("r1")
        again = await coordinator.joined("r1", generation=2)
        assert [h.state for h in again.hello.holdings] == [pb.OBJECT_STATE_RECEIVED]
        again.say(assignment(2, [target(A, 1, root)], [edge(again, fleet.origin.peer, A, 2)]))
        await coordinator.state("r1", pb.OBJECT_STATE_INSTALLED)
        assert daemon.relay.metrics.registry.get_sample_value("relayd_received_bytes_total") == 0
        assert same_files(snapshot, tmp_path / "r1" / "current")


async def test_versions_follow_each_other_and_old_ones_go(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        daemon = await fleet.relay("r1")
        s1 = await coordinator.joined("r1")
        subscriber = AsyncSubscriber(tmp_path / "r1")
        watching = asyncio.create_task(subscriber.wait(newer_than=2, timeout_s=30))
        for version in (1, 2, 3, 4):
            object_id = f"{version:032x}"
            snapshot = make_snapshot(tmp_path / f"model{version}", 100_000, version)
            root = await fleet.origin.offer(snapshot, object_id)
            edges = [edge(s1, fleet.origin.peer, object_id, version)]
            s1.say(
                assignment(
                    version, [target(object_id, version, root)], edges, keep=(version - 1,) if version > 1 else ()
                )
            )
            await coordinator.state("r1", pb.OBJECT_STATE_INSTALLED, object_id)
        assert (await watching).version == 3
        s1.say(assignment(9, [], []))
        await coordinator.told("r1", "acknowledge", lambda m: m.epoch == 9)
        assert sorted(p.name for p in (tmp_path / "r1" / "snapshots").iterdir()) == ["3", "4"]
        assert {h.version for h in daemon.relay.machine.holdings()} == {3, 4}


async def test_an_object_that_is_not_wanted_any_more_is_dropped(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 100 * CHUNK)
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        daemon = await fleet.relay("r1")
        s1 = await coordinator.joined("r1")
        fleet.origin.offer(snapshot, A, Gate(64))
        s1.say(assignment(1, [target(A, 1)], [edge(s1, fleet.origin.peer, A, 1)]))
        await coordinator.told("r1", "holding", lambda m: m.holding.chunks_total > 0)
        s1.say(assignment(2, [], []))
        await coordinator.told("r1", "acknowledge", lambda m: m.epoch == 2)
        assert daemon.relay.machine.holdings() == ()
        assert list((tmp_path / "r1" / "objects").iterdir()) == []
        running = daemon.relay._tasks.running
        await asyncio.gather(*(task for task in running if task.get_name() == "emptying the trash"))
        assert list((tmp_path / "r1" / "trash").iterdir()) == []  # the next version may need its room


async def test_a_lying_root_is_fetched_once_more_and_then_given_up(tmp_path: Path) -> None:
    snapshot = make_snapshot(tmp_path / "model", 10 * CHUNK)
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        daemon = await fleet.relay("r1")
        s1 = await coordinator.joined("r1")
        await fleet.origin.offer(snapshot, A)
        lie = "xxh3_128:" + "0" * 32
        s1.say(assignment(1, [target(A, 1, lie)], [edge(s1, fleet.origin.peer, A, 1)]))
        failed = await coordinator.state("r1", pb.OBJECT_STATE_FAILED)
        assert "second transfer" in failed.reason
        size = sum(p.stat().st_size for p in snapshot.iterdir())
        received = daemon.relay.metrics.registry.get_sample_value("relayd_received_bytes_total")
        assert received is not None
        assert 2 * size <= received < 2.1 * size
        assert not (tmp_path / "r1" / "current").exists()


async def test_an_install_command_sees_both_versions_and_its_failure_is_shown(tmp_path: Path) -> None:
    out = tmp_path / "seen"
    command = (
        f'command echo "$CHAPPE_VERSION $CHAPPE_PATH $CHAPPE_PREVIOUS_VERSION $CHAPPE_PREVIOUS_PATH" >> {out}; '
        '[ "$CHAPPE_VERSION" != 2 ] || { echo out of GPU memory >&2; exit 3; }'
    )
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        daemon = await fleet.relay("r1", install=command)
        s1 = await coordinator.joined("r1")
        for version, end in (
            (1, pb.OBJECT_STATE_INSTALLED),
            (2, pb.OBJECT_STATE_FAILED),
            (3, pb.OBJECT_STATE_INSTALLED),
        ):
            object_id = f"{version:032x}"
            root = await fleet.origin.offer(make_snapshot(tmp_path / f"m{version}", 1000, version), object_id)
            edges = [edge(s1, fleet.origin.peer, object_id, version)]
            s1.say(assignment(version, [target(object_id, version, root)], edges, keep=(1,)))
            holding = await coordinator.state("r1", end, object_id)
            assert holding.version == version
            if version == 2:
                assert holding.reason == "exit code 3: out of GPU memory"
                assert daemon.relay.machine.ready() == (False, "version 2 has landed and is not installed")
        store = tmp_path / "r1" / "snapshots"
        assert out.read_text().splitlines() == [
            f"1 {store / '1'}  ",
            f"2 {store / '2'} 1 {store / '1'}",
            f"3 {store / '3'} 1 {store / '1'}",
        ]
        assert daemon.relay.metrics.registry.get_sample_value("relayd_install_seconds_count") == 3


async def test_an_engine_confirms_what_it_runs(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        coordinator = fleet.coordinator
        daemon = await fleet.relay("r1", install="confirm")
        s1 = await coordinator.joined("r1")
        root = await fleet.origin.offer(make_snapshot(tmp_path / "m", 1000), A)
        s1.say(assignment(1, [target(A, 5, root)], [edge(s1, fleet.origin.peer, A, 1)]))
        subscriber = AsyncSubscriber(tmp_path / "r1")
        snapshot = await subscriber.wait(newer_than=4, timeout_s=30)
        assert daemon.relay.machine.versions()[ObjectState.INSTALLED] == 0
        await subscriber.confirm(snapshot.version, ok=False, reason="warming up")
        assert (await coordinator.state("r1", pb.OBJECT_STATE_FAILED)).reason == "warming up"
        await subscriber.confirm(snapshot.version)
        await coordinator.state("r1", pb.OBJECT_STATE_INSTALLED)
        await subscriber.confirm(snapshot.version)  # saying it twice is no error


async def test_who_is_refused_at_first_stops_with_the_reason(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        fleet.coordinator.refusal = "the name r1 is taken: choose another"
        daemon = await fleet.relay("r1")
        with pytest.raises(RefusedError, match="the name r1 is taken: choose another"):
            await daemon.relay.stopped


async def test_a_store_of_another_run_stops_with_the_remedy(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        async with AsyncExitStack() as mortal:
            await fleet.relay("r1", mortal)
            (await fleet.coordinator.joined("r1")).say(assignment(1, [], []))
            await fleet.coordinator.told("r1", "acknowledge")
        fleet.coordinator.run = "run-2"
        daemon = await fleet.relay("r1")
        with pytest.raises(WrongRunError, match="give another --store"):
            await daemon.relay.stopped


async def test_leaving_waits_for_the_release(tmp_path: Path) -> None:
    async with Fleet(tmp_path) as fleet:
        daemon = await fleet.relay("r1")
        s1 = await fleet.coordinator.joined("r1")
        s1.say(assignment(1, [], []))
        await fleet.coordinator.told("r1", "acknowledge")
        daemon.relay.handle(StopRequested())
        await fleet.coordinator.told("r1", "leaving")
        assert not daemon.relay.stopped.done()
        s1.say(pb.JoinReply(released=pb.Released()))
        await daemon.relay.stopped
