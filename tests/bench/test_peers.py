"""The benches over shaped links: arithmetic, the torrent, and every system that is installed, on small links."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from bench import chainstar, peers, relaycpu, unequal
from bench.__main__ import main
from bench.links import unavailable_reason
from bench.results import read_results
from bench.systems.common import Course, Outcome, Payload, identical_copies, times_of
from bench.systems.rounds import rounds
from bench.systems.torrent import bencode, make_torrent, tracker_answer
from chappe.planning import broadcast

needs_links = pytest.mark.skipif(unavailable_reason() is not None, reason=unavailable_reason() or "")


def outcome(system: str, number: int, t: float, cpu: float = 1.0, source: int = 1000) -> Outcome:
    times: dict[str, float | None] = {"0.5": t / 2, "0.9": t, "1.0": t}
    return Outcome(system, times, source, cpu, identical=True, detail={"round": number})


def test_times_by_fraction() -> None:
    done = {f"w{i}": float(i) for i in range(1, 10)}
    assert times_of(done, 9) == {"0.5": 5.0, "0.9": 9.0, "1.0": 9.0}
    assert times_of({"w1": 1.0}, 2) == {"0.5": 1.0, "0.9": None, "1.0": None}
    assert times_of({}, 1) == {"0.5": None, "0.9": None, "1.0": None}


def test_chains_of_a_course() -> None:
    assert Course.equal(90, 30, 9).chains == 3
    assert Course.equal(80, 30, 9).chains == 2
    assert Course.equal(10, 30, 9).chains == 1
    assert Course.equal(900, 30, 4).chains == 4


def test_ratios_are_to_the_same_round() -> None:
    outcomes = [outcome("floor", 0, 10), outcome("bare-sockets", 0, 11, cpu=2), outcome("chappe", 0, 12, cpu=6)]
    outcomes += [outcome("floor", 1, 20), outcome("bare-sockets", 1, 20, cpu=4), outcome("chappe", 1, 22, cpu=4)]
    row = {r["system"]: r for r in peers.summary(outcomes, 3)}["chappe"]
    assert row["t_1.0_to_floor"] == pytest.approx({"median": 1.15, "least": 1.1, "most": 1.2})
    assert row["t_1.0_to_sockets"]["least"] == pytest.approx(12 / 11)
    assert row["relay_cpu_to_sockets"] == pytest.approx({"median": 2.0, "least": 1.0, "most": 3.0})
    assert row["runs"] == 2
    assert row["identical"]


def test_cpu_of_a_relay_is_over_the_bare_sockets_of_its_round() -> None:
    outcomes = [outcome("bare-sockets", 0, 1, cpu=2), outcome("chappe", 0, 1, cpu=6)]
    outcomes += [outcome("bare-sockets", 1, 1, cpu=4), outcome("chappe", 1, 1, cpu=4)]
    outcomes += [Outcome("chappe-grpc", error="it did not finish", detail={"round": 0})]
    bare, ours, grpc = relaycpu.summary(outcomes)
    assert bare["to_sockets"] == {"median": 1.0, "least": 1.0, "most": 1.0}
    assert ours["cpu_s_per_gb"] == {"median": 5.0, "least": 4.0, "most": 6.0}
    assert ours["to_sockets"] == {"median": 2.0, "least": 1.0, "most": 3.0}
    assert grpc["to_sockets"] is None
    _, cells = relaycpu.columns_and_cells([bare, ours, grpc])
    assert cells[1][:4] == ["Chappe", "5.0", "4.00 - 6.00", "x 2.00"]
    assert cells[2][-1] == "it did not finish"


def test_a_failure_is_in_the_table_and_no_ratio() -> None:
    failed = Outcome("aria2", error="it did not finish", detail={"round": 0})
    rows = peers.summary([outcome("floor", 0, 10), failed], 3)
    _, cells = peers.columns_and_cells(rows)
    assert cells[1][0] == "aria2 (BitTorrent)"
    assert "it did not finish" in cells[1]
    assert not rows[1]["identical"]
    assert rows[1]["t_1.0_to_floor"] is None


def test_an_outcome_comes_back_from_json() -> None:
    one = outcome("chappe", 3, 7.5)
    assert Outcome.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert Outcome.from_json({"place": "x"} | one.to_json()) == one


def test_the_torrent_names_every_piece(tmp_path: Path) -> None:
    file = tmp_path / "f.bin"
    file.write_bytes(bytes(range(250)) * 10)
    make_torrent(file, None, tmp_path / "t", piece_bytes=1000)
    pieces = b"".join(hashlib.sha1((bytes(range(250)) * 10)[at : at + 1000]).digest() for at in (0, 1000, 2000))
    info = bencode({"length": 2500, "name": "f.bin", "piece length": 1000, "pieces": pieces, "private": 1})
    assert (tmp_path / "t").read_bytes() == b"d4:info" + info + b"e"


def test_the_tracker_tells_everybody_at_once(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    answer.write_bytes(tracker_answer(["10.77.0.1", "10.77.0.2"]))
    assert answer.read_bytes().endswith(b"5:peers12:\x0a\x4d\x00\x01\x1a\xe1\x0a\x4d\x00\x02\x1a\xe1e")
    command = [sys.executable, "-m", "bench.systems.torrent", "127.0.0.1", str(answer), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tracker:
        assert tracker.stdout is not None
        port = int(tracker.stdout.readline().split()[1])
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/announce?info_hash=x", timeout=30) as reply:
                assert reply.read() == answer.read_bytes()
        finally:
            tracker.kill()


def test_a_copy_that_differs_in_one_bit_is_found(tmp_path: Path) -> None:
    payload = Payload.make(tmp_path / "source" / "model.safetensors", 10_000)
    copies = {name: tmp_path / name for name in ("w1", "w2", "w3")}
    copies["w1"].write_bytes(payload.path.read_bytes())
    data = bytearray(payload.path.read_bytes())
    data[5000] ^= 1
    copies["w2"].write_bytes(data)
    assert identical_copies(copies, ["w1"], payload)
    assert not identical_copies(copies, ["w1", "w2"], payload)
    assert not identical_copies(copies, ["w3"], payload)


def test_an_unknown_system_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["peers", "--only", "pigeon"])
    assert end.value.code == 2
    assert "bittorrent" in capsys.readouterr().err


def test_the_fleets_of_chain_vs_star() -> None:
    settings = chainstar.ChainStarSettings.model_validate(
        {"b0": ("24mbit", "64mbit"), "bw": "8mbit", "workers": (4, 9), "unequal": 6}
    )
    found = chainstar.courses(settings)
    assert [(label, course.b0, len(course.links)) for label, course in found] == [
        ("", 3e6, 4),
        ("", 3e6, 9),
        ("", 8e6, 4),
        ("", 8e6, 9),
        (chainstar.UNEQUAL, 3e6, 6),
        (chainstar.UNEQUAL, 8e6, 6),
    ]
    assert [link.up_bytes_per_s for link in found[4][1].links] == [1e6, 1e6, 0.4e6] * 2
    assert {link.down_bytes_per_s for link in found[4][1].links} == {1e6}


def test_growth_is_of_equal_fleets_in_floors() -> None:
    def runs(workers: int, chains_s: float, label: str = "") -> list[dict[str, object]]:
        place = {"label": label, "b0": 30e6, "workers": workers, "round": 0}
        systems = {"floor": 10.0, "chappe-chains": chains_s, "chappe-star": 4.0 * workers}
        return [place | outcome(system, 0, t).to_json() for system, t in systems.items()]

    rows = chainstar.summary([*runs(4, 10.4), *runs(20, 10.66), *runs(9, 30.0, chainstar.UNEQUAL)])
    assert chainstar.growth(rows, 30e6) == pytest.approx(1.025)
    assert chainstar.growth(rows, 30e6, "star") == pytest.approx(5.0)
    assert chainstar.growth(rows, 80e6) is None
    _, cells = chainstar.columns_and_cells(rows)
    assert cells[0][-1] == f"{16 / 10.4:.2f}"
    assert cells[2][1] == "9 unequal uplinks"


def test_bare_chains_may_stand_where_the_star_does() -> None:
    def runs(workers: int, chains_s: float, bare_s: float) -> list[dict[str, object]]:
        place = {"label": "", "b0": 30e6, "workers": workers, "round": 0}
        systems = {"floor": 10.0, "chappe-chains": chains_s, "bare-sockets": bare_s}
        return [place | outcome(system, 0, t).to_json() for system, t in systems.items()]

    rows = chainstar.summary([*runs(4, 10.4, 10.0), *runs(20, 10.66, 10.1)])
    assert chainstar.growth(rows, 30e6, "bare") == pytest.approx(1.01)
    assert chainstar.growths(rows) == [
        "B0 30 Mbit/s: from the fewest workers to the most, chains grow by x 1.025, bare-socket chains grow by x 1.010"
    ]
    columns, cells = chainstar.columns_and_cells(rows)
    assert columns[3::2] == ["chains", "bare-socket chains"]
    assert cells[1][3:] == ["10.66 s", "x 1.066", "10.10 s", "x 1.010"]


def test_the_models_are_those_of_the_planner() -> None:
    models = chainstar.models_s({"b0": 30e6, "workers": 9}, 10e6, 1_250_000)
    fleet = broadcast.EqualFleet(1_250_000, 30e6 / 8, 10e6 / 8, 9)
    assert models == {
        "star, limited by B0": pytest.approx(3.0),
        "star, unlimited": pytest.approx(1.0),
        "chains, pipelined": pytest.approx(broadcast.chain_pipelined_s(fleet)),
    }


def test_bounds_of_the_known_fleets() -> None:
    assert [round(fleet.bound_s(1.0), 2) for fleet in unequal.KNOWN[:5]] == [8.95, 8.61, 9.88, 6.85, 9.47]


def test_random_fleets_are_the_same_for_a_seed() -> None:
    assert unequal.drawn(5, 7) == unequal.drawn(5, 7)
    assert unequal.drawn(5, 7)[:3] == unequal.drawn(3, 7)
    assert unequal.drawn(5, 7) != unequal.drawn(5, 8)


def test_the_summary_of_unequal_fleets_is_over_the_bound() -> None:
    fleet = unequal.KNOWN[0]
    bound = {"0.5": 5.0, "0.9": 8.0, "1.0": 10.0}
    place = {"fleet": fleet.name, "b0": 90, "down": 30, "up": list(fleet.up), "size_bytes": 1 << 20, "bound_s": bound}
    runs = [place | outcome("chappe", number, t).to_json() for number, t in enumerate((20.0, 30.0, 40.0))]
    (row,) = unequal.summary(runs)
    assert row["t_1.0_to_bound"] == pytest.approx(3.0)
    assert row["t_0.5_to_bound"] == pytest.approx(3.0)
    _, cells = unequal.columns_and_cells([row])
    assert cells[0][-1] == "x 3.00"


def test_over_all_fleets_there_are_medians_and_worst_ones() -> None:
    runs = []
    times = {"chappe-striped": (11.0, 12.0, 15.0), "bittorrent": (22.0, 18.0, 15.0)}
    for number, fleet in enumerate(unequal.KNOWN[:3]):
        place = {"fleet": fleet.name, "b0": 90, "down": 30, "up": list(fleet.up), "size_bytes": 1 << 20}
        place |= {"bound_s": {"0.5": 5.0, "0.9": 8.0, "1.0": 10.0}, "one_child_s": 11.0}
        runs += [place | outcome(key, 0, t[number]).to_json() for key, t in times.items()]
    ours, other = unequal.overall(unequal.summary(runs))
    assert ours["fleets"] == other["fleets"] == 3
    assert ours["t_1.0_to_bound"] == [pytest.approx(1.2), pytest.approx(1.5)]
    assert other["t_1.0_to_striped"] == [pytest.approx(1.5), pytest.approx(1.0)]
    assert ours["t_1.0_to_one_child"] == [pytest.approx(12 / 11), pytest.approx(15 / 11)]


def test_what_is_measured_already_is_not_measured_again() -> None:
    fleet, other = unequal.KNOWN[:2]
    place = {"fleet": fleet.name, "up": list(fleet.up), "size_bytes": fleet.size_bytes}
    ours, theirs = unequal.BY_KEY["chappe"], unequal.BY_KEY["bittorrent"]
    failed = {"system": "bittorrent", "error": "did not finish"}
    runs = [place | {"system": "chappe", "error": None}, place | failed]
    assert unequal.measured(runs, fleet, ours, 1)
    assert not unequal.measured(runs, fleet, ours, 2)
    assert not unequal.measured(runs, fleet, theirs, 1)
    assert not unequal.measured(runs, other, ours, 1)


@pytest.mark.shaped
@needs_links
@pytest.mark.timeout(300)
@pytest.mark.parametrize("key", [system.key for system in peers.SYSTEMS])
async def test_every_system_brings_the_file_to_everybody(key: str) -> None:
    system = peers.BY_KEY[key]
    if (why := system.missing()) is not None:
        pytest.skip(why)
    course = Course.equal(10e6, 5e6, 3)
    if key == "chappe":
        course = replace(course, links=course.links[:2])  # daemons are slow to start
    (result,) = await rounds(course, [system], 1 << 20, 1)
    assert result.error is None
    assert result.identical
    assert all(t is not None and t > 0 for t in result.t_s.values())
    assert result.source_wire_bytes is not None
    assert result.source_wire_bytes > 1 << 20
    assert result.relay_cpu_s_per_gb is not None


@pytest.mark.shaped
@needs_links
@pytest.mark.timeout(300)
def test_the_command_leaves_json_and_adds_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = ("--workers", "2", "--b0", "80mbit", "--bw", "40mbit", "--size", "1MiB", "--repeats", "1")
    wanted = [key for key in ("bare-sockets", "rsync-tree", "http-star") if peers.BY_KEY[key].missing() is None]
    only = [word for key in wanted for word in ("--only", key)]
    for _ in range(2):
        with pytest.raises(SystemExit) as end:
            main(["peers", *links, *only, "--add", "--output", str(tmp_path / "peers.json")])
        assert end.value.code == 0
    assert "all identical" in capsys.readouterr().out
    report = read_results(tmp_path / "peers.json")
    assert [row["system"] for row in report["summary"]] == ["floor", *wanted]
    assert {row["runs"] for row in report["summary"]} == {2}
    assert {run["detail"]["round"] for run in report["runs"]} == {0, 1}
    assert not report["skipped"]
