"""What a publisher is promised: versions, the result it prints, cancelling, changed files, who takes part."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from chappe.cli.localfleet import LocalFleet
from chappe.errors import PublicationCancelledError, SnapshotChangedError, VersionConflictError
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import (
    HeldOrigins,
    assert_same_bytes,
    chappe,
    make_snapshot,
    metric_reaches,
    metrics,
    payload_bytes,
    published,
    relays,
    start_publish,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

RECEIVED = "relayd_received_bytes_total"
MB = 1 << 20

PUBLICATION_FIELDS: dict[str, type | tuple[type, ...]] = {
    "run": str,
    "version": int,
    "root": str,
    "kind": str,
    "payload_bytes": int,
    "snapshot_bytes": int,
    "targeted": int,
    "installed": int,
    "lost": list,
    "installed_fraction": float,
    "t_bcast": dict,
    "floor_s": float,
    "chains": list,
}
RELAY_FIELDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "state": str,
    "parent": (str, type(None)),
    "chain": int,
    "position": int,
    "received": int,
    "verified": int,
    "installed": int,
    "rank": int,
    "downlink_bytes_per_s": float,
    "uplink_bytes_per_s": float,
    "source": str,
    "reason": str,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalFleet]:
    """Three relays for all tests of this file: each publishes further versions and leaves the relays as they were."""
    async with LocalFleet(tmp_path_factory.mktemp("fleet"), relays(3)) as running:
        yield running


async def received(fleet: LocalFleet) -> dict[str, float]:
    return {name: (await metrics(process))[RECEIVED] for name, process in fleet.workers.items()}


async def all_receive(fleet: LocalFleet, least_bytes: float, since: dict[str, float]) -> None:
    for name, process in fleet.workers.items():
        await metric_reaches(process, RECEIVED, since.get(name, 0.0) + least_bytes)


async def newest_version(fleet: LocalFleet) -> int:
    return max((p.version for p in (await fleet.status()).publications), default=0)


def landed(fleet: LocalFleet, version: int) -> list[str]:
    """The relays on whose disk this version is."""
    return [name for name in fleet.workers if (fleet.store(name) / "snapshots" / str(version)).exists()]


def check_fields(shown: dict[str, Any], fields: dict[str, type | tuple[type, ...]]) -> None:
    assert fields.keys() <= shown.keys()
    for name, kind in fields.items():
        assert isinstance(shown[name], kind), (name, shown[name])
        assert not isinstance(shown[name], bool)


# ---- what is printed -------------------------------------------------------------------------------------------------


async def test_publish_and_status_print_the_promised_fields(fleet: LocalFleet, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 2 * MB, seed=1)
    shown = await published(fleet, source)
    assert shown.keys() == PUBLICATION_FIELDS.keys()
    check_fields(shown, PUBLICATION_FIELDS)
    assert shown["payload_bytes"] == shown["snapshot_bytes"] == payload_bytes(source)
    assert (shown["kind"], shown["targeted"], shown["installed"], shown["lost"]) == ("full", 3, 3, [])
    assert shown["installed_fraction"] == 1.0
    assert list(shown["t_bcast"]) == ["0.5", "0.9", "1.0"]
    assert 0 < shown["t_bcast"]["0.5"] <= shown["t_bcast"]["0.9"] <= shown["t_bcast"]["1.0"]
    assert sorted(name for chain in shown["chains"] for name in chain) == ["w1", "w2", "w3"]

    code, out, err = await chappe(fleet, "status", "--json")
    assert (code, err) == (0, "")
    status = json.loads(out)
    assert [relay["name"] for relay in status["relays"]] == ["w1", "w2", "w3"]
    (chain,) = shown["chains"]  # of equal relays on the assumed rates
    for relay in status["relays"]:
        check_fields(relay, RELAY_FIELDS)
        assert relay["received"] == relay["verified"] == relay["installed"] == shown["version"]
        assert (relay["state"], relay["chain"]) == ("installed", 0)
        assert relay["source"] in ("measured", "declared", "assumed")
        assert chain[relay["position"]] == relay["name"]
        assert relay["parent"] == (
            chain[relay["position"] - 1] if relay["position"] else None
        )  # the publisher has left
    newest = status["publications"][0]
    assert {name: newest[name] for name in shown} == shown
    assert newest["fractions"] == {"received": 1.0, "verified": 1.0, "installed": 1.0}
    assert_same_bytes(fleet, source, "w1", "w2", "w3")


# ---- versions --------------------------------------------------------------------------------------------------------


async def test_a_version_is_its_bytes_and_versions_only_grow(fleet: LocalFleet, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", MB, seed=2)
    other = make_snapshot(tmp_path / "other", MB, seed=3)
    skipped = await newest_version(fleet) + 1
    version = skipped + 1
    first = await published(fleet, source, "--version", str(version))
    before = await received(fleet)
    assert await published(fleet, source, "--version", str(version)) == first
    code, out, err = await chappe(fleet, "publish", str(other), "--json", "--version", str(version))
    assert (code, out) == (1, "")
    assert f"version {version} exists with other bytes" in err
    async with AsyncPublisher(fleet.address) as publisher:
        again = await publisher.publish(source, version=version)
        assert (await again.wait(1.0, timeout_s=60)).root == first["root"]
        refused = [
            (await publisher.publish(other, version=version), "other bytes"),
            (await publisher.publish(other, version=skipped), "versions only grow"),
        ]
        for publication, why in refused:
            with pytest.raises(VersionConflictError, match=why):
                await publication.wait(timeout_s=60)
    assert await received(fleet) == before
    assert_same_bytes(fleet, source, *fleet.workers)


async def test_a_second_publisher_of_the_same_bytes_waits_for_the_first(fleet: LocalFleet, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 6 * MB, seed=12)
    version, before = await newest_version(fleet) + 1, await received(fleet)
    arguments = ("--version", str(version))
    first = await start_publish(fleet, source, "--limit-uplink", "24mbit", "--json", *arguments)
    await all_receive(fleet, MB, before)
    result = await published(fleet, source, *arguments)
    assert json.loads(await first.output()) == result
    assert (first.returncode, result["installed"]) == (0, 3)
    after = await received(fleet)
    assert all(after[name] - before[name] <= payload_bytes(source) + MB // 4 for name in after)


async def test_a_file_that_changes_while_it_is_hashed_never_becomes_a_version(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_snapshot(tmp_path / "model", 4 * MB, seed=5)
    held = HeldOrigins(monkeypatch, 0.5)
    version, before = await newest_version(fleet) + 1, await received(fleet)
    async with AsyncPublisher(fleet.address, uplink="40mbit") as publisher:
        publication = await publisher.publish(source, version=version)
        await all_receive(fleet, 0.4 * 4 * MB, before)
        with (source / "model.safetensors").open("r+b") as file:  # as a trainer that saves in place
            file.seek(-8, 2)
            file.write(b"new step")
        held.gates[0].open()
        with pytest.raises(SnapshotChangedError, match=r"model\.safetensors"):
            await publication.wait(timeout_s=60)
        assert landed(fleet, version) == []
        again = await publisher.publish(source, version=version)
        held.gates[1].open()
        assert (await again.wait(timeout_s=60)).installed == 3
    assert_same_bytes(fleet, source, *fleet.workers)


async def test_a_file_that_changes_after_its_root_lands_nowhere(fleet: LocalFleet, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 8 * MB, seed=6)
    before = await received(fleet)
    publish = await start_publish(fleet, source, "--limit-uplink", "8mbit", "--json")
    await all_receive(fleet, MB, before)
    with (source / "model.safetensors").open("r+b") as file:
        file.seek(-8, 2)
        file.write(b"new step")
    assert await publish.output() == b""
    assert publish.returncode == 1
    assert "model.safetensors" in publish.tail()
    assert "changed" in publish.tail()
    (failed, *_) = (await fleet.status()).publications
    assert (failed.state, landed(fleet, failed.version)) == ("failed", [])
    result = await published(fleet, source)
    assert result["version"] > failed.version
    assert_same_bytes(fleet, source, *fleet.workers)


# ---- stopping it -----------------------------------------------------------------------------------------------------


async def test_ctrl_c_in_publish_cancels(fleet: LocalFleet, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "model", 8 * MB, seed=7)
    before = await received(fleet)
    publish = await start_publish(fleet, source, "--limit-uplink", "8mbit", "--json")
    await all_receive(fleet, MB, before)
    publish.send_signal(signal.SIGINT)
    assert await publish.output() == b""
    assert publish.returncode == 130
    assert "cancelled" in publish.tail()
    (cancelled, *_) = (await fleet.status()).publications
    assert (cancelled.state, landed(fleet, cancelled.version)) == ("cancelled", [])


async def test_cancel_stops_somebody_elses_publication(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_snapshot(tmp_path / "model", 4 * MB, seed=8)
    held = HeldOrigins(monkeypatch, 0.5)
    before = await received(fleet)
    async with AsyncPublisher(fleet.address, uplink="40mbit") as publisher:
        publication = await publisher.publish(source)
        await all_receive(fleet, 0.3 * 4 * MB, before)
        version = publication.version
        assert await chappe(fleet, "cancel", str(version)) == (0, f"version {version}: cancelled\n", "")
        with pytest.raises(PublicationCancelledError):
            await publication.wait(timeout_s=60)
        code, _, err = await chappe(fleet, "cancel", str(version))
        assert code == 1
        assert "cancelled already" in err
        assert landed(fleet, version or 0) == []
        again = await publisher.publish(source, version=version)  # its root was never announced
        held.gates[1].open()
        assert (await again.wait(timeout_s=60)).installed == 3


# ---- topologies ------------------------------------------------------------------------------------------------------


async def test_the_topology_is_as_asked(fleet: LocalFleet, tmp_path: Path) -> None:
    star = await published(fleet, make_snapshot(tmp_path / "a", MB, seed=9), "--topology", "star")
    assert sorted(star["chains"]) == [["w1"], ["w2"], ["w3"]]
    two = await published(fleet, make_snapshot(tmp_path / "b", MB, seed=10), "--chains", "2")
    assert sorted(map(len, two["chains"])) == [1, 2]
    assert sorted(name for chain in two["chains"] for name in chain) == ["w1", "w2", "w3"]
    assert_same_bytes(fleet, tmp_path / "b", *fleet.workers)


async def test_publications_run_one_after_the_other_on_one_publisher(fleet: LocalFleet, tmp_path: Path) -> None:
    sources = [make_snapshot(tmp_path / f"model-{i}", MB, seed=20 + i) for i in range(5)]
    async with AsyncPublisher(fleet.address) as publisher:
        versions = [(await (await publisher.publish(s)).wait(timeout_s=60)).version for s in sources]
    assert versions == list(range(versions[0], versions[0] + 5))
    await asyncio.gather(*(asyncio.to_thread(assert_same_bytes, fleet, sources[-1], name) for name in fleet.workers))
