"""What `chappe plan` is told: scenario files and flags over them, and what it refuses, by name and with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chappe.cli.main import build
from chappe.cli.plankeys import GROUPS, KEYS
from chappe.cli.settings import run_app

DEPLOY = Path(__file__).parents[2] / "deploy"
CAPACITY = ["capacity", "--t-train", "1500s", "--t-bcast", "1437s", "--kappa", "2", "--batch", "2048"]
TOPOLOGY = ["topology", "--payload", "16.4GB", "--uplink", "300mbit", "--workers", "9", "--worker-downlink", "100mbit"]
COST = ["cost", "--baseline", "8xA100@3.06", "--candidate", "4xA100@3.06,8xRTX-5090@0.35"]
COMPARE = ["compare", *TOPOLOGY[1:], "--store-egress-price", "0.09", "--period", "50m"]


def run(*arguments: str) -> int:
    return run_app(build(), ["plan", *arguments], env_prefix="CHAPPE_")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def over(base: list[str], *changes: str) -> list[str]:
    """A command line with other values for some of its flags."""
    command, *flags = base
    pairs = dict(zip(flags[::2], flags[1::2], strict=True)) | dict(zip(changes[::2], changes[1::2], strict=True))
    return [command, *(part for pair in pairs.items() for part in pair)]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    return shown.err


@pytest.mark.parametrize("command", ["capacity", "topology", "staleness", "cost", "compare"])
def test_one_file_is_enough_for_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    loop = ["--period", "50m"] if command == "compare" else []
    assert answer(capsys, command, "--scenario", str(DEPLOY / "plan.toml"), *loop)["feasible"] is True


def test_flags_win_over_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = ["--scenario", str(DEPLOY / "plan.toml")]
    assert answer(capsys, "capacity", *scenario)["workers"] == 9
    assert answer(capsys, "capacity", *scenario, "--kappa", "3")["workers"] == 7
    assert answer(capsys, "topology", *scenario, "--workers", "20")["workers"] == 20


def test_a_flag_puts_the_other_way_to_say_it_out_of_force(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = ["--scenario", str(DEPLOY / "plan.toml")]
    assert answer(capsys, "capacity", *scenario, "--staleness", "4")["kappa"] == 3
    shown = answer(capsys, "topology", *scenario, "--payload", "2GB", "--delta", "5MB")["payloads"]
    assert [(p["kind"], p["payload_bytes"]) for p in shown] == [
        *(("full", 2_000_000_000), ("compressed", 11_300_000_000), ("delta", 5_000_000))
    ]


def test_a_fleet_file_is_found_beside_its_scenario(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.toml").write_text('payload = "1GB"\nuplink = "300mbit"\nfleet = "hosts.toml"\n')
    (tmp_path / "run" / "hosts.toml").write_text((DEPLOY / "hosts.toml").read_text())
    monkeypatch.chdir(tmp_path)
    assert answer(capsys, "topology", "--scenario", "run/plan.toml")["workers"] == 10
    equal = ["--workers", "3", "--worker-downlink", "100mbit"]
    assert answer(capsys, "topology", "--scenario", "run/plan.toml", *equal)["workers"] == 3


def test_hosts_may_stand_in_the_scenario_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'payload = "1GB"\nuplink = "100mbit"\n[[hosts]]\nname = "a"\ndownlink = "50mbit"\nuplink = "5mbit"\n'
        '[[hosts]]\nname = "b"\ndownlink = "50mbit"\nuplink = "50mbit"\n'
    )
    assert answer(capsys, "topology", "--scenario", str(path))["chains"] == [["b"], ["a"]]


def test_variables_say_nothing_about_a_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAPPE_WORKERS", "500")
    monkeypatch.setenv("CHAPPE_PAYLOAD", "delta")  # of `chappe publish`
    assert answer(capsys, *TOPOLOGY)["workers"] == 9


def test_every_key_has_one_meaning() -> None:
    assert len(KEYS) == len(set(KEYS)) == sum(len(group.model_fields) for group in GROUPS)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("kapa = 2", "'kapa' is not a key: did you mean 'kappa'?"),
        ("worker-downlink = '1mbit'", "did you mean 'worker_downlink'?"),
        ("zzz = 2", "the keys are baseline, baseline_step, batch"),
        ("payload = 16400", "--payload: 16400 has no unit"),
        ('payload = "16.4Gb"', "'16.4Gb' is not a size"),
        ('t_train = "1500"', "'1500' is not a time"),
        ('uplink = "300mbps"', "'300mbps' is not a rate"),
        ("kappa = 0", "kappa: must be a whole number of 1 or more, not 0"),
        ("kappa = 1.5", "kappa: "),
        ("kappa = true", "kappa: must be a number, not true"),
        ("batch = nan", "batch: must be a number above zero, not nan"),
        ("batch = '2048 rollouts'", "batch: "),
        ("gamma = 0", "gamma: must be a number above zero, not 0"),
        ("payload = ", "Invalid value"),
        ("hosts = 3", "hosts must be tables: [[hosts]]"),
        ("staleness = 2", "staleness S must be a whole number of 3 or more, not 2"),
    ],
)
def test_a_bad_scenario_is_named(text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    error = refused(capsys, "capacity", "--scenario", str(path))
    assert named in error
    assert str(path) in error or "staleness" in text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[hosts]]\nname = 'a'\ndownlnk = '1mbit'", "[[hosts]] number 1: 'downlnk' is not a key: did you mean 'down"),
        ("[[hosts]]\ndownlink = '1mbit'", "[[hosts]] number 1: name: Field required"),
        ("[[hosts]]\nname = 'a'\ndownlink = '1mbit'", "host 'a': uplink is missing"),
        ("[[hosts]]\nname = 'a'\nuplink = '1mbit'", "host 'a': downlink is missing"),
        ("[[hosts]]\nname = 'a'\ncount = 0", "count: must be a whole number of 1 or more"),
        ("[[hosts]]\nname = 'a'\nuplink = '1mbit'\ndownlink = '0mbit'", "'0mbit' is not a rate"),
        ("[[hosts]]\nname = 'a'\nnat = 'maybe'", "nat: must be true or false, not 'maybe'"),
        ("[[hosts]]\nname = 'a'\n[[hosts]]\nname = 'a'", "number 2: name: 'a' is taken"),
        ("hsts = 1", "'hsts' is not a key: did you mean 'hosts'?"),
        ("", "no [[hosts]]"),
    ],
)  # fmt: skip
def test_a_bad_fleet_file_is_named(text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    fleet = ["--payload", "1GB", "--uplink", "100mbit", "--fleet", str(path)]
    assert named in refused(capsys, "topology", *fleet)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (CAPACITY[:-2], "--batch"),
        (["capacity"], "--t-train and --kappa and --batch"),
        (over(CAPACITY, "--kappa", "0"), "--kappa: must be a whole number of 1 or more"),
        (over(CAPACITY, "--kappa", "two"), "--kappa"),
        (over(CAPACITY, "--batch", "nan"), "--batch: must be a number above zero, not nan"),
        (over(CAPACITY, "--batch", "-5"), "--batch"),
        (over(CAPACITY, "--t-train", "0s"), "--t-train: must be a number above zero"),
        (over(CAPACITY, "--t-train", "1500"), "'1500' is not a time"),
        (over(CAPACITY, "--t-train", "25 minutes"), "'25 minutes' is not a time"),
        (over(CAPACITY, "--rollouts-per-s", "0"), "--rollouts-per-s: must be a number above zero"),
        (over(CAPACITY, "--gamma", "inf"), "--gamma"),
        (over(CAPACITY, "--staleness", "5"), "--kappa 2 is not --staleness 5 minus one"),
        ([*CAPACITY[:3], "--kappa", "2", "--batch", "9"], "give --t-bcast, or a payload and links"),
        (over(CAPACITY, "--kapa", "3"), "--kapa"),
        (["staleness"], "--staleness or --kappa"),
        (["staleness", "--staleness", "2"], "staleness S must be a whole number of 3 or more"),
        (["staleness", "--kappa", "1"], "kappa (where S = kappa + 1 is asked for)"),
        (["staleness", "--staleness", "3", "--plot", "x.png"], "--t-train, --batch"),
        (over(TOPOLOGY, "--workers", "0"), "--workers: must be a whole number of 1 or more"),
        (over(TOPOLOGY, "--fraction", "1.5"), "--fraction: must be above 0 and at most 1"),
        (over(TOPOLOGY, "--fraction", "nan"), "--fraction"),
        (over(TOPOLOGY, "--chains", "-1"), "--chains"),
        (over(TOPOLOGY, "--uplink", "0mbit"), "--uplink"),
        (over(TOPOLOGY, "--payload", "0GB"), "--payload: must be a number above zero"),
        (over(TOPOLOGY, "--parameters", "1e9", "--bytes-per-parameter", "2"), "leave one out"),
        (["topology", "--parameters", "1e9"], "--bytes-per-parameter"),
        (["topology"], "--payload"),
        (["topology", "--payload", "1GB"], "--uplink and --workers and --worker-downlink"),
        (over(TOPOLOGY, "--delta-density", "0.01"), "--delta-bytes-per-change"),
        (over(TOPOLOGY, "--fleet", "/nonexistent"), "/nonexistent"),
        (over(TOPOLOGY, "--scenario", "/nonexistent"), "/nonexistent"),
        (over(TOPOLOGY, "--coordinator", "nowhere"), "--coordinator"),
        (over(TOPOLOGY, "--plot", "x.gif"), "--plot"),
        (["capacity", *CAPACITY[1:3], *CAPACITY[5:], *TOPOLOGY[1:], "--send", "delta"], "--send delta"),
        (["activation", "--required-rollouts-per-s", "1"], "--fleet"),
        (["activation", "--required-rollouts-per-s", "1"], "--offers 8xRTX-5090@0.35/0.33"),
        (["activation", "--offers", "8xT4", "--required-rollouts-per-s", "1"], "'8xT4' is not an offer"),
        (["activation", "--offers", "8xT4@1", "--required-rollouts-per-s", "1"], "write 8xT4@1/RATE"),
        (["activation", "--offers", "0xT4@1/1", "--required-rollouts-per-s", "1"], "'0xT4@1/1': count: must be"),
        (["activation", "--offers", "8xT4@-1/1", "--required-rollouts-per-s", "1"], "price_per_hour: must be zero or"),
        (["activation", "--offers", "8xT4@1/1,2xT4@1/1", "--required-rollouts-per-s", "1"], "'T4' is there twice"),
        (["activation", "--fleet", str(DEPLOY / "hosts.toml"), "--draws", "0"], "--draws"),
        (["cost", "--baseline", "8xA100@3"], "--candidate"),
        (over(COST, "--baseline", "A100@3.06"), "'A100@3.06' is not a kind of host"),
        (over(COST, "--candidate", "8xB200"), "'B200' has no price"),
        (over(COST, "--candidate", "8xB200@nan"), "'8xB200@nan'"),
        (over(COST, "--candidate", "8xB200@-1"), "8xB200@-1"),
        (over(COST, "--price", "A100"), "'A100' is not NAME=PRICE"),
        (over(COST, "--baseline", "0xA100@3"), "--baseline: it costs nothing"),
        (over(COST, "--candidate", "8xA100@0"), "--candidate: it costs nothing"),
        (over(COST, "--baseline-step", "100s"), "--candidate-step"),
        (over(COST, "--hours", "0"), "--hours"),
        (over(COST, "--origin-egress-price", "0.09", "--payload", "1GB"), "--chains"),
        (over(COST, "--origin-egress-price", "0.09", "--payload", "1GB", "--chains", "2"), "--period"),
        (over(COMPARE, "--store-egress-price", "-1"), "--store-egress-price: must be zero or a number above it"),
        ([*COMPARE[:-4], "--period", "50m"], "--store-egress-price"),
        (COMPARE[:-2], "--period"),
        (over(COMPARE, "--worker-price", "1"), "--kappa and --t-train and --batch and --rollouts-per-s"),
        (over(COMPARE, "--store-part", "64mbit"), "'64mbit' is not a size"),
    ],
)
def test_wrong_usage(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in refused(capsys, *arguments)
