"""Results on disk and the report made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import chainstar, peers, sections, unequal
from bench.__main__ import COMMANDS, build, main
from bench.every import SHORT
from bench.report import markdown, newest_reports
from bench.results import earlier_runs, read_results, write_results
from bench.sections import Table
from bench.systems.common import Outcome
from chappe.errors import UsageError


def outcome(system: str, t: float) -> Outcome:
    return Outcome(system, {"0.5": t, "0.9": t, "1.0": t}, 1000, 5.0, identical=True, detail={"round": 0})


def peers_file(path: Path, chappe_s: float = 12.0, **parameters: Any) -> None:
    outcomes = [
        outcome("floor", 10),
        outcome("bare-sockets", 11),
        outcome("chappe", chappe_s),
        outcome("http-star", 36),
    ]
    runs = [one.to_json() for one in outcomes]
    skipped = {"aria2": "aria2c is not installed (apt install aria2)"}
    write_results(path, "peers", {"workers": 9} | parameters, runs, summary=peers.summary(outcomes, 3), skipped=skipped)


def chain_star_file(path: Path) -> None:
    runs = []
    for n in (4, 20):
        place = {"label": "", "b0": 30e6, "workers": n, "round": 0}
        systems = {"floor": 10.0, "chappe-chains": 10.5, "chappe-star": 3.5 * n}
        runs += [place | outcome(key, t).to_json() for key, t in systems.items()]
    parameters = {"bw": 10e6, "size_bytes": 12 << 20, "mtu": 1500}
    write_results(path, "chain-vs-star", parameters, runs, summary=chainstar.summary(runs))


def unequal_file(path: Path) -> None:
    place = {"fleet": "a", "b0": 90, "down": 30, "up": [30, 8], "size_bytes": 1 << 20}
    place["bound_s"] = {"0.5": 8.0, "0.9": 8.0, "1.0": 8.0}
    runs = [place | outcome(key, t).to_json() for key, t in (("chappe", 24.0), ("bittorrent", 12.0))]
    write_results(path, "unequal", {"mtu": 1500}, runs, summary=unequal.summary(runs), skipped={})


def age(path: Path, when: str) -> None:
    report = json.loads(path.read_text())
    report["environment"]["when"] = when
    path.write_text(json.dumps(report))


def test_results_come_back(tmp_path: Path) -> None:
    peers_file(tmp_path / "peers.json")
    report = read_results(tmp_path / "peers.json")
    assert report["name"] == "peers"
    assert report["parameters"] == {"workers": 9}
    assert [Outcome.from_json(run).system for run in report["runs"]] == ["floor", "bare-sockets", "chappe", "http-star"]


@pytest.mark.parametrize("text", ["", "[", "{}", '{"name": "x", "runs": []}'])
def test_what_no_bench_wrote_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json"):
        read_results(tmp_path / "x.json")


def test_runs_are_added_only_to_the_same_measurement(tmp_path: Path) -> None:
    assert earlier_runs(tmp_path / "x.json", {"size": 1}) == []
    write_results(tmp_path / "x.json", "x", {"size": 1}, [{"t": 2.0}])
    assert earlier_runs(tmp_path / "x.json", {"size": 1}) == [{"t": 2.0}]
    with pytest.raises(UsageError, match="--add"):
        earlier_runs(tmp_path / "x.json", {"size": 2})


def test_the_newest_of_each_bench_counts_and_another_mtu_is_another_bench(tmp_path: Path) -> None:
    for name in ("peers", "peers-short", "peers-mtu9000"):
        peers_file(tmp_path / f"{name}.json")
    age(tmp_path / "peers.json", "2026-01-01T00:00:00+00:00")
    unequal_file(tmp_path / "unequal.json")
    assert [path.stem for path in newest_reports(tmp_path)] == ["peers-short", "peers-mtu9000", "unequal"]
    assert [path.stem for path in newest_reports(tmp_path, full=True)] == ["peers", "peers-mtu9000", "unequal"]


def test_the_report_has_tables_pictures_and_origins(tmp_path: Path) -> None:
    results = tmp_path / "results"
    peers_file(results / "peers.json")
    chain_star_file(results / "chain-vs-star.json")
    unequal_file(results / "unequal.json")
    write_results(results / "new.json", "new", {"rate": 1}, [{"t": 2.0}], points=[{"rtt": 0.1, "ok": True, "x": [1]}])
    with pytest.raises(SystemExit) as end:
        main(["report", "--results", str(results)])
    assert end.value.code == 0
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| Chappe | x 1.200 | x 1.200 | x 1.200 | 1.200 - 1.200 | 12.0 | 1.00 | 5.0 |" in text
    assert "Chappe's T(1.0) is x 1.091 of the bare-socket chains'" in text
    assert "HTTP star (nginx, curl) takes 3.00 / 3.00 / 3.00 times as long" in text
    assert "aria2 (BitTorrent): left out, aria2c is not installed" in text
    assert "chains grow by x 1.000" in text
    assert "| a | 90 | 1.05 MB | 8.00 s |  | BitTorrent (libtorrent) | 12.0 s | 12.0 s | 12.0 s | x 1.50 |" in text
    assert "| rtt | ok |\n| --- | --- |\n| 0.1 | yes |" in text
    assert text.index("Chappe and its peers") < text.index("Chains against a star") < text.index("Unequal links")
    for name in ("peers", "chain-vs-star", "unequal"):
        assert f"(results/{name}.png)" in text
        assert (results / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (results / f"{name}.png").stat().st_size < 100_000
    assert "new.png" not in text
    commit = read_results(results / "new.json")["environment"]["commit"]
    assert text.count(f"commit {commit[:12]}") == 4


def test_without_results_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["report", "--results", str(tmp_path)])
    assert end.value.code == 2
    assert "python -m bench NAME" in capsys.readouterr().err


def test_results_of_another_version_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "peers.json", "peers", {}, [])
    with pytest.raises(SystemExit) as end:
        main(["report", "--results", str(tmp_path)])
    assert end.value.code == 2
    assert "peers.json is of another version" in capsys.readouterr().err


def test_cells_cannot_break_the_table() -> None:
    assert list(markdown(Table(["a"], [["x | y\nz"]]))) == ["| a |", "| --- |", "| x \\| y z |"]


def test_every_bench_has_a_section_and_a_short_form() -> None:
    measuring = set(COMMANDS) - {"all", "clean", "report"}
    assert measuring <= set(sections.SECTIONS)
    assert set(SHORT) <= measuring


@pytest.mark.parametrize("name", sorted(sections.SECTIONS))
def test_every_bench_takes_the_flags_of_its_short_form(name: str, tmp_path: Path) -> None:
    output = str(tmp_path / "short.json")
    build().parse_args(
        [name, *SHORT.get(name, ("--short",)), "--output", output], exit_on_error=False, print_error=False
    )
