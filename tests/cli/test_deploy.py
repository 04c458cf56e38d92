"""The examples in deploy/ are true: the programs take them."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from relayd.__main__ import app as relayd_app

from chappe.cli.main import build
from chappe.cli.settings import run_app
from chappe.core.training_config import Verdict
from chappe.core.views import RelayState

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "alerts.yml"
README = DEPLOY.parent / "README.md"


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


def rules() -> dict[str, str]:
    """The expression of each alert."""
    return dict(re.findall(r"- alert: (\w+)\n(?: +#.*\n)*? +expr: (.+)\n", ALERTS.read_text()))


def test_alerts_ask_for_series_and_labels_that_there_are() -> None:
    text = README.read_text()
    states = {state.value for state in (*RelayState, *Verdict)} | {"installed"}
    assert len(rules()) == ALERTS.read_text().count("- alert:")
    for expression in rules().values():
        for name in re.findall(r"(?:chappe|relayd)_\w+", expression):
            assert f"`{name}" in text, name
        for values in re.findall(r'(?:state|verdict)=~?"([^"]*)', expression):
            assert set(values.split("|")) <= states


INSTALLED = 'chappe_install_fraction{version="%d",state="installed"}'
BAD = {
    "ChappeCoordinatorDown": {'up{job="chappe-coordinator"}': "0x60"},
    "ChappeRelayDown": {'up{job="relayd",instance="w1"}': "0x60", 'up{job="relayd",instance="w2"}': "1x60"},
    "ChappeWorkersBehind": {INSTALLED % 3: "0.25x60", INSTALLED % 2: "0.5x60"},
    "ChappeRelaysAway": {'chappe_relays{state="absent"}': "2x60", 'chappe_relays{state="lost"}': "1x60"},
    "ChappeRelaysFail": {'chappe_relays{state="failed"}': "0x60", 'chappe_relays{state="disk_full"}': "1x60"},
    "ChappeManyRebuilds": {'chappe_segment_rebuilds_total{reason="dead"}': "0+2x60"},
    "ChappeChunksWrong": {'relayd_chunk_verify_failures_total{instance="w1"}': "0x30 1x30"},
    "ChappeDeltaUnusual": {"chappe_delta_alarm": "1x60"},
    "ChappeLearnerWaits": {'chappe_training_verdict{verdict="short"}': "1x60"},
}
WELL = {
    'up{job="chappe-coordinator"}': "1x60",
    'up{job="relayd",instance="w1"}': "1x60",
    INSTALLED % 3: "0.25x60",
    INSTALLED % 2: "1x60",
    'chappe_relays{state="absent"}': "0x60",
    'chappe_relays{state="installed"}': "8x60",
    'chappe_segment_rebuilds_total{reason="dead"}': "0x30 3x30",
    'relayd_chunk_verify_failures_total{instance="w1"}': "7x60",
    "chappe_delta_alarm": "0x60",
    'chappe_training_verdict{verdict="enough"}': "1x60",
    'chappe_training_verdict{verdict="infeasible"}': "0x60",
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    assert set(BAD) == set(rules())
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": "40m",
                    "exp_samples": [{"labels": "{}", "value": 1}] * (series is not WELL),
                }
            ],
        }
        for alert, bad in BAD.items()
        for series in (bad, WELL)
    ]
    path = tmp_path / "tests.yml"
    path.write_text(json.dumps({"rule_files": [str(ALERTS)], "tests": tests}))  # JSON is YAML
    done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
