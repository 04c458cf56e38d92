"""The blocking Publisher, mutual TLS, and what `import chappe` costs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from relay_fake import FakeRelay
from safetensors.numpy import load

import chappe
from chappe import Publisher, keys
from chappe.coordinator.config import CoordinatorSettings
from chappe.coordinator.daemon import open_coordinator
from chappe.errors import PublicationTimeoutError, SnapshotError, UsageError
from chappe.hop.net import load_tls
from chappe.loop_thread import LoopThread, shared_loop


@dataclass
class Fleet:
    coordinator: str
    relays: list[FakeRelay]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """A coordinator and two relays on the background loop, as in another process."""
    stack = AsyncExitStack()
    settings = CoordinatorSettings(listen="127.0.0.1:0", state=f"sqlite:///{tmp_path}/state.db")

    async def start() -> Fleet:
        coordinator = await stack.enter_async_context(open_coordinator(settings))
        address = str(coordinator.address)
        return Fleet(address, [await stack.enter_async_context(FakeRelay(f"w{i}", address)) for i in range(2)])

    yield shared_loop().run(start())
    shared_loop().run(stack.aclose())


def test_a_trainer_publishes_its_weights_version_after_version(fleet: Fleet, tmp_path: Path) -> None:
    weights = {"w": np.zeros(100_000, dtype=np.float32)}
    with Publisher(fleet.coordinator, uplink="300mbit", spool=tmp_path, base_cache=False) as publisher:
        for step in range(1, 4):
            publication = publisher.publish(weights, version=10 + step)
            weights["w"] += 1  # the optimizer goes on
            result = publication.wait(fraction=0.9, timeout_s=60)
            assert (result.version, result.installed_fraction) == (10 + step, 1.0)
            for relay in fleet.relays:
                (data,) = shared_loop().run(relay.until_installed(10 + step)).files().values()
                np.testing.assert_array_equal(load(data)["w"], step - 1)
    assert not list(tmp_path.glob("chappe-spool-*"))


def test_progress_and_result_from_a_thread(fleet: Fleet) -> None:
    with Publisher(fleet.coordinator) as publisher:
        publication = publisher.publish({"w": np.ones(1000)})
        statuses = list(publication.progress())
        assert statuses[-1] == publication.result() == publication.wait()
        assert publication.status == statuses[-1]
        assert publication.version == 1
        assert publication.done
        assert publication.installed_fraction == 1.0
        assert publisher.run
        assert publisher.name.startswith("origin-")


def test_errors_reach_the_calling_thread(fleet: Fleet) -> None:
    for relay in fleet.relays:
        shared_loop().loop.call_soon_threadsafe(relay.may_fetch.clear)
    with Publisher(fleet.coordinator) as publisher:
        with pytest.raises(SnapshotError, match="no tensors"):
            publisher.publish({})
        publication = publisher.publish({"w": np.ones(1000)})
        with pytest.raises(PublicationTimeoutError):
            publication.wait(timeout_s=0.2)
        publication.cancel()
        assert publication.done


def test_a_publisher_that_is_not_open_says_so() -> None:
    with pytest.raises(UsageError, match="with"):
        Publisher("127.0.0.1:7400").publish({"w": np.ones(3)})


def test_the_loop_thread_refuses_to_wait_for_itself() -> None:
    async def inner() -> None:
        raise AssertionError("never run")

    async def outer() -> None:
        shared_loop().run(inner())

    with pytest.raises(RuntimeError, match="AsyncPublisher"):
        shared_loop().run(outer())


def test_threads_share_one_loop() -> None:
    seen: list[LoopThread] = []
    threads = [threading.Thread(target=lambda: seen.append(shared_loop())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, seen))) == 1


def test_with_tls_the_origin_has_the_name_of_its_certificate(tmp_path: Path) -> None:
    keys.init_fleet(tmp_path / "keys")
    served = keys.issue(tmp_path / "keys", "coordinator")
    issued = keys.issue(tmp_path / "keys", "trainer-7")
    settings = CoordinatorSettings(
        listen="127.0.0.1:0",
        state=f"sqlite:///{tmp_path}/state.db",
        tls_cert=served.cert,
        tls_key=served.key,
        tls_ca=served.ca,
    )
    stack = AsyncExitStack()
    coordinator = shared_loop().run(stack.enter_async_context(open_coordinator(settings)))
    try:
        tls = load_tls(issued.cert, issued.key, issued.ca)
        with Publisher(str(coordinator.address), tls=tls) as publisher:
            assert publisher.name == "trainer-7"
    finally:
        shared_loop().run(stack.aclose())


FORKS = """
import asyncio, os, threading
from chappe.loop_thread import shared_loop
from chappe.hop.net import open_channel, open_server, parse_address
from chappe.v1 import coordinator_pb2 as pb, coordinator_pb2_grpc

class Service(coordinator_pb2_grpc.CoordinatorServicer):
    async def GetStatus(self, request, context):
        return pb.Status()

calls = 0

async def chatter():
    global calls
    add = lambda server: coordinator_pb2_grpc.add_CoordinatorServicer_to_server(Service(), server)
    server = await open_server(parse_address("127.0.0.1:0"), None, {"chappe.v1.Coordinator": add})
    async with open_channel(server.address, None, "coordinator") as channel:
        while calls >= 0:
            await coordinator_pb2_grpc.CoordinatorStub(channel).GetStatus(pb.StatusRequest())
            busy.set()

busy = threading.Event()
threading.Thread(target=lambda: shared_loop().run(chatter()), daemon=True).start()
ends = set()
for _ in range(40):
    busy.clear()
    busy.wait()
    child = os.fork()
    if child == 0:
        sum(range(300_000))  # long enough for a thread to be started, and to crash
        os._exit(0)
    ends.add(os.waitpid(child, 0)[1])
print(ends, flush=True)
os._exit(0)
"""


def test_a_trainer_may_fork_beside_a_busy_publisher() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], check=True, capture_output=True, text=True, timeout=100)
    assert done.stdout == "{0}\n"


def test_import_chappe_loads_nothing_heavy() -> None:
    program = "import sys, chappe; print([m for m in ('torch', 'grpc', 'numpy', 'uvloop') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_every_exported_name_is_there() -> None:
    assert set(chappe.__all__) <= set(dir(chappe))
    assert all(getattr(chappe, name).__name__ == name for name in chappe.__all__)
    with pytest.raises(AttributeError, match="Nobody"):
        _ = chappe.Nobody
