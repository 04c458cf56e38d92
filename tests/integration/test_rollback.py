"""Going back, end to end: the bytes of an older version are published again, as a new one."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.errors import SnapshotError, UsageError
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import assert_same_bytes, chappe, make_snapshot, mute_relays
from tests.integration.test_deltas import MB, step

pytestmark = pytest.mark.asyncio(loop_scope="function")


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(tmp_path / "fleet", mute_relays(2)) as running:
        yield running


async def test_back_over_processes_and_forth_again(fleet: LocalFleet, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    versions = [make_snapshot(tmp_path / "v1", 4 * MB, seed=1)]
    versions += [step(versions[0], tmp_path / f"v{n}", seed=10**n) for n in (2, 3)]  # their sidecars have other lengths
    roots = []
    for path in versions:
        async with AsyncPublisher(fleet.address, base_cache=cache) as publisher:
            roots.append((await (await publisher.publish(path)).wait(timeout_s=120)).root)
    code, out, err = await chappe(fleet, "publish", "--rollback-to", "1", "--json", "--base-cache", str(cache))
    assert code == 0, err
    shown = json.loads(out)
    assert (shown["version"], shown["root"], shown["kind"], shown["installed"]) == (4, roots[0], "delta", 2)
    assert shown["payload_bytes"] < 0.1 * shown["snapshot_bytes"]
    assert_same_bytes(fleet, versions[0], "w1", "w2")
    async with AsyncPublisher(fleet.address, base_cache=cache) as publisher:
        result = await (await publisher.rollback(2, payload="delta")).wait(timeout_s=120)
        assert (result.version, result.root, result.kind) == (5, roots[1], "delta")
        await fleet.start_relay(RelaySpec("w3"))  # without any base: in full, from one that has applied the delta
        status = await fleet.wait_status(lambda s: any(r.name == "w3" and r.installed == 5 for r in s.relays))
        assert next(r.parent for r in status.relays if r.name == "w3") in ("w1", "w2")
        assert_same_bytes(fleet, versions[1], "w1", "w2", "w3")
        with pytest.raises(
            SnapshotError, match="cannot be made any more: the ways back that are kept here lead to 1, 2"
        ):
            await publisher.rollback(9)
        with pytest.raises(UsageError, match="version 5 is what was published last"):
            await publisher.rollback(5)
    (record,) = cache.glob("*/base.json")
    last = json.loads(record.read_text())["steps"][-1]["folder"]
    (record.parent / last / "delta").write_bytes(b"rotten")
    code, _, err = await chappe(fleet, "publish", "--rollback-to", "3", "--base-cache", str(cache))
    assert (code, "is not what was kept; publish the old files instead" in err) == (1, True)


async def test_tensors_in_one_process(fleet: LocalFleet, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    weights = rng.integers(0, 1 << 16, 300_000, dtype=np.uint16)
    async with AsyncPublisher(fleet.address, spool=tmp_path) as publisher:
        with pytest.raises(SnapshotError, match="nothing was published from here yet"):
            await publisher.rollback(1)
        kept = []
        for _ in range(3):
            weights[rng.choice(weights.size, 3000, replace=False)] += np.uint16(1)
            kept.append(weights.copy())
            await (await publisher.publish({"w": weights})).wait(timeout_s=120)
        result = await (await publisher.rollback(1)).wait(timeout_s=120)
        assert (result.version, result.kind, result.installed) == (4, "delta", 2)
        landed = load_file(fleet.store("w1") / "current/model.safetensors")["w"]
        assert np.array_equal(landed, kept[0])
        with pytest.raises(UsageError, match="nothing to go back from"):
            await publisher.rollback(4)
        result = await (await publisher.publish({"w": kept[2]}, payload="full")).wait(timeout_s=120)
        with pytest.raises(SnapshotError, match="no way back is kept here"):
            await publisher.rollback(3)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("chappe-spool-")]
