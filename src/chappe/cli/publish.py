"""`chappe publish`: its settings. What it does is in `chappe.cli.publishing`, imported when malloc is set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import Field, field_validator

from chappe.cli.settings import NO_TLS, Flat, Rate, Settings, TlsSettings
from chappe.errors import UsageError
from chappe.hop.malloc import raise_thresholds
from chappe.logs import LogFormat
from chappe.origin.encoders import PROCESSES_MAX
from chappe.wire.tcp_frames import STREAMS_MAX


class PublishSettings(Settings):
    """What to publish, to whom, and how."""

    coordinator: str = "127.0.0.1:7400"
    """HOST:PORT of the coordinator."""
    version: int | None = None
    """The version; the next one when not given. Versions only grow within a run."""
    rollback_to: int | None = None
    """Instead of PATH: publish the bytes of this older version again, as a new one. They are made from what is kept in
    --base-cache."""
    payload: Literal["auto", "full", "delta", "compressed"] = "auto"
    """auto: a delta to the workers that hold the version published last, the full snapshot to the others, compressed
    where that is sooner. delta: fail where not all can take one. full, compressed: that to everybody."""
    adapter_of: str | None = None
    """Publish an adapter (LoRA), bound to its base: the base's root, or a path to where it has landed. Only relays
    whose --base-store has that base take it. Adapters have a run and coordinator of their own."""
    base_cache: str | None = None
    """Folder in which the published bytes are kept (a copy of the snapshot, and the last deltas), so that the next
    `chappe publish` can send a delta; ~/.cache/chappe/base when not given, `none` for nowhere. It takes up
    to 1.25 times the snapshot's size for each run, 2.25 times while it is replaced; what nobody has used for 14 days is
    removed when another run's is written."""
    keep_deltas: int = 16
    """How many of the last deltas are kept there, within a quarter of the snapshot's bytes: workers that are so many
    versions behind get one delta to the newest."""
    encoders: Annotated[int, Field(ge=0, le=PROCESSES_MAX)] | None = None
    """Processes that compare and compress the blocks of a snapshot of 4 GiB or more; as many as cores when not given, 8
    at most, of some 40 MB each. 0: threads alone do that, which is slower."""
    until: float = 1.0
    """Return when this fraction of the targeted workers has installed the version."""
    uplink: Rate | None = None
    """What this host can send: the number of chains follows from it. 100mbit is assumed when not given."""
    limit_uplink: Rate | None = None
    """Never send faster than this."""
    listen: str = "127.0.0.1:0"
    """HOST:PORT where workers fetch from; port 0 takes a free one."""
    data_listen: str | None = None
    """HOST:PORT where workers are offered a bare TCP connection for the payload, beside gRPC: less CPU on fast links.
    Any port at the host of --listen when not given; 'off' for gRPC alone."""
    streams: Annotated[int, Field(ge=1, le=STREAMS_MAX)] | Literal["auto"] = "auto"
    """So many TCP connections for each hop from here, 1 to 16. auto: one, and where that cannot fill a long link
    because packets are lost, bbr, or more of them where there is no bbr."""
    advertise: str | None = None
    """HOST:PORT that workers dial, where it is not --listen (behind port forwarding)."""
    name: str | None = None
    """This origin's name in the fleet; with TLS it is the certificate's."""
    topology: Literal["chains", "striped", "auto", "star"] = "auto"
    """striped: stripes with chains of their own where unequal links are worth it, plain chains where not. auto: the
    same, where the links of all workers and of this host are declared or measured; `chappe status` says why. star sends
    to every worker directly: only for comparison."""
    chains: int = 0
    """The number of chains; 0 leaves it to the planner."""
    log_format: LogFormat = LogFormat.CONSOLE
    """On stderr: console for people, json for machines."""
    log_level: Annotated[str, Parameter(show_choices=False)] = "warning"
    """debug, info, warning or error. info says when what was made and could leave."""

    @field_validator("until")
    @classmethod
    def _until(cls, value: float) -> float:
        if not 0 < value <= 1:
            raise ValueError(f"{value:g} is not a fraction above 0 and at most 1")
        return value

    @field_validator("version", "rollback_to")
    @classmethod
    def _version(cls, value: int | None) -> int | None:
        if value is not None and value < 1:
            raise ValueError(f"{value}: versions begin at 1")
        return value

    @field_validator("log_level")
    @classmethod
    def _level(cls, value: str) -> str:
        if value not in ("debug", "info", "warning", "error"):
            raise ValueError(f"{value!r} is not debug, info, warning or error")
        return value

    @field_validator("keep_deltas")
    @classmethod
    def _keep_deltas(cls, value: int) -> int:
        if value < 0:
            raise ValueError(f"{value} is not a number of deltas")
        return value

    @field_validator("chains")
    @classmethod
    def _chains(cls, value: int) -> int:
        if value < 0:
            raise ValueError(f"{value} is not a number of chains")
        return value


DEFAULTS = PublishSettings()


def publish(
    path: Annotated[Path | None, Parameter(show_env_var=False)] = None,
    /,
    *,
    settings: Annotated[PublishSettings, Flat] = DEFAULTS,
    tls: Annotated[TlsSettings, Flat] = NO_TLS,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Publish a safetensors file or a Hugging Face directory to the fleet. Ctrl-C cancels the publication.

    Exit code 0: the fraction --until has installed it, and every living chain can finish without this process.

    Parameters
    ----------
    path
        One .safetensors file, or a model directory with its sidecar files: all of it but names that begin with a dot;
        a private key in it is refused. It must not change meanwhile. Not given with --rollback-to.
    json
        Print the result as one JSON object on stdout; everything else goes to stderr.
    """
    if (path is None) is (settings.rollback_to is None):
        raise UsageError("give either PATH, or --rollback-to and the version to go back to")
    if path is not None and not path.exists():
        raise UsageError(f"PATH {path}: no such file or directory")
    raise_thresholds()  # before gRPC is imported

    from chappe.cli.interrupt import run_interruptible
    from chappe.cli.publishing import run_publish

    return run_interruptible(run_publish(path, settings, tls, as_json=json))
