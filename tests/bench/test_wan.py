"""The long-link bench: its arithmetic, what it refuses, its picture, and one short window over a real lossy link."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.links import unavailable_reason
from bench.wan import Window, points_of, thinned
from bench.wanshow import columns_and_cells, draw
from chappe.units import format_rate

_REASON = unavailable_reason()
needs_links = pytest.mark.skipif(_REASON is not None, reason=_REASON or "")


def window(system: str, repeat: int, mbit: float, *, rtt_s: float = 0.1, loss: float = 0.0) -> Window:
    return Window(system, rtt_s, loss, repeat, mbit * 125_000, [(0.0, 0.0), (1.0, mbit * 125_000)])


def test_ratios_are_of_neighbours() -> None:
    windows = [
        *(window("bare", repeat, mbit) for repeat, mbit in enumerate((100, 50, 80))),
        *(window("chappe", repeat, mbit) for repeat, mbit in enumerate((90, 50, 40))),
        window("bare x4", 0, 95),
        window("bare x4", 1, 97),
        window("chappe x4", 0, 70),
    ]
    (point,) = points_of(windows)
    assert point.ratio == pytest.approx(0.9)
    assert (point.ratio_low, point.ratio_high) == (0.5, 1.0)
    assert point.chappe_bytes_per_s == 50 * 125_000
    assert point.bare_bytes_per_s == 80 * 125_000
    assert point.bare_streams == {"4": 96 * 125_000}
    assert point.chappe_streams == {"4": 70 * 125_000}
    assert point.repeats == 3
    columns, ((*_, bare, ours),) = columns_and_cells([asdict(point)])
    assert columns[-2:] == ["bare x 4", "Chappe x 4"]
    assert (bare, ours) == (format_rate(96 * 125_000), format_rate(70 * 125_000))


def test_points_are_in_order_and_a_lone_system_makes_none() -> None:
    windows = [window(s, 0, 10, rtt_s=rtt, loss=loss) for rtt in (0.2, 0.0) for loss in (0.01, 0.0) for s in ("bare",)]
    assert points_of(windows) == []
    windows += [window("chappe", 0, 10, rtt_s=rtt, loss=loss) for rtt in (0.2, 0.0) for loss in (0.01, 0.0)]
    assert [(p.rtt_s, p.loss) for p in points_of(windows)] == [(0.0, 0.0), (0.0, 0.01), (0.2, 0.0), (0.2, 0.01)]


def test_a_thinned_curve_keeps_its_ends() -> None:
    curve = [(at / 20, float(at)) for at in range(103)]
    kept = thinned(curve)
    assert (kept[0], kept[-1]) == (curve[0], curve[-1])
    assert kept[1:3] == [curve[10], curve[20]]
    assert len(kept) == 12
    assert thinned([(0.0, 0.0)]) == [(0.0, 0.0)]


def test_a_window_too_short_to_say_anything_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["wan", "--window", "100ms"])
    assert end.value.code == 2
    assert "--window" in capsys.readouterr().err


@pytest.mark.shaped
@needs_links
@pytest.mark.timeout(300)
def test_short(tmp_path: Path) -> None:
    """It measures both and leaves nothing behind. (Its name is part of a socket's path, which may have 107 bytes.)"""
    output = tmp_path / "wan.json"
    arguments = ["--rtt", "20ms", "--loss", "0.001", "--window", "1s", "--repeats", "1", "--rate", "20mbit"]
    arguments += ["--streams", "2", "--congestion-control", "cubic"]
    with pytest.raises(SystemExit) as end:
        main(["wan", *arguments, "--directory", str(tmp_path), "--output", str(output)])
    assert end.value.code == 0
    results = json.loads(output.read_text())
    assert [run["system"] for run in results["runs"]] == ["bare", "chappe", "chappe x2"]
    for run in results["runs"]:
        assert run["curve"][0][0] == 0
        assert run["curve"][-1][1] > 0
        times, sizes = zip(*run["curve"], strict=True)
        assert list(times) == sorted(times)
        assert list(sizes) == sorted(sizes)
        assert run["bytes_per_s"] < 2.5e6 + (128 << 10) + 100_000  # the link's rate, and one burst of its bucket
    assert [path.name for path in tmp_path.iterdir()] == ["wan.json"]
    figure = draw(results)
    figure.savefig(tmp_path / "wan.png")
    assert (tmp_path / "wan.png").stat().st_size > 1000
