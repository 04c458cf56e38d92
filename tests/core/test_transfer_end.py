"""Install hooks, restarts and stopping: rows i and s of the list in chappe.core.transfer."""

from __future__ import annotations

from dataclasses import replace

from relay_rig import (
    ALL,
    ROOT_A,
    ROOT_B,
    A,
    B,
    P,
    Rig,
    fetching,
    landed,
    of,
    order,
    states,
    target,
)

from chappe.core.events import Holding, ObjectState
from chappe.core.installing import InstallMode
from chappe.core.reasons import ParentLossReason as Loss
from chappe.core.relay_events import (
    AskToLeave,
    Assigned,
    Assignment,
    CloseFetch,
    Connected,
    Disconnected,
    DropObject,
    FetchConnected,
    FetchEnded,
    Install,
    InstallEnded,
    Land,
    Landed,
    OpenFetch,
    Progress,
    Released,
    ReportHolding,
    Restored,
    Stop,
    StopRequested,
    Tick,
)

# ---- install hook --------------------------------------------------------------------------------------------------


def test_i1_a_hook_that_says_no_is_not_started_again() -> None:
    rig = fetching(install=InstallMode.COMMAND)
    landed(rig)
    effects = rig.do(InstallEnded(1, ok=False, reason="exit 3: no GPU"))
    assert of(effects, ReportHolding)[0].holding == Holding(A, ObjectState.FAILED, 1, ROOT_A, ALL, 8, "exit 3: no GPU")
    assert not rig.machine.ready()[0]
    rig.assign(target(root=ROOT_A))
    rig.do(Tick(), after=3600)
    assert rig.hooked == [1]


def test_i2_only_the_newest_follows_a_slow_hook() -> None:
    rig = fetching(install=InstallMode.COMMAND)
    landed(rig)
    c = "c" * 32
    rig.assign(target(B, 2), target(c, 3))
    for object_id, version in ((B, 2), (c, 3)):
        rig.do(Progress(object_id, ALL, 8))
        rig.assign(target(B, 2, ROOT_B), target(c, 3, ROOT_B))
        assert of(rig.do(Landed(object_id)), Install) == []
        assert rig.machine.versions()[ObjectState.VERIFIED] == version
    effects = rig.do(InstallEnded(1, ok=True))
    assert of(effects, Install) == [Install(3, previous=1)]
    assert states(effects) == [ObjectState.INSTALLED]
    rig.do(InstallEnded(3, ok=True))
    assert [h.state.value for h in rig.machine.holdings()] == ["installed", "verified", "installed"]


def test_i3_an_engine_that_never_answers_fails_and_its_late_yes_counts() -> None:
    rig = fetching(install=InstallMode.CONFIRM)
    assert states(landed(rig)) == [ObjectState.VERIFIED]
    rig.do(Tick(), after=599)
    effects = rig.wait()
    assert states(effects) == [ObjectState.FAILED]
    assert "nobody confirmed within 600 s" in of(effects, ReportHolding)[0].holding.reason
    assert states(rig.do(InstallEnded(1, ok=True))) == [ObjectState.INSTALLED]
    assert rig.do(InstallEnded(1, ok=True)) == []
    assert rig.machine.ready()[0]


def test_i4_answers_for_what_is_not_here_are_ignored() -> None:
    for mode in InstallMode:
        rig = fetching(install=mode)
        assert rig.do(InstallEnded(9, ok=True)) == []
        assert rig.machine.versions()[ObjectState.INSTALLED] == 0


def test_i5_an_older_version_that_lands_late_goes_nowhere() -> None:
    for mode in InstallMode:
        rig = Rig(mode)
        rig.assign(target(A, 1), target(B, 2))
        rig.do(Progress(A, ALL, 8))
        rig.do(Progress(B, ALL, 8))
        rig.assign(target(A, 1, ROOT_A), target(B, 2, ROOT_B))
        rig.do(Landed(B))
        effects = rig.do(Landed(A))
        assert of(effects, Install) == []
        assert of(effects, ReportHolding)[0].holding.state is ObjectState.VERIFIED
        assert of(effects, ReportHolding)[0].holding.reason == "version 2 landed before it"
        assert rig.machine.versions()[ObjectState.VERIFIED] == 2


# ---- this process --------------------------------------------------------------------------------------------------


def test_s1_a_restart_goes_on_with_what_was_restored() -> None:
    rig = Rig(restored=[Restored(A, chunks=((0, 3),), chunks_total=8)])
    assert rig.machine.holdings() == (Holding(A, ObjectState.RECEIVING, chunks=((0, 3),), chunks_total=8),)
    assert of(rig.do(Connected()), DropObject) == []  # not before the coordinator has spoken
    assert of(rig.assign(target(), order(parent=P)), OpenFetch)[0].object_id == A


def test_s2_a_restart_before_landing_lands() -> None:
    rig = Rig(restored=[Restored(A, chunks=ALL, chunks_total=8)])
    assert rig.machine.holdings()[0].state is ObjectState.RECEIVED
    effects = rig.assign(target(root=ROOT_A), order(parent=P))
    assert of(effects, Land) == [Land(A, 1, ROOT_A)]
    assert of(effects, OpenFetch) == []


def test_s3_a_restart_before_the_install_runs_the_hook() -> None:
    old = Restored(B, 1, ROOT_B, ALL, 8, installed=True)
    rig = Rig(InstallMode.COMMAND, [old, Restored(A, 2, ROOT_A, ALL, 8)])
    assert of(rig.do(Connected()), Install) == [Install(2, previous=1)]


def test_s4_a_restart_after_the_install_does_not_run_it_again() -> None:
    rig = Rig(InstallMode.COMMAND, [Restored(A, 2, ROOT_A, ALL, 8, installed=True)])
    assert of(rig.do(Connected()), Install) == []
    assert rig.machine.ready() == (True, "version 2 is installed")
    assert Rig(restored=[Restored(A, 2, ROOT_A, ALL, 8)]).machine.ready() == (True, "version 2 is installed")


def test_s5_stopping_asks_first_and_waits_three_seconds_at_most() -> None:
    rig = fetching()
    effects = rig.do(StopRequested())
    assert of(effects, AskToLeave)
    assert rig.open  # goes on serving and receiving meanwhile
    effects = rig.do(Released())
    assert [type(e) for e in effects] == [CloseFetch, Stop]

    rig = fetching()
    rig.do(StopRequested())
    assert of(rig.do(Tick(), after=2.9), Stop) == []
    assert of(rig.wait(), Stop)

    rig = fetching()
    rig.do(StopRequested())
    assert of(rig.do(StopRequested()), Stop)  # told twice

    rig = fetching()
    rig.do(StopRequested())
    assert of(rig.do(Disconnected()), Stop)

    rig = Rig()
    assert of(rig.do(StopRequested()), Stop)
    assert rig.do(Assigned(Assignment(1, (target(),), (order(parent=P),)))) == []


def test_s5_a_drained_relay_goes_without_having_asked() -> None:
    rig = fetching()
    assert of(rig.do(Released()), Stop)


def test_s6_a_fetch_that_was_closed_has_no_say() -> None:
    rig = fetching()
    rig.assign(target(), order(epoch=2, parent=replace(P, peer=replace(P.peer, address="elsewhere:1"))))
    assert rig.do(FetchConnected(1)) == []
    rig.machine.handle(FetchEnded(1, Loss.BROKEN), rig.now)
    assert rig.fetch().source.peer.address == "elsewhere:1"
    assert rig.do(Progress("d" * 32, ALL, 8)) == []
