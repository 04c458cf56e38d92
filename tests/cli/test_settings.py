"""Precedence of file, variables and flags; exit codes; messages that name the flag; `--print-config` reads back."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import cyclopts
import pytest
from cyclopts import Parameter
from hypothesis import given
from hypothesis import strategies as st

from chappe.cli.settings import (
    Duration,
    Flat,
    Rate,
    Settings,
    Size,
    example_text,
    make_app,
    print_config,
    run_app,
)
from chappe.errors import PublicationFailedError, UsageError


class Everything(Settings):
    rate: Rate | None = None
    """A rate."""
    size: Size = 1
    """A size."""
    wait: Duration = 5.0
    """A time."""
    name: str = "n"
    """A name."""
    version: int = 0
    """A number with the name of a global flag."""
    fast: bool = False
    """A switch."""
    place: Path | None = None
    """A path."""


def daemon(seen: list[Everything]) -> cyclopts.App:
    app = make_app("daemon", "A daemon.", example="daemon --rate 1mbit")

    @app.default
    def main(*, settings: Annotated[Everything, Flat] = Everything()) -> None:  # noqa: B008
        seen.append(settings)

    return app


def run(arguments: list[str]) -> tuple[int, Everything | None]:
    seen: list[Everything] = []
    code = run_app(daemon(seen), arguments, env_prefix="TESTD_")
    return code, seen[0] if seen else None


def test_flags_beat_variables_beat_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.toml"
    config.write_text('rate = "1MB"\nsize = "1MiB"\nwait = "1m"\nfast = true\n')
    monkeypatch.setenv("TESTD_SIZE", "2MiB")
    monkeypatch.setenv("TESTD_WAIT", "2m")
    code, settings = run(["--config", str(config), "--wait", "3m"])
    assert code == 0
    assert settings is not None
    assert (settings.rate, settings.size, settings.wait, settings.fast) == (1e6, 2 << 20, 180.0, True)


def test_the_variable_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "c.toml"
    config.write_text('name = "from-file"\n')
    monkeypatch.setenv("TESTD_CONFIG", str(config))
    _, settings = run([])
    assert settings is not None
    assert settings.name == "from-file"


def test_a_version_in_the_environment_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTD_VERSION", "12")  # what an install hook finds in its environment
    _, settings = run([])
    assert settings is not None
    assert settings.version == 0
    _, settings = run(["--version", "13"])
    assert settings is not None
    assert settings.version == 13


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--rate", "12"], "--rate"),
        (["--rate", "12furlong"], "--rate"),
        (["--size", "many"], "--size"),
        (["--wait", "5"], "--wait"),
        (["--version", "x"], "--version"),
        (["--nope"], "--nope"),
        (["stray"], "stray"),
        (["--name"], "--name"),
        (["--config", "/nonexistent/x.toml"], "--config"),
        (["--config"], "--config"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_names_the_flag(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, settings = run(arguments)
    assert code == 2
    assert settings is None
    printed = capsys.readouterr()
    assert named in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""


class Demanding(Settings):
    store: Path
    """A setting without a default."""
    rate: Rate | None = None
    """A rate."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stor", "x"], "job serve: Unknown option: --stor. Did you mean --store?"),
        (["--stor=x", "--rate", "12"], "job serve: Unknown option: --stor. Did you mean --store?"),
        (["--rate", "12", "--stor"], "job serve: Unknown option: --stor. Did you mean --store?"),
        (["--zzz", "1", "--rate"], "job serve: Unknown option: --zzz (see"),
        (["--store", "x", "--rate", "12"], "job: --rate: '12' is not a rate"),
        (["--rate", "1mbit"], "job serve: --store: Field required"),
    ],
)
def test_an_option_that_nobody_knows_is_named_before_what_is_missing(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = make_app("job", "A job.")

    @app.command
    def serve(*, settings: Annotated[Demanding, Flat]) -> None:
        raise AssertionError(settings)

    assert run_app(app, ["serve", *arguments], env_prefix="TESTD_") == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("text", ["rate = \n", 'ratee = "1MB"\n', "rate = 5\n"])
def test_a_bad_file_is_exit_code_2(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    code, settings = run(["--config", str(config)])
    assert code == 2
    assert settings is None
    assert capsys.readouterr().err


def test_a_key_outside_every_command_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app("many", "Commands.")
    seen: list[Everything] = []

    @app.command
    def serve(*, settings: Annotated[Everything, Flat] = Everything()) -> None:  # noqa: B008
        seen.append(settings)

    config = tmp_path / "c.toml"
    config.write_text('name = "lost"\n')
    assert run_app(app, ["serve", "--config", str(config)], env_prefix="TESTD_") == 2
    assert "[serve]" in capsys.readouterr().err
    config.write_text('[serve]\nname = "found"\n')
    assert run_app(app, ["serve", "--config", str(config)], env_prefix="TESTD_") == 0
    assert [s.name for s in seen] == ["found"]


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("u"), 2), (PublicationFailedError("p"), 1), (KeyboardInterrupt(), 130)]
)
def test_errors_become_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app("job", "A job.")

    @app.default
    def main() -> None:
        raise error

    assert run_app(app, [], env_prefix="TESTD_") == code
    assert capsys.readouterr().out == ""


def test_help_ends_with_the_example_as_written(capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app("job", "A job.")

    @app.command(help_epilogue=example_text("job go \\\n    --fast"))
    def go(*, fast: Annotated[bool, Parameter(negative="")] = False) -> None:
        """Go."""

    run_app(app, ["go", "--help"], env_prefix="TESTD_")
    assert capsys.readouterr().out.endswith("Example:\n    job go \\\n        --fast\n")


text = st.text(max_size=20).filter(lambda t: t.isprintable() or not any("\ud800" <= c <= "\udfff" for c in t))


@given(
    st.builds(
        Everything,
        rate=st.none() | st.integers(1, 10**12).map("{}bit".format),
        size=st.integers(0, 1 << 50).map("{}B".format),
        wait=st.integers(0, 10**9).map("{}ms".format),
        name=text,
        version=st.integers(0, 1 << 62),
        fast=st.booleans(),
        place=st.none() | st.just(Path('/tmp/with "quotes"\\and\ttabs')),
    )
)
def test_print_config_reads_back(settings: Everything) -> None:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lines.append)
        print_config(settings, table="serve")
    assert Everything(**tomllib.loads("\n".join(lines))["serve"]) == settings
