"""`relayd` as a process: killed, stopped, drained, refused. What it has received survives."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from relay_fleet import Fleet, assignment, edge, make_snapshot, same_files, target
from structlog.testing import capture_logs

from chappe.cli.process import Process
from chappe.hop.disk import Disk
from chappe.v1 import coordinator_pb2 as pb

A = "a" * 32
CHUNK = 1 << 16


class Daemons:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.started: list[Process] = []

    async def start(self, name: str, *flags: str) -> Process:
        arguments = ["--coordinator", self.fleet.address, "--store", str(self.fleet.directory / name), "--name", name]
        arguments += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-format", "json", *flags]
        process = await Process.start(name, "relayd", arguments, self.fleet.directory / f"{name}.log")
        self.started.append(process)
        return process


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    async with Fleet(tmp_path, uplink_bytes_per_s=20e6) as made:  # slow enough to be killed on the way
        yield made


@pytest.fixture
async def daemons(fleet: Fleet) -> AsyncIterator[Daemons]:
    made = Daemons(fleet)
    yield made
    for process in made.started:
        if process.returncode is None:
            await process.kill()


async def _metric(process: Process, name: str) -> float:
    async with aiohttp.ClientSession() as client, client.get(f"{process.ready['http']}/metrics") as reply:
        text = await reply.text()
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + " "))


async def test_kill_9_at_any_byte_costs_at_most_a_window(fleet: Fleet, daemons: Daemons, tmp_path: Path) -> None:
    size = 800 * CHUNK
    snapshot = make_snapshot(tmp_path / "model", size)
    root = await fleet.origin.offer(snapshot, A)
    process = await daemons.start("r1")
    await process.wait_ready()
    session = await fleet.coordinator.joined("r1")
    session.say(assignment(1, [target(A, 1)], [edge(session, fleet.origin.peer, A, 1)]))
    while await _metric(process, "relayd_received_bytes_total") < size * 0.4:
        pass
    await process.kill()

    process = await daemons.start("r1")
    await process.wait_ready()
    again = await fleet.coordinator.joined("r1", generation=2)
    assert again.hello.worker_id == session.hello.worker_id
    (holding,) = again.hello.holdings
    held = sum(r.stop - r.start for r in holding.chunks)
    assert held * CHUNK >= size * 0.4 - (8 << 20) - CHUNK
    again.say(assignment(2, [target(A, 1, root)], [edge(again, fleet.origin.peer, A, 2)]))
    await fleet.coordinator.state("r1", pb.OBJECT_STATE_INSTALLED)
    lacked = (holding.chunks_total - held) * CHUNK
    assert await _metric(process, "relayd_received_bytes_total") <= lacked * 1.01 + CHUNK
    assert same_files(snapshot, tmp_path / "r1" / "current")


async def test_sigterm_asks_to_leave_and_ends_the_hook_too(fleet: Fleet, daemons: Daemons, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = await daemons.start("r1", "--install", f"command echo $$ > {fifo}; sleep 1000")
    session = await fleet.coordinator.joined("r1")
    root = await fleet.origin.offer(make_snapshot(tmp_path / "model", CHUNK), A)
    session.say(assignment(1, [target(A, 1, root)], [edge(session, fleet.origin.peer, A, 1)]))
    pid = int(await asyncio.to_thread(fifo.read_text))
    hook = os.pidfd_open(pid)
    process.send_signal(signal.SIGTERM)
    await fleet.coordinator.told("r1", "leaving")
    session.say(pb.JoinReply(released=pb.Released()))
    assert await process.wait() == 0
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(hook, 0)
    os.close(hook)
    assert not (tmp_path / "r1" / "objects" / A / "installed").exists()


async def test_sigterm_does_not_wait_for_a_coordinator_that_says_nothing(fleet: Fleet, daemons: Daemons) -> None:
    process = await daemons.start("r1")
    session = await fleet.coordinator.joined("r1")
    session.say(assignment(1, [], []))
    await fleet.coordinator.told("r1", "acknowledge")
    assert await process.stop(timeout_s=20) == 0  # not killed: that would be -9


async def test_a_drained_relay_ends_well(fleet: Fleet, daemons: Daemons) -> None:
    process = await daemons.start("r1")
    session = await fleet.coordinator.joined("r1")
    session.say(assignment(1, [], []))
    await fleet.coordinator.told("r1", "acknowledge")
    session.say(pb.JoinReply(released=pb.Released()))
    assert await process.wait() == 0


async def test_what_ends_it_is_said_in_a_sentence(fleet: Fleet, daemons: Daemons) -> None:
    fleet.coordinator.refusal = "another r1 is alive: choose another name"
    process = await daemons.start("r1")
    assert await process.wait() == 1
    assert "choose another name" in process.tail()
    assert "Traceback" not in process.tail(200)


async def test_two_daemons_do_not_share_a_store(fleet: Fleet, daemons: Daemons) -> None:
    first = await daemons.start("r1")
    await first.wait_ready()
    second = await daemons.start("r1")
    assert await second.wait() == 1
    assert f"in use by process {first.pid}" in second.tail()


async def test_it_waits_for_a_coordinator_that_is_not_there_yet(fleet: Fleet, daemons: Daemons) -> None:
    await fleet.coordinator.stop()
    process = await daemons.start("r1")
    await process.logged(lambda line: line.get("event") == "coordinator_lost")
    assert await fleet.coordinator.start(fleet.address) == fleet.address
    await fleet.coordinator.joined("r1")


async def test_a_full_disk_is_shown_and_the_transfer_goes_on_when_there_is_room(fleet: Fleet, tmp_path: Path) -> None:
    """The disk is full for the first two tries, as the store sees it."""

    class Full(Disk):
        left = 2

        def _step(self, operation: str) -> None:
            if operation == "allocate" and self.left:
                type(self).left -= 1
                raise OSError(28, "No space left on device")

    root = await fleet.origin.offer(make_snapshot(tmp_path / "model", 4 * CHUNK), A)
    with capture_logs() as logs:
        await _full_for_two_tries(fleet, Full(), root)
    assert Full.left == 0
    said = [(line["event"], line["log_level"]) for line in logs if line["event"] in ("fetch_opened", "fetch_ended")]
    opened, ended = [[level for event, level in said if event == name] for name in ("fetch_opened", "fetch_ended")]
    assert (opened, ended) == (["info", "debug", "debug"], ["info", "debug", "info"])
    assert [line["log_level"] for line in logs if line["event"] == "store_fault"] == ["warning"]


async def _full_for_two_tries(fleet: Fleet, disk: Disk, root: str) -> None:
    await fleet.relay("r1", disk=disk)
    session = await fleet.coordinator.joined("r1")
    session.say(assignment(1, [target(A, 1, root)], [edge(session, fleet.origin.peer, A, 1)]))
    full = await fleet.coordinator.state("r1", pb.OBJECT_STATE_DISK_FULL)
    assert "Free some space" in full.reason
    await fleet.coordinator.state("r1", pb.OBJECT_STATE_INSTALLED)
