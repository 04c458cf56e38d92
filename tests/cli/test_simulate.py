from __future__ import annotations

import json
import re

import pytest

from chappe.cli.main import build
from chappe.cli.settings import run_app
from chappe.core.membership import Membership
from chappe.sim.faults import KINDS

SMALL = ["--relays", "4", "--payload", "100MB"]


def run(*arguments: str) -> int:
    return run_app(build(), ["simulate", *arguments], env_prefix="CHAPPE_")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--seed", "5", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"seed", "relays", "events", "faults", "t_bcast", "invariants_broken"} <= answer.keys()
    assert (answer["seed"], answer["relays"], answer["invariants_broken"]) == (5, 4, 0)
    assert sum(answer["faults"].values()) >= 1
    assert set(answer["t_bcast"]) == {"0.5", "0.9", "1.0"}


def test_one_line_and_the_same_again(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for _ in range(2):
        assert run(*SMALL, "--seed", "5", "--faults", "kill,pause") == 0
        lines.append(capsys.readouterr().out)
    assert lines[0] == lines[1]
    assert lines[0].count("\n") == 1
    assert "0 invariants broken" in lines[0]


def test_without_faults_none_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--faults", "none", "--uplink", "50mbit", "--origin-uplink", "50mbit") == 0
    assert "faults: none; T_bcast(1.0) 16" in capsys.readouterr().out


def test_help_names_every_kind_of_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    words = set(re.findall(r"[a-z]+", capsys.readouterr().out))
    assert set(KINDS) <= words


def test_hooks_fail_and_hosts_stand_behind_nat(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--seed", "1", "--faults", "hook", "--nat", "0.5") == 0
    assert "faults: hook" in capsys.readouterr().out


def test_no_fault_injected_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--relays", "1", "--payload", "1MB", "--faults", "ghost") == 1  # nobody starts twice
    assert "no fault could be injected: seed 0" in capsys.readouterr().err


def test_a_breach_is_reported_with_seed_log_and_invariant(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Membership, "_lapse", lambda *_: None)
    assert 1 in {run("--relays", "4", "--payload", "200MB", "--seed", str(s), "--faults", "pause") for s in range(6)}
    shown = capsys.readouterr()
    assert "1 invariants broken" in shown.out
    assert "counts as here after" in shown.err
    assert "--seed" in shown.err
    assert "coordinator  hears" in shown.err


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["--faults", "rain"], "--faults"),
        (["--relays", "0"], "--relays"),
        (["--uplink", "fast"], "--uplink"),
        (["--nat", "2"], "--nat"),
    ],
)
def test_wrong_usage(arguments: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert flag in capsys.readouterr().err


def test_versions_travel_as_deltas(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--relays", "4", "--payload", "500MB", "--publications", "2", "--faults", "none", "--json")
    assert run(*arguments, "--payload-kind", "auto", "--changed", "0.02", "--seed", "3") == 0
    as_delta = json.loads(capsys.readouterr().out)
    assert run(*arguments, "--seed", "3") == 0
    in_full = json.loads(capsys.readouterr().out)
    assert (as_delta["invariants_broken"], in_full["invariants_broken"]) == (0, 0)
    assert as_delta["t_bcast"]["1.0"] < in_full["t_bcast"]["1.0"] / 2


def test_faults_of_deltas_need_deltas(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--relays", "4", "--faults", "base") == 2
    assert "--payload-kind auto" in capsys.readouterr().err


def test_striped_fleets_are_played_on_the_uplinks_that_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    links = ["--uplinks", "30mbit,8mbit", "--downlink", "30mbit", "--origin-uplink", "90mbit", "--relays", "9"]
    times = {}
    for topology in ("striped", "chains"):
        assert run(*links, "--payload", "60MB", "--faults", "none", "--topology", topology, "--json") == 0
        times[topology] = json.loads(capsys.readouterr().out)["t_bcast"]["1.0"]
    assert times["chains"] > 1.05 * times["striped"]


def test_uplinks_that_are_none_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL, "--uplinks", "30mbit,fast") == 2
    assert "--uplinks" in capsys.readouterr().err
