"""How every command gets its settings: a TOML file, then environment variables, then flags; and how it ends.

A command is a function with pydantic models as parameters (flattened with `Parameter(name="*")`): the model states the
type, unit, default and help of each setting once, for the flag, the variable, the file and `--print-config`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import cyclopts
from cyclopts import Parameter
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from chappe.errors import ChappeError, ConfigError, UsageError
from chappe.units import parse_duration, parse_rate, parse_size

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

T = TypeVar("T")


def _parsed(parse: Callable[[str], T]) -> BeforeValidator:
    def validate(value: Any) -> Any:
        if not isinstance(value, str):
            raise ConfigError(f'{value!r} has no unit: write it as text, for instance "100mbit", "64MiB" or "90s"')
        return parse(value)

    return BeforeValidator(validate)


def _shown(template: str) -> PlainSerializer:
    return PlainSerializer(lambda value: template.format(f"{value:.15g}"), return_type=str, when_used="json")


Rate = Annotated[float, _parsed(parse_rate), _shown("{}B")]
"""Bytes per second; written `100mbit` or `12MB`."""
Size = Annotated[int, _parsed(parse_size), _shown("{}B")]
"""Bytes; written `64MiB`."""
Duration = Annotated[float, _parsed(parse_duration), _shown("{}s")]
"""Seconds; written `90s` or `15m`."""


class Settings(BaseModel):
    """Base of all settings models: a key that nobody knows is an error, not a silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TlsSettings(Settings):
    """Mutual TLS: all three files or none."""

    tls_cert: Path | None = None
    """This node's certificate (PEM), as `chappe keys issue NAME` writes it."""
    tls_key: Path | None = None
    """The private key of --tls-cert (PEM)."""
    tls_ca: Path | None = None
    """The fleet's CA certificate (PEM); peers that it did not sign are refused."""
    insecure: bool = False
    """Allow plaintext on addresses other than loopback."""


def make_app(name: str, help_text: str) -> cyclopts.App:
    """A cyclopts application whose help is plain text (examples keep their line breaks)."""
    return cyclopts.App(name=name, help=help_text, help_format="plaintext", version_flags=["--version"])


def _take_option(arguments: list[str], flag: str) -> str | None:
    """Remove `flag VALUE` or `flag=VALUE` from the arguments and return the value."""
    for i, argument in enumerate(arguments):
        if argument == "--":
            return None
        if argument == flag:
            if i + 1 == len(arguments):
                raise UsageError(f"{flag} needs a value")
            value = arguments[i + 1]
            del arguments[i : i + 2]
            return value
        if argument.startswith(flag + "="):
            del arguments[i]
            return argument.removeprefix(flag + "=")
    return None


def run_app(app: cyclopts.App, arguments: Sequence[str] | None = None, *, env_prefix: str) -> int:
    """Run a command and return its exit code: 0 done, 1 the job failed, 2 wrong usage.

    `--config FILE` (or `<env_prefix>CONFIG`) names a TOML file; its keys are the flags' names with underscores, for
    `chappe` in a table per command. `env_prefix` is `CHAPPE_` or `RELAYD_`.
    """
    rest = list(sys.argv[1:] if arguments is None else arguments)
    try:
        config = _take_option(rest, "--config") or os.environ.get(env_prefix + "CONFIG")
        sources: list[Any] = [cyclopts.config.Env(env_prefix, command=False)]
        if config is not None:
            if not Path(config).is_file():
                raise ConfigError(f"--config {config}: no such file")
            sources.append(cyclopts.config.Toml(config, must_exist=True))
        app.config = tuple(sources)
        result = app(rest, exit_on_error=False, print_error=True, error_console=_stderr_console())
    except cyclopts.CycloptsError:
        return EXIT_USAGE  # cyclopts has said what is wrong
    except UsageError as error:
        print(f"{app.name[0]}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except ChappeError as error:
        print(f"{app.name[0]}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0


def _stderr_console() -> Any:
    from rich.console import Console  # slow to import, and needed here only

    return Console(stderr=True)


def print_config(*settings: BaseModel) -> None:
    """Print the effective settings as TOML that `--config` takes back."""
    for model in settings:
        for key, value in model.model_dump(mode="json", exclude_none=True).items():
            print(f"{key} = {_toml(value)}")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


Flat = Parameter(name="*")
"""Annotate a settings model with it: `settings: Annotated[CoordinatorSettings, Flat]`."""
