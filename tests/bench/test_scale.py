"""The scale bench: its summary and picture, and a small run: real relays in two processes, stand-ins, a lost one."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.relayhost import links
from bench.scale import JoinsRun, RelaysRun, draw, summary
from bench.scalestriped import UPLINKS, Held, Watch, links_of, shape


def test_decisions_are_taken_together_and_the_rest_by_run() -> None:
    joins = [
        JoinsRun(100, 1.0, 0.5, 0.01, 0.2, cores, 10.0, decisions, 1000)
        for cores, decisions in ((0.1, [0.01, 0.02]), (0.3, [0.09]), (0.2, []))
    ]
    relays = [RelaysRun(8, 2, 1000, 1.0, seconds, 3.0, 0.5, 10, 20) for seconds in (3.0, 1.0, 2.0)]
    found = summary(relays, joins)
    assert found["relays"]["t_bcast_s"] == 2.0
    assert found["joins"]["broadcast_cores"] == 0.2
    assert found["joins"]["decision_s"] == 0.02
    assert found["joins"]["decision_s_max"] == 0.09
    assert summary([], []) == {}


def test_streams_are_counted_over_all_stripes() -> None:
    found = shape([["a", "b", "c"], ["c", "a"], ["b"]], 3)
    assert found == {
        "stripes": 2,
        "streams": 6,
        "origin_streams": 3,
        "relay_parents": 2,
        "relay_children": 1,
        "relay_children_max": 1,
        "depth": 3,
    }


def test_relays_get_links_in_turn() -> None:
    uplinks, downlink = links_of(1000.0)
    given = [links(number, uplinks, downlink) for number in range(len(UPLINKS) + 1)]
    assert [one["uplink"] for one in given[:2]] == ["1000B", "900B"]
    assert given[-1] == given[0]
    assert all(one["limit_uplink"] == one["uplink"] for one in given)
    assert {one["limit_downlink"] for one in given} == {"1000B"}
    assert "limit_uplink" not in links(0, "", "")


async def test_what_a_process_holds_is_told_over_what_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.scalestriped.SAMPLE_S", 0.001)
    pid = os.getpid()
    watch = Watch([pid])
    watching = asyncio.create_task(watch.run())
    ends = [socket.socketpair() for _ in range(20)]
    while watch.grown(pid).descriptors < 40:  # noqa: ASYNC110
        await asyncio.sleep(0)
    watching.cancel()
    for end in (end for pair in ends for end in pair):
        end.close()
    assert watch.grown(pid).descriptors >= 40, "at its most"
    assert Held.by(pid).rss_bytes > 1 << 20


def test_the_picture_of_stripes_shows_both_topologies() -> None:
    row = {"relay_threads": 18.4, "relay_descriptors": 36.4, "relay_rss_bytes": 2.4e6, "relay_cpu_s": 0.6}
    runs = [{"topology": topology, **row} for topology in ("striped", "chains")]
    figure = draw({"parameters": {"topology": "striped"}, "runs": runs})
    assert [len(panel.patches) for panel in figure.axes] == [2, 2, 2, 2]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_small_striped_run(short_directory: Path, tmp_path: Path) -> None:
    output = tmp_path / "scale.json"
    sizes = ["--relays", "12", "--payload", "8MiB", "--rate", "8mbit", "--repeats", "1"]
    with pytest.raises(SystemExit) as end:
        main(["scale", "--topology", "striped", *sizes, "--directory", str(short_directory), "--output", str(output)])
    assert end.value.code == 0
    striped, plain = json.loads(output.read_text())["runs"]
    assert (striped["topology"], plain["topology"], plain["stripes"]) == ("striped", "chains", 1)
    assert striped["streams"] == 12 * striped["stripes"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_small_run(short_directory: Path, tmp_path: Path) -> None:
    output = tmp_path / "scale.json"
    sizes = ["--relays", "6", "--processes", "2", "--payload", "1MiB", "--chains", "2"]
    joins = ["--joins", "12", "--broadcast", "2s", "--losses", "1", "--repeats", "1"]
    with pytest.raises(SystemExit) as end:
        main(["scale", *sizes, *joins, "--directory", str(short_directory), "--output", str(output)])
    assert end.value.code == 0
    results = json.loads(output.read_text())
    relays, loads = results["runs"]
    assert (relays["what"], relays["relays"], relays["processes"]) == ("relays", 6, 2)
    assert relays["t_bcast_s"] > 0
    assert loads["what"] == "joins"
    assert len(loads["decisions_s"]) == 1
    assert list(short_directory.iterdir()) == []
    draw(results).savefig(tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 1000
