"""`chappe plan` at the published points, as a person types it: the check values of the planner through the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chappe.cli.main import build
from chappe.cli.plan import COMMANDS
from chappe.cli.settings import run_app

DEPLOY = Path(__file__).parents[2] / "deploy"
LOOP = ["--t-train", "1500s", "--t-bcast", "1437s", "--kappa", "2", "--batch", "2048"]
LINKS = ["--payload", "16.4GB", "--uplink", "300mbit", "--workers", "9", "--worker-downlink", "100mbit"]
HOSTS = ["--uplink", "300mbit", "--fleet", str(DEPLOY / "hosts.toml")]
MIXED = [
    *("--baseline", "8xA100@3.06", "--baseline-step", "1508.2s"),
    *("--candidate", "4xA100@3.06, 8xRTX-5090@0.35", "--candidate-step", "1631.2s"),
]


def run(*arguments: str) -> int:
    return run_app(build(), ["plan", *arguments], env_prefix="CHAPPE_")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(*arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_has_an_example(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command, "--help") == 0
    usage, _, example = capsys.readouterr().out.partition("Example:\n")
    assert usage.startswith("Usage: chappe plan")
    assert example.startswith(f"    chappe plan {' '.join(command)}")


def test_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "capacity", *LOOP, "--rollouts-per-s", "0.33")
    assert found["feasible"] is True
    assert found["slack_s"] == 1563
    assert found["required_rollouts_per_s"] == pytest.approx(2.621, abs=5e-4)
    assert (found["workers"], found["workers_without_headroom"]) == (9, 8)
    rows = {row["kappa"]: row for row in found["by_kappa"]}
    assert [rows[k]["workers"] for k in (2, 3, 5, 8)] == [9, 7, 6, 6]
    assert [rows[k]["required_rollouts_per_s"] for k in (3, 5, 8)] == pytest.approx([2.006, 1.689, 1.551], abs=5e-4)
    bubbles = {row["share"]: row["bubble"] for row in found["bubble_by_share"]}
    assert bubbles[0.7] == pytest.approx(0.183, abs=5e-4)
    assert bubbles[1.0] == bubbles[1.5] == 0


def test_capacity_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    shown = text(capsys, "capacity", *LOOP, "--rollouts-per-s", "0.33", "--pool-rollouts-per-s", "1.83")
    assert "2.621 rollouts/s" in shown
    assert "9 of 0.33 rollouts/s (gamma 1.1; 8 without)" in shown
    assert "the learner waits 18.4% of the time" in shown
    assert "kappa 4 or a broadcast of 761.7 s (12 min 42 s) or 2.621 rollouts/s" in shown


def test_capacity_without_a_broadcast(capsys: pytest.CaptureFixture[str]) -> None:
    for kappa in ("1", "2", "8"):
        loop = ["--t-train", "1500s", "--t-bcast", "0s", "--kappa", kappa, "--batch", "2048"]
        found = answer(capsys, "capacity", *loop)
        assert found["required_rollouts_per_s"] == pytest.approx(1.365, abs=5e-4)
        assert found["workers"] is None


def test_capacity_from_payload_and_links(capsys: pytest.CaptureFixture[str]) -> None:
    loop = ["--t-train", "1500s", "--kappa", "2", "--batch", "2048", "--rollouts-per-s", "0.33"]
    found = answer(capsys, "capacity", *loop, *LINKS)
    assert found["t_bcast_s"] == pytest.approx(1312, abs=0.1)
    assert "16.4 GB (full) to 9 workers in 3 chains" in found["t_bcast_source"]
    assert found["workers"] == found["workers_that_suffice_for_their_own_broadcast"] == 9
    delta = answer(capsys, "capacity", *loop, *LINKS, "--delta", "113MB", "--send", "delta")
    assert delta["t_bcast_s"] == pytest.approx(9.06, abs=0.01)
    assert delta["workers"] == 5
    slow = ["--t-train", "1500s", "--kappa", "1", "--batch", "2048", "--worker-downlink", "50mbit"]
    assert run("capacity", *slow, *LINKS[:-2]) == 1
    told = capsys.readouterr().err
    assert "raise kappa to 2 or more" in told
    assert "less than 9.37 GB of 16.4 GB" in told


def test_infeasible_is_an_answer_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    loop = ["--t-train", "1500s", "--t-bcast", "3100s", "--kappa", "2", "--batch", "2048"]
    assert run("capacity", *loop) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "raise kappa to 3 or more, or send less than 96.8% of the payload" in shown.err
    assert run("capacity", *loop, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["feasible"], found["kappa_min"]) == (False, 3)
    assert found["payload_fraction_max"] == pytest.approx(3000 / 3100)
    assert run("staleness", *loop) == 1
    assert "kappa to 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("b0", "workers", "star", "chains"),
    [
        *(("300mbit", n, s, c) for n, s, c in ((4, 1749, 1317), (6, 2624, 1317), (9, 3936, 1322), (20, 8747, 1343))),
        *(("800mbit", n, s, c) for n, s, c in ((4, 1312, 1312), (6, 1312, 1312), (9, 1476, 1317), (20, 3280, 1322))),
    ],
)
def test_topology(b0: str, workers: int, star: float, chains: float, capsys: pytest.CaptureFixture[str]) -> None:
    links = ["--uplink", b0, "--workers", str(workers), "--worker-downlink", "100mbit"]
    found = answer(capsys, "topology", "--parameters", "8.2e9", "--bytes-per-parameter", "2", *links)
    (full,) = found["payloads"]
    assert full["payload_bytes"] == 16_400_000_000
    times = {name: row["1.0"] for name, row in full["t_bcast_s"].items()}
    assert times["floor"] == times["star_unlimited"] == pytest.approx(1312)
    assert times["star"] == pytest.approx(star, abs=0.5)
    assert times["chains_64mb"] == pytest.approx(chains, abs=0.5)
    assert times["chains"] == pytest.approx(1312, abs=0.1)
    assert sum(len(chain) for chain in found["chains"]) == workers


def test_topology_of_three_payloads(capsys: pytest.CaptureFixture[str]) -> None:
    """A delta counts by its encoded bytes: 1 % of the elements is not 1 % of the bytes."""
    sizes = ["--parameters", "8.2e9", "--bytes-per-parameter", "2", "--compressed", "11.3GB"]
    density = ["--delta-density", "0.01", "--delta-bytes-per-change", "1.38"]
    found = answer(capsys, "topology", *sizes, *density, *LINKS[2:])
    assert [(p["kind"], p["payload_bytes"]) for p in found["payloads"]] == [
        *(("full", 16_400_000_000), ("compressed", 11_300_000_000), ("delta", 113_160_000))
    ]
    shown = text(capsys, "topology", *sizes, *density, *LINKS[2:])
    assert "delta, 113 MB" in shown
    assert "3936 s" in shown


def test_topology_of_unequal_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "topology", "--payload", "16.4GB", *HOSTS, "--fraction", "0.6")
    assert found["workers"] == 10
    times = found["payloads"][0]["t_bcast_s"]
    assert set(times) == {"floor", "star", "chains"}
    assert all(times["floor"][q] <= times["chains"][q] for q in ("0.5", "0.6", "0.9", "1.0"))
    assert times["chains"]["0.6"] < times["star"]["0.6"]
    assert {p["name"] for p in found["placements"]} == {name for chain in found["chains"] for name in chain}
    cables = [chain for chain in found["chains"] if any(name.startswith("cable") for name in chain)]
    assert all(chain[-1].startswith("cable") for chain in cables), "weak uplinks stand last"
    shown = text(capsys, "topology", "--payload", "16.4GB", *HOSTS)
    assert "cable-1 (NAT)" in shown
    assert "20 Mbit/s" in shown


def test_slower_uplinks_than_downlinks(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "topology", *LINKS, "--worker-uplink", "50mbit", "--chains", "3")
    times = found["payloads"][0]["t_bcast_s"]
    assert set(times) == {"floor", "star", "chains"}
    assert times["chains"]["1.0"] == pytest.approx(2624, rel=1e-3)


def test_staleness(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "staleness", "--staleness", "3")
    assert (found["staleness"], found["kappa"], found["envelope"], found["warning"]) == (3, 2, "stable", None)
    assert answer(capsys, "staleness", "--kappa", "10")["envelope"] == "diverged"
    rows = answer(capsys, "staleness", *LOOP, "--rollouts-per-s", "0.33")["by_staleness"]
    assert [row["workers"] for row in rows if row["staleness"] in (3, 4, 6, 9)] == [9, 7, 6, 6]
    shown = text(capsys, "staleness", "--staleness", "7", "--t-train", "1500s", "--t-bcast", "1437s", "--batch", "2048")
    assert "ECHO-2, unmodified GRPO" in shown
    assert "diverged" in shown
    assert "workers" not in shown, "nothing is known of them"


def test_cost(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "cost", *MIXED)
    assert found["baseline_per_hour"] == pytest.approx(24.48)
    assert found["candidate_per_hour"] == pytest.approx(15.04)
    assert found["baseline_per_step"] == pytest.approx(10.26, abs=5e-3)
    assert found["candidate_per_step"] == pytest.approx(6.81, abs=6e-3)
    assert found["saving"] == pytest.approx(0.336, abs=5e-4)
    assert found["step_ratio"] == pytest.approx(1.082, abs=5e-4)
    assert found["break_even_step_s"] == pytest.approx(2455, abs=0.5)


def test_cost_of_a_large_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    fleets = ["--baseline", "18xH100", "--candidate", "8xH100,76xRTX-5090"]
    prices = ["--price", "H100=2.90", "--price", "RTX-5090=0.35", "--hours", "36.6667"]
    found = answer(capsys, "cost", *fleets, *prices)
    assert (found["baseline_per_hour"], found["candidate_per_hour"]) == pytest.approx((52.20, 49.80))
    assert (found["baseline_total"], found["candidate_total"]) == pytest.approx((1914, 1826), abs=0.5)
    assert found["saving"] == pytest.approx(0.046, abs=5e-4)
    even = found["break_even"]
    assert even["workers"] == pytest.approx(82.86, abs=5e-3)
    assert (even["largest_cheaper"], even["next"]["workers"]) == (82, 83)
    assert even["next"]["saving"] == pytest.approx(-0.001, abs=5e-4)
    slower = {row["longer"]: row["saving"] for row in found["saving_by_step_ratio"]}
    assert slower[0.05] == pytest.approx(-0.002, abs=5e-4)
    assert slower[0.1] == pytest.approx(-0.049, abs=5e-4)
    assert "82 cost no more, 83 lose 0.1%" in text(capsys, "cost", *fleets, *prices)


def test_cost_with_egress(capsys: pytest.CaptureFixture[str]) -> None:
    leaving = [*LINKS, "--origin-egress-price", "0.09", "--worker-egress-price", "0.01", "--period", "50m"]
    found = answer(capsys, "cost", *MIXED, *leaving)
    per_hour = 16.4 * 3600 / 3000 * (3 * 0.09 + 5 * 0.01)
    assert found["egress_per_hour"] == pytest.approx(per_hour)
    assert found["candidate_per_hour"] == pytest.approx(15.04 + per_hour)
    more = answer(capsys, "cost", *MIXED[:4], "--candidate", "4xA100@3.06,9xRTX-5090@0.35", *MIXED[6:], *leaving)
    assert more["candidate_per_hour"] - found["candidate_per_hour"] == pytest.approx(0.35 + 16.4 * 1.2 * 0.01)
    assert more["break_even"]["workers"] == pytest.approx(found["break_even"]["workers"])


def test_activation(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "activation", *HOSTS, *LOOP)
    assert found["required_rollouts_per_s"] == pytest.approx(2.621, abs=5e-4)
    assert found["activate"] == [f"{kind}-{i}" for kind in ("cable", "fibre") for i in range(1, 5)]
    assert found["rollouts_per_s"] >= 1.1 * found["required_rollouts_per_s"]
    assert found["standby"] == ["rack-1", "rack-2"]
    assert found["exact"]["price_per_hour"] <= found["price_per_hour"]
    assert found["random"]["dearer"] > 0
    assert found == answer(capsys, "activation", *HOSTS, *LOOP), "a seed decides the draws"
    few = answer(capsys, "activation", *HOSTS, "--required-rollouts-per-s", "0.5", "--gamma", "1")
    assert few["activate"] == ["cable-1", "cable-2"]
    assert few["exact"]["price_per_hour"] == pytest.approx(0.6)
    assert few["exact"]["gap"] == pytest.approx(0)
    assert "fibre-4" in text(capsys, "activation", *HOSTS, *LOOP)


def test_activation_of_kinds_of_hosts_that_are_given_as_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offers = ["--offers", "4xRTX-5090@0.35/0.33, 2xA100@3.06"]
    wanted = ["--required-rollouts-per-s", "2", "--gamma", "1", "--rollouts-per-s", "1.9"]
    found = answer(capsys, "activation", *offers, *wanted)
    assert found["activate"] == [*(f"RTX-5090-{i}" for i in range(1, 5)), "A100-1"]
    assert found["standby"] == ["A100-2"]
    assert found["rollouts_per_s"] == pytest.approx(4 * 0.33 + 1.9)
    assert found["price_per_hour"] == pytest.approx(4 * 0.35 + 3.06)
    scenario = tmp_path / "s.toml"
    scenario.write_text('offers = "4xRTX-5090@0.35/0.33, 2xA100@3.06/1.9"\ngamma = 1\n')
    asked = ["activation", "--scenario", str(scenario), "--required-rollouts-per-s", "2"]
    assert answer(capsys, *asked) == found
    assert answer(capsys, *asked, *HOSTS[2:])["activate"][0] == "cable-1", "a flag counts before the file"
    assert answer(capsys, *asked, *HOSTS[2:], "--offers", "9xT4@0.1/0.3")["activate"][0] == "T4-1"


def test_activation_that_falls_short_says_which_kappa_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("activation", *HOSTS, *LOOP, "--gamma", "2") == 1
    assert "kappa 3 is enough for these workers" in capsys.readouterr().err
    assert run("activation", *HOSTS, *LOOP, "--gamma", "4") == 1
    assert "no kappa is enough" in capsys.readouterr().err
    assert run("activation", *HOSTS, "--required-rollouts-per-s", "99", "--json") == 1
    assert json.loads(capsys.readouterr().out)["kappa_min"] is None


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--store-egress-price", "0.09", "--origin-egress-price", "0.09", "--period", "50m"]
    found = answer(capsys, "compare", *LINKS, *prices)
    assert (found["faster"], found["cheaper"], found["wins"]) == ("chains", "chains", "chains")
    assert found["ways"]["store"]["t_bcast_s"]["1.0"] == pytest.approx(1749.3, abs=0.1)
    assert found["ways"]["store"]["per_hour"] == pytest.approx(17.712)
    assert found["ways"]["chains"]["per_hour"] == pytest.approx(5.3136)
    assert found["ways"]["chains"]["feasible"] is None
    assert found["crossover"]["store_egress_price"] == pytest.approx(0.02)
    assert found["crossover"]["fleet"] == []
    assert found["crossover"]["store_uplink_bytes_per_s"] is None


def test_compare_weighs_time_by_the_workers_that_it_saves(capsys: pytest.CaptureFixture[str]) -> None:
    """Weak uplinks: the store is quicker and dearer. What the quicker broadcast saves in workers decides."""
    weak = [*LINKS, "--worker-uplink", "40mbit", "--store-egress-price", "0.01", "--store-uplink", "1gbit"]
    found = answer(capsys, "compare", *weak, "--period", "50m")
    assert (found["faster"], found["cheaper"], found["wins"]) == ("store", "chains", None)
    assert "open: the faster one is dearer" in text(capsys, "compare", *weak, "--period", "50m")
    loop = ["--t-train", "1500s", "--kappa", "3", "--batch", "2048", "--rollouts-per-s", "0.33"]
    priced = answer(capsys, "compare", *weak, *loop, "--worker-price", "0.5")
    assert priced["wins"] == "store"
    assert priced["ways"]["store"]["workers"] < priced["ways"]["chains"]["workers"]
    shorter = [*loop[:2], "--kappa", "2", *loop[4:]]
    infeasible = answer(capsys, "compare", *weak, *shorter)
    assert infeasible["ways"]["chains"]["feasible"] is False
    assert infeasible["wins"] == "store"
    assert run("compare", *weak, "--kappa", "1", "--t-train", "1200s", *loop[4:]) == 1
    assert "raise kappa to" in capsys.readouterr().err


def test_compare_where_chains_reach_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = tmp_path / "hosts.toml"
    hosts.write_text('[[hosts]]\nname = "a"\ncount = 3\nnat = true\ndownlink = "9mbit"\nuplink = "9mbit"\n')
    fleet = ["--payload", "1GB", "--uplink", "50mbit", "--chains", "1", "--fleet", str(hosts)]
    found = answer(capsys, "compare", *fleet, "--store-egress-price", "0.09", "--period", "50m")
    assert found["ways"]["chains"]["t_bcast_s"]["1.0"] is None
    assert found["faster"] == "store"
    shown = text(capsys, "compare", *fleet, "--store-egress-price", "0.09", "--period", "50m")
    assert "never" in shown
    assert "the chains cannot reach that many workers" in shown


def test_compare_shows_the_crossovers(capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--store-egress-price", "0.09", "--coordinator-price", "6", "--period", "50m"]
    found = answer(capsys, "compare", *LINKS, *prices)
    assert [c["winner"] for c in found["crossover"]["fleet"]] == ["chains"]
    assert found["crossover"]["fleet"][0]["workers"] == pytest.approx(6 / (16.4 * 0.09 * 1.2))
    assert found["crossover"]["period_s"] == pytest.approx(3600 * 16.4 * 0.09 * 9 / 6)
    shown = text(capsys, "compare", *LINKS, *prices)
    assert "peer chains cheaper from 3.4 workers on" in shown


def test_the_readme_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (DEPLOY.parent / "README.md").read_text()
    pasted = readme.partition("$ chappe plan capacity --scenario deploy/plan.toml\n")[2].partition("```")[0]
    printed = text(capsys, "capacity", "--scenario", str(DEPLOY / "plan.toml"))
    assert [line.rstrip() for line in printed.splitlines()] == pasted.splitlines()
