"""The settings of `chappe coordinator`: one field per flag, with its unit and why the default is what it is."""

from __future__ import annotations

from pydantic import field_serializer, field_validator

from chappe.cli.settings import Duration, TlsSettings
from chappe.logs import LogFormat


class CoordinatorSettings(TlsSettings):
    listen: str = "127.0.0.1:7400"
    """HOST:PORT to listen on. Loopback unless told otherwise: a fleet on real hosts needs TLS as well."""
    state: str = "sqlite:///chappe-coordinator.db"
    """Database with what must survive a restart: sqlite:///FILE (relative to the working directory) or
    postgresql://USER@HOST/DATABASE (behind PgBouncer: with pool_mode = session)."""
    run: str | None = None
    """The run's name, kept in --state from the first start on; generated when not given."""
    http: str | None = None
    """HOST:PORT for /metrics, /healthz and /readyz; not served when not given."""
    lease: Duration = 5.0
    """How long a worker that is not heard of still counts as targeted. Five heartbeats: one lost packet is no loss."""
    log_format: LogFormat = LogFormat.CONSOLE
    """console for people, json for machines; to stderr."""

    @field_validator("lease")
    @classmethod
    def _lease(cls, value: float) -> float:
        if not 1.0 <= value <= 3600.0:
            raise ValueError(f"a lease of {value:g} s is outside 1 s to 1 h")
        return value

    @field_serializer("state")
    def _without_password(self, value: str) -> str:
        """Who prints a configuration shows it to somebody."""
        if "://" not in value or value.startswith("sqlite:"):
            return value
        from chappe.coordinator.database import shown_url  # SQLAlchemy, which `--help` does without

        return shown_url(value)

    @field_validator("run")
    @classmethod
    def _run(cls, value: str | None) -> str | None:
        if value is not None and not (0 < len(value) <= 128 and value.isprintable() and value == value.strip()):
            raise ValueError(f"run {value!r}: give a name of 1 to 128 printable characters")
        return value
