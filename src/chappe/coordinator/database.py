"""What a `--state` URL leads to: an engine, the lock of the one coordinator, and what may be shown of it.

A password is shown nowhere: not in messages, not in the log, not by `--print-config`. Where it cannot be told which
part of a URL that is, the URL is not shown at all.

A connection to PostgreSQL is the lock, too, and is probed from both ends: a firewall does not forget it while nothing
is written, this side hears within half a minute that the other is gone, and the other gives up the lock of a host that
is gone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL, make_url

from chappe.errors import ConfigError, StoreError, StoreLockedError

_ADVISORY_LOCK = 0x6368617070650001  # "chappe", 1: PostgreSQL's lock for "a coordinator runs on this database"
_POSTGRESQL = ("postgres", "postgresql")  # as URLs have it; SQLAlchemy knows one of them
_DRIVER = "psycopg"  # which the extra `postgres` brings: what SQLAlchemy takes by itself depends on its release
_IDLE_S, _INTERVAL_S, _PROBES, _SILENT_S = 10, 5, 3, 25
_PROBING: dict[str, object] = {  # of libpq; what the URL says of them counts
    "connect_timeout": _IDLE_S,
    "keepalives_idle": _IDLE_S,
    "keepalives_interval": _INTERVAL_S,
    "keepalives_count": _PROBES,
    "tcp_user_timeout": 1000 * _SILENT_S,
}
_PROBED = {  # of the server, for this connection
    "tcp_keepalives_idle": _IDLE_S,
    "tcp_keepalives_interval": _INTERVAL_S,
    "tcp_keepalives_count": _PROBES,
    "tcp_user_timeout": 1000 * _SILENT_S,
}
_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
_SECRETS = ("password", "sslpassword")


def parse(url: str) -> URL:
    """Raises ConfigError, which shows nothing of a URL that cannot be read."""
    if _is_ambiguous(url):
        raise ConfigError("--state: in a database URL every @, : and / of a password is written %40, %3A and %2F")
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (sa.exc.ArgumentError, ValueError) as error:
        shown = f" {url}" if "://" not in url and "@" not in url else ""
        raise ConfigError(
            f"--state{shown}: not a database URL; write it like sqlite:///chappe.db or postgresql://user@host:5432/chappe"
        ) from error
    if backend in _POSTGRESQL:
        return parsed.set(drivername=f"postgresql+{_driver_of(parsed)}")
    if backend != "sqlite":
        raise ConfigError(
            f"--state {shown_of(parsed)}: {backend} is not supported; use sqlite:///FILE or postgresql://..."
        )
    if not parsed.database or parsed.database == ":memory:":
        raise ConfigError(
            f"--state {shown_of(parsed)}: the state must outlive the process; write it like sqlite:///chappe.db"
        )
    return parsed


def _is_ambiguous(url: str) -> bool:
    """A password with an @ in it: what is behind that would be taken for the host, and shown."""
    return not url.startswith("sqlite") and url.partition("?")[0].count("@") > 1


def _driver_of(url: URL) -> str:
    return url.drivername.partition("+")[2] or _DRIVER


def shown_of(url: URL) -> str:
    """It, without secrets."""
    secret = {name: "***" for name in _SECRETS if name in url.query}
    return url.update_query_dict(secret).render_as_string(hide_password=True)


def shown_url(url: str) -> str:
    """The same of what a user has written, whether or not it can be used."""
    try:
        return "***" if _is_ambiguous(url) else shown_of(make_url(url))
    except (sa.exc.ArgumentError, ValueError):
        return "***"


def driver_missing(url: URL, error: ImportError) -> ConfigError:
    remedy = "pip install 'chappe[postgres]'" if _driver_of(url) == _DRIVER else "install it"
    return ConfigError(f"--state {shown_of(url)}: the database driver is not installed ({error}): {remedy}")


def lock_file(url: URL) -> int:
    """Make the database file private (it holds the token key) and hold a lock beside it: others may still read it."""
    path = Path(str(url.database))
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        fd = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"--state {shown_of(url)}: cannot open {error.filename}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        message = f"--state {shown_of(url)}: another coordinator (pid {pid or 'unknown'}) uses it"
        raise StoreLockedError(message) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def engine_of(url: URL) -> sa.Engine:
    # One connection for the life of the process: the lock of PostgreSQL belongs to it, and writes are in order anyway.
    if url.get_backend_name() != "sqlite":
        probing = {} if _driver_of(url) not in (_DRIVER, "psycopg2") else _PROBING
        wanted = {name: value for name, value in probing.items() if name not in url.query}
        return sa.create_engine(url, pool_size=1, max_overflow=0, connect_args=wanted)
    # The connection is opened in one thread and used in the writer's: never in two at once.
    engine = sa.create_engine(url, connect_args={"check_same_thread": False}, poolclass=sa.pool.StaticPool)

    @sa.event.listens_for(engine, "connect")
    def set_pragmas(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def insert_of(engine: sa.Engine) -> Callable[[sa.Table], Any]:
    if engine.dialect.name != "postgresql":
        return sqlite.insert
    from sqlalchemy.dialects import postgresql  # 25 ms of a start, for most in vain

    return postgresql.insert


def lock_connection(connection: sa.Connection) -> bool:
    """Whether it is ours now, until the connection ends. SQLite's is a file's."""
    if connection.dialect.name != "postgresql":
        return True
    with connection.begin():
        for name, value in _PROBED.items():
            connection.execute(sa.text(f"SET {name} = {value}"))
        connection.execute(sa.text(_DURABLE))
        return bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(_ADVISORY_LOCK))).scalar_one())


def may_pass(error: sa.exc.SQLAlchemyError) -> bool:
    """What a server says that restarts, is overtaxed, full, or read-only for now; a wrong statement stays wrong."""
    return isinstance(
        error, sa.exc.OperationalError | sa.exc.InterfaceError | sa.exc.InternalError | sa.exc.TimeoutError
    )


def release(engine: sa.Engine | None, connection: sa.Connection | None, lock_fd: int | None) -> None:
    if connection is not None:
        connection.close()
    if engine is not None:
        engine.dispose()
    if lock_fd is not None:
        os.close(lock_fd)


def cause_of(error: sa.exc.SQLAlchemyError) -> str:
    """The driver's words, without the statement and its parameters (they hold the key)."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
