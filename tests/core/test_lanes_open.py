"""A lane whose object is still being made: nobody knows how much it has before its origin says it.

| happens                                              | then |
|------------------------------------------------------|------|
| it is offered before the root is known               | laid at once; the root reaches it, too |
| some have all of it before the coordinator hears     | taken by their word; what they say is compared later |
| a worker says another end than the origin            | it gets the full object, the others are left alone |
| all have installed before the end was told           | the caller waits for it: what was sent is not known |
| ... and the origin is gone for good, or failed       | the caller waits for nobody |
| its making fails in the middle                       | all who waited get the full object |
| the origin goes before its root, or with it          | the publication fails / those who lack it get the full object |
| the coordinator restarts, before and after           | the origin offers it again, nobody is moved |
| a joiner                                             | gets it like any other |
| it is offered as open again, or otherwise, later     | not heard |
"""

from __future__ import annotations

import pytest
from lane_rig import BASE, COMPRESSED, DELTA, FULL, ROOT, SNAPSHOT_BYTES, Rig, of

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.events import Holding, ObjectState
from chappe.core.status import publication_view

EXPECTED, REAL = (9_000, 3), (10_500, 5)


class OpenRig(Rig):
    def __init__(self, with_base: str, without: str = "") -> None:
        super().__init__(with_base, without)
        self.publish()
        self.offer_full()
        self.offer_open()

    def offer_open(self, size: tuple[int, int] = EXPECTED) -> None:
        self.do(ev.Offered("o", 1, DELTA, 2, "delta", size[0], SNAPSHOT_BYTES, size[1], open_end=True))

    def offer_closed(self, size: tuple[int, int] = REAL, session: int = 1) -> list[fx.Effect]:
        return self.do(
            ev.Offered(
                "o",
                session,
                DELTA,
                2,
                "delta",
                size[0],
                SNAPSHOT_BYTES,
                size[1],
                changed_elements=10,
                compared_elements=1000,
            )
        )

    def says(self, name: str, chunks: int, total: int | None, state: ObjectState = ObjectState.RECEIVING) -> None:
        landed = state is ObjectState.INSTALLED
        holding = Holding(DELTA, state, 2 if landed else 0, ROOT if landed else "", ((0, chunks),), total)
        self.do(ev.HoldingChanged(name, self.sessions[name], holding))

    def installs(self, name: str) -> None:
        self.says(name, REAL[1], REAL[1], ObjectState.RECEIVED)
        self.says(name, REAL[1], REAL[1], ObjectState.INSTALLED)
        self.holds(name, FULL, ObjectState.INSTALLED, 100)

    def level(self, name: str) -> int:
        return self.main.members[name].level

    def shown(self) -> tuple[str, int]:
        view = publication_view(self.fleet.state, self.main, "run", self.now)
        return view.state, view.payload_bytes


def finished(effects: list[fx.Effect]) -> bool:
    return bool(of(effects, fx.PublishFinished))


def test_it_is_laid_at_once_and_gets_the_root() -> None:
    rig = OpenRig("ab")
    assert rig.stand_in(DELTA) == "ab"
    assert rig.lane is not None
    assert (rig.lane.root, rig.lane.open_end, rig.shown()[1]) == ("", True, EXPECTED[0])
    rig.says("a", 2, None)
    assert rig.level("a") == 0
    rig.announce()
    assert rig.lane.root == ROOT
    rig.says("a", 4, None)  # more than was expected
    rig.says("b", 3, None)
    rig.offer_closed()
    assert (rig.lane.open_end, rig.shown()) == (False, ("open", REAL[0]))
    assert (rig.lane.changed_elements, rig.lane.compared_elements) == (10, 1000)
    for name in "ab":
        rig.installs(name)
    assert rig.shown() == ("closed", REAL[0])


def test_words_are_taken_first_and_compared_later() -> None:
    rig = OpenRig("abc")
    rig.announce()
    rig.says("a", 5, 5, ObjectState.RECEIVED)
    rig.says("b", 2, 2, ObjectState.RECEIVED)  # a liar, or the child of one
    rig.says("c", 4, None)
    assert [rig.level(name) for name in "abc"] == [1, 1, 0]
    rig.offer_closed()
    assert [rig.level(name) for name in "abc"] == [1, 0, 0]
    assert (rig.stand_in(DELTA), rig.stand_in(FULL)) == ("ac", "b")
    assert rig.fleet.state.workers["b"].holdings[DELTA].reason == "reports 2 chunks, the object has 5"
    rig.says("c", 5, 5, ObjectState.RECEIVED)
    assert rig.level("c") == 1


def test_the_caller_waits_for_what_it_is_told() -> None:
    rig = OpenRig("ab")
    rig.announce()
    for name in "ab":
        rig.installs(name)
        assert not finished(rig.effects)
    assert rig.main.installed == 2
    effects = rig.offer_closed()
    assert finished(effects)
    assert rig.shown() == ("closed", REAL[0])


@pytest.mark.parametrize("how", ["leaves", "fails", "lapses"])
def test_the_caller_does_not_wait_for_an_origin_that_cannot_tell(how: str) -> None:
    rig = OpenRig("a")
    rig.announce()
    rig.installs("a")
    if how == "lapses":
        rig.do(ev.SessionLost("o", 1))
        rig.wait(8.0)
    elif how == "leaves":
        rig.do(ev.LeaveRequested("o", 1))
    else:
        rig.do(ev.SourceFailed("o", 1, DELTA, "its file is gone"))
    assert rig.main.finished


def test_its_making_fails_in_the_middle() -> None:
    rig = OpenRig("ab")
    rig.announce()
    rig.says("a", 3, None)
    rig.do(ev.SourceFailed("o", 1, DELTA, "a delta from it has more than 85% of the bytes"))
    assert (rig.stand_in(DELTA), rig.stand_in(FULL)) == ("", "ab")
    assert rig.main.payload_reason == "2 of 2 workers hold the base; a delta from it has more than 85% of the bytes"
    assert rig.targets("a") == {FULL}
    rig.offer_closed()  # in its way already
    assert (rig.stand_in(DELTA), rig.stand_in(FULL)) == ("", "ab")
    for name in "ab":
        rig.holds(name, FULL, ObjectState.INSTALLED, 100)
    assert rig.main.finished


def test_the_origin_goes_before_the_root() -> None:
    rig = OpenRig("ab")
    rig.says("a", 3, None)
    rig.do(ev.LeaveRequested("o", 1))
    assert rig.shown()[0] == "failed"
    assert rig.targets("a") == set()


def test_the_origin_goes_with_a_root_and_half_of_it() -> None:
    rig = OpenRig("ab")
    rig.announce()
    rig.installs("a")  # it got the last page, the coordinator did not hear of it
    rig.says("b", 3, None)
    rig.do(ev.LeaveRequested("o", 1))
    assert rig.targets("b") in ({DELTA}, {FULL})
    assert rig.fleet.state.publications[FULL].active
    rig.installs("b")
    assert rig.main.finished


@pytest.mark.parametrize("closed", [False, True])
def test_the_coordinator_restarts(closed: bool) -> None:
    rig = OpenRig("ab")
    rig.announce()
    if closed:
        rig.offer_closed()
    total = 5 if closed else None
    half = Holding(DELTA, ObjectState.RECEIVING, 0, "", ((0, 3),), total)
    rig.restart_coordinator({"a": [BASE, half], "b": [BASE, half]})
    assert rig.lane is not None
    assert rig.lane.open_end is not closed
    assert rig.stand_in(DELTA) == "ab"
    rig.offer_full(root=ROOT)  # of the old session: nobody hears it
    rig.do(ev.Offered("o", 2, FULL, 2, "full", SNAPSHOT_BYTES, SNAPSHOT_BYTES, 100, ROOT))
    rig.offer_closed(session=2)
    for name in "ab":
        rig.installs(name)
    assert rig.shown() == ("closed", REAL[0])
    assert rig.stand_in(FULL) == ""


def test_a_joiner() -> None:
    rig = OpenRig("a")
    rig.announce()
    rig.join("j", [BASE])
    assert rig.stand_in(DELTA) == "aj"
    rig.says("j", 5, 5, ObjectState.RECEIVED)
    rig.offer_closed()
    assert rig.level("j") == 1


def test_what_is_offered_is_not_taken_back() -> None:
    rig = OpenRig("a")
    rig.announce()
    rig.offer_closed()
    rig.offer_open()
    rig.offer_closed((20_000, 9))
    assert rig.shown()[1] == REAL[0]
    assert rig.lane is not None
    assert rig.lane.chunks_total == REAL[1]


def test_of_the_compressed_one() -> None:
    rig = Rig("", "ab")
    rig.publish(bases=(), compressed=ev.Compressed(COMPRESSED, 690_000, 1e9, 1e9))
    rig.offer_full()
    rig.do(ev.Offered("o", 1, COMPRESSED, 2, "full-compressed", 690_000, SNAPSHOT_BYTES, 4, open_end=True))
    assert (rig.stand_in(FULL), rig.stand_in(COMPRESSED)) == ("", "ab")
    rig.announce()
    rig.do(ev.Offered("o", 1, COMPRESSED, 2, "full-compressed", 701_234, SNAPSHOT_BYTES, 4))
    for name in "ab":
        rig.applies(name, COMPRESSED)
    view = publication_view(rig.fleet.state, rig.main, "run", rig.now)
    assert (view.kind, view.payload_bytes, view.state) == ("full-compressed", 701_234, "closed")
