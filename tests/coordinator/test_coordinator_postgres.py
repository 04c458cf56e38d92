"""PostgreSQL as the coordinator's state, with a real server: what is kept, who is refused, and what nobody sees.

| what happens                                    | then |
|-------------------------------------------------|------|
| a second coordinator on the same database       | refused while the first lives |
| the database is killed in a broadcast           | the coordinator ends and says why; a new one goes on with it |
| the database is killed while nothing is written | the coordinator ends all the same |
| it cannot be reached, the password is wrong     | said, without the password |
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from chappe.cli.localfleet import LocalFleet
from chappe.cli.main import build
from chappe.cli.settings import run_app
from chappe.coordinator import daemon
from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.daemon import open_coordinator
from chappe.coordinator.state import Batch, StateStore
from chappe.core.rows import HEAD
from chappe.errors import ConfigError, StoreError, StoreLockedError
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
    with pytest.raises(StoreError, match="cannot write to it"):
        store.write(Batch({"a": {"n": 4}}))
    postgres.start()
    for call in (store.check, lambda: store.write(Batch({"a": {"n": 5}}))):  # not without the lock
        with pytest.raises(StoreError, match="the connection was lost"):
            call()
    store.close()
    store = StateStore.open(postgres.url())
    stored = store.load("r", lambda: b"")
    store.close()
    assert (stored.run, stored.token_key) == (first.run, KEY)
    assert stored.workers == {"a": {"n": 3, "ü": None}}
    assert stored.publications == {"o": {HEAD: {"v": 2}, ("chain", "1"): {"ü": ["a", "b"]}, member: {"level": 1}}}
    assert (stored.epoch_reserved, stored.clock) == (100, {"saved_s": 12.25})


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


@needs_postgres
async def test_a_database_that_goes_while_nothing_is_written_is_noticed(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "CHECK_STATE_S", 0.01)
    async with open_coordinator(CoordinatorSettings(listen="127.0.0.1:0", state=postgres.url())) as coordinator:
        await asyncio.to_thread(postgres.kill)
        async with asyncio.timeout(60):
            await coordinator.stopped.wait()
        assert "it is gone" in str(coordinator.runner.failure)
        assert_no_password(str(coordinator.runner.failure))


@needs_postgres
async def test_a_database_that_is_killed_in_a_broadcast(postgres: Postgres, tmp_path: Path) -> None:
    source = make_snapshot(tmp_path / "source", 8 << 20, seed=1)
    fleet = LocalFleet(tmp_path / "fleet", mute_relays(2, "--limit-downlink", "20mbit"), state=postgres.url())
    async with fleet:
        publish = await start_publish(fleet, source, "--version", "1")
        await fleet.wait_status(lambda s: any(p.root for p in s.publications))
        address, run = fleet.address, (await fleet.status()).run
        await asyncio.to_thread(postgres.kill)
        async with asyncio.timeout(60):
            assert await fleet.coordinator.wait() == 1
        assert "state_lost" in fleet.coordinator.tail()
        await asyncio.to_thread(postgres.start)
        await fleet.start_coordinator(address)
        async with asyncio.timeout(60):
            assert await publish.wait() == 0, publish.tail()
        assert (await fleet.status()).run == run
        assert_same_bytes(fleet, source, "w1", "w2")
    for path in (tmp_path / "fleet" / "logs").iterdir():
        assert_no_password(path.read_text())
