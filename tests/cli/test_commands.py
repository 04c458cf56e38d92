"""Every command as a person types it: help with an example, wrong usage, answers of a coordinator without relays."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from chappe.cli.localfleet import LocalFleet
from chappe.cli.main import COMMANDS, build
from chappe.cli.process import Process
from chappe.cli.settings import run_app


def run(*arguments: str) -> int:
    return run_app(build(), arguments, env_prefix="CHAPPE_")


@pytest.mark.parametrize(
    "command", [(), *((name,) for name in COMMANDS), ("keys",), ("keys", "init"), ("keys", "issue")]
)
def test_help_has_an_example(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "--help") == 0
    printed = capsys.readouterr()
    usage, _, example = printed.out.partition("Example:\n")
    assert usage.startswith("Usage: chappe")
    assert example.startswith(f"    chappe {' '.join(command)}")
    assert printed.err == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nope"], "nope"),
        (["publish"], "PATH"),
        (["publish", "/nonexistent"], "/nonexistent"),
        (["publish", ".", "--rollback-to", "1"], "--rollback-to"),
        (["publish", "--rollback-to", "0"], "--rollback-to"),
        (["publish", ".", "--keep-deltas", "-1"], "--keep-deltas"),
        (["publish", ".", "--until", "1.5"], "--until"),
        (["publish", ".", "--until", "0"], "--until"),
        (["publish", ".", "--version", "0"], "--version"),
        (["publish", ".", "--chains", "-1"], "--chains"),
        (["publish", ".", "--payload", "half"], "--payload"),
        (["publish", ".", "--topology", "ring"], "--topology"),
        (["publish", ".", "--uplink", "100"], "--uplink"),
        (["publish", ".", "--coordinator", "192.0.2.1:7400"], "--coordinator"),
        (["publish", ".", "--coordinator", "127.0.0.1"], "--coordinator"),
        (["publish", ".", "--listen", "0.0.0.0:0"], "--listen"),
        (["publish", ".", "--tls-cert", "x.pem"], "--tls-key"),
        (["cancel"], "VERSION"),
        (["cancel", "0"], "VERSION"),
        (["cancel", "x"], "VERSION"),
        (["drain"], "NAME"),
        (["forget", "a", "b"], "b"),
        (["status", "--coordinator", "nowhere"], "--coordinator"),
        (["status", "--coordinator", "192.0.2.1:7400"], "--coordinator"),
        (["verify"], "DIRECTORY"),
        (["verify", "/nonexistent"], "/nonexistent"),
        (["up", "--relays", "0"], "--relays"),
        (["up", "--snapshot", "/nonexistent"], "--snapshot"),
        (["coordinator", "--lease", "5"], "--lease"),
        (["coordinator", "--listen", "0.0.0.0:0"], "--listen"),
        (["keys", "issue", "x", "--directory", "/nonexistent"], "/nonexistent"),
        (["keys", "issue"], "NAME"),
    ],
)
def test_wrong_usage(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert named in printed.err
    assert printed.out == ""


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run("up", "--store", str(tmp_path / "file" / "fleet"), "--listen", "127.0.0.1:0") == 1
    assert f"nothing can be kept in {tmp_path / 'file' / 'fleet'}: " in capsys.readouterr().err


def test_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("keys", "init", str(tmp_path)) == 0
    assert run("keys", "issue", "worker-1", "--directory", str(tmp_path), "--address", "10.0.0.7") == 0
    assert f"--tls-cert {tmp_path / 'worker-1.pem'}" in capsys.readouterr().out
    assert (tmp_path / "worker-1-key.pem").stat().st_mode & 0o777 == 0o600
    assert run("keys", "issue", "worker-1", "--directory", str(tmp_path)) == 2  # never overwritten


def test_the_flags_of_a_certificate_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "my keys"
    assert run("keys", "init", str(keys)) == 0
    capsys.readouterr()
    assert run("keys", "issue", "worker-1", "--directory", str(keys)) == 0
    files = [str(keys / name) for name in ("worker-1.pem", "worker-1-key.pem", "ca.pem")]
    assert shlex.split(capsys.readouterr().out)[1::2] == files


@pytest.mark.parametrize("command", [["status"], ["cancel", "1"], ["drain", "w"], ["status", "--watch"]])
def test_no_coordinator_is_a_failed_job(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "--coordinator", "127.0.0.1:1") == 1
    assert "127.0.0.1:1 does not answer" in capsys.readouterr().err


@pytest.fixture
async def lonely(tmp_path: Path) -> AsyncIterator[LocalFleet]:
    """A coordinator that no relay has joined."""
    async with LocalFleet(tmp_path / "fleet", ()) as fleet:
        yield fleet


async def chappe(fleet: LocalFleet, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command against this fleet."""
    log_path = fleet.directory / "command.log"
    arguments = (*arguments, "--coordinator", fleet.address)
    process = await Process.start("command", "chappe.cli.main", arguments, log_path, capture_stdout=True)
    try:
        output = await process.output()
    finally:
        await process.stop()
    assert process.returncode is not None
    return process.returncode, output.decode(), "\n".join(process.lines)


async def test_status_of_an_empty_fleet(lonely: LocalFleet) -> None:
    code, out, _ = await chappe(lonely, "status", "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["relays"] == []
    assert answer["publications"] == []
    code, out, _ = await chappe(lonely, "status")
    assert code == 0
    assert answer["run"] in out


@pytest.mark.parametrize("command", [("cancel", "7"), ("drain", "nobody"), ("forget", "nobody")])
async def test_what_does_not_exist_is_a_failed_job(lonely: LocalFleet, command: tuple[str, str]) -> None:
    code, out, err = await chappe(lonely, *command)
    assert code == 1
    assert out == ""
    assert command[1] in err


async def test_publishing_to_nobody_is_a_failed_job_that_says_so(lonely: LocalFleet, tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    code, out, err = await chappe(lonely, "publish", str(tmp_path / "model.safetensors"), "--json")
    assert code == 1
    assert out == ""
    assert "relay" in err or "worker" in err


async def test_a_second_coordinator_on_the_port_does_not_start(lonely: LocalFleet) -> None:
    arguments = ["coordinator", "--listen", lonely.address, "--state", f"sqlite:///{lonely.directory}/second.db"]
    second = await Process.start("second", "chappe.cli.main", arguments, lonely.directory / "second.log")
    assert await second.wait() == 2
    assert lonely.address in second.tail()
