"""`chappe diff`: counts against a plain comparison, bytes against a real delta, and what it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from chappe.cli.diff import Links, estimate_s, payloads, reader, survey_snapshots
from chappe.cli.diffplot import density_grid
from chappe.cli.main import main
from chappe.core.digest import XXH3_128
from chappe.origin.scan import scan
from chappe.payload.container import Packer
from chappe.payload.delta import encode_delta
from chappe.payload.plan import DeltaPlan
from chappe.payload.safetensors import TensorSpec, build_header
from chappe.payload.survey import RegionSurvey
from chappe.payload.table import SnapshotTable

SHAPES = {"model.layers.0.mlp.w": 300_000, "model.layers.1.mlp.w": 300_000, "model.embed.w": 20_000}


def write(folder: Path, values: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    header = build_header([TensorSpec(name, "BF16", v.shape) for name, v in values.items()])
    (folder / "model.safetensors").write_bytes(header + b"".join(v.tobytes() for v in values.values()))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path, dict[str, int]]:
    rng = np.random.default_rng(2)
    old = {n: rng.integers(0, 1 << 16, count, dtype=np.uint16) for n, count in SHAPES.items()}
    new, changed = {}, {}
    for density, (name, values) in zip((0.01, 0.6, 0.0), old.items(), strict=True):
        mask = rng.random(values.size) < density
        new[name] = values + mask.astype(np.uint16)
        changed[name] = int(mask.sum())
    new["extra"] = np.arange(64, dtype=np.uint16)
    return write(tmp_path / "a", old), write(tmp_path / "b", new), changed


def test_counts_and_bytes_are_those_of_the_delta(models: tuple[Path, Path, dict[str, int]]) -> None:
    a, b, changed = models
    survey = survey_snapshots(scan(a), scan(b))
    assert {r.name: r.changed for r in survey.regions if r.dtype and r.compared} == changed
    assert [r.name for r in survey.regions if not r.compared and r.dtype] == ["extra"]
    assert survey.changed == sum(changed.values())
    assert survey.elements == sum(SHAPES.values())
    one, two = scan(a), scan(b)
    plan = DeltaPlan.between(*(SnapshotTable.build(s.entries, s.tensors) for s in (one, two)))
    packer = Packer(XXH3_128)
    with reader(one) as read_one, reader(two) as read_two:
        for _ in packer.pack(encode_delta(plan, XXH3_128, read_one, read_two)):
            pass
    assert survey.delta_bytes == pytest.approx(packer.payload_bytes, rel=0.01)
    assert survey.delta_bytes == sum(survey.delta_bytes_by_mode.values())


def test_json(models: tuple[Path, Path, dict[str, int]], capsys: pytest.CaptureFixture[str]) -> None:
    a, b, changed = models
    with pytest.raises(SystemExit) as end:
        main(["diff", str(a), str(b), "--json", "--workers", "4", "--uplink", "10mbit"])
    assert end.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["changed"] == sum(changed.values())
    assert shown["bytes"]["delta"] < shown["bytes"]["gap_value"] < shown["bytes"]["index_value"]
    assert shown["t_bcast_floor_s"]["full"] == pytest.approx(shown["snapshot_bytes"] / 1.25e6)
    assert {t["name"] for t in shown["tensors"]} >= {*changed, "extra", "config.json"}


def test_text_and_plot(
    models: tuple[Path, Path, dict[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    a, b, _ = models
    picture = tmp_path / "density.png"
    with pytest.raises(SystemExit) as end:
        main(["diff", str(a), str(b), "--top", "2", "--plot", str(picture)])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "int32 index + value" in out
    assert "model.layers.1.mlp.w" in out
    assert "model.embed.w" not in out
    assert "more: --top N lists more of them, --json all" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "0"], "--workers"),
        (["--plot", "x.gif"], "--plot"),
        (["--plot", "no/where/x.png"], "--plot: no/where/x.png cannot be written: there is no folder no/where"),
        (["--uplink", "3"], "3"),
    ],
)
def test_wrong_usage(
    models: tuple[Path, Path, dict[str, int]], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["diff", str(models[0]), str(models[1]), *arguments])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_without_matplotlib_nothing_is_compared_in_vain(
    models: tuple[Path, Path, dict[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit) as end:
        main(["diff", str(models[0]), str(models[1]), "--plot", str(tmp_path / "x.png")])
    shown = capsys.readouterr()
    assert (end.value.code, shown.out) == (2, "")
    assert "chappe[plan]" in shown.err


def test_a_picture_that_cannot_be_written_costs_no_answer(
    models: tuple[Path, Path, dict[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    taken = tmp_path / "taken.png"
    taken.mkdir()
    with pytest.raises(SystemExit) as end:
        main(["diff", str(models[0]), str(models[1]), "--json", "--plot", str(taken)])
    shown = capsys.readouterr()
    assert end.value.code == 2
    assert json.loads(shown.out)["changed"] > 0
    assert f"--plot: {taken} cannot be written: Is a directory" in shown.err
    assert "Traceback" not in shown.err


def test_what_is_new_is_said_first(
    models: tuple[Path, Path, dict[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write(tmp_path / "other", {"lora": np.arange(9, dtype=np.uint16)})
    for pair, words in (
        ((models[0], models[1]), "; 1 tensors are new "),
        ((models[0], other), "no tensor of the first snapshot is in the second"),
        ((models[1], models[0]), "bytes each "),
    ):
        with pytest.raises(SystemExit) as end:
            main(["diff", *map(str, pair)])
        assert end.value.code == 0
        assert words in capsys.readouterr().out.replace("\n", " ")


def test_two_snapshots_that_are_the_same(models: tuple[Path, Path, dict[str, int]]) -> None:
    survey = survey_snapshots(scan(models[0]), scan(models[0]))
    assert survey.changed == 0
    assert set(survey.delta_bytes_by_mode) == {"unchanged"}
    assert estimate_s(payloads(survey)["delta"], Links()) < 1e-4


def test_the_grid_of_the_picture() -> None:
    regions = [
        RegionSurvey("model.layers.10.mlp.w", "BF16", 100, 10, True),
        RegionSurvey("model.layers.2.mlp.w", "BF16", 100, 50, True),
        RegionSurvey("embed", "BF16", 10, 0, True),
        RegionSurvey("config.json", "", 10, 5, True),
    ]
    rows, columns, grid = density_grid(regions)
    assert rows == ["2", "10", "embed"]
    assert columns == ["", "mlp.w"]
    np.testing.assert_array_equal(grid, [[np.nan, 0.5], [np.nan, 0.1], [0.0, np.nan]])
