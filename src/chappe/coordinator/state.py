"""What a coordinator must not forget: its run and key, its workers, its publications, the epochs it has reserved.

The store keeps JSON documents by key and knows nothing of what is in them: one for a worker, and for a publication as
many rows as `chappe.core.rows` makes of it, so that a change is written and not the fleet. One transaction per `Batch`,
durable when `write` returns (SQLite: WAL with synchronous=FULL). One coordinator per database: the second is refused
while the first lives. What URLs lead to is in `chappe.coordinator.database`.

A server may go away and come back: `write` and `check` connect anew, take the lock again and go on, but only where
nobody else has been there meanwhile and all that was written is there still (`chappe.coordinator.ownership`).
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
import structlog

from chappe.coordinator import database
from chappe.coordinator.ownership import Ownership
from chappe.coordinator.statefile import StateFile
from chappe.core.rows import Json, RowKey, split
from chappe.errors import StateAwayError, StoreCorruptError, StoreError, StoreLockedError, WrongRunError

log = structlog.get_logger()

SCHEMA_VERSION = 2
_WHOLE_DOCUMENTS = "1"  # the schema that had one document for a publication
_KEY_BYTES = 32

_metadata = sa.MetaData()
_meta = sa.Table(
    "chappe_meta",
    _metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
_workers = sa.Table(
    "chappe_workers",
    _metadata,
    sa.Column("worker_id", sa.String(128), primary_key=True),
    sa.Column("document", sa.JSON, nullable=False),
)
_rows = sa.Table(
    "chappe_publication_rows",
    _metadata,
    sa.Column("object_id", sa.String(128), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("key", sa.String(160), primary_key=True),
    sa.Column("document", sa.JSON, nullable=False),
)
_publications = sa.Table(  # of schema 1
    "chappe_publications",
    sa.MetaData(),
    sa.Column("object_id", sa.String(128), primary_key=True),
    sa.Column("document", sa.JSON, nullable=False),
)


@dataclass(slots=True)
class Batch:
    """What changed: one transaction. A document or row that is None is removed, and so is a publication."""

    workers: dict[str, Json | None] = field(default_factory=dict)
    publications: dict[str, Mapping[RowKey, Json | None] | None] = field(default_factory=dict)
    epoch_reserved: int | None = None
    clock: Json | None = None  # RunClock.mark() when this was decided


@dataclass(frozen=True, slots=True)
class Stored:
    """All of it, as a restart finds it."""

    run: str
    token_key: bytes  # Ed25519 private key, raw
    epoch_reserved: int
    workers: Mapping[str, Json]
    publications: Mapping[str, Mapping[RowKey, Json]]
    clock: Json | None  # RunClock.mark() of the last write


class StateStore:
    """Blocking; used by one thread at a time. Every failure is a StoreError that names the database."""

    def __init__(self, engine: sa.Engine, connection: sa.Connection, lock_fd: int | None, shown: str) -> None:
        self._engine = engine
        self._connection = connection
        self._lock_fd = lock_fd
        self._insert = database.insert_of(engine)
        self._file = StateFile(Path(str(engine.url.database))) if engine.dialect.name == "sqlite" else None
        self._ownership = Ownership(_meta, shown)
        self.shown = shown

    @classmethod
    def open(cls, url: str) -> StateStore:
        """Connect, lock, and make the tables where they are missing.

        Raises ConfigError for a URL that cannot be used, StoreLockedError when another coordinator runs on it,
        StoreCorruptError for a schema that is not ours, StoreError when the database cannot be opened.
        """
        parsed = database.parse(url)
        shown = database.shown_of(parsed)
        lock_fd = database.lock_file(parsed) if parsed.get_backend_name() == "sqlite" else None
        engine: sa.Engine | None = None
        connection: sa.Connection | None = None
        try:
            engine = database.engine_of(parsed)
            connection = engine.connect()
            store = cls(engine, connection, lock_fd, shown)
            if not database.lock_connection(connection):
                raise StoreLockedError(
                    f"--state {shown}: another coordinator uses it; each needs a database of its own"
                )
            store._create_schema()
        except sa.exc.SQLAlchemyError as error:
            database.release(engine, connection, lock_fd)
            raise StoreError(f"--state {shown}: cannot open it: {database.cause_of(error)}") from error
        except StoreError:
            database.release(engine, connection, lock_fd)
            raise
        except ImportError as error:  # the driver of the URL
            database.release(engine, connection, lock_fd)
            raise database.driver_missing(parsed, error) from error
        return store

    def _create_schema(self) -> None:
        with self._connection.begin():
            _metadata.create_all(self._connection)
            version = self._read_meta().get("schema_version")
            if version is None:
                self._put_meta("schema_version", str(SCHEMA_VERSION))
            elif version == _WHOLE_DOCUMENTS:
                self._split_publications()
            elif version != str(SCHEMA_VERSION):
                raise StoreCorruptError(
                    f"--state {self.shown}: its schema is version {version}, this program writes {SCHEMA_VERSION}: "
                    "use the chappe release that wrote it, or another file"
                )
            if self.remote:
                self._put_meta(*self._ownership.claim())

    def _split_publications(self) -> None:
        """From schema 1, in the transaction that has begun: whoever dies in the middle finds it as it was."""
        try:
            found = split(row.document for row in self._connection.execute(sa.select(_publications)))
        except (KeyError, TypeError, ValueError) as error:
            raise StoreCorruptError(f"--state {self.shown}: one of its publications is damaged: {error!r}") from error
        self._put_rows(found)
        self._put_meta("schema_version", str(SCHEMA_VERSION))
        _publications.drop(self._connection)

    def load(self, run: str | None, new_token_key: Callable[[], bytes]) -> Stored:
        """Read everything. A new database is given `run` (or a generated name) and a key, both kept from then on.

        Raises WrongRunError when the state belongs to another run than the one asked for.
        """
        try:
            with self._connection.begin():
                meta = self._read_meta()
                if "run" not in meta:
                    meta |= {"run": run or f"run-{uuid.uuid4().hex[:8]}", "token_key": new_token_key().hex()}
                    for key in ("run", "token_key"):
                        self._put_meta(key, meta[key])
                if run is not None and run != meta["run"]:
                    raise WrongRunError(
                        f"--state {self.shown} belongs to run {meta['run']!r}, not {run!r}: "
                        "leave --run out to go on with it, or name another --state for a new run"
                    )
                workers = {row.worker_id: row.document for row in self._connection.execute(sa.select(_workers))}
                publications: dict[str, dict[RowKey, Json]] = {}
                ordered = sa.select(_rows).order_by(*_rows.primary_key.columns)
                for row in self._connection.execute(ordered):
                    publications.setdefault(row.object_id, {})[row.kind, row.key] = row.document
        except sa.exc.SQLAlchemyError as error:
            raise StoreError(f"--state {self.shown}: cannot read it: {database.cause_of(error)}") from error
        try:
            token_key, epoch = bytes.fromhex(meta["token_key"]), int(meta.get("epoch_reserved", "0"))
            clock = json.loads(meta["clock"]) if "clock" in meta else None
        except (KeyError, ValueError) as error:
            raise StoreCorruptError(f"--state {self.shown}: its meta table is damaged: {error}") from error
        if len(token_key) != _KEY_BYTES:
            raise StoreCorruptError(f"--state {self.shown}: its token key has {len(token_key)} bytes, not {_KEY_BYTES}")
        return Stored(meta["run"], token_key, epoch, workers, publications, clock)

    def write(self, batch: Batch) -> None:
        """One transaction, on disk when this returns.

        Raises StateAwayError when it may help to write the same again, and only the same: an answer that was lost does
        not say whether it is there. Raises StoreError for the end: nothing of it is there, or it is another's to say.
        """
        with self._told("cannot write to it"):
            self._return()
            with self._connection.begin():
                if self.remote:
                    self._ownership.renew(self._connection)
                self._put_workers(batch.workers)
                self._put_rows(batch.publications)
                if batch.epoch_reserved is not None:
                    self._put_meta("epoch_reserved", str(batch.epoch_reserved))
                if batch.clock is not None:
                    self._put_meta("clock", json.dumps(batch.clock))
        self._ownership.written()
        if self._file is not None and not self._file.is_there():
            self._file = None  # said once
            self._say_removed()

    def _say_removed(self) -> None:
        with self._connection.begin():
            run = self._read_meta().get("run", "")
        log.error(
            "state_removed",
            state=self.shown,
            reason="its file was removed or replaced under this coordinator, which goes on and writes what nobody will "
            f"find: after a restart, begin with an empty state and --run {run!r}",
        )

    @property
    def remote(self) -> bool:
        """It may go away without this process."""
        return self._engine.dialect.name != "sqlite"

    def check(self) -> None:
        """Whether a remote database is still there, and ours. Raises StateAwayError, or StoreError for the end."""
        with self._told("it is gone"):
            self._return()
            with self._connection.begin():
                self._ownership.confirm(self._connection)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            kind = StateAwayError if self.remote and database.may_pass(error) else StoreError
            raise kind(f"--state {self.shown}: {what}: {database.cause_of(error)}") from error

    def _return(self) -> None:
        """To a server whose connection was lost, and with it the lock: SQLAlchemy would go on without."""
        if not (self._connection.closed or self._connection.invalidated):
            return
        self._connection.close()
        connection = self._engine.connect()
        try:
            self._lock_again(connection)
        except BaseException:
            connection.invalidate()  # not into the pool: it may hold the lock
            connection.close()
            raise
        self._connection = connection
        log.info("state_connected_again", state=self.shown)

    def _lock_again(self, connection: sa.Connection) -> None:
        locked = database.lock_connection(connection)
        with connection.begin():
            self._ownership.confirm(connection)
        if not locked:  # the server has not noticed yet that the old connection is gone, or somebody comes just now
            raise StateAwayError(f"--state {self.shown}: the lock of the connection that was lost is still held")

    def close(self) -> None:
        database.release(self._engine, self._connection, self._lock_fd)

    def _read_meta(self) -> dict[str, str]:
        return {row.key: row.value for row in self._connection.execute(sa.select(_meta))}

    def _put_meta(self, key: str, value: str) -> None:
        insert = self._insert(_meta).values(key=key, value=value)
        self._connection.execute(
            insert.on_conflict_do_update(index_elements=["key"], set_={"value": insert.excluded.value})
        )

    def _put_workers(self, documents: Mapping[str, Json | None]) -> None:
        changed = [{"worker_id": key, "document": one} for key, one in documents.items() if one is not None]
        gone = [key for key, one in documents.items() if one is None]
        self._put(_workers, changed)
        if gone:
            self._connection.execute(sa.delete(_workers).where(_workers.c.worker_id.in_(gone)))

    def _put_rows(self, publications: Mapping[str, Mapping[RowKey, Json | None] | None]) -> None:
        changed: list[Json] = []
        gone: list[Json] = []
        for object_id, rows in publications.items():
            if rows is None:
                self._connection.execute(sa.delete(_rows).where(_rows.c.object_id == object_id))
                continue
            for (kind, key), document in rows.items():
                row: Json = {"object_id": object_id, "kind": kind, "key": key}
                if document is None:
                    gone.append({f"old_{name}": value for name, value in row.items()})
                else:
                    changed.append(row | {"document": document})
        self._put(_rows, changed)
        if gone:
            same = [column == sa.bindparam(f"old_{column.name}") for column in _rows.primary_key.columns]
            self._connection.execute(sa.delete(_rows).where(*same), gone)

    def _put(self, table: sa.Table, rows: list[Json]) -> None:
        if rows:
            insert = self._insert(table)
            keys = [column.name for column in table.primary_key.columns]
            document = {"document": insert.excluded.document}
            self._connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=document), rows)
