"""Deltas, end to end: real daemons, the command line and the Python interface, bit for bit whatever happens.

| happens                                     | then |
|---------------------------------------------|------|
| all hold the base                           | a delta, about 1 % of the bytes; the landed copies verify |
| a worker without it                         | both objects of one version; `delta` is refused by name |
| the base rotted on one worker's disk        | that one gets this block in full, the others go on |
| a joiner when the publisher is gone         | the full snapshot, from a peer that got the delta |
| ... and that one is killed -9 in that       | version 1 serves; then the same bytes, what was right is not fetched |
| a worker killed while it applies            | it lands after its restart |
| nothing changed, everything changed         | a delta of nothing; full |
| the publisher's kept base was tampered with | full |
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.errors import UsageError
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import (
    HTTP,
    assert_same_bytes,
    chappe,
    make_snapshot,
    metric_reaches,
    metrics,
    payload_bytes,
    published,
    relays,
    run_cli,
)

pytestmark = pytest.mark.asyncio(loop_scope="function")

MB = 1 << 20
RECEIVED = "relayd_received_bytes_total"


def step(source: Path, target: Path, seed: int, share: float = 0.01) -> Path:
    """A copy of a snapshot in which this share of the elements of each tensor has changed, and a sidecar."""
    shutil.copytree(source, target)
    rng = np.random.default_rng(seed)
    tensors = load_file(source / "model.safetensors")
    for tensor in tensors.values():
        at = rng.choice(tensor.size, round(share * tensor.size), replace=False)
        tensor[at] += rng.integers(1, 4, at.size).astype(tensor.dtype)
    save_file(tensors, target / "model.safetensors", metadata={"format": "np"})
    (target / "config.json").write_text(json.dumps({"hidden_size": 64, "seed": seed}))
    return target


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(tmp_path / "fleet", relays(3), coordinator_flags=HTTP) as running:
        yield running


async def verified(fleet: LocalFleet, *names: str) -> None:
    for name in names:
        code, out, err = await run_cli("verify", str(fleet.store(name)))
        assert code == 0, (name, out, err)


async def test_the_second_version_is_a_delta_and_so_on_over_processes(fleet: LocalFleet, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "v1", 4 * MB, seed=1)
    first = await published(fleet, source)
    assert (first["kind"], "objects" in first) == ("full", False)
    for version in (2, 3):  # each by a process of its own: the base is kept in a folder
        source = step(source, tmp_path / f"v{version}", seed=version)
        shown = await published(fleet, source, "--payload", "delta")
        assert (shown["version"], shown["kind"], shown["installed"]) == (version, "delta", 3)
        assert shown["payload_bytes"] < 0.03 * shown["snapshot_bytes"]
        assert shown["snapshot_bytes"] == payload_bytes(source)
        (one,) = shown["objects"]
        assert one["base_root"] == first["root"]
        assert 0.005 < one["changed_elements"] / one["compared_elements"] < 0.015
        assert_same_bytes(fleet, source, "w1", "w2", "w3")
        first = shown
    await verified(fleet, "w1", "w2", "w3")
    sizes = await metrics(fleet.coordinator)
    assert sizes['chappe_payload_bytes{kind="delta"}'] == first["payload_bytes"]


async def test_a_mixed_fleet_and_a_joiner_when_the_publisher_is_gone(fleet: LocalFleet, tmp_path: Path) -> None:
    one = make_snapshot(tmp_path / "v1", 4 * MB, seed=1)
    two = step(one, tmp_path / "v2", seed=2)
    async with AsyncPublisher(fleet.address) as publisher:
        await (await publisher.publish(one)).wait(timeout_s=120)
        await fleet.start_relay(RelaySpec("slow", (*HTTP, "--limit-downlink", "0.5mbit")))  # version 1 takes a minute
        await fleet.wait_joined("slow")
        with pytest.raises(UsageError, match="slow do not hold the base"):
            await (await publisher.publish(two, payload="delta")).wait(timeout_s=60)
        await publisher.publish(two)
        status = await fleet.wait_status(lambda s: s.publications[0].version == 2 and s.publications[0].installed == 3)
        shown = status.publications[0]
        assert (shown.kind, shown.targeted) == ("mixed", 4)
        assert {p.kind: (p.targeted, p.installed) for p in shown.payloads} == {"full": (1, 0), "delta": (3, 3)}
        assert_same_bytes(fleet, two, "w1", "w2", "w3")
    slow = fleet.workers.pop("slow")
    await slow.kill()
    await fleet.start_relay(RelaySpec("late", HTTP))
    await fleet.wait_status(lambda s: any(r.name == "late" and r.installed == 2 for r in s.relays))
    assert_same_bytes(fleet, two, "w1", "w2", "w3", "late")
    await verified(fleet, "w1", "late")


def rot(fleet: LocalFleet, name: str, offset: int) -> None:
    """Four bytes of version 1 on this worker's disk become others."""
    path = fleet.store(name) / "snapshots/1/model.safetensors"
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff\xee\xdd\xcc")
    path.chmod(0o444)


async def test_a_base_that_rotted_costs_only_that_worker(fleet: LocalFleet, tmp_path: Path) -> None:
    one = make_snapshot(tmp_path / "v1", 24 * MB, seed=1)
    two, three = step(one, tmp_path / "v2", seed=2), step(one, tmp_path / "v3", seed=3)
    async with AsyncPublisher(fleet.address) as publisher:
        await (await publisher.publish(one)).wait(timeout_s=120)
        before = {name: (await metrics(fleet.workers[name]))[RECEIVED] for name in ("w1", "w2")}
        rot(fleet, "w2", 2 * MB)
        result = await (await publisher.publish(two, payload="delta")).wait(timeout_s=120)
        assert {p.kind: p.installed for p in result.message.payloads} == {"full": 1, "delta": 2}
        assert_same_bytes(fleet, two, "w1", "w2", "w3")
        took = {n: (await metrics(fleet.workers[n]))[RECEIVED] - b for n, b in before.items()}
        assert took["w1"] < 0.05 * payload_bytes(two)
        assert 4 * MB <= took["w2"] - took["w1"] < 6 * MB  # a block of 4 MiB, and whole chunks
        result = await (await publisher.publish(three, payload="delta")).wait(timeout_s=120)  # w2 is sound again
        assert (result.kind, result.installed) == ("delta", 3)
        assert_same_bytes(fleet, three, "w1", "w2", "w3")
    await verified(fleet, "w2")


async def test_killed_while_it_fetches_what_its_rotten_base_did_not_give(tmp_path: Path) -> None:
    """kill -9 in the middle of the one block that is fetched of the full object, then another process on that store."""
    one = make_snapshot(tmp_path / "v1", 24 * MB, seed=1)
    two = step(one, tmp_path / "v2", seed=2)
    slow = RelaySpec("w2", (*HTTP, "--limit-downlink", "24mbit"))
    lease = ("--lease", "60s")  # however slow this machine starts a process: w2 is to count
    async with (
        LocalFleet(tmp_path / "fleet", (*relays(1), slow), coordinator_flags=(*HTTP, *lease)) as fleet,
        AsyncPublisher(fleet.address) as publisher,
    ):
        await (await publisher.publish(one)).wait(timeout_s=120)
        rot(fleet, "w2", 2 * MB)
        before = (await metrics(fleet.workers["w2"]))[RECEIVED]
        publication = await publisher.publish(two, payload="delta")
        await metric_reaches(fleet.workers["w2"], RECEIVED, before + 0.04 * payload_bytes(two) + MB)
        await fleet.workers["w2"].kill()
        store = fleet.store("w2")
        assert (store / "current").resolve().name == "1"
        assert not (store / "snapshots/2").exists()
        part = [path for path in (store / "objects").iterdir() if (path / "files/model.safetensors").exists()]
        assert [(path / "journal").stat().st_size > 0 for path in part] == [True]  # of the full object, on its way
        restarted = await fleet.start_relay(slow)
        result = await publication.wait(timeout_s=120)
        assert {p.kind: p.installed for p in result.message.payloads} == {"full": 1, "delta": 1}
        assert_same_bytes(fleet, two, "w1", "w2")
        assert (await metrics(restarted))[RECEIVED] < 4 * MB  # less than the block, of six: nothing of the others
    await verified(fleet, "w2")


async def test_tensors_nothing_changed_and_everything_changed(fleet: LocalFleet, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    tensors = {name: rng.integers(0, 1 << 16, 300_000, dtype=np.uint16) for name in "ab"}
    async with AsyncPublisher(fleet.address, spool=tmp_path) as publisher:
        await (await publisher.publish(tensors)).wait(timeout_s=120)
        for number in (2, 3):
            tensors["a"][rng.choice(300_000, 3000, replace=False)] += 1
            result = await (await publisher.publish(tensors)).wait(timeout_s=120)
            assert (result.version, result.kind, result.installed) == (number, "delta", 3)
            landed = load_file(fleet.store("w3") / "current/model.safetensors")
            assert all(np.array_equal(landed[name], tensor) for name, tensor in tensors.items())
        same = await (await publisher.publish(tensors)).wait(timeout_s=120)
        assert (same.version, same.kind, same.root) == (4, "delta", result.root)
        assert same.message.payloads[0].changed_elements == 0
        tensors["a"], tensors["b"] = (rng.integers(0, 1 << 16, 300_000, dtype=np.uint16) for _ in "ab")
        other = await (await publisher.publish(tensors)).wait(timeout_s=120)
        assert (other.kind, other.message.payloads[0].kind) == ("full", "full")
        assert "of the bytes" in other.message.payload_reason
    assert not [name for name in os.listdir(tmp_path) if name.startswith("chappe-spool-")]


async def test_a_kept_base_that_was_tampered_with_is_not_used(fleet: LocalFleet, tmp_path: Path) -> None:
    one = make_snapshot(tmp_path / "v1", 2 * MB, seed=1)
    two = step(one, tmp_path / "v2", seed=2)
    cache = ("--base-cache", str(tmp_path / "cache"))
    await published(fleet, one, *cache)
    (kept,) = (tmp_path / "cache").rglob("model.safetensors")
    with kept.open("r+b") as file:
        file.seek(MB)
        file.write(b"\xff\xee\xdd\xcc")
    shown = await published(fleet, two, *cache)
    assert shown["kind"] == "full"
    assert_same_bytes(fleet, two, "w1", "w2", "w3")
    code, _, err = await chappe(fleet, "publish", str(one), "--payload", "delta", "--base-cache", "none")
    assert code == 2
    assert "no base is kept" in err


async def test_a_relay_killed_while_it_applies_lands_after_its_restart(fleet: LocalFleet, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "v1", 4 * MB, seed=1)
    rng = np.random.default_rng(9)
    async with AsyncPublisher(fleet.address) as publisher:
        await (await publisher.publish(source)).wait(timeout_s=120)
        for version in range(2, 7):
            source = step(source, tmp_path / f"v{version}", seed=version)
            publication = await publisher.publish(source)
            await asyncio.sleep(float(rng.uniform(0, 0.2)))  # anywhere: before, in and after the landing
            victim = f"w{version % 3 + 1}"
            await fleet.workers.pop(victim).kill()
            await fleet.start_relay(RelaySpec(victim, HTTP))
            await publication.wait(timeout_s=120)
            await fleet.wait_status(lambda s, v=version: all(r.installed == v for r in s.relays))
            assert_same_bytes(fleet, source, "w1", "w2", "w3")
    await verified(fleet, "w1", "w2", "w3")
