"""A coordinator that is killed at any moment: what it has said is on disk, and an older state file comes along whole.

A kill leaves the database's files as they are. So they are copied at each moment in question, and the copy is opened
as the next coordinator would: SQLite finishes or drops what was under way.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from chappe.coordinator.machine import FleetMachine
from chappe.coordinator.runclock import RunClock
from chappe.coordinator.runner import Runner
from chappe.coordinator.state import Batch, StateStore, Stored
from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.effects import Effect
from chappe.core.publication import Phase
from chappe.core.rows import HEAD, Json, Rows, assemble
from chappe.core.state import FleetConfig, FleetState
from chappe.errors import StoreCorruptError

KEY = bytes(range(32))
ROOT = "x:root"
CHUNKS = 8
FILES = ("state.db", "state.db-wal")


def url(directory: Path) -> str:
    return f"sqlite:///{directory / 'state.db'}"


def killed(directory: Path, to: Path) -> Stored:
    """What the next coordinator finds when this one is killed now."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for name in FILES:
        if (directory / name).exists():
            shutil.copyfile(directory / name, to / name)
    store = StateStore.open(url(to))
    stored = store.load("r", lambda: KEY)
    store.close()
    return stored


def fleet_of(stored: Stored) -> FleetState:
    return FleetState.from_rows(stored.workers.values(), documents_of(stored), stored.epoch_reserved)


def documents_of(stored: Stored) -> list[Json]:
    return [assemble(rows) for rows in stored.publications.values()]


def publications_of(documents: list[Json]) -> list[Json]:
    """Read and written again: in one order."""
    return list(FleetState.from_rows([], documents, 0).to_json()["publications"])


class Broadcast:
    """A coordinator with its store, relays that do as they are told, and a look at the disk with each word it says."""

    def __init__(self, directory: Path, relays: int) -> None:
        self.directory, self.relays = directory, [f"w{n}" for n in range(relays)]
        self.copy = directory / "killed"
        directory.mkdir(exist_ok=True)
        self.store = StateStore.open(url(directory))
        stored = self.store.load("r", lambda: KEY)
        clock = RunClock.resume(stored.clock, "boot")
        self.machine = FleetMachine(FleetConfig("r"), stored, clock)
        self.runner = Runner(
            self.machine, write=self.store.write, deliver=self.deliver, count=lambda _count: None, clock=clock
        )
        self.assigned: dict[str, fx.Assign] = {}
        self.said: list[Effect] = []

    def session(self, name: str) -> int:
        return 1 + [*self.relays, "origin"].index(name)

    def deliver(self, effect: Effect) -> None:
        self.said.append(effect)
        match effect:
            case fx.Assign():
                self.assigned[effect.worker_id] = effect
                found = fleet_of(killed(self.directory, self.copy))
                assert found.reserved_epoch >= effect.epoch
                for edge in effect.edges:
                    written = found.publications[edge.object_id].edges.main[edge.stripe, effect.worker_id]
                    assert written.epoch >= edge.epoch  # the state may have gone on since: never back
                    assert all(found.reserved_epoch >= other.epoch for other in (*edge.fallbacks, *edge.children))
            case fx.PublishAccepted(version=version):
                assert version in [p.version for p in fleet_of(killed(self.directory, self.copy)).publications.values()]
            case fx.PublishFinished(object_id):
                found = fleet_of(killed(self.directory, self.copy))
                publication = found.publications[object_id]
                assert publication.finished
                assert publication.burned
                assert publication.installed == len(self.relays)
                assert set(publication.t_bcast) == {"0.5", "0.9", "1.0"}
                assert found.newest_version == publication.version
            case _:
                pass

    def hello(self, name: str) -> ev.Hello:
        role = ev.Role.ORIGIN if name == "origin" else ev.Role.RELAY
        return ev.Hello(name, self.session(name), role, name, 1, f"{name}:1", 1e7, 1e7)

    def holding(self, name: str, state: ev.ObjectState) -> ev.HoldingChanged:
        landed = state is ev.ObjectState.INSTALLED
        holding = ev.Holding("o", state, int(landed), ROOT if landed else "", ((0, CHUNKS),), CHUNKS)
        return ev.HoldingChanged(name, self.session(name), holding)

    async def run(self) -> None:
        origin = self.session("origin")
        for name in [*self.relays, "origin"]:
            await self.runner.submit(self.hello(name))
        publish = ev.PublishRequested(1, "origin", "o", 0, 1.0, ev.Topology.CHAINS, 2, 1000, 0.0)
        await self.runner.submit(publish)
        await self.runner.submit(ev.Offered("origin", origin, "o", 1, "full", 1000, 1000, CHUNKS))
        await self.runner.submit(ev.RootAnnounced("origin", origin, "o", ROOT))
        lost = self.relays[1]
        self.runner.post(ev.LeaveRequested(lost, self.session(lost)))
        await self.runner.submit(ev.SessionLost(lost, self.session(lost)))
        await self.runner.submit(self.hello(lost))
        for state in (ev.ObjectState.RECEIVED, ev.ObjectState.INSTALLED):
            await asyncio.gather(*(self.runner.submit(self.holding(name, state)) for name in self.relays))


async def test_whatever_is_said_is_on_disk_by_then(tmp_path: Path) -> None:
    broadcast = Broadcast(tmp_path, 7)
    await broadcast.run()
    assert set(broadcast.assigned) == {*broadcast.relays, "origin"}
    assert [e.object_id for e in broadcast.said if isinstance(e, fx.PublishFinished)] == ["o"]
    await broadcast.runner.close()
    in_memory = broadcast.machine.state
    found = fleet_of(killed(tmp_path, broadcast.copy))
    assert found.publications["o"].phase is Phase.CLOSED
    assert {key: w.to_json() for key, w in found.workers.items()} == {
        key: w.to_json() for key, w in in_memory.workers.items()
    }
    assert Rows().changes(found.publications["o"]) == Rows().changes(in_memory.publications["o"])
    broadcast.store.close()


def at_each_statement(store: StateStore, look: Callable[[], None]) -> None:
    @sa.event.listens_for(store._engine, "after_cursor_execute")
    def executed(*_arguments: object) -> None:
        look()


def test_a_transaction_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    store = StateStore.open(url(tmp_path))
    store.load("r", lambda: KEY)
    store.write(Batch({"a": {"n": 1}}, {"o": {HEAD: {"v": 1}, ("edge", "0 a"): {}}, "p": {HEAD: {}}}, 10))
    before = killed(tmp_path, tmp_path / "k")
    seen: list[Stored] = []
    at_each_statement(store, lambda: seen.append(killed(tmp_path, tmp_path / "k")))
    rows = {HEAD: {"v": 2}, ("edge", "0 a"): None, **{("member", f"m{n}"): {} for n in range(500)}}
    store.write(Batch({"a": None, "b": {"n": 2}}, {"o": rows, "p": None}, 20, {"saved_s": 1.0}))
    after = killed(tmp_path, tmp_path / "k")
    store.close()
    assert len(seen) >= 6
    assert all(found == before for found in seen)
    assert (after.epoch_reserved, set(after.publications), len(after.publications["o"])) == (20, {"o"}, 501)


def make_schema_1(directory: Path, documents: list[Json]) -> None:
    """As the release before wrote it: one document for a publication."""
    database = sqlite3.connect(directory / "state.db")
    database.executescript(
        """
        PRAGMA journal_mode=WAL;
        CREATE TABLE chappe_meta (key VARCHAR(64) NOT NULL, value TEXT NOT NULL, PRIMARY KEY (key));
        CREATE TABLE chappe_workers (worker_id VARCHAR(128) NOT NULL, document JSON NOT NULL, PRIMARY KEY (worker_id));
        CREATE TABLE chappe_publications
            (object_id VARCHAR(128) NOT NULL, document JSON NOT NULL, PRIMARY KEY (object_id));
        """
    )
    meta = {"schema_version": "1", "run": "r", "token_key": KEY.hex(), "epoch_reserved": "2048"}
    database.executemany("INSERT INTO chappe_meta VALUES (?, ?)", meta.items())
    database.execute("INSERT INTO chappe_workers VALUES (?, ?)", ("w", json.dumps({"n": 1})))
    rows = [(document["object_id"], json.dumps(document)) for document in documents]
    database.executemany("INSERT INTO chappe_publications VALUES (?, ?)", rows)
    database.commit()
    database.close()


async def a_broadcast_in_the_middle(directory: Path) -> list[Json]:
    broadcast = Broadcast(directory, 5)
    await broadcast.run()
    await broadcast.runner.close()
    broadcast.store.close()
    return [publication.to_json() for publication in broadcast.machine.state.publications.values()]


async def test_a_state_of_the_release_before_is_taken_over(tmp_path: Path) -> None:
    documents = await a_broadcast_in_the_middle(tmp_path / "other")
    make_schema_1(tmp_path, documents)
    for _ in range(2):
        store = StateStore.open(url(tmp_path))
        stored = store.load("r", lambda: KEY)
        store.close()
        assert (stored.token_key, stored.epoch_reserved, stored.workers) == (KEY, 2048, {"w": {"n": 1}})
        assert publications_of(documents_of(stored)) == publications_of(documents)
    tables = {name for (name,) in sqlite3.connect(tmp_path / "state.db").execute("SELECT name FROM sqlite_master")}
    assert "chappe_publications" not in tables


async def test_whoever_is_killed_while_taking_over_can_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = await a_broadcast_in_the_middle(tmp_path / "other")
    make_schema_1(tmp_path, documents)
    versions: list[str] = []
    plain = StateStore._create_schema

    def watched(store: StateStore) -> None:
        at_each_statement(store, look)
        plain(store)

    def look() -> None:
        with monkeypatch.context() as unwatched:
            unwatched.setattr(StateStore, "_create_schema", plain)
            stored = killed(tmp_path, tmp_path / "k")
        assert publications_of(documents_of(stored)) == publications_of(documents)
        database = sqlite3.connect(tmp_path / "state.db")
        versions.extend(database.execute("SELECT value FROM chappe_meta WHERE key = 'schema_version'").fetchone())
        database.close()

    monkeypatch.setattr(StateStore, "_create_schema", watched)
    StateStore.open(url(tmp_path)).close()
    assert len(versions) >= 5
    assert set(versions) == {"1"}  # until the commit


def test_a_damaged_publication_of_the_release_before_is_named_and_left_alone(tmp_path: Path) -> None:
    make_schema_1(tmp_path, [{"object_id": "o", "topology": "no such"}])
    with pytest.raises(StoreCorruptError, match="one of its publications is damaged"):
        StateStore.open(url(tmp_path))
    database = sqlite3.connect(tmp_path / "state.db")
    assert database.execute("SELECT count(*) FROM chappe_publications").fetchone() == (1,)
    database.close()


def test_rows_that_are_no_publication_stop_the_coordinator_with_a_reason(tmp_path: Path) -> None:
    store = StateStore.open(url(tmp_path))
    store.load("r", lambda: KEY)
    store.write(Batch({}, {"o": {("member", "a"): {}}}))
    stored = store.load("r", lambda: KEY)
    store.close()
    with pytest.raises(StoreCorruptError, match="damaged"):
        FleetMachine(FleetConfig("r"), stored, RunClock.resume(None, "boot"))
