"""How every command gets its settings: a TOML file, then environment variables, then flags; and how it ends.

A command is a function with pydantic models as parameters (flattened with `Parameter(name="*")`): the model states the
type, unit, default and help of each setting once, for the flag, the variable, the file and `--print-config`.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

import cyclopts
from cyclopts import Parameter
from cyclopts.argument import ArgumentCollection
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError, ValidationInfo

from chappe.errors import ChappeError, ConfigError, UsageError
from chappe.units import parse_duration, parse_rate, parse_size

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141
"""128 + SIGPIPE, as a shell sees `cat` end when `head` has enough: quiet, and not a success that nobody saw."""

T = TypeVar("T")


def flag_of(field_name: str | None) -> str:
    """`limit_uplink` to `--limit-uplink`: how messages name a setting."""
    return "--" + (field_name or "").replace("_", "-")


def _parsed(parse: Callable[[str], T]) -> BeforeValidator:
    def validate(value: Any, info: ValidationInfo) -> Any:
        flag = flag_of(info.field_name)
        if info.field_name is None and not isinstance(value, str):
            return value  # a default, which cyclopts validates outside its model
        if not isinstance(value, str):
            raise ConfigError(
                f'{flag}: {value!r} has no unit: write it as text, for instance "100mbit", "64MiB" or "90s"'
            )
        try:
            return parse(value)
        except UsageError as error:
            raise ConfigError(f"{flag}: {error}") from error

    return BeforeValidator(validate)


def _shown(template: str) -> PlainSerializer:
    def show(value: float) -> str:
        return template.format(format(Decimal(repr(value)), "f"))  # every digit, never an exponent

    return PlainSerializer(show, return_type=str, when_used="json")


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
    insecure: Annotated[bool, Parameter(negative="")] = False
    """Allow plaintext on addresses other than loopback."""


NO_TLS = TlsSettings()


def make_app(name: str, help_text: str, example: str = "") -> cyclopts.App:
    """A cyclopts application whose help is plain text and ends with the example, its line breaks kept."""
    return cyclopts.App(
        name=name,
        help=help_text,
        help_format="plaintext",
        help_epilogue=example_text(example) if example else None,
        version_flags=["--version"],
        suppress_keyboard_interrupt=False,  # run_app gives it its exit code
    )


def example_text(example: str) -> str:
    """The end of a help page: `app.command(f, help_epilogue=example_text("chappe status --watch"))`."""
    lines = textwrap.dedent(example).strip("\n").splitlines()
    return "\n".join(["Example:", *(f"    {line}" for line in lines)])


class _OptionsFromEnv(cyclopts.config.Env):
    """Variables stand for options only: `CHAPPE_PATH`, which an install hook has, must not name what to publish."""

    def __call__(self, app: cyclopts.App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        options = type(arguments)(a for a in arguments if a.name.startswith("--") and a.name != "--version")
        super().__call__(app, commands, options)


SECTIONS = {"training": "coordinator"}
"""Tables of a file that belong to a command, beside the one that bears its name."""


class _TomlFile(cyclopts.config.Toml):
    """The keys of a section are the command's, as if they stood in its own table."""

    def _load_config(self, path: Path) -> dict[str, Any]:
        document: dict[str, Any] = super()._load_config(path)
        for section, command in SECTIONS.items():
            if section in document:
                document[command] = {**document.get(command, {}), **document.pop(section)}
        return document


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
    """Run a command and return its exit code: 0 done, 1 the job failed, 2 wrong usage, 141 nobody reads its output.

    `--config FILE` (or `<env_prefix>CONFIG`) names a TOML file; its keys are the flags' names with underscores, for
    `chappe` in a table per command. `env_prefix` is `CHAPPE_` or `RELAYD_`.
    """
    try:
        code = _run(app, list(sys.argv[1:] if arguments is None else arguments), env_prefix)
        sys.stdout.flush()  # else the interpreter would find out on its way out, and complain
    except BrokenPipeError:
        return _without_reader()
    except SystemExit as error:  # rich has met it, and would call it a failure
        if isinstance(error.__context__, BrokenPipeError):
            return _without_reader()
        raise
    return code


def _without_reader() -> int:
    """What is still in a buffer goes nowhere, instead of failing again at the exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return EXIT_NO_READER


def _run(app: cyclopts.App, rest: list[str], env_prefix: str) -> int:
    try:
        config = _take_option(rest, "--config") or os.environ.get(env_prefix + "CONFIG")
        sources: list[Any] = [_OptionsFromEnv(env_prefix, command=False)]
        if config is not None:
            _check_config(app, Path(config))
            sources.append(_TomlFile(config, must_exist=True))
        app.config = tuple(sources)
        result = app(rest, exit_on_error=False, print_error=False, verbose=False, result_action="return_value")
    except (cyclopts.CycloptsError, UsageError) as error:
        told = _unknown_option(app, rest) or error
        if not isinstance(told, cyclopts.CycloptsError):
            print(f"{app.name[0]}: {told}", file=sys.stderr)
            return EXIT_USAGE
        where = " ".join([app.name[0], *(told.command_chain or ())])
        print(f"{where}: {_explain(told)} (see {where} --help)", file=sys.stderr)
        return EXIT_USAGE
    except ChappeError as error:
        print(f"{app.name[0]}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return result if isinstance(result, int) else 0


def _unknown_option(app: cyclopts.App, arguments: list[str]) -> cyclopts.UnknownOptionError | None:
    """The first option that the command does not have. cyclopts converts before it looks at what is left over, and
    would tell of the setting that is missing because its name was mistyped."""
    everybodys = {*app.version_flags, *app.help_flags}  # each of which would be taken for a command
    chain, apps, tokens = app.parse_commands([one for one in arguments if one not in everybodys])
    if apps[-1].default_command is None:
        return None
    known = apps[-1].assemble_argument_collection()
    for argument in tokens:
        if argument == "--":
            break
        flag = argument.split("=", 1)[0]
        if not flag.startswith("--") or flag == "--config":  # which is no command's
            continue
        try:
            known.match(flag)
        except ValueError:
            token = cyclopts.Token(keyword=flag, source="cli")
            return cyclopts.UnknownOptionError(
                token=token, argument_collection=known, command_chain=chain, verbose=False
            )
    return None


def _check_config(app: cyclopts.App, path: Path) -> None:
    """What cyclopts would pass over in silence or with a traceback: no file, no TOML, a key outside every table."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path}: {error}") from error
    commands = [name for name in app if not name.startswith("-")]
    for section, command in SECTIONS.items():
        if command not in commands or section not in document:
            continue
        if not isinstance(document[section], dict):
            raise ConfigError(f"--config {path}: {section!r} is a table: [{section}]")
        twice = set(document.pop(section)) & set(document.get(command, {}))
        if twice:
            raise ConfigError(f"--config {path}: {min(twice)!r} stands in [{section}] and in [{command}]: remove one")
    for key in document if commands else ():
        if key not in commands:
            raise ConfigError(
                f"--config {path}: {key!r} is not a command: settings stand in a table per command: [{commands[0]}]"
            )


def _explain(error: cyclopts.CycloptsError) -> str:
    """One line; settings are named as flags whichever of file, variable and flag they came from."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ValidationError):
        return "; ".join(_explain_item(item["loc"], item["msg"]) for item in cause.errors())
    return str(error).strip().rstrip(".")


def _explain_item(location: tuple[int | str, ...], message: str) -> str:
    message = message.removeprefix("Value error, ")
    return f"{flag_of(str(location[0]))}: {message}" if location else message


def print_config(*settings: BaseModel, table: str | None = None) -> None:
    """Print the effective settings as TOML that `--config` takes back; `table` is the name of a `chappe` command."""
    if table is not None:
        print(f"[{table}]")
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
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


Flat = Parameter(name="*")
"""Annotate a settings model with it: `settings: Annotated[CoordinatorSettings, Flat]`."""
