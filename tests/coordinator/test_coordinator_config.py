"""The coordinator's settings, through the same door as the command line uses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest

from chappe.cli.settings import Flat, make_app, run_app
from chappe.coordinator.config import CoordinatorSettings
from chappe.logs import LogFormat


def parse(*arguments: str) -> tuple[int, CoordinatorSettings | None]:
    seen: list[CoordinatorSettings] = []
    app = make_app("coordinator", "Test.")

    @app.default
    def main(*, settings: Annotated[CoordinatorSettings, Flat] = CoordinatorSettings()) -> None:  # noqa: B008
        seen.append(settings)

    return run_app(app, arguments, env_prefix="CHAPPETEST_"), seen[0] if seen else None


def test_defaults_are_loopback_and_sqlite() -> None:
    code, settings = parse()
    assert code == 0
    assert settings == CoordinatorSettings()
    assert settings.listen == "127.0.0.1:7400"
    assert settings.state.startswith("sqlite:///")
    assert (settings.lease, settings.http, settings.run) == (5.0, None, None)


def test_flags_variables_and_file_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.toml"
    config.write_text('listen = "127.0.0.1:1"\nlease = "10s"\nrun = "file"\n')
    monkeypatch.setenv("CHAPPETEST_RUN", "variable")
    monkeypatch.setenv("CHAPPETEST_LOG_FORMAT", "json")
    _, settings = parse("--config", str(config), "--listen", "127.0.0.1:2")
    assert settings is not None
    assert (settings.listen, settings.run, settings.lease) == ("127.0.0.1:2", "variable", 10.0)
    assert settings.log_format is LogFormat.JSON


@pytest.mark.parametrize("arguments", [("--lease", "0.5s"), ("--lease", "2h"), ("--lease", "5"), ("--run", "")])
def test_values_out_of_bounds_are_wrong_usage(arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, settings = parse(*arguments)
    assert (code, settings) == (2, None)
    assert arguments[0] in capsys.readouterr().err
