"""What the coordinator says, or does not: rows c of the list in chappe.core.transfer."""

from __future__ import annotations

from dataclasses import replace

from relay_rig import (
    ALL,
    F1,
    F2,
    ROOT_A,
    ROOT_B,
    A,
    B,
    P,
    Rig,
    fetching,
    landed,
    lose,
    of,
    order,
    source,
    states,
    target,
)

from chappe.core.effects import Log
from chappe.core.events import HeldEdge, Holding, ObjectState
from chappe.core.installing import InstallMode
from chappe.core.reasons import ParentLossReason as Loss
from chappe.core.relay_events import (
    Acknowledge,
    CloseFetch,
    Connected,
    Disconnected,
    DropObject,
    FetchConnected,
    Install,
    InstallEnded,
    Land,
    Landed,
    OpenFetch,
    OpenObject,
    Progress,
    Removed,
    ReportConnected,
    ReportHolding,
    Restored,
    Retain,
    Tick,
)


def test_c1_everything_goes_on_without_the_coordinator() -> None:
    rig = Rig(InstallMode.COMMAND)
    rig.assign(target(root=ROOT_A), order(parent=P, fallbacks=(F1,)))
    rig.do(Disconnected())
    lose(rig, Loss.BROKEN)
    rig.wait()
    lose(rig, Loss.BROKEN)
    assert of(rig.wait(), OpenFetch)[0].source == F1
    assert of(rig.do(Progress(A, ALL, 8)), Land) == [Land(A, 1, ROOT_A)]
    assert of(rig.do(Landed(A)), Install) == [Install(1, 0)]
    assert states(rig.do(InstallEnded(1, ok=True))) == [ObjectState.INSTALLED]


def test_c2_the_same_assignment_again_changes_nothing() -> None:
    rig = fetching()
    rig.do(Disconnected())
    rig.do(Connected())
    effects = rig.assign(target(), order(parent=P, fallbacks=(F1, F2)), epoch=1)
    assert of(effects, CloseFetch) + of(effects, OpenFetch) + of(effects, DropObject) == []
    assert of(effects, Acknowledge) == [Acknowledge(1)]
    assert rig.machine.assignment_epoch == 1


def test_c2_a_new_assignment_with_the_same_edge_keeps_a_fetch_from_a_fallback() -> None:
    rig = fetching()
    lose(rig, Loss.UNREACHABLE)
    rig.wait()
    effects = rig.assign(target(root=ROOT_A), order(parent=P, fallbacks=(source("f1", b"renewed"), F2)))
    assert of(effects, CloseFetch) + of(effects, OpenFetch) == []
    assert rig.fetch().source == F1


def test_c3_an_older_assignment_is_ignored() -> None:
    rig = fetching()
    rig.assign(target(), order(parent=P, fallbacks=(F1, F2)), epoch=7)
    effects = rig.assign(epoch=6)
    assert [type(e) for e in effects] == [Log]
    assert rig.machine.assignment_epoch == 7
    assert rig.open


def test_c4_what_is_not_named_is_dropped_unless_it_has_landed() -> None:
    rig = fetching()
    effects = rig.assign()
    assert of(effects, CloseFetch) == [CloseFetch(1)]
    assert of(effects, DropObject) == [DropObject(A)]
    assert [report.holding for report in of(effects, ReportHolding)] == [Holding.gone(A)]
    assert rig.machine.holdings() == ()
    rig.assign(target(B, 2), order(B, parent=P))
    landed(rig, B, 2, ROOT_B)
    effects = rig.assign(keep=(2,))
    assert of(effects, DropObject) == []
    assert of(effects, Retain) == [Retain((), (2,))]
    assert [h.object_id for h in rig.machine.holdings()] == [B]
    told = of(rig.do(Removed((B, "c" * 32))), ReportHolding)
    assert [report.holding for report in told] == [Holding.gone(B)]  # no delta begins there
    assert rig.machine.holdings() == ()


def test_c4_an_object_that_is_relayed_is_retained() -> None:
    rig = fetching()
    landed(rig)
    effects = rig.assign(target(B, 2), order(B, parent=P), order(A))
    assert of(effects, Retain) == [Retain((A, B), ())]


def test_c4_what_the_engine_serves_is_retained_while_a_hook_runs_for_newer_versions() -> None:
    served = Restored(A, 1, ROOT_A, ALL, 8, installed=True)
    rig = Rig(InstallMode.COMMAND, [served])
    rig.assign(target(B, 2), order(B, parent=P), keep=(1, 2))
    landed(rig, B, 2, ROOT_B)
    assert rig.hook == 2
    effects = rig.assign(keep=(2, 3))
    assert of(effects, Retain) == [Retain((), (1, 2, 3))]
    rig.do(InstallEnded(2, True))
    effects = rig.assign(keep=(2, 3))
    assert of(effects, Retain) == [Retain((), (2, 3))]


def test_c5_without_a_parent_the_object_waits() -> None:
    rig = fetching()
    effects = rig.assign(target(), order(epoch=2))
    assert of(effects, CloseFetch) == [CloseFetch(1)]
    assert of(effects, OpenFetch) + of(effects, DropObject) == []
    assert of(rig.do(Tick(), after=60), OpenFetch) == []
    assert of(rig.assign(target(), order(epoch=3, parent=F1)), OpenFetch)[0].source == F1


def test_c6_an_object_without_a_root_waits_for_it() -> None:
    rig = fetching()
    assert of(rig.do(Progress(A, ALL, 8)), Land) == []
    assert rig.machine.holdings()[0].state is ObjectState.RECEIVED
    assert of(rig.assign(target(root=ROOT_A)), Land) == [Land(A, 1, ROOT_A)]
    assert of(rig.assign(target(root=ROOT_A)), Land) == []


def test_c7_another_root_for_what_has_landed_changes_nothing() -> None:
    rig = fetching()
    landed(rig)
    effects = rig.assign(target(root=ROOT_B), order(parent=P))
    assert [e.event for e in of(effects, Log)] == ["root contradicted"]
    assert of(effects, Land) + of(effects, OpenFetch) + of(effects, OpenObject) == []
    assert rig.machine.holdings()[0].root == ROOT_A


def test_p3_a_parent_that_dials_from_now_on_is_another_stream() -> None:
    rig = fetching()
    dialling = replace(P, dials=True)
    (closed,) = of(effects := rig.assign(target(), order(epoch=2, parent=dialling)), CloseFetch)
    (opened,) = of(effects, OpenFetch)
    assert opened.fetch != closed.fetch
    assert (opened.source, opened.epoch) == (dialling, 2)
    again = rig.assign(target(), order(epoch=3, parent=dialling))
    assert of(again, OpenFetch) == of(again, CloseFetch) == []


def test_what_is_expected_of_a_hop_goes_with_its_fetch() -> None:
    rig = Rig()
    expected = replace(order(epoch=4, parent=P), expected_bytes_per_s=5e6)
    (opened,) = of(rig.assign(target(), expected), OpenFetch)
    assert (opened.epoch, opened.expected_bytes_per_s) == (4, 5e6)


def test_c8_a_fallback_in_use_that_becomes_the_parent_keeps_its_stream() -> None:
    rig = fetching()
    lose(rig, Loss.UNREACHABLE)
    rig.wait()
    rig.do(FetchConnected(rig.fetch().fetch))
    effects = rig.assign(target(), order(epoch=2, parent=source("f1", b"now the parent")))
    assert of(effects, CloseFetch) + of(effects, OpenFetch) == []
    assert of(effects, ReportConnected) == [ReportConnected(HeldEdge(A, 0, "id-f1", 2))]
