"""Who joins while deltas travel, or after them: the full object from those that have made it, not from the origin.

| happens                                                   | then |
|-----------------------------------------------------------|------|
| a joiner, and somebody has applied the delta              | it is fed by that one, the fastest of them |
| a second joiner                                           | behind the first |
| the one that feeds it goes                                | another one that has it; without one, the origin |
| one that is landing the base when the new one is offered  | lands it, and takes the delta then |
| ... and cannot land it                                    | the full object |
| ... and lacks room for it                                 | the new one as if it had nothing on its way |
| one that gets it in full lacks room                       | the publisher does not wait for it: others have it |
| one that is receiving the base                            | the same, if less is left than nearly a new version |
| ... and its publisher has gone, nobody has all            | a delta from what it has |
| payload delta: a joiner between acceptance and offer      | not waited for; fed once somebody has the full object |
| payload delta: a joiner while the delta travels           | the same |
| payload delta: one of those it is for cannot apply it     | waited for; from somebody who could, else the origin |
| payload delta: none can                                   | all in full from the origin, the joiner too |
| payload delta: the delta is not made                      | the publication fails and says why |
| payload delta: whoever held the base has gone             | the publication fails and says why |
| payload delta: the coordinator restarts                   | as before |
"""

from __future__ import annotations

import pytest
from lane_rig import BASE, DELTA, DELTA_CHUNKS, FULL, FULL_CHUNKS, OLD, ROOT, Rig, of

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.events import ObjectState, Payload, Role
from chappe.core.publication import Phase


def parent(rig: Rig, name: str, object_id: str = FULL) -> str:
    told = rig.fleet.assignment(name)
    assert told is not None
    (edge,) = [edge for edge in told[1] if edge.object_id == object_id]
    return "" if edge.parent is None else edge.parent.worker_id


def served_by_origin(rig: Rig, object_id: str) -> set[str]:
    told = rig.fleet.assignment("o")
    assert told is not None
    return {slot.child.worker_id for edge in told[1] if edge.object_id == object_id for slot in edge.children}


def test_a_joiner_is_fed_by_one_that_made_the_object() -> None:
    rig = Rig("abc")
    rig.open()
    for name in "abc":
        rig.applies(name)
    rig.join("x")
    assert parent(rig, "x") == "a"
    rig.join("y")
    assert parent(rig, "y") == "x"
    assert served_by_origin(rig, FULL) == set()
    rig.do(ev.SessionLost("a", rig.sessions.pop("a")))
    rig.wait(3, silent="")
    assert parent(rig, "x") == "b"
    for name in "bc":
        rig.do(ev.SessionLost(name, rig.sessions.pop(name)))
    rig.wait(8, silent="")
    assert parent(rig, "x") == "o"
    rig.holds("x", FULL, ObjectState.INSTALLED, FULL_CHUNKS)
    rig.holds("y", FULL, ObjectState.INSTALLED, FULL_CHUNKS)
    assert rig.main.finished


def only_deltas(with_base: str) -> Rig:
    rig = Rig(with_base)
    assert of(rig.publish(Payload.DELTA), fx.PublishAccepted)
    return rig


def test_payload_delta_and_a_joiner_before_the_offer() -> None:
    rig = only_deltas("ab")
    rig.join("x")
    rig.offer_full()
    assert (rig.main.targeted, rig.main.members["x"].targeted) == (2, False)
    assert parent(rig, "x") == ""
    assert served_by_origin(rig, FULL) == set()
    rig.announce()
    rig.offer_delta()
    rig.applies("b")
    assert parent(rig, "x") == "b"
    rig.applies("a")
    assert (rig.main.phase, rig.main.finished, rig.main.installed) == (Phase.CLOSED, True, 2)
    assert served_by_origin(rig, FULL) == set()
    rig.holds("x", FULL, ObjectState.INSTALLED, FULL_CHUNKS)
    assert rig.main.installed == 2


def test_payload_delta_and_joiners_while_it_travels() -> None:
    rig = only_deltas("ab")
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.join("x")
    rig.join("c", [BASE])
    assert rig.places() == ("x", "abc")
    assert rig.main.targeted == 3
    rig.restart_coordinator({"a": [BASE], "b": [BASE], "c": [BASE], "x": []})
    assert rig.places() == ("x", "abc")
    assert served_by_origin(rig, FULL) == set()
    rig.applies("c")
    assert parent(rig, "x") == "c"
    rig.do(ev.SessionLost("c", rig.sessions.pop("c")))
    for name in "ab":
        rig.applies(name)
    rig.wait(8, silent="")
    assert rig.main.finished
    assert parent(rig, "x") in ("a", "b")


def cannot(rig: Rig, name: str) -> None:
    rig.holds(name, DELTA, ObjectState.RECEIVED, DELTA_CHUNKS)
    rig.holds(name, DELTA, ObjectState.FAILED, DELTA_CHUNKS, "block 3 does not come out")


def test_payload_delta_and_one_that_cannot_apply_it() -> None:
    rig = only_deltas("ab")
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.applies("a")
    cannot(rig, "b")
    assert parent(rig, "b") == "a"
    assert (rig.main.targeted, rig.main.phase) == (2, Phase.OPEN)
    rig.holds("b", FULL, ObjectState.INSTALLED, FULL_CHUNKS)
    assert rig.main.phase is Phase.CLOSED


def test_payload_delta_and_none_can_apply_it() -> None:
    rig = only_deltas("ab")
    rig.join("x")
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    cannot(rig, "a")
    cannot(rig, "b")
    assert rig.stand_in(FULL) == "abx"
    assert served_by_origin(rig, FULL)


def test_payload_delta_that_is_not_made() -> None:
    rig = only_deltas("ab")
    rig.offer_full()
    effects = rig.do(ev.SourceFailed("o", 1, DELTA, "no delta: no room"))
    (refused,) = of(effects, fx.RequestRefused)
    assert isinstance(refused, fx.RequestRefused)
    assert "payload delta: no delta: no room" in refused.message
    assert rig.main.phase is Phase.FAILED


def test_payload_delta_and_whoever_held_the_base_has_gone() -> None:
    rig = only_deltas("a")
    rig.join("x")
    rig.do(ev.SessionLost("a", rig.sessions.pop("a")))
    rig.wait(8, silent="")
    rig.offer_full()
    assert (rig.main.phase, rig.main.reason) == (
        Phase.FAILED,
        "payload delta: nobody who holds a base is here any more",
    )


NEW, NEW_ROOT, NEW_DELTA, NEW_FOLDED = "e" * 32, "xxh3_128:" + "2" * 32, "e1" * 16, "e2" * 16


def publish_third(rig: Rig, *, folded: bool = False, origin: str = "o") -> None:
    """Version 3, with a delta from version 2, and from what was before it."""
    deltas = (ev.DeltaFrom(ROOT, NEW_DELTA), *([ev.DeltaFrom(OLD, NEW_FOLDED)] if folded else []))
    rig.do(ev.PublishRequested(2, origin, NEW, 3, 1.0, ev.Topology.CHAINS, 0, 1000, 0.0, deltas=deltas))
    rig.do(ev.Offered(origin, 1, NEW, 3, "full", 1_000_000, 1_000_000, FULL_CHUNKS))
    rig.do(ev.RootAnnounced(origin, 1, NEW, NEW_ROOT))
    for object_id in (NEW_DELTA, NEW_FOLDED) if folded else (NEW_DELTA,):
        rig.do(ev.Offered(origin, 1, object_id, 3, "delta", 10_000, 1_000_000, DELTA_CHUNKS, changed_elements=5))


def test_one_that_is_landing_the_base_takes_the_delta_then() -> None:
    for lands in (True, False):
        rig = Rig("ab")
        rig.open()
        rig.holds("a", DELTA, ObjectState.RECEIVED, DELTA_CHUNKS)
        publish_third(rig)  # a lands, b has not begun
        assert (rig.stand_in(NEW), rig.stand_in(NEW_DELTA)) == ("", "")
        if lands:
            rig.applies("a")
            assert (rig.stand_in(NEW), rig.stand_in(NEW_DELTA)) == ("", "a")
        else:
            cannot(rig, "a")
            assert "a" in rig.stand_in(FULL)
            rig.holds("a", FULL, ObjectState.INSTALLED, FULL_CHUNKS)
            assert rig.stand_in(NEW_DELTA) == "a"
        rig.applies("b")
        assert (rig.stand_in(NEW), rig.stand_in(NEW_DELTA)) == ("", "ab")


@pytest.mark.parametrize("before", [True, False])
def test_one_whose_disk_is_full_under_the_base_does_not_wait_for_it(before: bool) -> None:
    """There may never be room for it; its status says that it lacks room, not that it finishes something first."""
    rig = Rig("ab")
    rig.open()
    rig.applies("b")
    rig.holds("a", DELTA, ObjectState.RECEIVED, DELTA_CHUNKS)
    if not before:
        publish_third(rig)
        assert (rig.stand_in(NEW), rig.stand_in(NEW_DELTA)) == ("", "b")
    rig.holds("a", DELTA, ObjectState.DISK_FULL, DELTA_CHUNKS, "12 GB short")
    if before:
        publish_third(rig)
    assert (rig.stand_in(NEW), rig.stand_in(NEW_DELTA)) == ("a", "b")


def test_one_whose_disk_is_full_under_the_base_gets_a_delta_from_what_it_has() -> None:
    rig = Rig("ab")
    rig.open()
    rig.applies("b")
    rig.holds("a", DELTA, ObjectState.RECEIVED, DELTA_CHUNKS)
    rig.holds("a", DELTA, ObjectState.DISK_FULL, DELTA_CHUNKS, "12 GB short")
    publish_third(rig, folded=True)
    assert (rig.stand_in(NEW), rig.stand_in(NEW_DELTA), rig.stand_in(NEW_FOLDED)) == ("", "b", "a")


def test_the_publisher_does_not_wait_for_one_in_full_that_has_no_room() -> None:
    rig = Rig("ab", "x")
    rig.do(
        ev.PublishRequested(
            1, "o", FULL, 2, 0.6, ev.Topology.CHAINS, 0, 1_000_000, 0.0, deltas=(ev.DeltaFrom(OLD, DELTA),)
        )
    )
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.holds("x", FULL, ObjectState.DISK_FULL, 0, "12 GB short")
    finished: list[fx.Effect] = []
    for name in "ab":
        assert not finished
        for object_id, state, chunks in (
            (DELTA, ObjectState.RECEIVED, DELTA_CHUNKS),
            (FULL, ObjectState.INSTALLED, FULL_CHUNKS),
            (DELTA, ObjectState.INSTALLED, DELTA_CHUNKS),
        ):
            rig.holds(name, object_id, state, chunks)
            finished += of(rig.effects, fx.PublishFinished)
    assert len(finished) == 1
    rig.do(ev.LeaveRequested("o", 1))
    assert parent(rig, "x") in "ab"


def test_one_that_is_receiving_the_base_in_full_finishes_it_unless_it_has_just_begun() -> None:
    rig = Rig("a", "xy")
    rig.open()
    rig.applies("a")
    rig.holds("x", FULL, ObjectState.RECEIVING, 20)
    rig.holds("y", FULL, ObjectState.RECEIVING, 5)
    publish_third(rig)
    assert (rig.stand_in(NEW), rig.stand_in(NEW_DELTA)) == ("y", "a")
    assert "x" in rig.stand_in(FULL)
    rig.holds("x", FULL, ObjectState.RECEIVED, FULL_CHUNKS)
    assert rig.stand_in(NEW_DELTA) == "a"
    rig.holds("x", FULL, ObjectState.VERIFIED, FULL_CHUNKS)
    assert (rig.stand_in(NEW), rig.stand_in(NEW_DELTA)) == ("y", "ax")


def test_one_whose_publisher_was_killed_under_the_base_gets_a_delta_from_what_it_has() -> None:
    """Another process of it publishes: what it kept leads from the version before, too."""
    for landed in (False, True):
        rig = Rig("ab")
        rig.open()
        for name in "ab":
            rig.holds(name, DELTA, ObjectState.RECEIVING, DELTA_CHUNKS // 2)
        if landed:
            rig.applies("b")  # and feeds the other one
        rig.do(ev.SessionLost("o", 1))
        rig.wait(2.0)
        rig.do(ev.Hello("o2", 1, Role.ORIGIN, "o2", 1, "h:1", uplink_bytes_per_s=50e6))
        publish_third(rig, folded=True, origin="o2")
        where = [rig.stand_in(i) for i in (NEW, NEW_DELTA, NEW_FOLDED)]
        assert where == (["", "b", ""] if landed else ["", "", "ab"])
        if landed:
            rig.applies("a")
            assert rig.stand_in(NEW_DELTA) == "ab"


def test_a_joiner_that_can_be_dialled_is_fed_by_one_that_cannot() -> None:
    """It pushes. The origin is spared, and nobody else has the full object."""
    rig = Rig("a")
    rig.do(ev.DialedBack("a", rig.sessions["a"], False))
    rig.publish(Payload.DELTA)
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.applies("a")
    rig.join("c")
    rig.do(ev.DialedBack("c", rig.sessions["c"], True))
    assert parent(rig, "c") == "a"
