from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from relayd.engine import DutyView
from relayd.local import LandedView, serve_local

from chappe.errors import UsageError
from chappe.hop.source import Signal
from chappe.v1 import local_pb2, local_pb2_grpc


class View:
    def __init__(self) -> None:
        self.landed = Signal()
        self.view = LandedView("run")
        self.mode = True
        self.in_landing: set[int] = set()
        self.here: set[int] = set()
        self.confirmed: list[tuple[int, bool, str]] = []
        self.duty_changed = Signal()
        self.wanted = DutyView()
        self.reported: list[float] = []

    def newest(self) -> LandedView:
        return self.view

    def confirms(self) -> bool:
        return self.mode

    def landing(self, version: int) -> bool:
        return version in self.in_landing

    def confirm(self, version: int, ok: bool, reason: str) -> bool:
        if version not in self.here:
            return False
        self.confirmed.append((version, ok, reason))
        return True

    def duty(self) -> DutyView:
        return self.wanted

    def generates(self, rollouts_per_s: float) -> None:
        self.reported.append(rollouts_per_s)

    def wish(self, duty: str, reason: str) -> None:
        self.wanted = DutyView(duty, reason)
        self.duty_changed.fire()

    def land(self, version: int) -> None:
        self.view = LandedView("run", version, "root", Path(f"/s/{version}"), installed=True)
        self.here.add(version)
        self.in_landing.discard(version)
        self.landed.fire()


@pytest.fixture
async def view() -> View:
    return View()


@pytest.fixture
async def stub(view: View, tmp_path: Path) -> AsyncIterator[local_pb2_grpc.LocalStub]:
    socket = tmp_path / "relayd.sock"
    server = await serve_local(socket, view, "w1")
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        yield local_pb2_grpc.LocalStub(channel)
    await server.stop(0)


async def test_only_this_user_may_connect_and_a_dead_socket_is_replaced(tmp_path: Path) -> None:
    socket = tmp_path / "relayd.sock"
    socket.write_text("left behind")
    server = await serve_local(socket, View())
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    await server.stop(0)


async def test_a_path_that_is_too_long_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--store.*shorter path"):
        await serve_local(tmp_path / ("x" * 120) / "relayd.sock", View())


async def test_current(stub: local_pb2_grpc.LocalStub, view: View) -> None:
    assert (await stub.Current(local_pb2.CurrentRequest())).version == 0
    view.land(4)
    landed = await stub.Current(local_pb2.CurrentRequest())
    assert (landed.run, landed.version, landed.root, landed.path) == ("run", 4, "root", "/s/4")
    assert landed.installed


async def test_watch_sends_what_is_current_and_then_what_lands(stub: local_pb2_grpc.LocalStub, view: View) -> None:
    view.land(1)
    call = stub.Watch(local_pb2.WatchRequest(newer_than=2))
    assert (await call.read()).version == 1
    view.land(2)
    view.land(3)
    assert (await call.read()).version == 3
    view.land(5)
    assert (await call.read()).version == 5
    call.cancel()


async def test_ensure_waits_for_a_version_that_is_fresh_enough(stub: local_pb2_grpc.LocalStub, view: View) -> None:
    view.land(3)
    assert (await stub.Ensure(local_pb2.EnsureRequest(learner_version=4, max_gap=1))).version == 3
    waiting = asyncio.ensure_future(stub.Ensure(local_pb2.EnsureRequest(learner_version=5, max_gap=1)))
    view.landed.fire()
    assert (await stub.Current(local_pb2.CurrentRequest())).version == 3
    assert not waiting.done()
    view.land(4)
    assert (await waiting).version == 4
    assert (await stub.Ensure(local_pb2.EnsureRequest(learner_version=1, max_gap=9))).version == 4


async def test_confirm(stub: local_pb2_grpc.LocalStub, view: View) -> None:
    view.land(3)
    await stub.Confirm(local_pb2.ConfirmRequest(version=3, ok=True))
    assert view.confirmed == [(3, True, "")]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Confirm(local_pb2.ConfirmRequest(version=9, ok=True))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    view.mode = False
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Confirm(local_pb2.ConfirmRequest(version=3, ok=True))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "--install confirm" in (caught.value.details() or "")


async def test_an_engine_that_is_quicker_than_the_landing_is_not_turned_away(
    stub: local_pb2_grpc.LocalStub, view: View
) -> None:
    view.in_landing.add(7)
    waiting = asyncio.ensure_future(stub.Confirm(local_pb2.ConfirmRequest(version=7, ok=False, reason="no room")))
    await stub.Current(local_pb2.CurrentRequest())
    assert view.confirmed == []
    view.land(7)
    await waiting
    assert view.confirmed == [(7, False, "no room")]


async def test_the_engine_reports_and_sees_what_is_wanted_of_it(stub: local_pb2_grpc.LocalStub, view: View) -> None:
    watched = aiter(stub.WatchDuty(local_pb2.DutyRequest()))
    assert await anext(watched) == local_pb2.DutyState(worker="w1")
    view.wish("standby", "not needed")
    assert await anext(watched) == local_pb2.DutyState(duty="standby", reason="not needed", worker="w1")
    answer = await stub.Report(local_pb2.RolloutReport(rollouts_per_second=0.33))
    assert (answer.duty, view.reported) == ("standby", [0.33])
    view.wish("active", "a worker is gone")
    assert (await anext(watched)).duty == "active"


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
async def test_a_rate_that_is_none_is_refused(stub: local_pb2_grpc.LocalStub, view: View, rate: float) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="zero or more"):
        await stub.Report(local_pb2.RolloutReport(rollouts_per_second=rate))
    assert view.reported == []
