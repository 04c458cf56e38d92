"""The publish bench: its summary and picture, what the kernel says is unwritten, and a small run on real daemons."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import publishbench
from bench.__main__ import main
from bench.diskalone import disk_alone, unwritten_bytes
from bench.publishshow import End, Start, Steps, draw, summary, tables


def test_summaries_are_medians_with_their_spread() -> None:
    starts = [Start("path", 100, repeat, 0.01, seconds) for repeat, seconds in enumerate((0.3, 0.1, 0.2))]
    steps = Steps(0.1, 0.2, 0.3, 0.4, 0.5)
    told = ((1.0, 0), (3.0, 90))
    ends = [End(100, 1e6, at, landing, 10, 1.0, 2.0, read, steps) for at, (landing, read) in enumerate(told)]
    found = summary(starts, ends)
    (start,), (end,) = found["starts"], found["ends"]
    assert (start["first_chunk_s"], start["first_chunk_s_low"], start["first_chunk_s_high"]) == (0.2, 0.1, 0.3)
    assert (end["ratio"], end["ratio_low"], end["ratio_high"]) == (2, 1, 3)
    assert (end["named_s"], end["named_ratio"]) == (2, 1)
    assert end["steps"] == {"decide_s": 0.1, "durable_s": 0.2, "name_s": 0.3, "current_s": 0.4, "tell_s": 0.5}
    assert end["second_pass"]
    (_, _, _), (columns, (cells,), _) = tables(found)
    assert len(columns) == len(cells)
    assert "100.0 + 200.0 + 300.0 + 400.0 + 500.0" in cells
    assert not summary([], ends[:1])["ends"][0]["second_pass"]


def test_what_is_synced_is_not_unwritten(tmp_path: Path) -> None:
    try:
        assert unwritten_bytes(tmp_path) == 0
        (tmp_path / "below").mkdir()
        with (tmp_path / "below" / "file").open("wb") as file:
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
        os.mkfifo(tmp_path / "below" / "no-file")
        assert unwritten_bytes(tmp_path) == 0
    except OSError as error:
        pytest.skip(str(error))


def test_what_goes_while_it_is_counted_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version lands: its folder has another name."""
    walk, steps = os.walk, []

    def landing(top: Path) -> Iterator[Any]:
        for step in walk(top):
            steps.append(step)
            yield step
            (tmp_path / "below").rename(tmp_path / "elsewhere")

    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "file").write_bytes(bytes(1 << 12))
    monkeypatch.setattr(os, "walk", landing)
    assert unwritten_bytes(tmp_path) == 0
    assert len(steps) == 1


def test_the_disk_alone_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(3 << 20))
    alone = disk_alone(tmp_path, tmp_path / "source", 1e9)
    assert 0 < alone.synced_s < alone.named_s
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_sizes_too_small_to_measure_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["publish", "--paths", "1kB"])
    assert end.value.code == 2
    assert "--paths" in capsys.readouterr().err


def test_without_torch_its_tensors_are_left_out_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publishbench, "find_spec", lambda name: None)
    assert publishbench._kinds() == ("numpy",)
    assert "torch is not installed" in capsys.readouterr().err
    monkeypatch.setattr(publishbench, "find_spec", lambda name: object())
    assert publishbench._kinds() == ("numpy", "torch")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_small_run_measures_starts_and_ends(short_directory: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "publish.json"
    sizes = ["--paths", "2MiB", "--tensors", "2MiB", "--landings", "4MiB", "--limits", "50MB", "--repeats", "1"]
    with pytest.raises(SystemExit) as end:
        main(["publish", *sizes, "--directory", str(short_directory), "--output", str(output)])
    assert end.value.code == 0
    results = json.loads(output.read_text())
    starts, ends = results["starts"], results["ends"]
    assert [row["kind"] for row in starts] == ["path", "numpy", "torch"]
    for run in (run for run in results["runs"] if run["what"] == "start"):
        assert 0 < run["returned_s"] <= run["first_chunk_s"]
    assert ends[0]["landing_s"] > 0
    assert 0 < ends[0]["disk_s"] < ends[0]["named_s"]
    for run in (run for run in results["runs"] if run["what"] == "end"):
        assert run["landing_s"] == pytest.approx(sum(run["steps"].values()))
    assert not ends[0]["second_pass"]
    assert list(short_directory.iterdir()) == []
    draw(results).savefig(tmp_path / "publish.png")
    assert (tmp_path / "publish.png").stat().st_size > 1000
