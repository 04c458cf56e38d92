"""What a relay's disk does: rows d of the list in chappe.core.transfer."""

from __future__ import annotations

from relay_rig import (
    ALL,
    F1,
    ROOT_A,
    A,
    B,
    P,
    Rig,
    fetching,
    landed,
    lose,
    of,
    order,
    states,
    target,
)

from chappe.core.effects import Log
from chappe.core.events import Holding, ObjectState
from chappe.core.installing import InstallMode
from chappe.core.relay_events import (
    ChunksDropped,
    CloseFetch,
    Connected,
    DropObject,
    FetchEnded,
    Install,
    InstallEnded,
    Land,
    Landed,
    LandFailed,
    LocalFault,
    Mend,
    OpenFetch,
    OpenObject,
    Progress,
    ReportHolding,
    ReportLost,
    ResetObject,
    Restored,
    Retain,
    Tick,
)


def test_d1_a_full_disk_is_said_tried_again_and_goes_on_by_itself() -> None:
    rig = fetching()
    effects = lose(rig, LocalFault.DISK_FULL)
    assert states(effects) == [ObjectState.DISK_FULL]
    assert of(effects, ReportLost) == []  # not the parent's fault
    rig.do(Progress(A, (), None))  # the room was given back
    assert rig.machine.holdings()[0].state is ObjectState.DISK_FULL
    assert rig.machine.holdings()[0].reason == "it said so"
    assert of(rig.do(Tick(), after=1.9), OpenFetch) == []
    assert of(rig.wait(), OpenFetch)[0].source == P
    lose(rig, LocalFault.DISK_FULL)
    rig.wait()
    assert rig.machine.holdings()[0].state is ObjectState.DISK_FULL
    assert states(rig.do(Progress(A, (), 8))) == [ObjectState.RECEIVING]
    assert rig.machine.holdings()[0].reason == ""


def test_a_fault_is_a_warning_once_for_each_cause_and_then_once_a_minute() -> None:
    rig = fetching()
    said = []
    for number in range(70):
        fault = LocalFault.STORE if number == 5 else LocalFault.DISK_FULL
        event = FetchEnded(rig.fetch().fetch, fault, f"{number} MB short")
        said += [(number, log.reason, log.warning) for log in of(rig.do(event), Log) if log.event == "store fault"]
        assert rig.machine.holdings()[0].reason == f"{number} MB short"  # what is shown is what is so now
        assert of(rig.do(Tick(), after=10.0 if number == 5 else 2.0), OpenFetch)
    assert said == [(0, "disk_full", True), (5, "store", True), (26, "disk_full", True), (56, "disk_full", True)]


def test_d2_a_full_disk_while_landing_is_tried_again() -> None:
    rig = fetching()
    rig.do(Progress(A, ALL, 8))
    rig.assign(target(root=ROOT_A), order(parent=P))
    assert states(rig.do(LandFailed(A, LocalFault.DISK_FULL, "no room"))) == [ObjectState.DISK_FULL]
    assert of(rig.do(Tick(), after=1), Land) == []
    assert of(rig.wait(), Land) == [Land(A, 1, ROOT_A)]
    assert states(rig.do(Landed(A))) == [ObjectState.INSTALLED]


def test_d3_another_fault_is_failed_with_its_reason_and_tried_again_slowly() -> None:
    rig = fetching()
    effects = lose(rig, LocalFault.STORE)
    assert of(effects, ReportHolding)[0].holding.reason == "it said so"
    assert states(effects) == [ObjectState.FAILED]
    assert of(rig.do(Tick(), after=9), OpenFetch) == []
    assert of(rig.wait(), OpenFetch)
    rig.do(Progress(A, ALL, 8))
    rig.assign(target(root=ROOT_A))
    assert states(rig.do(LandFailed(A, LocalFault.STORE, "EIO"))) == [ObjectState.FAILED]
    assert of(rig.wait(), Land)


def test_d4_rotten_chunks_are_fetched_again() -> None:
    rig = fetching()
    effects = rig.do(ChunksDropped(A, ((0, 2),)))
    assert of(effects, CloseFetch) == [CloseFetch(1)]  # it was asked before and would not bring them
    assert of(effects, OpenFetch)[0].source == P
    rig.do(Progress(A, ALL, 8))
    lose(rig, None, progressed=True)
    assert of(rig.do(ChunksDropped(A, ((0, 7),))), OpenFetch)


def test_d4_rot_after_landing_is_mended() -> None:
    rig = fetching()
    landed(rig)
    rig.assign(target(root=ROOT_A), order(parent=P))
    effects = rig.do(ChunksDropped(A, ((0, 7),)))
    assert of(effects, OpenFetch)[0].source == P
    (report,) = of(effects, ReportHolding)
    assert (report.holding.state, report.holding.version) == (ObjectState.INSTALLED, 1)
    assert "rotted" in report.holding.reason
    effects = rig.do(Progress(A, ALL, 8))
    assert of(effects, Mend) == [Mend(A)]
    assert of(effects, Land) == []
    assert rig.machine.holdings()[0].reason == ""


def test_d7_an_object_with_a_lost_write_starts_from_scratch() -> None:
    rig = fetching()
    rig.do(Progress(A, ALL, 8))
    rig.assign(target(root=ROOT_A), order(parent=P))
    lose(rig, None, progressed=True)
    effects = rig.do(LandFailed(A, LocalFault.DAMAGED, "EIO at fsync"))
    assert of(effects, ResetObject) == [ResetObject(A)]
    assert states(effects) == [ObjectState.FAILED]
    assert of(effects, OpenFetch) == []
    assert of(rig.wait(), OpenFetch)
    assert of(rig.do(Progress(A, ALL, 8)), Land)


def whole_delta(install: InstallMode = InstallMode.NONE) -> Rig:
    """All of A, a delta, is here and it is being applied; B is the full object that it leads to."""
    rig = fetching(install)
    rig.do(Progress(A, ALL, 8))
    assert of(rig.assign(target(root=ROOT_A), order(parent=P)), Land) == [Land(A, 1, ROOT_A)]
    return rig


def test_d8_a_delta_that_cannot_be_applied_is_still_served_and_not_tried_again() -> None:
    rig = whole_delta()
    effects = rig.do(LandFailed(A, LocalFault.DELTA, "its base is not here"))
    (report,) = of(effects, ReportHolding)
    assert (report.holding.state, report.holding.chunks) == (ObjectState.FAILED, ALL)
    assert report.holding.reason == "its base is not here"
    assert of(effects, ResetObject) + of(effects, DropObject) == []
    assert of(rig.do(Tick(), after=3600), Land) == []
    effects = rig.assign(target(B, root=ROOT_A), order(B, parent=P))  # the same version as another object
    assert of(effects, DropObject) == [DropObject(A)]
    assert of(effects, OpenFetch)[0].object_id == B


def test_d8_what_came_out_right_is_kept_until_it_is_asked_for() -> None:
    """Whatever is assigned before the coordinator has heard of it: a child that joins, a parent that goes."""
    rig = whole_delta()
    rig.do(LandFailed(A, LocalFault.DELTA, "a block is not what it was", B))
    (kept,) = of(rig.assign(target(root=ROOT_A), order(parent=F1, epoch=2)), Retain)
    assert kept.objects == (A, B)
    effects = rig.assign(target(B, root=ROOT_A), order(B, parent=P))
    assert of(effects, Retain)[0].objects == (B,)
    assert of(effects, OpenObject) == [OpenObject(B)]


def test_d8_what_came_out_right_goes_with_the_delta() -> None:
    rig = whole_delta()
    rig.do(LandFailed(A, LocalFault.DELTA, "a block is not what it was", B))
    effects = rig.assign()
    assert (of(effects, DropObject), of(effects, Retain)[0].objects) == ([DropObject(A)], ())


def test_a_delta_lands_as_the_full_object_and_both_are_told() -> None:
    rig = whole_delta(InstallMode.COMMAND)
    effects = rig.do(Landed(A, Restored(B, 1, ROOT_A, ((0, 20),), 20)))
    assert of(effects, OpenObject) == [OpenObject(B)]
    assert [r.holding for r in of(effects, ReportHolding)] == [
        Holding(A, ObjectState.VERIFIED, 1, ROOT_A, ALL, 8),
        Holding(B, ObjectState.VERIFIED, 1, ROOT_A, ((0, 20),), 20),
    ]
    assert of(effects, Install) == [Install(1, previous=0)]
    assert states(rig.do(InstallEnded(1, ok=True))) == [ObjectState.INSTALLED] * 2
    effects = rig.assign()  # neither is named any more: the delta is of no use, the version stays
    assert of(effects, DropObject) == [DropObject(A)]
    assert [h.object_id for h in rig.machine.holdings()] == [B]
    assert rig.machine.ready()[0]


def test_a_delta_whose_version_was_here_and_installed_before_a_restart() -> None:
    full = Restored(B, 1, ROOT_A, ((0, 20),), 20, installed=True)
    rig = Rig(InstallMode.COMMAND, [Restored(A, 0, "", ALL, 8), full])
    rig.do(Connected())
    assert of(rig.assign(target(root=ROOT_A)), Land) == [Land(A, 1, ROOT_A)]
    effects = rig.do(Landed(A, full))
    assert states(effects) == [ObjectState.INSTALLED] * 2
    assert of(effects, Install) == []


def test_a_delta_withdrawn_while_it_is_applied_goes_when_it_has_landed() -> None:
    rig = whole_delta()
    assert of(rig.assign(), DropObject) == []
    effects = rig.machine.handle(Landed(A, Restored(B, 1, ROOT_A, ((0, 20),), 20)), rig.now)
    assert of(effects, DropObject) == [DropObject(A)]
    assert [h.state for h in rig.machine.holdings()] == [ObjectState.INSTALLED]


def test_d5_a_root_mismatch_starts_from_scratch_once() -> None:
    rig = fetching()
    rig.do(Progress(A, ALL, 8))
    rig.assign(target(root=ROOT_A), order(parent=P))
    lose(rig, None, progressed=True)
    effects = rig.do(LandFailed(A, LocalFault.ROOT_MISMATCH, "root mismatch"))
    assert of(effects, ResetObject) == [ResetObject(A)]
    assert states(effects) == [ObjectState.RECEIVING]
    assert of(effects, OpenFetch)
    rig.do(Progress(A, ALL, 8))
    effects = rig.do(LandFailed(A, LocalFault.ROOT_MISMATCH, "root mismatch"))
    assert of(effects, ResetObject) == []
    assert states(effects) == [ObjectState.FAILED]
    assert of(rig.do(Tick(), after=3600), Land) + of(rig.do(Tick()), OpenFetch) == []


def test_d5_a_root_mismatch_by_rot_costs_what_has_rotted() -> None:
    rig = fetching()
    rig.do(Progress(A, ALL, 8))
    rig.assign(target(root=ROOT_A), order(parent=P))
    lose(rig, None, progressed=True)
    assert of(rig.do(ChunksDropped(A, ((0, 3), (4, 8)))), OpenFetch) == []  # not while it is landed
    effects = rig.do(LandFailed(A, LocalFault.ROTTEN, "1 chunk"))
    assert of(effects, ResetObject) + of(effects, Land) == []
    assert of(effects, OpenFetch)[0].source == P
    assert of(rig.do(Progress(A, ALL, 8)), Land)


def test_d6_a_target_withdrawn_while_landing_is_not_pulled_from_under_it() -> None:
    for outcome, dropped in ((Landed(A), []), (LandFailed(A, LocalFault.STORE, "EIO"), [DropObject(A)])):
        rig = fetching()
        rig.do(Progress(A, ALL, 8))
        rig.assign(target(root=ROOT_A), order(parent=P))
        assert of(rig.assign(), DropObject) == []
        assert of(rig.do(outcome), DropObject) == dropped
