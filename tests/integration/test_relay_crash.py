"""A relay that is killed, that restarts, that runs out of disk, and readers that go on meanwhile."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chappe.cli.localfleet import LocalFleet
from chappe.publisher import AsyncPublisher
from chappe.subscriber import AsyncSubscriber
from tests.integration.fleet_tools import assert_same_bytes, digests, make_snapshot, metric_reaches, metrics, relays

RECEIVED = "relayd_received_bytes_total"
WINDOW_BYTES = 8 << 20
"""What may be on the way or not journaled yet when a relay is killed."""
LINKS = ("--downlink", "160mbit", "--uplink", "160mbit")


@pytest.mark.parametrize(
    "share", [pytest.param(0.02, marks=pytest.mark.soak), 0.5, pytest.param(0.95, marks=pytest.mark.soak)]
)
async def test_a_killed_relay_fetches_only_what_it_lacked(tmp_path: Path, share: float) -> None:
    """kill -9 in the middle of a chain at a byte threshold, then a restart on another port."""
    source = make_snapshot(tmp_path / "model", 48 << 20, seed=3)
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file())
    specs = relays(3, *LINKS)
    lease = ("--lease", "60s")  # however slow this machine starts a process: the relay is to count
    async with (
        LocalFleet(tmp_path / "fleet", specs, coordinator_flags=lease) as fleet,
        AsyncPublisher(fleet.address, uplink="160mbit", limit_uplink="160mbit") as publisher,
    ):
        publication = await publisher.publish(source, version=1, chains=1)
        held = await metric_reaches(fleet.workers["w2"], RECEIVED, share * size)
        await fleet.workers["w2"].kill()
        old_address = fleet.workers["w2"].ready["address"]
        restarted = await fleet.start_relay(specs[1])
        assert restarted.ready["address"] != old_address
        await fleet.wait_status(lambda s: all(r.installed == 1 for r in s.relays))
        fetched = (await metrics(restarted))[RECEIVED]
        assert fetched <= size - held + WINDOW_BYTES
        assert_same_bytes(fleet, source, "w1", "w2", "w3")
        assert (await publication.wait(1.0, timeout_s=60)).installed == 3


async def test_the_chain_behind_a_dead_relay_goes_on(tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 8 << 20, seed=4)
    async with (
        LocalFleet(tmp_path / "fleet", relays(3)) as fleet,
        AsyncPublisher(fleet.address, uplink="24mbit", limit_uplink="24mbit") as publisher,
    ):
        publication = await publisher.publish(source, version=1, chains=1)
        await metric_reaches(fleet.workers["w3"], RECEIVED, 2 << 20)
        await fleet.workers.pop("w1").kill()
        status = await publication.wait(1.0, timeout_s=60)
        assert status.lost == ("w1",)
        assert (status.installed, status.targeted) == (2, 2)
        assert_same_bytes(fleet, source, "w2", "w3")


async def test_a_reader_keeps_the_bytes_it_has_mapped(tmp_path: Path) -> None:
    """Versions 2 to 4 land while version 1 is mapped; retention removes its files, not what the reader sees."""
    sources = [make_snapshot(tmp_path / f"model-{v}", 2 << 20, seed=v) for v in range(1, 5)]
    async with (
        LocalFleet(tmp_path / "fleet", relays(1)) as fleet,
        AsyncPublisher(fleet.address) as publisher,
    ):
        await (await publisher.publish(sources[0], version=1)).wait(1.0, timeout_s=60)
        first = await AsyncSubscriber(fleet.store("w1")).wait(newer_than=0, timeout_s=60)
        path = first.path / "model.safetensors"
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for version, source in enumerate(sources[1:], start=2):
                await (await publisher.publish(source, version=version)).wait(1.0, timeout_s=60)
            assert mapped[:] == (sources[0] / "model.safetensors").read_bytes()
        kept = sorted(int(p.name) for p in (fleet.store("w1") / "snapshots").iterdir())
        assert {3, 4} <= set(kept)
        assert_same_bytes(fleet, sources[3], "w1")
        assert_same_bytes(fleet, sources[2], "w1", version=3)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB where the store of w2 will be."""
    mount = tmp_path / "fleet" / "w2"
    mount.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system of its own needs root; tests/hop fakes a full disk")
async def test_a_full_disk_is_said_and_survived(tmp_path: Path, small_disk: Path) -> None:
    """Version 1 lands; version 2 does not fit: the relay says so, keeps version 1, and goes on when there is room."""
    first = make_snapshot(tmp_path / "one", 8 << 20, seed=1)
    second = make_snapshot(tmp_path / "two", 24 << 20, seed=2)
    async with (
        LocalFleet(tmp_path / "fleet", relays(3)) as fleet,
        AsyncPublisher(fleet.address) as publisher,
    ):
        await (await publisher.publish(first, version=1)).wait(1.0, timeout_s=60)
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(44 << 20))
        publication = await publisher.publish(second, version=2, chains=1)
        await fleet.wait_status(
            lambda s: (
                {r.name: (r.state, " short (" in r.reason) for r in s.relays}["w2"] == ("disk_full", True)
                and sum(r.installed == 2 for r in s.relays) == 2
            )
        )
        assert digests((fleet.store("w2") / "current").resolve()) == digests(first)
        ballast.unlink()
        assert (await publication.wait(1.0, timeout_s=60)).installed == 3
        assert_same_bytes(fleet, second, "w1", "w2", "w3")
