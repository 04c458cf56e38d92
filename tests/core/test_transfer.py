"""Each row of the list in chappe.core.transfer is a test here; the rules of `Rig` are checked after every event."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from relay_rig import ROOT_A, ROOT_B, A, B, Rig, of, order, source, target

from chappe.core import transfer
from chappe.core.effects import Count, Log
from chappe.core.events import HeldEdge, Holding, ObjectState
from chappe.core.installing import InstallMode
from chappe.core.reasons import ParentLossReason as Loss
from chappe.core.relay_events import (
    Acknowledge,
    AdmitChildren,
    AskToLeave,
    Assigned,
    Assignment,
    ChunksDropped,
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
    LandFailed,
    LocalFault,
    Mend,
    OpenFetch,
    OpenObject,
    Progress,
    RelayEffect,
    Released,
    Removed,
    ReportConnected,
    ReportHolding,
    ReportLost,
    ResetObject,
    Restored,
    Retain,
    Stop,
    StopRequested,
    Tick,
)

P, F1, F2 = source("p"), source("f1"), source("f2")
ALL = ((0, 8),)


def states(effects: list[RelayEffect]) -> list[ObjectState]:
    return [r.holding.state for r in of(effects, ReportHolding)]


def fetching(install: InstallMode = InstallMode.NONE) -> Rig:
    """A relay that is receiving A from p, with two fallbacks."""
    rig = Rig(install)
    rig.do(Connected())
    rig.assign(target(), order(parent=P, fallbacks=(F1, F2)))
    rig.do(FetchConnected(rig.fetch().fetch))
    rig.do(Progress(A, ((0, 3),), 8))
    return rig


def lose(
    rig: Rig, reason: Loss | LocalFault | None, progressed: bool = False, rejected: tuple[int, ...] = ()
) -> list[RelayEffect]:
    return rig.do(FetchEnded(rig.fetch().fetch, reason, "it said so", rejected, progressed))


def landed(rig: Rig, object_id: str = A, version: int = 1, root: str = ROOT_A) -> list[RelayEffect]:
    """Bring an object that is a target all the way to its landing."""
    rig.do(Progress(object_id, ALL, 8))
    rig.assign(target(object_id, version, root))
    return rig.do(Landed(object_id))


def test_every_row_of_the_list_has_its_test() -> None:
    rows = set(re.findall(r"^  ([pcdis]\d+) ", transfer.__doc__ or "", re.MULTILINE))
    tests = {match[1] for name in globals() if (match := re.match(r"test_([pcdis]\d+)_", name))}
    assert rows == tests
    assert len(rows) == 39


def test_the_whole_way() -> None:
    rig = Rig(InstallMode.COMMAND)
    effects = rig.assign(target(), order(parent=P))
    assert [type(e) for e in effects] == [OpenObject, AdmitChildren, Retain, Acknowledge, OpenFetch]
    assert rig.fetch().source == P
    assert rig.machine.edges() == ()
    assert of(rig.do(FetchConnected(1)), ReportConnected) == [ReportConnected(HeldEdge(A, 0, "id-p", 1))]
    assert rig.machine.edges() == (HeldEdge(A, 0, "id-p", 1),)
    assert of(rig.do(Progress(A, (), 8)), ReportHolding)[0].holding == Holding(A, ObjectState.RECEIVING, chunks_total=8)
    assert rig.do(Progress(A, (), 8)) == []
    assert states(rig.do(Progress(A, ALL, 8))) == [ObjectState.RECEIVED]
    assert rig.machine.versions()[ObjectState.RECEIVED] == 1
    assert rig.do(FetchEnded(1, None, progressed=True)) == []
    assert of(rig.assign(target(root=ROOT_A), order(parent=P)), Land) == [Land(A, 1, ROOT_A)]
    assert rig.machine.ready() == (False, "no version has landed yet")
    effects = rig.do(Landed(A))
    assert of(effects, ReportHolding)[0].holding == Holding(A, ObjectState.VERIFIED, 1, ROOT_A, ALL, 8)
    assert of(effects, Install) == [Install(1, previous=0)]
    assert rig.machine.ready() == (False, "version 1 has landed and is not installed")
    assert states(rig.do(InstallEnded(1, ok=True))) == [ObjectState.INSTALLED]
    assert rig.machine.ready() == (True, "version 1 is installed")
    assert set(rig.machine.versions().values()) == {1}


def test_without_a_hook_installed_follows_verified() -> None:
    rig = fetching()
    assert states(landed(rig)) == [ObjectState.INSTALLED]
    assert rig.machine.ready()[0]


# ---- parent --------------------------------------------------------------------------------------------------------


def test_p1_a_broken_stream_is_tried_again_and_then_the_next_source() -> None:
    rig = fetching()
    effects = lose(rig, Loss.BROKEN, progressed=True)
    assert of(effects, ReportLost) == [ReportLost(HeldEdge(A, 0, "id-p", 1), Loss.BROKEN)]
    assert of(effects, OpenFetch) == []
    (again,) = of(rig.wait(), OpenFetch)
    assert again.source == P
    lose(rig, Loss.BROKEN)
    effects = rig.wait()
    assert of(effects, OpenFetch)[0].source == F1
    assert of(effects, Count) == [Count("parent_changes_total", (("reason", "broken"),))]
    rig.do(FetchConnected(rig.fetch().fetch))
    assert rig.machine.edges() == (HeldEdge(A, 0, "id-f1", 1),)


def test_p1_an_unreachable_parent_costs_one_try_and_rounds_take_longer() -> None:
    rig = Rig()
    rig.assign(target(), order(parent=P, fallbacks=(F1,)))
    gaps = []
    for expected in [P, F1] * 8:
        assert rig.fetch().source == expected
        assert len(of(lose(rig, Loss.UNREACHABLE), ReportLost)) == 1
        assert rig.wake is not None
        gaps.append(rig.wake - rig.now)
        rig.wait()
    rounds = gaps[1::2]
    assert rounds == sorted(rounds)
    assert 3 < rounds[-1] <= 7.5
    assert max(gaps[::2]) < 0.1


def test_p1_progress_starts_the_rounds_anew() -> None:
    rig = Rig()
    rig.assign(target(), order(parent=P))
    for _ in range(8):
        lose(rig, Loss.UNREACHABLE)
        rig.wait()
    lose(rig, Loss.UNREACHABLE, progressed=True)
    assert rig.wake is not None
    assert rig.wake - rig.now < 0.5


@pytest.mark.parametrize("reason", [Loss.STALLED, Loss.LEAVING])
def test_p2_a_stalled_or_leaving_parent_is_left_at_once(reason: Loss) -> None:
    rig = fetching()
    assert of(lose(rig, reason, progressed=True), ReportLost)[0].reason is reason
    assert of(rig.wait(), OpenFetch)[0].source == F1


def test_p3_a_parent_that_restarted_elsewhere_is_dialled_there() -> None:
    rig = fetching()
    moved = source("p", b"newer", port=2)
    effects = rig.assign(target(), order(epoch=2, parent=moved))
    assert of(effects, CloseFetch) == [CloseFetch(1)]
    assert of(effects, OpenFetch)[0].source == moved
    assert of(effects, Count) == []  # the same parent


def test_p3_another_parent_replaces_the_fetch() -> None:
    rig = fetching()
    effects = rig.assign(target(), order(epoch=2, parent=F2))
    assert [type(e) for e in effects if isinstance(e, OpenFetch | CloseFetch)] == [CloseFetch, OpenFetch]
    assert of(effects, Count) == [Count("parent_changes_total", (("reason", "reassigned"),))]


def test_p4_bad_chunks_are_named_to_their_sender_and_the_second_time_it_is_left() -> None:
    rig = fetching()
    effects = lose(rig, Loss.CORRUPT, progressed=True, rejected=(3, 5))
    assert of(effects, ReportLost)[0].reason is Loss.CORRUPT
    (again,) = of(effects, OpenFetch)
    assert (again.source, again.rejected) == (P, (3, 5))
    lose(rig, Loss.CORRUPT, rejected=(3,))
    (other,) = of(rig.wait(), OpenFetch)
    assert (other.source, other.rejected) == (F1, ())


def test_p12_a_chunk_that_two_sources_send_alike_is_right_and_the_page_is_not() -> None:
    rig = fetching()
    lose(rig, Loss.CORRUPT, rejected=(3,))
    assert of(lose(rig, Loss.CORRUPT, rejected=(3,)), ResetObject) == []  # it may be this source
    rig.wait()
    effects = lose(rig, Loss.CORRUPT, rejected=(3,))
    assert of(effects, ResetObject) == [ResetObject(A)]
    assert of(effects, ReportHolding)[-1].holding.chunks_total is None
    (again,) = of(effects, OpenFetch)
    assert (again.source, again.rejected) == (P, ())


def test_p12_different_chunks_are_different_matters() -> None:
    rig = fetching()
    lose(rig, Loss.CORRUPT, rejected=(3,))
    lose(rig, Loss.CORRUPT, rejected=(4,))
    rig.wait()
    assert of(lose(rig, Loss.CORRUPT, rejected=(5,)), ResetObject) == []


def test_p12_of_a_single_source_the_page_is_doubted_the_fourth_time() -> None:
    rig = Rig()
    rig.assign(target(), order(parent=P, fallbacks=()))
    lose(rig, Loss.CORRUPT, rejected=(3,))  # tried again at once
    assert of(lose(rig, Loss.CORRUPT, rejected=(3,)), ResetObject) == []
    rig.wait()
    assert of(lose(rig, Loss.CORRUPT, rejected=(3,)), ResetObject) == []
    assert of(lose(rig, Loss.CORRUPT, rejected=(3,)), ResetObject) == [ResetObject(A)]


def test_p5_a_parent_that_breaks_the_protocol_is_left() -> None:
    rig = fetching()
    assert of(lose(rig, Loss.PROTOCOL), ReportLost)[0].reason is Loss.PROTOCOL
    assert of(rig.wait(), OpenFetch)[0].source == F1


def test_p6_a_parent_that_does_not_know_the_object_yet_is_asked_again_quietly() -> None:
    rig = Rig()
    rig.assign(target(), order(parent=P, fallbacks=(F1,)))
    quiet = 0
    while not of(lose(rig, Loss.UNKNOWN_OBJECT), ReportLost):
        quiet += 1
        assert of(rig.wait(), OpenFetch)[0].source == P
    assert quiet == 6
    assert of(rig.wait(), OpenFetch)[0].source == F1


def test_p7_a_busy_fallback_is_asked_twice_and_passed_over_without_a_word() -> None:
    rig = fetching()
    lose(rig, Loss.UNREACHABLE)
    rig.wait()
    assert of(lose(rig, Loss.BUSY), ReportLost) == []
    assert of(rig.wait(), OpenFetch)[0].source == F1
    assert of(lose(rig, Loss.BUSY), ReportLost) == []
    assert of(rig.wait(), OpenFetch)[0].source == F2


@pytest.mark.parametrize("reason", [Loss.EVICTED, Loss.STALE, Loss.BAD_TOKEN])
def test_p8_a_refused_token_is_not_fought_over(reason: Loss) -> None:
    rig = Rig()
    rig.assign(target(), order(parent=P))
    waits = []
    for _ in range(12):
        assert of(lose(rig, reason), ReportLost)[0].reason is reason
        assert rig.wake is not None
        waits.append(rig.wake - rig.now)
        rig.wait()
    assert min(waits) >= 0.5
    assert waits[-1] >= 2.5 or waits[-2] >= 2.5
    assert of(rig.assign(target(), order(epoch=2, parent=source("p", b"newer"))), OpenFetch) == []  # the stream runs
    lose(rig, reason)
    (retry,) = of(rig.wait(), OpenFetch)
    assert retry.source.token == b"newer"


def test_p9_a_source_that_says_complete_and_gives_nothing_is_not_asked_in_a_loop() -> None:
    rig = fetching()
    (again,) = of(lose(rig, None, progressed=True), OpenFetch)  # something was lost since it was asked: ask for that
    assert again.source == P
    waits = []
    for _ in range(10):
        assert of(lose(rig, None), OpenFetch) == []
        assert rig.wake is not None
        waits.append(rig.wake - rig.now)
        rig.wait()
    assert waits == sorted(waits)
    assert waits[-1] >= 4


def test_p10_a_parent_that_dies_when_all_is_here_does_not_matter() -> None:
    rig = fetching()
    assert of(rig.do(Progress(A, ALL, 8)), CloseFetch) == []  # its last word is under way
    lose(rig, Loss.BROKEN, progressed=True)
    assert rig.open == {}
    assert of(rig.do(Tick(), after=10), OpenFetch) == []
    assert of(rig.assign(target(root=ROOT_A), order(parent=P)), Land) == [Land(A, 1, ROOT_A)]


def test_p11_a_parent_that_dropped_the_object_is_asked_again_ever_more_rarely() -> None:
    rig = Rig()
    rig.assign(target(), order(parent=P))
    assert of(lose(rig, Loss.DROPPED), ReportLost)[0].reason is Loss.DROPPED
    assert rig.wake is not None
    assert rig.wake - rig.now >= 0.5
    effects = rig.assign(epoch=2)  # the coordinator's word
    assert of(effects, DropObject) == [DropObject(A)]
    assert of(rig.do(Tick(), after=60), OpenFetch) == []


# ---- coordinator ---------------------------------------------------------------------------------------------------


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
    assert rig.machine.holdings() == ()
    rig.assign(target(B, 2), order(B, parent=P))
    landed(rig, B, 2, ROOT_B)
    effects = rig.assign(keep=(2,))
    assert of(effects, DropObject) == []
    assert of(effects, Retain) == [Retain((), (2,))]
    assert [h.object_id for h in rig.machine.holdings()] == [B]
    rig.do(Removed((B,)))
    assert rig.machine.holdings() == ()


def test_c4_an_object_that_is_relayed_is_retained() -> None:
    rig = fetching()
    landed(rig)
    effects = rig.assign(target(B, 2), order(B, parent=P), order(A))
    assert of(effects, Retain) == [Retain((A, B), ())]


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


# ---- disk ----------------------------------------------------------------------------------------------------------


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


def test_d6_a_target_withdrawn_while_landing_is_not_pulled_from_under_it() -> None:
    for outcome, dropped in ((Landed(A), []), (LandFailed(A, LocalFault.STORE, "EIO"), [DropObject(A)])):
        rig = fetching()
        rig.do(Progress(A, ALL, 8))
        rig.assign(target(root=ROOT_A), order(parent=P))
        assert of(rig.assign(), DropObject) == []
        assert of(rig.do(outcome), DropObject) == dropped


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
    rig.assign(target(), order(epoch=2, parent=F1))
    assert rig.do(FetchConnected(1)) == []
    rig.machine.handle(FetchEnded(1, Loss.BROKEN), rig.now)
    assert rig.fetch().source == F1
    assert rig.do(Progress("d" * 32, ALL, 8)) == []
