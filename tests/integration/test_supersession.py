"""A newer version is published before an older one is everywhere: who drops what, and what lands in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chappe.cli.localfleet import LocalFleet
from chappe.errors import SupersededError
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import HeldOrigins, assert_same_bytes, make_snapshot, metric_reaches, metrics, relays

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECEIVED = "relayd_received_bytes_total"
SIZE_BYTES = 4 << 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(tmp_path_factory.mktemp("fleet"), relays(2)) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def publisher(fleet: LocalFleet) -> AsyncIterator[AsyncPublisher]:
    async with AsyncPublisher(fleet.address, uplink="40mbit") as opened:
        yield opened


async def received(fleet: LocalFleet) -> list[float]:
    return [(await metrics(process))[RECEIVED] for process in fleet.workers.values()]


async def all_receive(fleet: LocalFleet, since: list[float], least_bytes: float) -> None:
    for process, before in zip(fleet.workers.values(), since, strict=True):
        await metric_reaches(process, RECEIVED, before + least_bytes)


async def test_the_newest_wins_but_not_twice_in_a_row(
    fleet: LocalFleet, publisher: AsyncPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of three is dropped for the second; the second then finishes before the third, though that is newer."""
    sources = [make_snapshot(tmp_path / f"model-{i}", SIZE_BYTES, seed=i) for i in range(3)]
    held = HeldOrigins(monkeypatch, 0.3)
    before = await received(fleet)
    first = await publisher.publish(sources[0])
    await all_receive(fleet, before, 0.15 * SIZE_BYTES)
    before = await received(fleet)
    second = await publisher.publish(sources[1])
    with pytest.raises(SupersededError, match=r"took over"):
        await first.wait(timeout_s=60)
    await all_receive(fleet, before, 0.15 * SIZE_BYTES)
    third = await publisher.publish(sources[2])
    wanted = f"finishes version {second.version} first"
    await fleet.wait_status(
        lambda s: s.publications[0].version == third.version and all(wanted in r.reason for r in s.relays)
    )
    held.gates[2].open()
    assert not second.done
    held.gates[1].open()
    assert (await second.wait(timeout_s=60)).installed == 2
    assert (await third.wait(timeout_s=60)).installed == 2
    assert (first.version, second.version, third.version) == (1, 2, 3)
    for name in fleet.workers:
        assert sorted(p.name for p in (fleet.store(name) / "snapshots").iterdir()) == ["2", "3"]
    assert_same_bytes(fleet, sources[1], *fleet.workers, version=2)
    assert_same_bytes(fleet, sources[2], *fleet.workers)


async def test_a_host_past_half_of_the_new_one_finishes_the_old_one_first(
    fleet: LocalFleet, publisher: AsyncPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [make_snapshot(tmp_path / f"model-{i}", SIZE_BYTES, seed=i) for i in range(2)]
    held = HeldOrigins(monkeypatch, 0.8)
    before = await received(fleet)
    older = await publisher.publish(sources[0])
    # What the coordinator has heard counts: chunks are reported once a second.
    await all_receive(fleet, before, 0.6 * SIZE_BYTES)
    await fleet.wait_status(lambda s: all(r.progress > 0.6 for r in s.relays))
    newer = await publisher.publish(sources[1])
    await fleet.wait_status(lambda s: s.publications[0].version == newer.version)
    for gate in held.gates:
        gate.open()
    assert (await older.wait(timeout_s=60)).installed == 2
    assert (await newer.wait(timeout_s=60)).installed == 2
    assert_same_bytes(fleet, sources[0], *fleet.workers, version=older.version)
    assert_same_bytes(fleet, sources[1], *fleet.workers)
