"""The fault table: its arithmetic on curves and rows, who is hit, and a small run on real daemons."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench import faultcases, faults
from bench.__main__ import main
from bench.curves import bytes_at, complete_s, longest_silence, rate, receiving_again_s
from bench.faultrun import Run, Setup, run_case
from bench.faults import beside
from bench.fleet import Scraper, digests, flip_byte, make_snapshot
from bench.links import Link, Network, unavailable_reason
from bench.results import write_results

CASES = {case.key: case for case in faultcases.CASES}
CHAINS = [["a", "b", "c", "d"], ["e", "f", "g"]]
needs_links = pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or "")


def curve(*pieces: tuple[float, float]) -> list[tuple[float, float]]:
    """Samples every 0.1 s; each piece is (seconds, bytes per second)."""
    found, size = [(0.0, 0.0)], 0.0
    for seconds, bytes_per_s in pieces:
        for _ in range(round(seconds * 10)):
            size += bytes_per_s / 10
            found.append((round(len(found) / 10, 1), size))
    return found


def test_bytes_and_rates_between_samples() -> None:
    line = curve((2, 100))
    assert bytes_at(line, 0.55) == pytest.approx(55)
    assert bytes_at(line, -1) == 0
    assert bytes_at(line, 9) == pytest.approx(200)
    assert rate(line, 0.5, 1.5) == pytest.approx(100)
    assert complete_s(curve((2, 100), (3, 0))) == pytest.approx(2)


def test_a_relay_that_was_cut_off_receives_again_when_bytes_come_and_go_on_coming() -> None:
    cut = curve((10, 100), (1.5, 0), (10, 100))
    assert longest_silence(cut, 10) == pytest.approx((10, 1.6))
    again = receiving_again_s(cut, 10, 100)
    assert again is not None
    assert 1.3 <= again <= 1.5


def test_what_was_on_its_way_when_the_parent_died_is_no_repair() -> None:
    again = receiving_again_s(curve((10, 100), (0.5, 100), (2, 0), (10, 100)), 10, 100)
    assert again is not None
    assert 2.2 <= again <= 2.5


def test_half_of_the_rate_is_not_receiving_again() -> None:
    assert receiving_again_s(curve((10, 100), (20, 50)), 10, 100) is None
    assert receiving_again_s(curve((10, 100), (5, 50), (10, 100)), 10, 100) == pytest.approx(4.9, abs=0.11)


def test_an_undisturbed_relay_never_stopped() -> None:
    steady = curve((20, 100), (5, 0))
    assert receiving_again_s(steady, 10, 100) == 0
    assert longest_silence(steady, 10)[1] == pytest.approx(0.1)  # what follows the last byte is none


@pytest.mark.parametrize(
    ("key", "victim", "watched"),
    [
        ("relay-drops", "b", ["c", "d"]),
        ("relay-blackholed", "b", ["c", "d"]),
        ("relay-halves", "b", ["c", "d"]),
        ("worker-drops", "d", ["a", "b", "c", "e", "f", "g"]),
        ("worker-halves", "d", ["a", "b", "c", "e", "f", "g"]),
        ("coordinator", "b", ["a", "b", "c", "d", "e", "f", "g"]),
        ("rot", "g", [faultcases.JOINER]),
    ],
)
def test_who_is_hit_and_who_is_watched(key: str, victim: str, watched: list[str]) -> None:
    case = CASES[key]
    assert case.victim(CHAINS) == victim
    assert case.watched(CHAINS, victim) == watched


STRIPES = [["a", "b", "c", "d"], ["b", "c", "a", "d"], ["a", "c"], ["b", "d"]]  # two of four, two chains of two


@pytest.mark.parametrize(
    ("key", "victim", "watched"),
    [
        ("relay-drops", "c", ["d", "a"]),  # inner in both long chains
        ("worker-halves", "d", ["a", "b", "c"]),
        ("coordinator", "c", ["a", "b", "c", "d"]),
        ("rot", "a", [faultcases.JOINER]),
    ],
)
def test_with_stripes_everybody_is_watched_once(key: str, victim: str, watched: list[str]) -> None:
    case = CASES[key]
    assert case.victim(STRIPES) == victim
    assert case.watched(STRIPES, victim) == watched


def test_with_stripes_uplinks_are_unequal(tmp_path: Path) -> None:
    setup = Setup(tmp_path, 1, 3, Link(9e6, 6e6), Link(), 1.0, "striped", (1.0, 1 / 3))
    assert [setup.link_of(n).up_bytes_per_s for n in range(3)] == [9e6, pytest.approx(3e6), 9e6]
    assert all(setup.link_of(n).down_bytes_per_s == 6e6 for n in range(3))
    assert Setup(tmp_path, 1, 3, Link(9e6, 6e6), Link(), 1.0).link_of(1) == Link(9e6, 6e6)


def test_a_row_counts_what_it_received_more_than_the_undisturbed_run() -> None:
    calm = Run("undisturbed", t_bcast_s={"1.0": 40.0}, received_bytes={"a": 1010, "b": 1010})
    calm.wire_received_bytes = {"a": 1100, "b": 1120}
    hit = Run("relay-drops", t_bcast_s={"1.0": 42.0}, received_bytes={"b": 1074}, wire_received_bytes={"b": 1200})
    hit.t_others_s = 41.0
    row = beside(CASES["relay-drops"], hit, [calm])
    assert row.t_ratio == pytest.approx(1.05)
    assert row.others_ratio == pytest.approx(1.025)
    assert row.twice_bytes == 64
    assert row.wire_extra_bytes == pytest.approx(90)
    hit.error = "did not finish"
    assert beside(CASES["relay-drops"], hit, [calm]).twice_bytes is None


def test_the_answer_to_a_fault_is_found_in_the_logs() -> None:
    lines = [
        {"who": "w5", "event": "parent_lost", "reason": "broken"},
        {"who": "coordinator", "event": "session_lost", "reason": ""},
        {"who": "w2", "event": "joined"},
        {"who": "coordinator", "event": "segment_rebuilt", "reason": "session_lost"},
        {"who": "w1", "event": "joined"},
    ]
    assert CASES["relay-drops"].answer(lines) is lines[3]
    assert CASES["coordinator"].answer(lines) is lines[4]
    assert CASES["rot"].answer(lines) is None
    for event in ("demoted", "uplink_short", "segment_moved"):
        assert CASES["relay-halves"].answer([*lines, {"who": "coordinator", "event": event}]) is not None


def test_rot_is_one_bit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    before = digests(tmp_path)
    flip_byte(tmp_path / "f", 50)
    assert (tmp_path / "f").read_bytes() == bytes(50) + b"\1" + bytes(49)
    assert digests(tmp_path) != before


def test_results_say_what_ran(tmp_path: Path) -> None:
    write_results(tmp_path / "new" / "x.json", "x", {"rate": 1}, [{"t": 2.0}])
    report = json.loads((tmp_path / "new" / "x.json").read_text())
    assert report["runs"] == [{"t": 2.0}]
    assert report["environment"]["packages"]["grpcio"]
    assert report["environment"]["cores"] >= 1


def test_parts_of_a_table_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([40.0, 44.0, 60.0, 42.0, 84.0])

    async def run_case(case: faultcases.Case | None, setup: Setup, keep: Path | None) -> Run:
        took_s = next(seconds)
        run = Run(case.key if case else "undisturbed", "a", t_bcast_s={"1.0": took_s}, identical=True)
        run.received_bytes, run.wire_received_bytes, run.t_others_s = {"a": 100.0}, {"a": 120}, took_s
        return run

    monkeypatch.setattr(faults, "run_case", run_case)
    output = tmp_path / "faults.json"

    def measure(*options: str) -> list[tuple[str, float]]:
        with pytest.raises(SystemExit) as end:
            main(["faults", "--broadcast-s", "0.01", "--output", str(output), *options])
        assert end.value.code == 0
        return [(run["key"], run["t_bcast_ratio"]) for run in json.loads(output.read_text())["runs"]]

    measure("--add", "--undisturbed", "1", "--only", "relay-halves")  # 40, 44
    rows = measure("--add", "--undisturbed", "1", "--only", "relay-drops")  # 60, 42
    assert rows == [
        ("undisturbed", 0.8),
        ("undisturbed", 1.2),
        ("relay-drops", pytest.approx(0.84)),
        ("relay-halves", pytest.approx(0.88)),
    ]
    rows = measure("--add", "--undisturbed", "0", "--only", "relay-drops")  # 84
    assert rows[2] == ("relay-drops", pytest.approx(1.68))
    assert len(rows) == 4
    with pytest.raises(SystemExit) as end:
        main(["faults", "--broadcast-s", "0.02", "--output", str(output), "--add"])
    assert end.value.code != 0


def test_an_unknown_fault_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["faults", "--only", "earthquake"])
    assert end.value.code == 2
    assert "relay-blackholed" in capsys.readouterr().err


@pytest.mark.shaped
@needs_links
def test_nobody_answers_in_an_empty_namespace() -> None:
    with Network() as network:
        network.host("a")
        assert Scraper(network.namespace("a")).read() is None
        assert Scraper("no-such-namespace").read() is None


@pytest.mark.shaped
@needs_links
@pytest.mark.timeout(300)
async def test_a_relay_dies_in_a_small_fleet(tmp_path: Path) -> None:
    rate = 2.5e6
    snapshot = make_snapshot(tmp_path / "model", 15_000_000)
    payload = sum(path.stat().st_size for path in snapshot.iterdir())
    link, trainer = Link(rate, rate), Link(up_bytes_per_s=rate)
    run = await run_case(CASES["relay-drops"], Setup(snapshot, payload, 3, link, trainer, 120.0), tmp_path / "logs")
    assert run.error is None
    assert run.identical
    assert [len(chain) for chain in run.chains] == [3]
    assert run.victim == run.chains[0][1]
    assert run.lost == [run.victim]
    assert sorted(run.living) == sorted(set(run.chains[0]) - {run.victim})
    assert run.t_bcast_s["1.0"] is not None
    assert list(run.watched) == [run.chains[0][2]]
    assert {"segment_rebuilt", "lost"} <= {line["event"] for line in run.log if line["who"] == "coordinator"}
    assert (tmp_path / "logs" / "relay-drops" / "coordinator.log").exists()


@pytest.mark.shaped
@needs_links
def test_interrupted_it_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "faults", "--only", "rot", "--output", str(tmp_path / "x.json")]
    bench = subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)})
    made = Path("/run/netns")
    while not list(made.glob(f"chappe-{bench.pid}-*")):
        assert bench.poll() is None
        time.sleep(0.05)  # nothing tells when a namespace is made
    bench.send_signal(signal.SIGTERM)
    bench.communicate()
    assert bench.returncode == 130
    assert not list(made.glob(f"chappe-{bench.pid}-*"))
    assert list(tmp_path.iterdir()) == []
