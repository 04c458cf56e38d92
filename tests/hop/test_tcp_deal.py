"""What is dealt to several connections of one child, and what becomes of it when one breaks."""

from __future__ import annotations

from typing import Any

from fakes import MemoryOrigin, token
from tcp_rig import payload_of

from chappe.hop.client import build_request
from chappe.hop.course import Carry, Course, Dry, Ended, Mark, Say
from chappe.hop.tcp_deal import Deal, Lane
from chappe.hop.turns import Turns
from chappe.v1.relay_pb2 import EndReason

CHUNKS = 6


class Outlet:
    """Its kernel has been given `given` bytes, of which `acknowledged` are at the child's."""

    def __init__(self) -> None:
        self.given: int | None = 0
        self.acknowledged = 0
        self.silent = 0
        self.broken_off = False

    def given_bytes(self) -> int | None:
        return self.given

    def acknowledged_bytes(self) -> int:
        return self.acknowledged

    def unanswered(self) -> int:
        return self.silent

    def break_off(self) -> None:
        self.broken_off = True


class Rig:
    def __init__(self, lanes: int = 2) -> None:
        source = MemoryOrigin(payload_of(CHUNKS))
        source.release()
        wanting = MemoryOrigin(b"")
        wanting.manifest, wanting.ledger.total = None, None
        request = build_request(wanting, 0, token("parent", "child"))
        request.lacks_header = False
        self.deal = Deal(Course(source, request), most=lanes)
        self.outlets: list[Any] = [Outlet() for _ in range(lanes)]
        self.lanes = [self.deal.join(outlet) for outlet in self.outlets]
        self.now = 0.0

    def step(self, lane: Lane) -> Any:
        """The next one that is no watermark; its pages are said."""
        while True:
            match self.deal.next(lane, self.now, lambda _: 2):
                case Mark():
                    continue
                case Say(replies):
                    list(replies)
                case Carry(pages, _) as carry:
                    list(pages)
                    return carry
                case step:
                    return step

    def send(self, lane: Lane, chunks: list[int]) -> None:
        """Each takes a byte."""
        for chunk in chunks:
            self.outlets[self.lanes.index(lane)].given += 1
            self.deal.written(lane, chunk)


def test_each_takes_the_next_ones_and_all_end_together() -> None:
    rig = Rig()
    a, b = rig.lanes
    assert rig.step(a).chunks == [0, 1]
    assert rig.step(b).chunks == [2, 3]
    assert rig.step(b).chunks == [4, 5]
    assert isinstance(rig.step(b), Dry)  # the first has not sent what it was dealt
    assert not rig.deal.idle(b)
    assert rig.step(a) == Ended(EndReason.END_REASON_COMPLETE)
    assert rig.step(b) == Ended(EndReason.END_REASON_COMPLETE)


def test_what_is_not_acknowledged_goes_on_another_first() -> None:
    rig = Rig()
    a, b = rig.lanes
    chunks = rig.step(a).chunks
    rig.send(a, chunks)
    assert rig.step(a).chunks == [2, 3]
    rig.send(a, [2])  # and 3 is in the middle
    rig.outlets[0].acknowledged = 2
    assert rig.deal.broke(a, None)
    assert rig.step(b).chunks == [2, 3]
    assert rig.step(b).chunks == [4, 5]
    assert rig.step(b) == Ended(EndReason.END_REASON_COMPLETE)


def test_where_the_kernel_does_not_say_only_what_is_in_the_middle_is_known_to_be_lost() -> None:
    rig = Rig()
    a, b = rig.lanes
    rig.outlets[0].given_bytes = lambda: None
    rig.deal.next(a, rig.now, lambda _: 2)
    assert rig.step(a).chunks == [0, 1]
    rig.deal.written(a, 0)
    assert rig.deal.broke(a, None)
    assert 1 in rig.step(b).chunks


def test_a_doubted_chunk_waits_until_it_has_been_looked_at() -> None:
    rig = Rig()
    a, b = rig.lanes
    assert rig.step(a).chunks == [0, 1]
    assert rig.deal.broke(a, 0)
    assert rig.step(b).chunks == [1]
    rig.deal.looked_at(0)
    assert rig.step(b).chunks == [0]


def test_nobody_says_that_all_is_sent_while_a_chunk_is_looked_at() -> None:
    rig = Rig()
    a, b = rig.lanes
    assert rig.step(a).chunks == [0, 1]
    while isinstance(rig.step(b), Carry):
        continue
    assert rig.deal.broke(a, 1)
    assert rig.step(b).chunks == [0]
    assert isinstance(rig.step(b), Dry)
    rig.deal.looked_at(1)
    assert rig.step(b).chunks == [1]
    assert rig.step(b) == Ended(EndReason.END_REASON_COMPLETE)


def test_who_waits_for_the_end_is_woken_by_it() -> None:
    rig = Rig()
    a, b = rig.lanes
    rig.step(a)
    while isinstance(rig.step(b), Carry):
        continue
    b.bell.wait(0.0)  # what has rung by now
    assert isinstance(rig.deal.next(a, rig.now + 1.0, lambda _: 2), Mark)  # between its last chunk and the end
    assert rig.step(a) == Ended(EndReason.END_REASON_COMPLETE)
    assert not b.bell._lock.locked()


def test_the_last_one_and_one_that_breaks_after_all_was_sent_give_nothing_back() -> None:
    rig = Rig()
    a, b = rig.lanes
    assert rig.step(a).chunks == [0, 1]
    assert rig.deal.broke(a, None)
    assert not rig.deal.broke(b, None)
    rig = Rig()
    a, b = rig.lanes
    while not isinstance(rig.step(a), Ended):
        continue
    assert not rig.deal.broke(b, None)


def look(rig: Rig, lane: Lane, *silent: int) -> list[bool]:
    for outlet, times in zip(rig.outlets, silent, strict=True):
        outlet.silent = times
    rig.now += 10.0
    rig.deal.next(lane, rig.now, lambda _: 2)
    return [outlet.broken_off for outlet in rig.outlets]


def test_a_silent_one_is_broken_off_by_another() -> None:
    rig = Rig()
    a, _ = rig.lanes
    assert look(rig, a, 0, 1) == [False, False]
    assert look(rig, a, 0, 3) == [False, False]
    assert look(rig, a, 0, 4) == [False, True]


def test_when_the_path_was_gone_none_is_broken_off_that_has_not_heard_yet_that_it_is_back() -> None:
    rig = Rig(3)
    a, b, _ = rig.lanes
    assert look(rig, a, 5, 5, 5) == [False] * 3
    assert look(rig, a, 0, 5, 5) == [False] * 3
    assert look(rig, a, 0, 6, 0) == [False] * 3
    assert look(rig, a, 0, 0, 0) == [False] * 3
    assert look(rig, b, 4, 0, 4) == [False] * 3
    assert look(rig, b, 0, 0, 6) == [False, False, True]


def test_the_weight_of_a_hop_is_the_hops() -> None:
    turns = Turns(8)
    one, several = turns.join(0.5, 0), [turns.join(0.5, 0)]
    several += [turns.join_beside(several[0]) for _ in range(3)]
    for share in several:
        assert turns.take(share, 2, lambda: None)
    for _ in range(4):
        assert turns.take(one, 2, lambda: None)
    assert {share.served for share in several} == {one.served}
    turns.leave(several[1])
    turns.leave(several[1])
    assert [several[i].part for i in (0, 2, 3)] == [0.5 / 3] * 3
