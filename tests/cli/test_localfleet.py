"""The whole job with real programs: published, verified, repeated, refused, cancelled; nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from chappe.cli.demo import found_in
from chappe.cli.localfleet import LocalFleet, RelaySpec, relay_specs
from chappe.cli.process import FleetError, Process
from chappe.cli.settings import TlsSettings
from chappe.keys import init_fleet, issue

PUBLISH_KEYS = {
    *("run", "version", "root", "kind", "payload_bytes", "snapshot_bytes", "targeted", "installed", "lost"),
    *("installed_fraction", "t_bcast", "floor_s", "chains"),
}
SLOW = ("--limit-downlink", "1MB", "--limit-uplink", "1MB")


def model(directory: Path, *, seed: int = 0, mebibytes: int = 3) -> Path:
    directory.mkdir()
    values = np.random.default_rng(seed).standard_normal((mebibytes, 1 << 18), dtype=np.float32)
    safetensors.numpy.save_file({"weight": values}, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return directory


async def chappe(fleet: LocalFleet, *arguments: str) -> Process:
    return await Process.start(
        "chappe", "chappe.cli.main", arguments, fleet.directory / "chappe.log", capture_stdout=True
    )


async def answer(fleet: LocalFleet, *arguments: str) -> Any:
    """The JSON that a command prints."""
    process = await chappe(fleet, *arguments, "--json")
    output = await process.output()
    assert process.returncode == 0, process.tail()
    return json.loads(output)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    async with LocalFleet(tmp_path / "fleet", relay_specs(2)) as running:
        yield running


async def test_a_snapshot_is_published_verified_repeated_and_protected(fleet: LocalFleet, tmp_path: Path) -> None:
    source = model(tmp_path / "model")
    publish = ["publish", str(source), "--coordinator", fleet.address, "--version", "4", "--uplink", "200mbit"]
    result = await answer(fleet, *publish)
    assert set(result) == PUBLISH_KEYS
    assert (result["version"], result["targeted"], result["installed"]) == (4, 2, 2)
    assert sorted(name for chain in result["chains"] for name in chain) == ["worker-1", "worker-2"]
    assert set(result["t_bcast"]) == {"0.5", "0.9", "1.0"}
    for spec in fleet.relays:
        assert found_in(fleet.store(spec.name) / "current") == found_in(source)

    assert await answer(fleet, *publish) == result  # the same version with the same bytes

    other = await chappe(fleet, "publish", str(model(tmp_path / "other", seed=1)), *publish[2:])
    await other.output()
    assert other.returncode == 1
    assert "other bytes" in other.tail()

    status = await answer(fleet, "status", "--coordinator", fleet.address)
    assert [r["installed"] for r in status["relays"]] == [4, 4]
    assert status["publications"][0]["root"] == result["root"]

    report = await answer(fleet, "verify", str(fleet.store("worker-1")))
    assert report["ok"]
    assert report["root"] == result["root"]

    landed = fleet.store("worker-1") / "current" / "config.json"
    landed.chmod(0o644)
    landed.write_text("[]")
    verify = await chappe(fleet, "verify", str(fleet.store("worker-1")))
    output = await verify.output()
    assert verify.returncode == 1
    assert b"mismatch  config.json" in output


async def test_ctrl_c_cancels_the_publication_everywhere(tmp_path: Path) -> None:
    source = model(tmp_path / "model", mebibytes=24)
    async with LocalFleet(tmp_path / "fleet", relay_specs(2, SLOW)) as fleet:
        publishing = await chappe(fleet, "publish", str(source), "--coordinator", fleet.address)
        await fleet.wait_status(lambda status: any(relay.progress > 0 for relay in status.relays))
        publishing.send_signal(signal.SIGINT)
        await publishing.output()
        assert publishing.returncode == 130
        assert "cancelled" in publishing.tail()
        status = await fleet.wait_status(lambda status: status.publications[0].state == "cancelled")
        assert [relay.installed for relay in status.relays] == [0, 0]
    assert not (fleet.store("worker-1") / "current").exists()


async def test_a_killed_relay_comes_back_with_its_store_and_gets_what_it_missed(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    await fleet.workers["worker-1"].kill()
    await fleet.wait_status(lambda s: any(r.name == "worker-1" and r.state in ("absent", "lost") for r in s.relays))
    source = model(tmp_path / "model")
    publishing = await chappe(fleet, "publish", str(source), "--coordinator", fleet.address, "--until", "0.5")
    await publishing.output()
    assert publishing.returncode == 0, publishing.tail()
    await fleet.start_relay(fleet.relays[0])  # on another port
    await fleet.wait_status(lambda status: all(relay.installed == 1 for relay in status.relays))
    assert found_in(fleet.store("worker-1") / "current") == found_in(source)


async def test_the_coordinator_comes_back_with_what_it_knew(fleet: LocalFleet, tmp_path: Path) -> None:
    source = model(tmp_path / "model")
    result = await answer(fleet, "publish", str(source), "--coordinator", fleet.address, "--version", "9")
    await fleet.coordinator.kill()
    await fleet.start_coordinator(fleet.address)
    await fleet.wait_joined("worker-1", "worker-2")
    assert await answer(fleet, "publish", str(source), "--coordinator", fleet.address, "--version", "9") == result


async def test_a_daemon_that_ends_meanwhile_is_an_error_with_its_last_words(fleet: LocalFleet) -> None:
    waiting = asyncio.create_task(fleet.wait_status(lambda status: False))
    await asyncio.sleep(0)
    await fleet.workers["worker-2"].kill()
    with pytest.raises(FleetError, match="worker-2 ended with exit code -9"):
        await waiting


async def test_a_relay_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    fleet = LocalFleet(tmp_path / "fleet", (*relay_specs(1), RelaySpec("worker-2", ("--no-such-flag",))))
    with pytest.raises(FleetError, match="no-such-flag"):
        async with fleet:
            pass
    assert fleet.coordinator.returncode is not None
    assert all(process.returncode is not None for process in fleet.workers.values())


async def test_with_certificates_everything_is_mutual(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    init_fleet(keys)
    names = ("coordinator", "worker-1", "worker-2", "origin", "me")
    files = {name: issue(keys, name) for name in names}
    flags = {
        name: ("--tls-cert", str(f.cert), "--tls-key", str(f.key), "--tls-ca", str(f.ca)) for name, f in files.items()
    }
    fleet = LocalFleet(
        tmp_path / "fleet",
        tuple(RelaySpec(name, flags[name]) for name in ("worker-1", "worker-2")),
        coordinator_flags=flags["coordinator"],
        tls=TlsSettings(tls_cert=files["me"].cert, tls_key=files["me"].key, tls_ca=files["me"].ca),
    )
    source = model(tmp_path / "model")
    async with fleet:
        publish = ["publish", str(source), "--coordinator", fleet.address, *flags["origin"]]
        assert (await answer(fleet, *publish))["installed"] == 2
        assert found_in(fleet.store("worker-2") / "current") == found_in(source)
        plaintext = await chappe(fleet, "status", "--coordinator", fleet.address)
        assert await plaintext.output() == b""
        assert plaintext.returncode == 1
        stranger = RelaySpec("worker-3", flags["me"])  # a valid certificate, another name
        refused = await fleet.start_relay(stranger)
        assert await refused.wait() == 1
        assert "worker-3" in refused.tail()


async def test_up_publishes_and_leaves_nothing_behind(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = model(tmp_path / "model")
    scratch = tmp_path_factory.mktemp("up")  # short: a socket's path has at most 107 characters
    arguments = ["up", "--relays", "2", "--listen", "127.0.0.1:0", "--snapshot", str(source)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chappe.cli.main", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    assert process.stdout is not None
    lines = []
    while line := await process.stdout.readline():
        lines.append(line.decode())
        if line.startswith(b"stop:"):
            break
    else:
        raise AssertionError(((await process.communicate())[1]).decode())
    current = Path(next(line for line in lines if line.startswith("read:")).split()[1])
    assert found_in(current) == found_in(source)
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert process.returncode == 0, errors
    assert list(scratch.iterdir()) == []
