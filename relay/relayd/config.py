"""The settings of `relayd`: one field per flag, with its unit and why the default is what it is."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field, field_validator

from chappe.cli.settings import Duration, Rate, TlsSettings
from chappe.core.installing import InstallMode
from chappe.errors import ConfigError
from chappe.hop.stall import STALL_FLOOR_S
from chappe.logs import LogFormat
from chappe.wire.tcp_frames import STREAMS_MAX

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class InstallHook:
    """What `--install` says. `command` is empty unless the mode is COMMAND."""

    mode: InstallMode = InstallMode.NONE
    command: str = ""


def parse_install(text: str) -> InstallHook:
    """`none`, `confirm` or `command CMD`. Raises ConfigError naming the flag."""
    word, _, rest = text.strip().partition(" ")
    if word == "command" and rest.strip():
        return InstallHook(InstallMode.COMMAND, rest.strip())
    if word in ("none", "confirm") and not rest.strip():
        return InstallHook(InstallMode(word))
    raise ConfigError(f"--install {text!r}: write none, confirm, or 'command CMD'")


class RelaydSettings(TlsSettings):
    coordinator: str
    """HOST:PORT of the coordinator."""
    store: Path
    """Directory for snapshots and state, made when new. On the file system that engines read from."""
    name: str = Field(default_factory=lambda: socket.gethostname().removesuffix("."))
    """This worker's name, unique in the fleet; with TLS the name in its certificate. The host's name when not given."""
    listen: str = "127.0.0.1:7401"
    """HOST:PORT at which the next relay of the chain fetches: loopback unless told otherwise, port 0 for any."""
    advertise: str | None = None
    """HOST:PORT that peers dial, where it differs from --listen."""
    data_listen: str | None = None
    """HOST:PORT at which it offers the next relay a bare TCP connection for the payload, beside gRPC: far less CPU on
    fast links. Any port at the host of --listen when not given; 'off' for gRPC alone."""
    transport: Literal["auto", "grpc"] = "auto"
    """auto takes the payload over TCP where the parent offers it and its port can be reached, grpc never does."""
    streams: Annotated[int, Field(ge=1, le=STREAMS_MAX)] | Literal["auto"] = "auto"
    """So many TCP connections for each hop, 1 to 16. auto: one, and where that cannot fill a long link because packets
    are lost, bbr, or more of them where there is no bbr (see the README). A hop has as many as the side of it wants
    that wants more."""
    http: str | None = None
    """HOST:PORT for /metrics, /healthz and /readyz; not served when not given."""
    downlink: Rate | None = None
    """Declared downlink: where planning starts until it is measured. 100mbit is assumed when not given."""
    uplink: Rate | None = None
    """Declared uplink."""
    limit_downlink: Rate | None = None
    """Never receive faster than this."""
    limit_uplink: Rate | None = None
    """Never send faster than this."""
    no_dial_in: Annotated[bool, Parameter(negative="")] = False
    """Peers cannot open connections to this host (NAT, firewall): it is placed so that it always dials itself."""
    stall_timeout: Duration = STALL_FLOOR_S
    """A parent that is ahead and sends nothing for so long is left; later on a link on which a chunk takes longer."""
    price_per_hour: float | None = Field(default=None, ge=0)
    """What this host costs, in any currency, for planning."""
    rollouts_per_second: float | None = Field(default=None, ge=0)
    """What this host generates, for planning."""
    install: str = "none"
    """What makes a landed version installed: none, 'command CMD' (exit code 0), or confirm (the engine says so)."""
    install_timeout: Duration = 600.0
    """How long CMD or the engine may take. Loading tens of gigabytes onto a GPU takes minutes."""
    base_store: Path | None = None
    """The store of the relay on this host that gets the base models of the adapters that this one gets. An adapter
    lands only when the snapshot that it is bound to has landed there."""
    log_format: LogFormat = LogFormat.CONSOLE
    """console for people, json for machines; to stderr."""
    log_level: Annotated[str, Parameter(show_choices=False)] = "info"
    """debug, info, warning or error."""

    @property
    def install_hook(self) -> InstallHook:
        return parse_install(self.install)

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(f"{value!r}: use letters, digits, '.', '_' and '-', at most 253 of them")
        return value

    @field_validator("install")
    @classmethod
    def _check_install(cls, value: str) -> str:
        parse_install(value)
        return value

    @field_validator("log_level")
    @classmethod
    def _check_level(cls, value: str) -> str:
        if value not in ("debug", "info", "warning", "error"):
            raise ValueError(f"{value!r} is not debug, info, warning or error")
        return value

    @field_validator("stall_timeout")
    @classmethod
    def _check_stall(cls, value: float) -> float:
        if not 1.0 <= value <= 600:  # a parent speaks twice a second
            raise ValueError(f"{value:g} s is not between 1 s and 10 min")
        return value

    @field_validator("install_timeout")
    @classmethod
    def _check_timeout(cls, value: float) -> float:
        if not 0 < value <= 7 * 86400:
            raise ValueError(f"{value:g} s is not more than nothing and at most a week")
        return value
