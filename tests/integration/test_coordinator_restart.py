"""The coordinator stops or is killed, in the middle of a broadcast and after one: nothing waits, nothing is lost."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from chappe.cli.localfleet import LocalFleet
from chappe.coordinator.status import publication_json, status_json
from chappe.errors import VersionConflictError
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import (
    HeldOrigins,
    assert_same_bytes,
    make_snapshot,
    metric_reaches,
    metrics,
    payload_bytes,
    published,
    relays,
)

RECEIVED = "relayd_received_bytes_total"
MB = 1 << 20
WINDOW_BYTES = 2 * MB
"""What may be on the way when a stream ends."""
ENDS = pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["sigterm", "sigkill"])


async def end_coordinator(fleet: LocalFleet, end: signal.Signals) -> None:
    fleet.coordinator.send_signal(end)
    async with asyncio.timeout(60):
        assert await fleet.coordinator.wait() == (0 if end is signal.SIGTERM else -end)


@ENDS
async def test_a_broadcast_goes_on_without_it_and_is_finished_with_it(tmp_path: Path, end: signal.Signals) -> None:
    source = make_snapshot(tmp_path / "model", 12 * MB, seed=1)
    size = payload_bytes(source)
    async with (
        LocalFleet(tmp_path / "fleet", relays(2)) as fleet,
        AsyncPublisher(fleet.address, uplink="24mbit", limit_uplink="24mbit") as publisher,
    ):
        publication = await publisher.publish(source, version=7, chains=1)
        assert await metric_reaches(fleet.workers["w2"], RECEIVED, 2 * MB) < size
        address = fleet.address
        await end_coordinator(fleet, end)
        for process in fleet.workers.values():  # all of it, while nobody is there to tell them
            await metric_reaches(process, RECEIVED, size)
        await fleet.start_coordinator(address)
        result = await publication.wait(timeout_s=60)
        assert (result.version, result.targeted, result.installed, result.lost) == (7, 2, 2, ())
        assert result.t_bcast["1.0"] is not None
        for process in fleet.workers.values():  # nothing is sent twice
            assert size <= (await metrics(process))[RECEIVED] <= size + MB // 4
        assert_same_bytes(fleet, source, "w1", "w2")


@ENDS
async def test_what_was_finished_is_known_afterwards(tmp_path: Path, end: signal.Signals) -> None:
    """The run, workers, versions, fractions, results; and epochs: relays take orders of the one that was restarted."""
    source, other = (make_snapshot(tmp_path / f"model-{i}", 2 * MB, seed=i) for i in (2, 3))
    async with LocalFleet(tmp_path / "fleet", relays(2)) as fleet, AsyncPublisher(fleet.address) as publisher:
        finished = await (await publisher.publish(source, version=7)).wait(timeout_s=60)
        before = status_json(await fleet.status())
        bytes_before = {name: (await metrics(p))[RECEIVED] for name, p in fleet.workers.items()}
        address = fleet.address
        await end_coordinator(fleet, end)
        await fleet.start_coordinator(address)
        await fleet.wait_joined("w1", "w2")

        after = status_json(await fleet.status())
        assert after["run"] == before["run"]
        assert after["publications"] == before["publications"]
        assert [(r["name"], r["state"], r["installed"]) for r in after["relays"]] == [
            ("w1", "installed", 7),
            ("w2", "installed", 7),
        ]
        assert await published(fleet, source, "--version", "7") == publication_json(finished.message)
        with pytest.raises(VersionConflictError, match="exists with other bytes"):
            await (await publisher.publish(other, version=7)).wait(timeout_s=60)
        assert {name: (await metrics(p))[RECEIVED] for name, p in fleet.workers.items()} == bytes_before

        newer = await (await publisher.publish(other)).wait(timeout_s=60)
        assert (newer.version, newer.installed) == (8, 2)
        assert_same_bytes(fleet, other, "w1", "w2")
        for process in fleet.workers.values():
            assert "assignment ignored" not in process.log_path.read_text()


async def test_a_relay_that_moved_meanwhile_is_found_at_its_new_port(tmp_path: Path) -> None:
    """Coordinator and head die in the middle; the head comes back on another port, then the coordinator."""
    source = make_snapshot(tmp_path / "model", 12 * MB, seed=4)
    size = payload_bytes(source)
    specs = relays(2)
    async with (
        LocalFleet(tmp_path / "fleet", specs) as fleet,
        AsyncPublisher(fleet.address, uplink="40mbit", limit_uplink="40mbit") as publisher,
    ):
        publication = await publisher.publish(source, chains=1)
        held = {name: await metric_reaches(fleet.workers[name], RECEIVED, 3 * MB) for name in ("w2", "w1")}
        ((head, tail),) = [chain.names for chain in (await fleet.status()).publications[0].chains]
        address, old = fleet.address, fleet.workers[head]
        await end_coordinator(fleet, signal.SIGKILL)
        await old.kill()
        restarted = await fleet.start_relay(next(spec for spec in specs if spec.name == head))
        assert restarted.ready["address"] != old.ready["address"]
        await fleet.start_coordinator(address)
        result = await publication.wait(timeout_s=60)
        assert (result.targeted, result.installed, result.lost) == (2, 2, ())
        assert (await metrics(restarted))[RECEIVED] <= size - held[head] + WINDOW_BYTES
        assert (await metrics(fleet.workers[tail]))[RECEIVED] <= size + WINDOW_BYTES
        assert_same_bytes(fleet, source, "w1", "w2")
        addresses = {relay.name: relay.address for relay in (await fleet.status()).relays}
        assert addresses[head] == restarted.ready["address"]


async def test_a_publication_without_its_root_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the origin still hashes: the version is neither burned nor lost, and the publication goes on."""
    source = make_snapshot(tmp_path / "model", 4 * MB, seed=5)
    held = HeldOrigins(monkeypatch, 0.5)
    async with (
        LocalFleet(tmp_path / "fleet", relays(2)) as fleet,
        AsyncPublisher(fleet.address, uplink="40mbit") as publisher,
    ):
        publication = await publisher.publish(source, version=3)
        for process in fleet.workers.values():
            await metric_reaches(process, RECEIVED, 0.4 * 4 * MB)
        address = fleet.address
        await end_coordinator(fleet, signal.SIGKILL)
        held.gates[0].open()  # the root is announced while nobody listens
        for process in fleet.workers.values():
            await metric_reaches(process, RECEIVED, payload_bytes(source))
        assert not (fleet.store("w1") / "current").exists()
        await fleet.start_coordinator(address)
        result = await publication.wait(timeout_s=60)
        assert (result.version, result.installed) == (3, 2)
        assert_same_bytes(fleet, source, "w1", "w2")
