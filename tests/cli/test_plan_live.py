"""`chappe plan --coordinator`: links and measured broadcasts of a living fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from chappe.cli import planlive
from chappe.cli.client import CoordinatorAddress
from chappe.cli.localfleet import LocalFleet, relay_specs
from chappe.cli.main import build
from chappe.cli.planfleet import living_fleet
from chappe.cli.process import Process
from chappe.cli.settings import TlsSettings, run_app
from chappe.errors import UsageError
from chappe.v1 import coordinator_pb2 as pb

DEPLOY = Path(__file__).parents[2] / "deploy"
WHERE = ["--coordinator", "127.0.0.1:7400"]
LOOP = ["--t-train", "1500s", "--kappa", "2", "--batch", "2048", "--rollouts-per-s", "0.33"]


def run(*arguments: str) -> int:
    return run_app(build(), ["plan", *arguments], env_prefix="CHAPPE_")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def publication(version: int, t_bcast: dict[str, float], **changes: Any) -> pb.PublicationStatus:
    values = {"kind": "full", "payload_bytes": 16_400_000_000, "floor_s": 1312.0, "state": "closed"}
    return pb.PublicationStatus(version=version, t_bcast=t_bcast, **values | changes)


def living(**changes: Any) -> pb.Status:
    """Two workers and one behind NAT with a weak uplink; version 3 is on its way, 4 was cancelled."""
    relays = [
        pb.RelayStatus(name=n, downlink_bytes_per_s=12.5e6, uplink_bytes_per_s=u, source="measured", dialable=d)
        for n, u, d in (("a", 12.5e6, "yes"), ("b", 1e6, "no"), ("c", 12.5e6, "unknown"))
    ]
    publications = [
        publication(4, {"0.5": 3.0, "0.9": 3.0, "1.0": 3.0}, state="cancelled"),
        publication(3, {"0.5": 1320.0}, state="open"),
        publication(2, {"0.5": 1313.0, "0.9": 1437.0, "1.0": 1499.0}),
    ]
    origins = [pb.OriginStatus(name="trainer", uplink_bytes_per_s=25e6)]
    return pb.Status(**{"relays": relays, "origins": origins, "publications": publications} | changes)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> pb.Status:
    status = living()

    async def get_status(where: CoordinatorAddress, tls: TlsSettings) -> pb.Status:
        assert where.coordinator == "127.0.0.1:7400"
        return status

    monkeypatch.setattr(planlive, "get_status", get_status)
    return status


def test_its_links(fleet: pb.Status, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "topology", "--payload", "1GB", *WHERE)
    assert (found["workers"], found["uplink_bytes_per_s"]) == (3, 25e6)
    assert any(chain[-1] == "b" for chain in found["chains"]), "its uplink is weak"
    assert answer(capsys, "topology", "--payload", "1GB", *WHERE, "--uplink", "1gbit")["uplink_bytes_per_s"] == 125e6


def test_what_it_measured(fleet: pb.Status, capsys: pytest.CaptureFixture[str]) -> None:
    at_09 = answer(capsys, "capacity", *LOOP, *WHERE, "--fraction", "0.9")
    assert at_09["t_bcast_s"] == 1437.0
    assert at_09["workers"] == 9
    assert at_09["t_bcast_source"] == "T(0.9) of version 2 as measured, 16.4 GB (full)"
    assert answer(capsys, "capacity", *LOOP, *WHERE)["t_bcast_s"] == 1499.0
    assert answer(capsys, "capacity", *LOOP, *WHERE, "--fraction", "0.5")["t_bcast_s"] == 1320.0, "version 3 got there"
    rows = answer(capsys, "staleness", *LOOP, *WHERE, "--fraction", "0.9")["by_staleness"]
    assert rows[0]["workers"] == 9
    file = ["--scenario", str(DEPLOY / "plan.toml")]
    assert answer(capsys, "capacity", *file, *WHERE)["t_bcast_s"] == 1499.0, "the living fleet over the file"


def test_what_another_payload_would_take(fleet: pb.Status, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "capacity", *LOOP, *WHERE, "--delta", "113MB", "--fraction", "0.9")
    assert found["t_bcast_s"] == pytest.approx(9.04 * 1437 / 1312)
    assert "the floor times 1.095 as measured" in found["t_bcast_source"]
    del fleet.publications[:]
    found = answer(capsys, "capacity", *LOOP, *WHERE, "--delta", "113MB")
    assert "nothing is measured yet" in found["t_bcast_source"]
    assert found["t_bcast_s"] >= 9.04


def test_what_it_cannot_say(fleet: pb.Status, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("capacity", *LOOP, *WHERE, "--fraction", "0.7") == 2
    assert "a coordinator measures 0.5, 0.9, 1.0" in capsys.readouterr().err
    assert run("capacity", *LOOP, *WHERE, "--t-bcast", "3s") == 2
    assert "--t-bcast and --coordinator" in capsys.readouterr().err
    assert run("staleness", "--staleness", "3", *WHERE) == 2
    assert "--t-train and --batch" in capsys.readouterr().err
    del fleet.publications[:]
    assert run("capacity", *LOOP, *WHERE) == 2
    assert "no version has reached 100% of its workers yet" in capsys.readouterr().err


def test_too_many_behind_nat_is_infeasible(fleet: pb.Status, capsys: pytest.CaptureFixture[str]) -> None:
    for relay in fleet.relays:
        relay.dialable = "no"
    del fleet.publications[:]
    assert run("capacity", *LOOP, *WHERE, "--delta", "113MB", "--chains", "1") == 1
    assert "can never be reached" in capsys.readouterr().err


def test_a_status_that_says_too_little() -> None:
    assert [link.dialable for link in living_fleet(living(), None).links] == [True, False, True]
    with pytest.raises(UsageError, match="no relays"):
        living_fleet(living(relays=[]), None)
    with pytest.raises(UsageError, match="give --uplink"):
        living_fleet(living(origins=[]), None)
    assert living_fleet(living(origins=[]), 1e6).b0_bytes_per_s == 1e6


def test_without_a_coordinator_there_the_job_fails(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["topology", "--payload", "1GB"], ["capacity", *LOOP]):
        assert run(*command, "--coordinator", "127.0.0.1:1") == 1
        assert "127.0.0.1:1 does not answer" in capsys.readouterr().err


async def command(fleet: LocalFleet, *arguments: str) -> Any:
    """The JSON that a command prints against this fleet."""
    arguments = (*arguments, "--coordinator", fleet.address, "--json")
    process = await Process.start(
        "command", "chappe.cli.main", arguments, fleet.directory / "command.log", capture_stdout=True
    )
    try:
        output = await process.output()
    finally:
        await process.stop()
    assert process.returncode == 0, process.lines
    return json.loads(output)


async def test_a_real_fleet_is_asked_after_a_real_broadcast(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.arange(100_000, dtype=np.float32)}, tmp_path / "model.safetensors")
    async with LocalFleet(tmp_path / "fleet", relay_specs(1)) as fleet:
        published = await command(fleet, "publish", str(tmp_path / "model.safetensors"))
        capacity = await command(fleet, "plan", "capacity", *LOOP)
        assert capacity["t_bcast_s"] == published["t_bcast"]["1.0"]
        assert "of version 1 as measured" in capacity["t_bcast_source"]
