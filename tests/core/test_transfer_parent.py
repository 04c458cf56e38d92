"""What parents do to a relay: rows p of the list in chappe.core.transfer."""

from __future__ import annotations

import pytest
from relay_rig import (
    ALL,
    F1,
    F2,
    ROOT_A,
    A,
    P,
    Rig,
    fetching,
    lose,
    of,
    order,
    source,
    target,
)

from chappe.core.effects import Count
from chappe.core.events import HeldEdge, ObjectState
from chappe.core.reasons import ParentLossReason as Loss
from chappe.core.relay_events import (
    CloseFetch,
    DrainFetch,
    DropObject,
    EdgeOrder,
    FetchConnected,
    FetchEnded,
    Land,
    LocalFault,
    OpenFetch,
    Progress,
    ReportHolding,
    ReportLost,
    ResetObject,
    Tick,
)
from chappe.core.upstream import DRAIN_S


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
    assert of(effects, DrainFetch) == [DrainFetch(1)]
    assert of(effects, OpenFetch) == []
    effects = rig.do(FetchEnded(1, None, progressed=True))
    assert of(effects, OpenFetch)[0].source == F2
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
    for i in range(12):
        reported = of(lose(rig, reason), ReportLost)
        assert [e.reason for e in reported] == ([] if reason is Loss.EVICTED and i % 2 == 0 else [reason])  # row p14
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


@pytest.mark.parametrize("reason", [None, Loss.BROKEN, Loss.EVICTED, Loss.CORRUPT, Loss.STALLED, Loss.PROTOCOL])
def test_p13_however_a_parent_that_was_left_ends_it_is_not_blamed(reason: Loss | None) -> None:
    rig = fetching()
    rig.assign(target(), order(epoch=2, parent=F2))
    assert rig.machine.edges() == ()
    effects = rig.do(FetchEnded(1, reason, "it said so", (7,) if reason is Loss.CORRUPT else (), progressed=True))
    assert of(effects, ReportLost) == []
    (opened,) = of(effects, OpenFetch)
    assert (opened.source, opened.rejected) == (F2, ())


def test_p13_a_parent_that_was_left_and_does_not_end_is_not_waited_for() -> None:
    rig = fetching()
    rig.assign(target(), order(epoch=2, parent=F2))
    left_s = rig.now
    effects = rig.wait()
    assert rig.now - left_s == DRAIN_S
    assert of(effects, CloseFetch) == [CloseFetch(1)]
    assert of(effects, OpenFetch)[0].source == F2
    assert rig.do(FetchEnded(1, Loss.BROKEN)) == []


def test_p13_moved_again_while_the_first_parent_is_left() -> None:
    rig = fetching()
    rig.assign(target(), order(epoch=2, parent=F2))
    for epoch, parent in ((3, F1), (4, P), (5, F1)):
        effects = rig.assign(target(), order(epoch=epoch, parent=parent))
        assert of(effects, DrainFetch) + of(effects, CloseFetch) + of(effects, OpenFetch) == []
    assert of(rig.do(FetchEnded(1, None)), OpenFetch)[0].source == F1


def test_p13_what_is_on_its_way_may_be_all_that_lacked() -> None:
    rig = fetching()
    rig.assign(target(), order(epoch=2, parent=F2))
    rig.do(Progress(A, ALL, 8))
    assert not rig.open
    assert not rig.draining
    assert of(rig.do(FetchEnded(1, None)), OpenFetch) == []


@pytest.mark.parametrize("order_of_nobody", [order(epoch=3), None])
def test_p13_without_a_parent_nothing_is_left_to_wait_for(order_of_nobody: EdgeOrder | None) -> None:
    rig = fetching()
    rig.assign(target(), order(epoch=2, parent=F2))
    effects = rig.assign() if order_of_nobody is None else rig.assign(target(), order_of_nobody)
    assert of(effects, CloseFetch) == [CloseFetch(1)]
    assert not rig.draining


def test_p13_one_that_has_not_answered_yet_is_left_at_once() -> None:
    rig = Rig()
    rig.assign(target(), order(parent=P))
    effects = rig.assign(target(), order(epoch=2, parent=F2))
    assert [type(e) for e in effects if isinstance(e, OpenFetch | CloseFetch)] == [CloseFetch, OpenFetch]


def test_p13_a_disk_that_fills_up_meanwhile_is_a_full_disk() -> None:
    rig = fetching()
    rig.assign(target(), order(epoch=2, parent=F2))
    effects = rig.do(FetchEnded(1, LocalFault.DISK_FULL, "no room"))
    assert [r.holding.state for r in of(effects, ReportHolding)] == [ObjectState.DISK_FULL]
    assert of(effects, OpenFetch) == []
    assert of(rig.wait(), OpenFetch)[0].source == F2


def test_p14_who_was_replaced_hears_of_the_move_before_it_complains() -> None:
    rig = fetching()
    assert of(lose(rig, Loss.EVICTED, progressed=True), ReportLost) == []
    assert of(rig.assign(target(), order(epoch=2, parent=F2)), OpenFetch)[0].source == F2
