"""Mutual TLS over a whole fleet, who is refused, and where plaintext is. Keys come from `chappe keys`."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from chappe.cli.localfleet import LocalFleet, RelaySpec
from chappe.cli.main import build
from chappe.cli.process import Process
from chappe.cli.settings import TlsSettings, run_app
from chappe.errors import CoordinatorUnavailableError, RefusedError
from chappe.hop.net import load_tls
from chappe.publisher import AsyncPublisher
from tests.integration.fleet_tools import (
    assert_same_bytes,
    chappe,
    make_snapshot,
    mute_relays,
    published,
    run_cli,
    tls_flags,
)

MB = 1 << 20


def fleet_keys(directory: Path, *names: str) -> dict[str, TlsSettings]:
    """A CA and a certificate for each name, made by the command."""
    assert run_app(build(), ["keys", "init", str(directory)], env_prefix="CHAPPE_") == 0
    for name in names:
        assert run_app(build(), ["keys", "issue", name, "--directory", str(directory)], env_prefix="CHAPPE_") == 0
    return {
        name: TlsSettings(
            tls_cert=directory / f"{name}.pem", tls_key=directory / f"{name}-key.pem", tls_ca=directory / "ca.pem"
        )
        for name in names
    }


async def start_relayd(fleet: LocalFleet, name: str, *flags: str) -> Process:
    """A relay that need not get as far as joining."""
    arguments = ["--coordinator", fleet.address, "--store", str(fleet.store(f"{name}-store")), "--name", name]
    arguments += ["--listen", "127.0.0.1:0", "--log-format", "json", *flags]
    return await Process.start(name, "relayd", arguments, fleet.directory / "logs" / f"{name}.log")


async def test_a_fleet_under_mutual_tls(tmp_path: Path) -> None:
    keys = fleet_keys(tmp_path / "keys", "coordinator", "w1", "w2", "origin", "trainer")
    foreign = fleet_keys(tmp_path / "foreign", "w3", "trainer")
    source, other = (make_snapshot(tmp_path / f"model-{i}", MB, seed=i) for i in (1, 2))
    fleet = LocalFleet(
        tmp_path / "fleet",
        tuple(replace(spec, flags=(*spec.flags, *tls_flags(keys[spec.name]))) for spec in mute_relays(2)),
        coordinator_flags=tls_flags(keys["coordinator"]),
        tls=keys["origin"],
    )
    async with fleet:
        result = await published(fleet, source)
        assert result["installed"] == 2
        assert [sorted(chain) for chain in result["chains"]] == [["w1", "w2"]]  # the second fetches from the first
        trainer = keys["trainer"]
        tls = load_tls(trainer.tls_cert, trainer.tls_key, trainer.tls_ca)
        async with AsyncPublisher(fleet.address, tls=tls) as publisher:
            assert publisher.name == "trainer"
            assert (await (await publisher.publish(other)).wait(timeout_s=60)).installed == 2
        assert_same_bytes(fleet, source, "w1", "w2", version=1)
        assert_same_bytes(fleet, other, "w1", "w2")

        # A node is who its certificate says.
        impostor = await start_relayd(fleet, "w3", *tls_flags(keys["w2"]))
        assert await impostor.wait() == 1
        assert "the certificate is for 'w2', the name given is 'w3'" in impostor.tail()
        with pytest.raises(RefusedError, match="the certificate is for 'trainer'"):
            await AsyncPublisher(fleet.address, tls=tls, name="origin").open()

        # Another CA's certificates are worth nothing, and neither is none.
        stranger = await start_relayd(fleet, "w3", *tls_flags(foreign["w3"]))
        try:
            lost = await stranger.logged(lambda line: line.get("event") == "coordinator_lost")
            assert "UNAVAILABLE" in lost["problem"]
        finally:
            assert await stranger.stop(timeout_s=30) == 0
        strange = foreign["trainer"]
        for flags in (tls_flags(strange), ()):
            code, out, err = await run_cli("status", "--coordinator", fleet.address, *flags)
            assert (code, out) == (1, "")
            assert "does not answer" in err
        with pytest.raises(CoordinatorUnavailableError):
            await AsyncPublisher(
                fleet.address, tls=load_tls(strange.tls_cert, strange.tls_key, strange.tls_ca), open_timeout_s=2
            ).open()
        code, out, _ = await chappe(fleet, "status", "--json")
        assert code == 0
        assert [relay["name"] for relay in json.loads(out)["relays"]] == ["w1", "w2"]


async def test_plaintext_stays_on_loopback_unless_told_otherwise(tmp_path: Path) -> None:
    """Each of the three that listen names the flag and exits with 2; with --insecure a fleet runs on all addresses."""
    source = make_snapshot(tmp_path / "model", MB, seed=3)
    wide = ("--listen", "0.0.0.0:0")
    for command in (("coordinator",), ("publish", str(source))):
        code, _, err = await run_cli(*command, *wide)
        assert code == 2
        assert "--listen 0.0.0.0:0" in err
        assert "--insecure" in err
    fleet = LocalFleet(
        tmp_path / "fleet", (RelaySpec("w1", (*wide, "--insecure")),), "0.0.0.0:0", coordinator_flags=("--insecure",)
    )
    (fleet.directory / "logs").mkdir(parents=True)
    await fleet.start_coordinator(fleet.listen)
    try:
        port = fleet.address.rpartition(":")[2]
        fleet.coordinator.ready["address"] = f"127.0.0.1:{port}"  # where to dial what listens everywhere
        refused = await Process.start(
            "w0",
            "relayd",
            ["--coordinator", fleet.address, "--store", str(fleet.store("w0")), "--name", "w0", *wide],
            tmp_path / "w0.log",
        )
        assert await refused.wait() == 2
        assert "--listen 0.0.0.0:0" in refused.tail()
        assert "--insecure" in refused.tail()
        await fleet.start_relay(fleet.relays[0])
        await fleet.wait_joined("w1")
        assert (await published(fleet, source, *wide, "--insecure"))["installed"] == 1
        assert_same_bytes(fleet, source, "w1")
    finally:
        await fleet.stop()


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.parametrize(
    "host",
    [
        pytest.param("[::1]", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 on this host")),
        "localhost",
    ],
)
async def test_ipv6_and_names(tmp_path: Path, host: str) -> None:
    source = make_snapshot(tmp_path / "model", MB, seed=4)
    listen = f"{host}:0"
    specs = tuple(replace(s, flags=("--listen", listen, "--http", listen)) for s in mute_relays(2))
    async with LocalFleet(tmp_path / "fleet", specs, listen) as fleet:
        assert fleet.address.startswith(f"{host}:")
        result = await published(fleet, source, "--listen", listen, "--chains", "1")
        assert result["installed"] == 2
        status = await fleet.status()
        assert all(relay.address.startswith(f"{host}:") for relay in status.relays)
        assert_same_bytes(fleet, source, "w1", "w2")
