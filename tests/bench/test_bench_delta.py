"""The benchmark's data are what they claim, its rivals are counted right, and it runs to the end on little."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.__main__ import main
from bench.rivals import gap_value, index_value, xor_zstd
from bench.updates import adam_update, learning_rate_for, to_bf16


def test_rounding_is_to_nearest_even() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    values[:4] = [1.00390625, 1.01171875, -0.0, 3e-39]  # two ties, a zero, a subnormal
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    np.testing.assert_array_equal(to_bf16(values), expected)


@pytest.mark.parametrize("density", [0.01, 0.2, 0.95])
def test_an_update_has_the_density_that_was_asked_for(density: float) -> None:
    update = adam_update(1 << 20, learning_rate_for(density))
    assert update.density == pytest.approx(density, rel=0.1)
    steps = np.abs(update.base.astype(np.int32) - update.target.astype(np.int32))
    assert len(np.unique(steps)) > 2


def test_sizes_of_the_plain_formats() -> None:
    base = np.zeros(200_000, np.uint16)
    target = base.copy()
    target[[5, 70_000, 199_999]] = 1
    assert index_value(base, target) == 18
    assert gap_value(base, target) == 12 + 2 + 2
    assert 0 < xor_zstd(1)(base, target) < 300


def test_a_short_run(capsys: pytest.CaptureFixture[str], short_directory: Path) -> None:
    size = ("--size", "4MiB", "--slow-size", "64KiB", "--landing-size", "8MiB", "--landing-repeat", "1")
    size = (*size, "--first-size", "8MiB")
    size = (*size, "--memory-directory", str(short_directory), "--disk-directory", str(short_directory / "disk"))
    with pytest.raises(SystemExit) as end:
        main(
            ["delta", *size, "--repeat", "1", "--no-minilm", "--json", "--output", str(short_directory / "delta.json")]
        )
    assert end.value.code == 0
    report = json.loads(capsys.readouterr().out)
    written = json.loads((short_directory / "delta.json").read_text())
    assert (written["runs"], written["landings"]) == (report["rows"], report["landings"])
    assert [row["store"] for row in report["landings"]] == ["memory", "disk"]
    for row in report["landings"]:
        assert row["snapshot_bytes"] == 8 << 20
        assert row["delta_bytes"] < 0.01 * row["snapshot_bytes"]
        assert row["at_once_s"] > 0
    assert list((short_directory / "disk").iterdir()) == []
    assert written["first"] == report["first"]
    assert [row["payload"] for row in report["first"]] == ["delta", "compressed"]
    for row in report["first"]:
        assert 0 < row["first_s"] < row["all_s"]
        assert row["payload_bytes"] < 0.8 * row["snapshot_bytes"]
    for row in report["rows"]:
        assert row["delta"] < row["aim"]
        assert row["delta"] < min(row[name] for name in ("index + value", "u16 gap + value", "xor + zstd-3"))
        assert row["chunk_bytes_max"] <= 3 << 15
