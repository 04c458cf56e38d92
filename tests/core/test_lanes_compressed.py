"""The compressed snapshot as one more object of a version. See `chappe.core.lanes`.

| happens                                            | then |
|----------------------------------------------------|------|
| it saves more on the links than it costs           | all without a base wait for it, and the reason says so |
| it costs more                                      | the full object, and the reason says so |
| it was asked for                                   | it is sent, whatever it costs |
| some prove a base                                  | they get the delta, the others the compressed one |
| somebody joins meanwhile                           | gets the compressed one, too |
| a worker cannot make the version of it             | that one gets the full object |
| it is not made, or another kind is offered for it  | all who waited get the full object |
| its publisher goes before it is made               | likewise, or the publication fails without the root |
| the coordinator restarts                           | nobody is moved |
"""

from __future__ import annotations

import pytest
from lane_rig import BASE, COMPRESSED, DELTA, DELTA_CHUNKS, FULL, OLD, Rig, of

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.events import ObjectState, Payload
from chappe.core.status import publication_view

QUICK = ev.Compressed(COMPRESSED, 690_000, 1e9, 1e9)
SLOW = ev.Compressed(COMPRESSED, 690_000, 1e6, 1e9)


def reason(rig: Rig) -> str:
    return publication_view(rig.fleet.state, rig.main, "run", rig.now).payload_reason


def test_all_wait_for_it_where_it_is_sooner() -> None:
    rig = Rig("", "abc")
    (accepted,) = of(rig.publish(bases=(), compressed=QUICK), fx.PublishAccepted)
    assert isinstance(accepted, fx.PublishAccepted)
    assert (accepted.base_roots, accepted.compressed) == ((), True)
    # 0.31 MB less at 12.5 MB/s, the assumed downlink, are 25 ms; encoding and decoding keep up
    assert reason(rig) == "none; compressed: 0.0248 s less on the links, 0 s more for encoding and decoding"
    rig.offer_full()
    rig.announce()
    assert rig.stand_in(FULL) == ""
    rig.offer_compressed()
    assert (rig.stand_in(FULL), rig.stand_in(COMPRESSED)) == ("", "abc")
    for name in "abc":
        rig.applies(name, COMPRESSED)
    view = publication_view(rig.fleet.state, rig.main, "run", rig.now)
    assert (view.kind, view.payload_bytes, view.installed) == ("full-compressed", 690_000, 3)
    assert [(one.kind, one.base_root, one.alarm) for one in view.payloads] == [("full-compressed", "", "")]
    assert view.state == "closed"


def test_not_where_it_costs_more() -> None:
    rig = Rig("", "abc")
    (accepted,) = of(rig.publish(bases=(), compressed=SLOW), fx.PublishAccepted)
    assert isinstance(accepted, fx.PublishAccepted)
    assert not accepted.compressed
    assert "not compressed: 0.0248 s less on the links, 0.945 s more" in reason(rig)
    rig.offer_full()
    assert rig.stand_in(FULL) == "abc"
    rig.offer_compressed()  # nobody asked for it
    assert rig.stand_in(COMPRESSED) == ""


def test_what_was_asked_for_is_sent() -> None:
    rig = Rig("a", "bc")
    rig.publish(Payload.COMPRESSED, bases=(), compressed=SLOW)
    rig.offer_full()
    rig.offer_compressed()
    assert rig.stand_in(COMPRESSED) == "abc"
    assert "as was asked for" in reason(rig)


def test_deltas_to_those_with_a_base_and_a_joiner() -> None:
    rig = Rig("ab", "xy")
    (accepted,) = of(rig.publish(compressed=QUICK), fx.PublishAccepted)
    assert isinstance(accepted, fx.PublishAccepted)
    assert (accepted.base_roots, accepted.compressed) == ((OLD,), True)
    assert reason(rig).startswith("2 of 4 workers hold the base; compressed: ")
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.offer_compressed()
    assert (rig.stand_in(FULL), rig.stand_in(DELTA), rig.stand_in(COMPRESSED)) == ("", "ab", "xy")
    rig.join("z")
    rig.join("c", [BASE])
    assert (rig.stand_in(DELTA), rig.stand_in(COMPRESSED)) == ("abc", "xyz")
    rig.holds("x", COMPRESSED, ObjectState.FAILED, DELTA_CHUNKS, "block 3 does not come out")
    assert (rig.stand_in(FULL), rig.stand_in(COMPRESSED)) == ("x", "yz")
    rig.holds("a", DELTA, ObjectState.FAILED, DELTA_CHUNKS, "the base is not what it was")
    assert (rig.stand_in(FULL), rig.stand_in(DELTA), rig.stand_in(COMPRESSED)) == ("ax", "bc", "yz")


def test_all_hold_the_base_and_nothing_is_said_of_compressing() -> None:
    rig = Rig("ab")
    (accepted,) = of(rig.publish(compressed=QUICK), fx.PublishAccepted)
    assert isinstance(accepted, fx.PublishAccepted)
    assert (accepted.base_roots, accepted.compressed) == ((OLD,), False)
    assert reason(rig) == "2 of 2 workers hold the base"


@pytest.mark.parametrize("offered", [False, True])
def test_it_does_not_come(offered: bool) -> None:
    rig = Rig("", "abc")
    rig.publish(bases=(), compressed=QUICK)
    rig.offer_full()
    rig.announce()
    if offered:
        rig.offer_compressed()
    rig.do(ev.SourceFailed("o", 1, COMPRESSED, "no room"))
    assert rig.stand_in(FULL) == "abc"


def test_another_kind_in_its_place_is_not_taken() -> None:
    rig = Rig("", "ab")
    rig.publish(bases=(), compressed=QUICK)
    rig.offer_full()
    rig.offer_compressed("delta")
    assert rig.stand_in(COMPRESSED) == ""
    rig.do(ev.SourceFailed("o", 1, COMPRESSED, "not wanted"))
    assert rig.stand_in(FULL) == "ab"


def test_its_publisher_goes_before_it_is_made() -> None:
    rig = Rig("", "ab")
    rig.publish(bases=(), compressed=QUICK)
    rig.offer_full()
    rig.do(ev.SessionLost("o", 1))
    rig.wait(20)
    assert rig.main.phase.value == "failed"


def test_a_restart_of_the_coordinator_moves_nobody() -> None:
    rig = Rig("", "ab")
    rig.publish(bases=(), compressed=QUICK)
    rig.offer_full()
    rig.announce()
    rig.offer_compressed()
    before = rig.main.deltas
    rig.restart_coordinator({"a": [], "b": []})
    assert rig.main.deltas == before == {COMPRESSED: ""}
    assert rig.stand_in(COMPRESSED) == "ab"


def test_its_object_must_be_its_own() -> None:
    rig = Rig("", "a")
    for object_id in (FULL, DELTA):
        event = ev.Compressed(object_id, 690_000, 1e9, 1e9)
        (refused,) = of(rig.publish(compressed=event), fx.RequestRefused)
        assert isinstance(refused, fx.RequestRefused)
        assert "is known already" in refused.message
