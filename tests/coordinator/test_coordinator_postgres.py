"""PostgreSQL as the coordinator's state, with a real server: what is kept, who is refused, and what nobody sees.

| what happens                                    | then |
|-------------------------------------------------|------|
| a second coordinator on the same database       | refused while the first lives |
| the database is killed, and comes back          | nothing is decided meanwhile, calls are refused; then all goes on |
| the same in a broadcast                         | the coordinator rides it out, every copy is right |
| another coordinator was there meanwhile         | the first one ends |
| it comes back without what was written          | the coordinator ends |
| the lock means nothing (PgBouncer)              | the older of two coordinators ends with its next write |
| it cannot be reached, the password is wrong     | said, without the password |
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import pytest
import sqlalchemy as sa
from join_nodes import Node, coordinator, publish_request

from chappe.cli.localfleet import LocalFleet
from chappe.cli.main import build
from chappe.cli.settings import run_app
from chappe.coordinator import daemon, database
from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.daemon import open_coordinator
from chappe.coordinator.runner import Runner
from chappe.coordinator.state import Batch, StateStore
from chappe.core.rows import HEAD
from chappe.errors import ConfigError, StateAwayError, StoreCorruptError, StoreError, StoreLockedError
from chappe.v1 import coordinator_pb2 as pb
from tests.coordinator.postgres_rig import ESCAPED, PASSWORD, Postgres, unavailable
from tests.integration.fleet_tools import assert_same_bytes, make_snapshot, mute_relays, start_publish

KEY = bytes(range(32))
needs_postgres = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.close()


@needs_postgres
def test_what_is_written_is_there_after_a_kill(postgres: Postgres) -> None:
    store = StateStore.open(postgres.url())
    first = store.load("r", lambda: KEY)
    chain, member = ("chain", "0"), ("member", "a")
    store.write(Batch({"a": {"n": 1}, "b": {"n": 2}}, {"o": {HEAD: {"v": 1}, chain: {}, member: {"level": 1}}}, 100))
    rows = {HEAD: {"v": 2}, chain: None, ("chain", "1"): {"ü": ["a", "b"]}, ("edge", "0 nobody"): None}
    store.write(Batch({"a": {"n": 3, "ü": None}, "b": None}, {"o": rows, "gone": None}, None, {"saved_s": 12.25}))
    postgres.kill()
    for _ in range(2):
        with pytest.raises(StateAwayError, match="cannot write to it"):
            store.write(Batch({"a": {"n": 4}}))
    postgres.start()
    store.check()
    with pytest.raises(StoreLockedError):  # it has the lock again, too
        StateStore.open(postgres.url())
    store.write(Batch({"c": {"n": 5}}))
    store.close()
    store = StateStore.open(postgres.url())
    stored = store.load("r", lambda: b"")
    store.close()
    assert (stored.run, stored.token_key) == (first.run, KEY)
    assert stored.workers == {"a": {"n": 3, "ü": None}, "c": {"n": 5}}
    assert stored.publications == {"o": {HEAD: {"v": 2}, ("chain", "1"): {"ü": ["a", "b"]}, member: {"level": 1}}}
    assert (stored.epoch_reserved, stored.clock) == (100, {"saved_s": 12.25})


@needs_postgres
def test_a_database_that_another_coordinator_had_meanwhile_is_not_written_again(postgres: Postgres) -> None:
    store = StateStore.open(postgres.url())
    store.load("r", lambda: KEY)
    postgres.kill()
    postgres.start()
    StateStore.open(postgres.url()).close()
    with pytest.raises(StateAwayError, match="it is gone"):  # so it hears of it
        store.check()
    for call in (store.check, lambda: store.write(Batch({"a": {"n": 1}}))):
        with pytest.raises(StoreLockedError, match="another coordinator has taken it over"):
            call()
    store.close()


@needs_postgres
def test_a_lock_that_the_server_still_holds_for_the_lost_connection_is_waited_for(postgres: Postgres) -> None:
    store = StateStore.open(postgres.url())
    store.load("r", lambda: KEY)
    holder = sa.create_engine(postgres.url().replace("postgresql:", "postgresql+psycopg:"))
    with holder.connect() as old:
        store._connection.invalidate()  # closes it: the server frees the lock when it hears of that
        old.execute(sa.select(sa.func.pg_advisory_lock(database._ADVISORY_LOCK)))
        with pytest.raises(StateAwayError, match="still held"):
            store.write(Batch({"a": {"n": 1}}))
        old.execute(sa.select(sa.func.pg_advisory_unlock(database._ADVISORY_LOCK)))
    holder.dispose()
    store.write(Batch({"a": {"n": 1}}))
    store.close()


@needs_postgres
@pytest.mark.parametrize("lost", ["one write", "everything"])
def test_a_server_that_has_forgotten_what_was_written_is_not_written_to(postgres: Postgres, lost: str) -> None:
    store = StateStore.open(postgres.url())
    store.load("r", lambda: KEY)
    with store._connection.begin():
        earlier = store._read_meta()["owner"]
    for n in range(2):
        store.write(Batch({"a": {"n": n}}))
    with store._connection.begin():
        if lost == "everything":
            store._connection.execute(sa.text("DELETE FROM chappe_meta"))
        else:
            store._put_meta("owner", earlier)
    for call in (store.check, lambda: store.write(Batch({"a": {"n": 2}}))):
        with pytest.raises(StoreCorruptError, match="not there any more"):
            call()
    store.close()


@needs_postgres
def test_a_write_whose_answer_was_lost_is_written_again(postgres: Postgres) -> None:
    store = StateStore.open(postgres.url())
    store.load("r", lambda: KEY)
    with store._connection.begin():  # as if the transaction was committed, and the connection broke before it was said
        store._ownership.renew(store._connection)
    store._connection.invalidate()
    store.write(Batch({"a": {"n": 1}}))
    store.write(Batch({"b": {"n": 2}}))
    assert store.load("r", lambda: b"").workers == {"a": {"n": 1}, "b": {"n": 2}}
    store.close()


@needs_postgres
def test_where_the_lock_means_nothing_the_older_of_two_coordinators_is_fenced(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore.open(postgres.url())
    store.load("r", lambda: KEY)
    # What a pooler does that gives each transaction another connection to the server.
    monkeypatch.setattr(database, "lock_connection", lambda _connection: True)
    newer = StateStore.open(postgres.url())
    newer.write(Batch({"a": {"n": 1}}))
    with pytest.raises(StoreLockedError, match="another coordinator has taken it over"):
        store.write(Batch({"a": {"n": 2}}))
    assert newer.load("r", lambda: b"").workers == {"a": {"n": 1}}
    for each in (store, newer):
        each.close()


@needs_postgres
def test_one_coordinator_at_a_time_whose_connection_is_probed_and_durable(postgres: Postgres) -> None:
    admin = StateStore.open(postgres.url())
    with admin._connection.begin():
        admin._connection.execute(sa.text("ALTER ROLE chappe SET synchronous_commit = off"))
    admin.close()
    store = StateStore.open(postgres.url())
    for spelt in (postgres.url(), postgres.url().replace("postgresql:", "postgres:")):
        with pytest.raises(StoreLockedError, match=r"another coordinator uses it; each needs a database of its own"):
            StateStore.open(spelt)
    shown = {
        name: store._connection.execute(sa.text(f"SHOW {name}")).scalar_one()
        for name in ("tcp_keepalives_idle", "tcp_user_timeout", "synchronous_commit")
    }
    assert shown == {"tcp_keepalives_idle": "10", "tcp_user_timeout": "25000", "synchronous_commit": "on"}
    store.close()
    StateStore.open(postgres.url()).close()


@needs_postgres
def test_the_password_is_in_no_message(postgres: Postgres) -> None:
    for url, message in {
        postgres.url("wr0ng%40pw"): "password authentication failed",
        postgres.url(database="nowhere"): "does not exist",
        postgres.url().replace(f":{postgres.port}", ":1"): "Connection refused|could not connect|connection failed",
        postgres.url().replace("127.0.0.1", "nowhere.invalid"): "resolve",
        f"postgresql://127.0.0.1:{postgres.port}/postgres?user=chappe&password=wr0ng%40pw": "authentication failed",
    }.items():
        with pytest.raises(StoreError, match=message) as caught:
            StateStore.open(url)
        assert_no_password(str(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://chappe:{ESCAPED}@host/db",
        f"postgresql://chappe:{PASSWORD}@host/db",
        f"postgresql://chappe:{ESCAPED}@host:port/db",
        f"postgresql+nosuchdriver://chappe:{ESCAPED}@host/db",
        f"://chappe:{ESCAPED}@host/db",
    ],
)
def test_the_password_of_a_url_that_cannot_be_used_is_in_no_message(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises((ConfigError, StoreError)) as caught:
        StateStore.open(url)
    assert_no_password(str(caught.value))
    assert run_app(build(), ["coordinator", "--state", url, "--print-config"], env_prefix="CHAPPE_") == 0
    printed = capsys.readouterr().out
    assert "state =" in printed
    assert_no_password(printed)


def assert_no_password(text: str) -> None:
    for part in (PASSWORD, ESCAPED, "s3cr", "w@rd", "w%40rd", "wr0ng"):
        assert part not in text


async def until(runner: Runner, true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await runner.changed.wait(runner.changed.count)


@needs_postgres
async def test_while_the_database_is_away_calls_are_refused_and_streams_stay(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "CHECK_STATE_S", 0.01)
    async with coordinator(tmp_path, state=postgres.url(), http="127.0.0.1:0") as (running, stub):
        relay = await Node(stub, "w1").join()
        origin = await Node(stub, "origin", pb.ROLE_ORIGIN).join()
        await asyncio.to_thread(postgres.kill)
        await until(running.runner, lambda: bool(running.runner.standstill))
        with pytest.raises(grpc.aio.AioRpcError, match="decides nothing until it can write") as refused:
            await anext(aiter(stub.Publish(publish_request(1))))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert_no_password(str(refused.value.details()))
        with pytest.raises(grpc.aio.AioRpcError, match="decides nothing until it can write"):
            await stub.Drain(pb.DrainRequest(name="name-w1"))
        late = await (await Node(stub, "w2").join()).end()
        assert isinstance(late, grpc.aio.AioRpcError)
        assert late.code() is grpc.StatusCode.UNAVAILABLE
        assert running.http is not None
        async with aiohttp.ClientSession() as session, session.get(f"{running.http.url}/readyz") as answer:
            assert answer.status == 503
            assert_no_password(await answer.text())
        await relay.send(heartbeat=pb.Heartbeat())
        await asyncio.to_thread(postgres.start)
        await until(running.runner, lambda: not running.runner.standstill)
        call = stub.Publish(publish_request(1))
        assert (await anext(aiter(call))).accepted.version == 1
        await origin.offer(1, 1)
        assert (await relay.until(lambda a: bool(a.edges))).epoch > 0
        assert (running.runner.failure, relay.ended_with, origin.ended_with) == (None, None, None)
        call.cancel()


@needs_postgres
async def test_a_coordinator_that_another_has_replaced_ends(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "CHECK_STATE_S", 0.01)
    async with open_coordinator(CoordinatorSettings(listen="127.0.0.1:0", state=postgres.url())) as replaced:
        other = sa.create_engine(postgres.url().replace("postgresql:", "postgresql+psycopg:"))
        with other.begin() as connection:  # as one does that came and went while the connection was down
            connection.execute(sa.text("UPDATE chappe_meta SET value = 'somebody 0' WHERE key = 'owner'"))
        other.dispose()
        async with asyncio.timeout(60):
            await replaced.stopped.wait()
        assert "another coordinator has taken it over" in str(replaced.runner.failure)
        assert_no_password(str(replaced.runner.failure))


@needs_postgres
async def test_a_database_that_is_killed_in_a_broadcast(postgres: Postgres, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "source", 8 << 20, seed=1)
    fleet = LocalFleet(tmp_path / "fleet", mute_relays(2, "--limit-downlink", "20mbit"), state=postgres.url())
    async with fleet:
        publish = await start_publish(fleet, source, "--version", "1")
        await fleet.wait_status(lambda s: any(p.root for p in s.publications))
        await asyncio.to_thread(postgres.kill)
        await fleet.coordinator.logged(lambda line: line.get("event") == "state_away")
        await asyncio.to_thread(postgres.start)
        async with asyncio.timeout(60):
            assert await publish.wait() == 0, publish.tail()
        assert_same_bytes(fleet, source, "w1", "w2")
        assert "lease_lapsed" not in fleet.coordinator.tail()
    for path in (tmp_path / "fleet" / "logs").iterdir():
        assert_no_password(path.read_text())
