from __future__ import annotations

import itertools
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from relayd.__main__ import EXAMPLE
from relayd.config import InstallHook, RelaydSettings, parse_install
from relayd.daemon import Endpoints

from chappe.core.installing import InstallMode
from chappe.errors import ConfigError, UsageError
from chappe.keys import init_fleet, issue
from chappe.units import parse_rate


def _settings(**changes: object) -> RelaydSettings:
    fields: dict[str, object] = {"coordinator": "127.0.0.1:7400", "store": "/s", "name": "r1"}
    return RelaydSettings.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("text", "hook"),
    [
        ("none", InstallHook()),
        ("confirm", InstallHook(InstallMode.CONFIRM)),
        ("command load", InstallHook(InstallMode.COMMAND, "load")),
        ("  command   load --all | tee x ", InstallHook(InstallMode.COMMAND, "load --all | tee x")),
    ],
)
def test_install(text: str, hook: InstallHook) -> None:
    assert parse_install(text) == hook
    assert _settings(install=text).install_hook == hook


@pytest.mark.parametrize("text", ["", "command", "command ", "confirm now", "none at all", "load", "Confirm"])
def test_another_install_value_names_the_flag(text: str) -> None:
    with pytest.raises(ConfigError, match="--install"):
        parse_install(text)


@given(st.text())
def test_install_never_takes_what_it_does_not_know(text: str) -> None:
    try:
        hook = parse_install(text)
    except ConfigError:
        return
    assert text.split()[0] == hook.mode.value
    assert bool(hook.command) == (hook.mode is InstallMode.COMMAND)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../r1"},
        {"name": ""},
        {"name": "a b"},
        {"price_per_hour": -1},
        {"rollouts_per_second": -0.1},
        {"install_timeout": "0s"},
        {"log_level": "loud"},
        {"log_format": "xml"},
        {"surprise": 1},
        {"uplink": "fast"},
        {"streams": 0},
        {"streams": 17},
    ],
)
def test_bad_values_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises((ValidationError, UsageError)):
        _settings(**changes)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"listen": "0.0.0.0:7401"}, "--listen"),
        ({"coordinator": "trainer.example:7400"}, "--coordinator"),
        ({"advertise": "10.0.0.1:7401"}, "--advertise"),
        ({"http": "0.0.0.0:9400"}, "--http"),
        ({"listen": "7401"}, "--listen"),
        ({"coordinator": "127.0.0.1:0"}, "--coordinator"),
        ({"tls_cert": "/c.pem"}, "--tls-key"),
    ],
)
def test_an_address_that_is_not_allowed_names_its_flag(changes: dict[str, object], flag: str) -> None:
    with pytest.raises(UsageError, match=flag):
        Endpoints.of(_settings(**changes))


def test_insecure_allows_other_addresses() -> None:
    endpoints = Endpoints.of(_settings(listen="0.0.0.0:7401", insecure=True))
    assert str(endpoints.listen) == "0.0.0.0:7401"


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relayd", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_file_then_variables_then_flags_and_what_is_printed_reads_back(tmp_path: Path) -> None:
    config = tmp_path / "relayd.toml"
    config.write_text('coordinator = "127.0.0.1:1"\nstore = "/from-file"\nname = "file"\ndownlink = "100mbit"\n')
    arguments = ["--config", str(config), "--name", "flag", "--print-config"]
    printed = _run(*arguments, RELAYD_NAME="variable", RELAYD_STORE="/from-variable")
    assert printed.returncode == 0, printed.stderr
    result = tomllib.loads(printed.stdout)
    assert (result["name"], result["store"], result["coordinator"]) == ("flag", "/from-variable", "127.0.0.1:1")
    assert parse_rate(result["downlink"]) == 12_500_000
    config.write_text(printed.stdout)
    assert _run("--config", str(config), "--print-config").stdout == printed.stdout


def test_wrong_usage_ends_with_2_and_help_with_0() -> None:
    missing = _run()
    assert (missing.returncode, "--coordinator" in missing.stderr) == (2, True)
    refused = _run("--coordinator", "10.1.2.3:7400", "--store", "/nowhere", "--name", "r1")
    assert (refused.returncode, "--insecure" in refused.stderr) == (2, True)
    shown = _run("--help")
    assert shown.returncode == 0
    assert "relayd --coordinator trainer.example:7400 --store /var/lib/relayd" in shown.stdout


def test_the_example_names_the_files_that_keys_issue_writes(tmp_path: Path) -> None:
    words = EXAMPLE.replace("\\\n", " ").split()
    said = dict(itertools.pairwise(words))
    init_fleet(tmp_path)
    files = issue(tmp_path, said["--name"])
    written = (files.cert.name, files.key.name, files.ca.name)
    assert tuple(said[f"--tls-{which}"] for which in ("cert", "key", "ca")) == written
