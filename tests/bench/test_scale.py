"""The scale bench: its summary and picture, and a small run: real relays in two processes, stand-ins, a lost one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.scale import JoinsRun, RelaysRun, draw, summary


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
