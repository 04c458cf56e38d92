"""The coordinator's database: what is written is there after a restart, one coordinator at a time, one run for ever."""

from __future__ import annotations

import sqlite3
import stat
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from structlog.testing import capture_logs

from chappe.coordinator import state
from chappe.coordinator.state import Batch, StateStore
from chappe.core.rows import HEAD
from chappe.errors import ConfigError, StoreCorruptError, StoreError, StoreLockedError, WrongRunError

KEY = bytes(range(32))


def never() -> bytes:
    raise AssertionError("the key exists already")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


def test_a_new_database_gets_a_run_and_a_key_and_keeps_them(url: str) -> None:
    store = StateStore.open(url)
    first = store.load(None, lambda: KEY)
    store.close()
    assert first.run.startswith("run-")
    assert (first.token_key, first.epoch_reserved, first.workers, first.publications) == (KEY, 0, {}, {})
    store = StateStore.open(url)
    assert store.load(None, never) == first
    assert store.load(first.run, never) == first
    store.close()


def test_another_run_is_refused_with_the_remedy(url: str) -> None:
    store = StateStore.open(url)
    assert store.load("alpha", lambda: KEY).run == "alpha"
    with pytest.raises(WrongRunError, match=r"belongs to run 'alpha', not 'beta': leave --run out"):
        store.load("beta", never)
    store.close()


def test_documents_and_rows_are_put_replaced_and_removed(url: str) -> None:
    store = StateStore.open(url)
    store.load("r", lambda: KEY)
    chain, member = ("chain", "0"), ("member", "a")
    store.write(Batch({"a": {"n": 1}, "b": {"n": 2}}, {"o": {HEAD: {"v": 1}, chain: {}, member: {"level": 1}}}, 100))
    store.write(Batch({}, {"gone": {HEAD: {}, member: {}}}))
    rows = {HEAD: {"v": 2}, chain: None, ("chain", "1"): {"ü": ["a", "b"]}, ("edge", "0 nobody"): None}
    store.write(Batch({"a": {"n": 3, "ü": None}, "b": None}, {"o": rows, "gone": None}, None, {"saved_s": 12.25}))
    store.close()
    store = StateStore.open(url)
    stored = store.load("r", never)
    store.close()
    assert stored.workers == {"a": {"n": 3, "ü": None}}
    assert stored.publications == {"o": {HEAD: {"v": 2}, ("chain", "1"): {"ü": ["a", "b"]}, member: {"level": 1}}}
    assert stored.epoch_reserved == 100
    assert stored.clock == {"saved_s": 12.25}


def test_a_failed_write_leaves_nothing_of_its_batch(url: str) -> None:
    store = StateStore.open(url)
    store.load("r", lambda: KEY)
    store.write(Batch({"a": {"n": 1}}))
    with pytest.raises(StoreError, match="cannot write"):
        store.write(Batch({"a": {"n": 2}}, {"o": {HEAD: {"unserialisable": object()}}}))
    assert store.load("r", never).workers == {"a": {"n": 1}}
    store.close()


def test_a_second_coordinator_is_refused_while_the_first_lives(url: str) -> None:
    store = StateStore.open(url)
    with pytest.raises(StoreLockedError, match=r"another coordinator \(pid \d+\)"):
        StateStore.open(url)
    store.close()
    StateStore.open(url).close()


def test_the_file_is_private_durable_and_readable_beside_the_coordinator(url: str, tmp_path: Path) -> None:
    store = StateStore.open(url)
    store.load("r", lambda: KEY)
    path = tmp_path / "state.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert store._connection.execute(sa.text("PRAGMA synchronous")).scalar() == 2
    reader = sqlite3.connect(path)
    assert reader.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ("run", "r") in reader.execute("SELECT key, value FROM chappe_meta").fetchall()
    reader.close()
    store.close()


def test_a_newer_schema_and_a_damaged_key_are_refused(url: str, tmp_path: Path) -> None:
    store = StateStore.open(url)
    store.load("r", lambda: KEY)
    store.close()
    database = sqlite3.connect(tmp_path / "state.db")
    database.execute("UPDATE chappe_meta SET value = '00ff' WHERE key = 'token_key'")
    database.commit()
    store = StateStore.open(url)
    with pytest.raises(StoreCorruptError, match="2 bytes, not 32"):
        store.load("r", never)
    store.close()
    database.execute("UPDATE chappe_meta SET value = '7' WHERE key = 'schema_version'")
    database.commit()
    database.close()
    with pytest.raises(StoreCorruptError, match="schema is version 7"):
        StateStore.open(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "not a database URL"),
        ("mysql://host/db", "mysql is not supported"),
        ("sqlite://", "must outlive the process"),
        ("sqlite:///:memory:", "must outlive the process"),
        ("postgresql+nosuchdriver://host/db", "cannot open|driver"),
    ],
)
def test_urls_that_cannot_be_used_say_what_to_write(url: str, message: str) -> None:
    with pytest.raises((ConfigError, StoreError), match=message):
        StateStore.open(url)


def test_a_file_that_is_no_database_and_a_directory_that_is_missing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is no database, " * 100)
    with pytest.raises(StoreError, match=r"text\.db: cannot open it: file is not a database"):
        StateStore.open(f"sqlite:///{path}")
    with pytest.raises(StoreError, match=r"missing/x\.db"):
        StateStore.open(f"sqlite:///{tmp_path}/missing/x.db")


def test_the_statements_compile_for_postgresql() -> None:
    insert = postgresql.insert(state._rows)
    keys = [column.name for column in state._rows.primary_key.columns]
    statement = insert.on_conflict_do_update(index_elements=keys, set_={"document": insert.excluded.document})
    assert "ON CONFLICT (object_id, kind, key) DO UPDATE" in str(statement.compile(dialect=postgresql.dialect()))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_under_it_is_said_once_while_there_is_time(
    url: str, tmp_path: Path, replaced: bool
) -> None:
    store = StateStore.open(url)
    store.load("alpha", lambda: KEY)
    with capture_logs() as logs:
        store.write(Batch({"a": {}}))
        assert logs == []
        (tmp_path / "state.db").unlink()
        if replaced:
            (tmp_path / "state.db").touch()
        for _ in range(2):
            store.write(Batch({"a": {}}))
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("state_removed", "error")]
    assert "begin with an empty state and --run 'alpha'" in logs[0]["reason"]
    store.close()
