"""`chappe plan --plot`: every command draws, and without matplotlib says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from chappe.cli.main import build
from chappe.cli.settings import run_app

DEPLOY = Path(__file__).parents[2] / "deploy"
SCENARIO = ["--scenario", str(DEPLOY / "plan.toml")]
FLEET = [*SCENARIO, "--fleet", str(DEPLOY / "hosts.toml")]


def run(*arguments: str) -> int:
    return run_app(build(), ["plan", *arguments], env_prefix="CHAPPE_")


@pytest.mark.parametrize(
    "arguments",
    [
        ["capacity", *SCENARIO],
        ["capacity", *SCENARIO, "--kappa", "1"],
        ["topology", *SCENARIO],
        ["topology", *FLEET],
        ["staleness", *SCENARIO],
        ["activation", *FLEET],
        ["cost", *SCENARIO],
        ["compare", *SCENARIO],
    ],
    ids=" ".join,
)
def test_pictures(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    assert run(*arguments, "--plot", str(path)) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out


def test_without_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    assert run("capacity", *SCENARIO, "--plot", str(tmp_path / "x.png")) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "pip install 'chappe[plan]'" in shown.err


def test_a_picture_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert run("capacity", *SCENARIO, "--plot", str(tmp_path / "no" / "x.png")) == 2
    assert "--plot" in capsys.readouterr().err
