"""Workers that are behind, end to end: one folded delta from what they have to what is new.

| happens                                                | then |
|--------------------------------------------------------|------|
| a worker misses two versions and comes back            | one folded delta, beside the direct one of the others |
| the publisher is another process by then               | the same, from the folder of its base |
| a kept delta is damaged                                | the full snapshot, for those that waited for the folded one |
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import (
    HTTP,
    assert_same_bytes,
    make_snapshot,
    metrics,
    payload_bytes,
    relays,
    run_cli,
)
from tests.integration.test_deltas import MB, step

pytestmark = pytest.mark.asyncio(loop_scope="function")


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(tmp_path / "fleet", relays(3), coordinator_flags=HTTP) as running:
        yield running


async def publish(fleet: LocalFleet, cache: Path, path: Path, until: float = 1.0) -> None:
    """By a process of its own, as it were: its base is in the folder."""
    async with AsyncPublisher(fleet.address, base_cache=cache) as publisher:
        await (await publisher.publish(path, until=until)).wait(timeout_s=120)


async def received(fleet: LocalFleet, name: str) -> float:
    """By this process of the worker."""
    return (await metrics(fleet.workers[name]))["relayd_received_bytes_total"]


async def test_a_worker_that_missed_two_versions_gets_one_folded_delta(fleet: LocalFleet, tmp_path: Path) -> None:
    versions = [make_snapshot(tmp_path / "v1", 4 * MB, seed=1)]
    for number in range(2, 7):
        versions.append(step(versions[-1], tmp_path / f"v{number}", seed=number))
    cache = tmp_path / "cache"
    await publish(fleet, cache, versions[0])
    await fleet.workers.pop("w3").kill()
    await publish(fleet, cache, versions[1], until=0.6)
    async with AsyncPublisher(fleet.address, base_cache=cache) as publisher:
        await (await publisher.publish(versions[2], until=0.6)).wait(timeout_s=120)
        await fleet.start_relay(RelaySpec("w3", HTTP))  # version 3 is out: it is given that one, from version 1
        status = await fleet.wait_status(lambda s: all(r.installed == 3 for r in s.relays))
        one_step = status.publications[0].payload_bytes
        assert one_step < await received(fleet, "w3") < 2.5 * one_step
        assert_same_bytes(fleet, versions[2], "w1", "w2", "w3")

    await fleet.workers.pop("w2").kill()
    await publish(fleet, cache, versions[3], until=0.6)
    for damaged in sorted(cache.glob("*/step-*/delta")):
        with damaged.open("r+b") as file:
            file.seek(-200, 2)
            file.write(b"\xff\xee\xdd\xcc")
    async with AsyncPublisher(fleet.address, base_cache=cache) as publisher:
        await (await publisher.publish(versions[4], until=0.6)).wait(timeout_s=120)
        await fleet.start_relay(RelaySpec("w2", HTTP))
        await fleet.wait_status(lambda s: all(r.installed == 5 for r in s.relays))
        assert await received(fleet, "w2") > payload_bytes(versions[4])
        result = await (await publisher.publish(versions[5])).wait(timeout_s=120)
        assert [(one.kind, one.targeted) for one in result.message.payloads] == [("delta", 3)]
    assert_same_bytes(fleet, versions[5], "w1", "w2", "w3")
    for name in ("w1", "w2", "w3"):
        code, out, err = await run_cli("verify", str(fleet.store(name)))
        assert code == 0, (name, out, err)
