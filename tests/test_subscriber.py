"""Subscriber against a Local service on a real unix socket: waiting, deadlines, an absent and a restarted relayd."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from chappe import AsyncSubscriber, Subscriber, relayd_calls
from chappe.errors import RelaydUnavailableError, StoreError, UsageError, WaitTimeoutError
from chappe.loop_thread import shared_loop
from chappe.relayd_calls import Duty
from chappe.v1 import local_pb2, local_pb2_grpc


class FakeRelayd(local_pb2_grpc.LocalServicer):
    """Lands versions when the test says so. Lives on one event loop."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.landed = local_pb2.Landed(run="r")
        self.confirmed: list[local_pb2.ConfirmRequest] = []
        self.watchers = 0
        self.duty = local_pb2.DutyState(worker="w1")
        self.duty_watchers = 0
        self.reported: list[float] = []
        self.changed = asyncio.Condition()
        self.server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self.server = grpc.aio.server()
        local_pb2_grpc.add_LocalServicer_to_server(self, self.server)
        self.server.add_insecure_port(f"unix:{self.store}/relayd.sock")
        await self.server.start()

    async def stop(self) -> None:
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    async def land(self, version: int) -> None:
        async with self.changed:
            self.landed = local_pb2.Landed(
                run="r", version=version, root=f"xxh3_128:{version}", path=str(self.store / f"snapshots/{version}")
            )
            self.changed.notify_all()

    async def until_watched(self) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.watchers > 0)

    async def Report(self, request: local_pb2.RolloutReport, context: Any) -> local_pb2.DutyState:
        self.reported.append(request.rollouts_per_second)
        return self.duty

    async def WatchDuty(self, request: local_pb2.DutyRequest, context: Any) -> AsyncIterator[local_pb2.DutyState]:
        async with self.changed:
            self.duty_watchers += 1
            self.changed.notify_all()
        sent = None
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda seen=sent: self.duty is not seen)
                sent = self.duty
            yield sent

    async def wish(self, duty: str, reason: str = "") -> None:
        async with self.changed:
            self.duty = local_pb2.DutyState(duty=duty, reason=reason, worker="w1")
            self.changed.notify_all()

    async def until_asked_for_duty(self) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.duty_watchers > 0)

    async def Current(self, request: local_pb2.CurrentRequest, context: Any) -> local_pb2.Landed:
        return self.landed

    async def Watch(self, request: local_pb2.WatchRequest, context: Any) -> AsyncIterator[local_pb2.Landed]:
        async with self.changed:
            self.watchers += 1
            self.changed.notify_all()
        sent = -1
        while True:
            async with self.changed:
                await self.changed.wait_for(lambda seen=sent: self.landed.version != seen)
                landed = self.landed
            sent = landed.version
            yield landed

    async def Ensure(self, request: local_pb2.EnsureRequest, context: Any) -> local_pb2.Landed:
        async with self.changed:
            await self.changed.wait_for(lambda: self.landed.version >= request.learner_version - request.max_gap)
        return self.landed

    async def Confirm(self, request: local_pb2.ConfirmRequest, context: Any) -> local_pb2.ConfirmReply:
        if request.version != self.landed.version:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"version {request.version} is not being installed"
            )
        self.confirmed.append(request)
        return local_pb2.ConfirmReply()


class Harness:
    """Runs the fake on the background loop, for blocking and asynchronous subscribers alike."""

    def __init__(self, store: Path) -> None:
        self.store = store

        async def make() -> FakeRelayd:
            return FakeRelayd(store)

        self.fake = shared_loop().run(make())

    def run(self, coroutine: Any) -> Any:
        return shared_loop().run(coroutine)


@pytest.fixture
def relayd(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    harness.run(harness.fake.start())
    yield harness
    harness.run(harness.fake.stop())


Call = Callable[[str], Any]


@pytest.fixture(params=["blocking", "async"])
def call(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """`call(method, ...)` on a Subscriber, or on an AsyncSubscriber run to its end."""
    if request.param == "blocking":
        blocking = Subscriber(tmp_path, relayd_grace_s=0.3)
        return lambda method, *args, **kwargs: getattr(blocking, method)(*args, **kwargs)
    subscriber = AsyncSubscriber(tmp_path, relayd_grace_s=0.3)

    async def on_loop(coroutine: Awaitable[Any]) -> Any:
        return await coroutine

    return lambda method, *args, **kwargs: shared_loop().run(on_loop(getattr(subscriber, method)(*args, **kwargs)))


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


def test_current_is_none_before_the_first_version(relayd: Harness, call: Call) -> None:
    assert call("current") is None


def test_current_names_what_has_landed(relayd: Harness, call: Call) -> None:
    relayd.run(relayd.fake.land(7))
    snapshot = call("current")
    assert (snapshot.version, snapshot.root, snapshot.run) == (7, "xxh3_128:7", "r")
    assert snapshot.path == relayd.store / "snapshots/7"


def test_wait_returns_what_is_there_already(relayd: Harness, call: Callable[..., Any]) -> None:
    relayd.run(relayd.fake.land(12))
    assert call("wait", newer_than=11, timeout_s=30).version == 12


def test_wait_returns_when_a_newer_version_lands(relayd: Harness, call: Callable[..., Any]) -> None:
    relayd.run(relayd.fake.land(11))
    thread, results = in_thread(lambda: call("wait", newer_than=11, timeout_s=30))
    relayd.run(relayd.fake.until_watched())
    relayd.run(relayd.fake.land(13))
    thread.join()
    assert [snapshot.version for snapshot in results] == [13]


def test_wait_goes_on_over_a_restart_of_relayd(relayd: Harness, call: Callable[..., Any]) -> None:
    thread, results = in_thread(lambda: call("wait", timeout_s=30))
    relayd.run(relayd.fake.until_watched())
    relayd.run(relayd.fake.stop())
    relayd.run(relayd.fake.start())
    relayd.run(relayd.fake.land(4))
    thread.join()
    assert [snapshot.version for snapshot in results] == [4]


def test_wait_times_out_and_says_for_what(relayd: Harness, call: Callable[..., Any]) -> None:
    with pytest.raises(WaitTimeoutError, match="above 3"):
        call("wait", newer_than=3, timeout_s=0.2)


def test_ensure_counts_the_gap(relayd: Harness, call: Callable[..., Any]) -> None:
    relayd.run(relayd.fake.land(11))
    assert call("ensure", learner_version=12, max_gap=1, timeout_s=30).version == 11
    with pytest.raises(WaitTimeoutError, match="version 12"):
        call("ensure", learner_version=12, max_gap=0, timeout_s=0.2)


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_without_time_to_wait_what_is_there_counts(relayd: Harness, call: Callable[..., Any], timeout_s: float) -> None:
    with pytest.raises(WaitTimeoutError, match="above 0"):
        call("wait", timeout_s=timeout_s)
    relayd.run(relayd.fake.land(11))
    assert call("wait", newer_than=10, timeout_s=timeout_s).version == 11
    with pytest.raises(WaitTimeoutError, match="above 11"):
        call("wait", newer_than=11, timeout_s=timeout_s)
    assert call("ensure", learner_version=12, max_gap=1, timeout_s=timeout_s).version == 11
    with pytest.raises(WaitTimeoutError, match="version 12"):
        call("ensure", learner_version=12, timeout_s=timeout_s)
    assert call("wait_active", timeout_s=timeout_s).active
    relayd.run(relayd.fake.wish("standby"))
    with pytest.raises(WaitTimeoutError, match="active"):
        call("wait_active", timeout_s=timeout_s)


def test_confirm_reaches_relayd(relayd: Harness, call: Callable[..., Any]) -> None:
    relayd.run(relayd.fake.land(5))
    call("confirm", 5)
    call("confirm", 5, ok=False, reason="out of memory")
    assert [(c.ok, c.reason) for c in relayd.fake.confirmed] == [(True, ""), (False, "out of memory")]
    with pytest.raises(UsageError, match="not being installed"):
        call("confirm", 9)


def test_an_unexpected_answer_is_a_store_error(relayd: Harness, call: Callable[..., Any]) -> None:
    async def broken(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.DATA_LOSS, "the store is broken")

    relayd.fake.Current = broken  # type: ignore[method-assign, assignment]
    relayd.run(relayd.fake.stop())
    relayd.run(relayd.fake.start())
    with pytest.raises(StoreError, match="the store is broken"):
        call("current")


@pytest.mark.parametrize("method", [("current",), ("wait",), ("ensure", 1), ("confirm", 1)])
def test_an_absent_relayd_is_named_with_its_store(
    tmp_path: Path, call: Callable[..., Any], method: tuple[Any, ...]
) -> None:
    with pytest.raises(RelaydUnavailableError, match=f"relayd --store {tmp_path}"):
        call(*method)


@pytest.mark.parametrize("flavour", [Subscriber, AsyncSubscriber])
@pytest.mark.parametrize("method", [("wait",), ("ensure", 1), ("wait_active",)])
def test_the_grace_of_a_relayd_without_a_socket_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flavour: type[Subscriber] | type[AsyncSubscriber],
    method: tuple[Any, ...],
) -> None:
    """Also one that is longer than an attempt that counts as an answer."""
    clock = itertools.count(step=0.4)
    monkeypatch.setattr(relayd_calls, "boot_now", lambda: next(clock))
    subscriber = flavour(tmp_path, relayd_grace_s=5)
    name, *arguments = method

    async def on_loop() -> Any:
        return await getattr(subscriber, name)(*arguments)

    with pytest.raises(RelaydUnavailableError, match="does not exist"):
        getattr(subscriber, name)(*arguments) if flavour is Subscriber else shared_loop().run(on_loop())
    assert 5 < next(clock) < 20


def test_both_flavours_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(AsyncSubscriber) == methods(Subscriber)


def test_a_dead_socket_is_an_absent_relayd(relayd: Harness, call: Call) -> None:
    socket = relayd.store / "relayd.sock"
    relayd.run(relayd.fake.stop())
    socket.touch()
    with pytest.raises(RelaydUnavailableError, match="is `relayd"):
        call("current")


@pytest.mark.parametrize("method", [("wait", -1), ("ensure", 0), ("ensure", 1, -1), ("confirm", 0)])
def test_nonsense_is_refused_before_anything_is_asked(call: Callable[..., Any], method: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        call(*method)


def test_a_store_path_too_long_for_a_socket_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shorter path"):
        Subscriber(tmp_path / ("x" * 120))


def test_what_is_wanted_of_a_worker(relayd: Harness, call: Call) -> None:
    assert call("duty") == Duty("", "", "w1")
    assert call("duty").active  # nobody decides: it generates
    relayd.run(relayd.fake.wish("standby", "not needed"))
    assert call("duty") == Duty("standby", "not needed", "w1")
    assert not call("duty").active
    assert call("report", 0.33) == Duty("standby", "not needed", "w1")
    assert relayd.fake.reported == [0.33]
    for rate in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="rollouts_per_s"):
            call("report", rate)


def test_a_worker_on_standby_waits_until_it_is_wanted(relayd: Harness, call: Callable[..., Any]) -> None:
    relayd.run(relayd.fake.wish("standby"))
    with pytest.raises(WaitTimeoutError, match="active"):
        call("wait_active", timeout_s=0.2)
    thread, found = in_thread(lambda: call("wait_active", timeout_s=60))
    relayd.run(relayd.fake.until_asked_for_duty())
    relayd.run(relayd.fake.wish("active", "a worker is gone"))
    thread.join()
    assert found == [Duty("active", "a worker is gone", "w1")]


def test_without_a_relayd_nothing_is_wanted_or_reported(tmp_path: Path, call: Call) -> None:
    for method, arguments in (("duty", ()), ("report", (1.0,))):
        with pytest.raises(RelaydUnavailableError):
            call(method, *arguments)
