"""The coordinator as a process: restart from the same database, kill -9, SIGTERM, TLS, HTTP, and refusals to start."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
from join_nodes import (
    LIMIT_S,
    ROOT,
    ROOT_2,
    Node,
    broadcast,
    coordinator,
    error_of,
    event,
    fleet,
    holding,
    object_id,
    publish_request,
    settings,
)

from chappe.coordinator.daemon import open_coordinator
from chappe.coordinator.state import StateStore
from chappe.coordinator.status import publication_json
from chappe.errors import ConfigError, StoreError, StoreLockedError, UsageError
from chappe.hop.net import COORDINATOR_NAME, load_tls, open_channel
from chappe.keys import init_fleet, issue
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1.coordinator_pb2_grpc import CoordinatorStub

MAIN = """
import asyncio, sys
from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.daemon import run_coordinator
from chappe.logs import configure_logging
configure_logging("json")
sys.exit(asyncio.run(run_coordinator(CoordinatorSettings(listen="127.0.0.1:0", state=sys.argv[1]))))
"""


@dataclass
class Daemon:
    process: asyncio.subprocess.Process
    address: str

    async def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()


@asynccontextmanager
async def daemon(directory: Path) -> AsyncIterator[tuple[Daemon, CoordinatorStub]]:
    """A process of its own, ready when its log says so."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAIN, f"sqlite:///{directory / 'state.db'}", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(LIMIT_S):
            async for line in process.stderr:
                entry = json.loads(line)
                if entry["event"] == "coordinator_ready":
                    break
            else:
                raise AssertionError("the daemon ended before it was ready")
        drained = asyncio.create_task(process.stderr.read())
        async with grpc.aio.insecure_channel(entry["address"]) as channel:
            yield Daemon(process, entry["address"]), CoordinatorStub(channel)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    await drained


async def test_a_restart_knows_workers_versions_epochs_and_publications(tmp_path: Path) -> None:
    async with coordinator(tmp_path) as (running, stub):
        run = running.run
        origin, relays = await fleet(stub, ["a", "b"])
        finished = await broadcast(stub, origin, relays, 1, version=5)
        epochs = [relay.latest.epoch for relay in relays]
    async with coordinator(tmp_path) as (running, stub):
        assert running.run == run
        status = await stub.GetStatus(pb.StatusRequest())
        assert [(r.name, r.installed) for r in status.relays] == [("name-a", 5), ("name-b", 5)]
        assert publication_json(status.publications[0]) == publication_json(finished)
        already = await event(stub.Publish(publish_request(2, version=5)), "already")
        assert publication_json(already.publication) == publication_json(finished)
        assert (await error_of(stub.Publish(publish_request(3, version=4))))[1] == "conflict"
        origin, relays = await fleet(stub, ["a", "b"])
        await broadcast(stub, origin, relays, 4, version=6, root=ROOT_2)
        assert min(relay.latest.epoch for relay in relays) > max(epochs)


async def test_kill_9_in_a_publication_and_what_comes_back_goes_on(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (process, stub):
        origin, relays = await fleet(stub, ["a", "b"])
        call = stub.Publish(publish_request(1))
        version = (await event(call, "accepted")).version
        await origin.offer(1, version)
        await origin.announce(1)
        for relay in relays:
            await relay.until(lambda a: any(t.root == ROOT for t in a.targets))
        before = {relay.worker_id: relay.latest.edges[0] for relay in relays}
        await relays[0].install(1, version)
        assert await process.end(signal.SIGKILL) == -signal.SIGKILL
        assert (await error_of(call))[0] is grpc.StatusCode.UNAVAILABLE
    async with daemon(tmp_path) as (process, stub):
        # Each shows what it holds and the edge that is really there: nothing is moved, the rest is finished.
        origin = await Node(stub, "origin", pb.ROLE_ORIGIN).join()
        await origin.offer(1, version, ROOT)
        call = stub.Publish(publish_request(1))
        assert (await event(call, "accepted")).version == version
        states = {"a": pb.OBJECT_STATE_INSTALLED, "b": pb.OBJECT_STATE_RECEIVING}
        relays = []
        for worker_id, edge in before.items():
            held = pb.HeldEdge(object_id=object_id(1), parent=edge.parent.worker_id, epoch=edge.epoch)
            has = holding(1, states[worker_id], version if worker_id == "a" else 0)
            relay = Node(stub, worker_id, holdings=[has], edges=[held])
            relays.append(await relay.join())
        for relay in relays:
            await relay.until(lambda a: any(t.root == ROOT for t in a.targets))
            assert relay.latest.edges[0].parent == before[relay.worker_id].parent
            assert relay.latest.edges[0].epoch == before[relay.worker_id].epoch
        await relays[1].install(1, version)
        finished = await event(call, "finished")
        assert (finished.targeted, finished.installed, finished.version) == (2, 2, version)
        assert await process.end(signal.SIGTERM) == 0


async def test_sigterm_ends_it_with_streams_open(tmp_path: Path) -> None:
    async with daemon(tmp_path) as (process, stub):
        _, relays = await fleet(stub, ["a"])
        assert await process.end(signal.SIGTERM) == 0
        ended = await relays[0].end()
        assert isinstance(ended, grpc.aio.AioRpcError)
        # INTERNAL: the node was just saying something, and grpc.aio tells of that first.
        assert ended.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}


async def test_a_second_coordinator_on_the_same_state_does_not_start(tmp_path: Path) -> None:
    async with coordinator(tmp_path):
        with pytest.raises(StoreLockedError, match="another coordinator"):
            async with open_coordinator(settings(tmp_path)):
                pass


async def test_a_state_that_cannot_be_written_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: StateStore, _batch: object) -> None:
        raise StoreError("database or disk is full")

    monkeypatch.setattr(StateStore, "write", full)
    async with coordinator(tmp_path, http="127.0.0.1:0") as (running, stub):
        ended = await (await Node(stub, "w1").join()).end()
        assert isinstance(ended, grpc.aio.AioRpcError)
        assert ended.code() is grpc.StatusCode.UNAVAILABLE
        assert "disk is full" in (ended.details() or "")
        async with asyncio.timeout(LIMIT_S):
            await running.stopped.wait()
        assert running.http is not None
        async with aiohttp.ClientSession() as client, client.get(f"{running.http.url}/readyz") as reply:
            assert reply.status == 503
            assert "disk is full" in await reply.text()


async def test_http_serves_metrics_and_readiness(tmp_path: Path) -> None:
    async with coordinator(tmp_path, http="127.0.0.1:0") as (running, stub), aiohttp.ClientSession() as client:
        origin, relays = await fleet(stub, ["a"])
        await broadcast(stub, origin, relays, 1, version=5)
        assert running.http is not None
        async with client.get(f"{running.http.url}/readyz") as reply:
            assert (reply.status, await reply.text()) == (200, "serving\n")
        async with client.get(f"{running.http.url}/metrics") as reply:
            text = await reply.text()
    assert 'chappe_install_fraction{state="installed",version="5"} 1.0' in text
    assert 'chappe_relays{state="installed"} 1.0' in text
    assert 'chappe_payload_bytes{kind="full"} 1000.0' in text


async def test_plaintext_beyond_loopback_and_bad_flags_are_wrong_usage(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"listen": "0.0.0.0:0"}, "--listen .* is not loopback"),
        ({"listen": "nowhere"}, "has no port"),
        ({"tls_cert": tmp_path / "x"}, "--tls-key"),
        ({"http": "nowhere"}, "--http"),
    ]
    for changes, message in cases:
        with pytest.raises(UsageError, match=message):
            async with open_coordinator(settings(tmp_path, **changes)):
                pass
    async with coordinator(tmp_path) as (running, _):
        with pytest.raises(ConfigError, match="cannot listen"):
            async with open_coordinator(
                settings(tmp_path, listen=str(running.address), state=f"sqlite:///{tmp_path / 'other.db'}")
            ):
                pass


async def test_with_tls_a_node_is_who_its_certificate_says(tmp_path: Path) -> None:
    init_fleet(tmp_path / "keys")
    files = {name: issue(tmp_path / "keys", name) for name in (COORDINATOR_NAME, "name-a", "name-origin")}
    own = files[COORDINATOR_NAME]
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            open_coordinator(settings(tmp_path, tls_cert=own.cert, tls_key=own.key, tls_ca=own.ca))
        )

        async def stub_of(name: str) -> CoordinatorStub:
            tls = load_tls(files[name].cert, files[name].key, files[name].ca)
            channel = open_channel(running.address, tls, COORDINATOR_NAME)
            return CoordinatorStub(await stack.enter_async_context(channel))

        relay_stub, origin_stub = await stub_of("name-a"), await stub_of("name-origin")
        assert (await Node(relay_stub, "a").join()).welcome is not None
        ended = await (await Node(relay_stub, "b", name="name-b").join()).end()
        assert isinstance(ended, grpc.aio.AioRpcError)
        assert ended.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "certificate is for 'name-a', the name given is 'name-b'" in (ended.details() or "")
        await Node(origin_stub, "origin", pb.ROLE_ORIGIN).join()
        code, _, message = await error_of(relay_stub.Publish(publish_request(1)))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "publishes from its own origin" in message
        assert (await event(origin_stub.Publish(publish_request(1)), "accepted")).version == 1
        plain = CoordinatorStub(await stack.enter_async_context(grpc.aio.insecure_channel(str(running.address))))
        assert (await error_of(plain.GetStatus(pb.StatusRequest())))[0] is grpc.StatusCode.UNAVAILABLE
