"""The examples in deploy/ are true: the programs take them."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest
from relayd.__main__ import app as relayd_app

from chappe.cli.main import build
from chappe.cli.settings import run_app

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_coordinator_toml(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["coordinator", "--config", str(DEPLOY / "coordinator.toml"), "--print-config"]
    assert run_app(build(), arguments, env_prefix="CHAPPE_") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("[coordinator]\n")
    assert 'run = "my-run"' in printed


def test_relayd_toml(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(DEPLOY / "relayd.toml"), "--print-config"]
    assert run_app(relayd_app, arguments, env_prefix="RELAYD_") == 0
    assert 'name = "worker-1"' in capsys.readouterr().out


@pytest.mark.parametrize(("unit", "program"), [("chappe-coordinator", "chappe coordinator"), ("relayd", "relayd")])
def test_units_start_the_programs_with_their_files(unit: str, program: str) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / f"{unit}.service").read_text())
    config = "coordinator" if "coordinator" in unit else "relayd"
    assert parser["Service"]["ExecStart"] == f"/opt/chappe/bin/{program} --config /etc/chappe/{config}.toml"
    assert int(parser["Service"]["TimeoutStopSec"]) > 5  # what the daemons promise
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"  # a database may be away for longer than systemd is patient
    assert parser["Service"]["RestartPreventExitStatus"] == "2"
    assert parser["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_its_configuration() -> None:
    done = subprocess.run(["promtool", "check", "config", DEPLOY / "prometheus.yml"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
