"""Who gets a version as a delta and who in full, whatever happens to either. Invariants are checked after every event.

| happens                                             | then |
|-----------------------------------------------------|------|
| all prove the base                                  | nobody has a place in the full object's chains |
| some do                                             | each kind has its own chains, within the streams of B0 |
| payload delta, and one lacks the base, or no base   | refused, by name |
| the delta is not made                               | those that waited get the full object |
| a worker cannot apply it                            | that one gets the full object, and no delta again |
| the publisher goes before the delta is offered      | as when it is not made |
| the publisher goes, nobody holds all of the delta   | the full object, when somebody has it |
| the publisher goes, a relay holds all of the delta  | it feeds the others |
| a joiner without the base, the publisher gone       | from one that got the delta |
| a joiner with the base                              | the delta |
| a newer version                                     | both objects yield together |
| cancelled                                           | both end |
| the coordinator restarts                            | nobody is moved |
| a newer version, while somebody finishes a lane     | the version is retired when its lanes are |
| the newer version fails after that                  | the lane stays retired, the full object goes on |
| deltas only, and B0 is measured a little lower      | as many chains as before |
| nobody with the delta can dial one behind NAT       | somebody with the full object feeds it |
| one that has the full object is leaving             | it is given nobody to feed |
| all have left a lane                                | it keeps no fleet from being probed |
| places are given anew, one has all of the delta     | it stays in the lane |
| one that nobody can reach waits for the full object | it is fed by the first that can be dialled and has landed |
"""

from __future__ import annotations

from lane_rig import BASE, DELTA, DELTA_CHUNKS, FULL, FULL_CHUNKS, OLD, ROOT, SNAPSHOT_BYTES, Rig, of

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.events import Holding, ObjectState, Payload
from chappe.core.laying import NOBODY
from chappe.core.publication import Phase, Publication
from chappe.core.status import publication_view

NEWER = "e" * 32


def test_all_prove_the_base() -> None:
    rig = Rig("abc")
    assert of(rig.publish(), fx.PublishAccepted) == [fx.PublishAccepted(1, 2, 131072, base_roots=(OLD,))]
    rig.offer_full()
    assert rig.places() == ("", "")
    assert rig.main.grounds.why == NOBODY
    assert rig.targets("a") == set()
    rig.announce()
    rig.offer_delta()
    assert rig.places() == ("", "abc")
    assert rig.targets("a") == {DELTA}
    assert rig.targets("o") == {FULL, DELTA}
    for name in "abc":
        assert not of(rig.effects, fx.PublishFinished)
        rig.applies(name)
    assert (rig.main.phase, rig.main.installed) == (Phase.CLOSED, 3)
    assert rig.lane is not None
    assert rig.lane.phase is Phase.CLOSED
    view = publication_view(rig.fleet.state, rig.main, "run", rig.now)
    assert (view.kind, view.payload_bytes, view.targeted, view.installed) == ("delta", 10_000, 3, 3)
    assert [(p.kind, p.targeted, p.changed_elements) for p in view.payloads] == [("delta", 3, 5)]
    assert sorted(name for chain in view.chains for name in chain.names) == ["a", "b", "c"]
    assert view.floor_s is not None
    rig.do(ev.SourceFailed("o", 1, FULL, "it lets its copy go"))
    assert [log.event for log in of(rig.effects, fx.Log)] == ["source_left"]  # as after every version: no failure


def test_as_many_chains_as_the_delta_before() -> None:
    """By lanes: the publications of the versions themselves have nobody in their chains."""
    rig = Rig("abcdefgh")
    rig.open()
    assert rig.lane is not None
    assert len(rig.lane.layout.chains) == 4  # 50 MB/s over the assumed 12.5
    for name in "abcdefgh":
        rig.applies(name)
    origin = rig.fleet.state.workers["o"]
    newer, newer_delta = "e" * 32, "e1" * 16

    def publish(b0: float, version: int, root: str) -> int:
        origin.links.up.settle(b0, rig.now)
        objects = newer[:-1] + str(version), newer_delta[:-1] + str(version)
        deltas = (ev.DeltaFrom(root, objects[1]),)
        rig.do(
            ev.PublishRequested(
                version, "o", objects[0], version, 1.0, ev.Topology.CHAINS, 0, 10**6, 0.0, Payload.AUTO, deltas
            )
        )
        rig.offer_full(objects[0], version)
        rig.do(ev.RootAnnounced("o", 1, objects[0], f"xxh3_128:{version:032x}"))
        rig.do(ev.Offered("o", 1, objects[1], version, "delta", 10_000, SNAPSHOT_BYTES, DELTA_CHUNKS))
        lane = rig.fleet.state.publications[objects[1]]
        assert "".join(sorted(lane.layout.workers())) == "abcdefgh"
        return len(lane.layout.chains)

    assert publish(46e6, 3, ROOT) == 4  # floor(1.05 x 3.68) would be 3


def test_each_kind_has_its_own_chains() -> None:
    rig = Rig("abcd", "xyz")
    rig.open()
    assert rig.places() == ("xyz", "abcd")
    assert rig.lane is not None
    streams = sum(bool(c.members) for p in (rig.main, rig.lane) for c in p.layout.chains)
    assert streams <= 50e6 / 12.5e6  # of B0 at the assumed rate
    view = publication_view(rig.fleet.state, rig.main, "run", rig.now)
    assert (view.kind, view.payload_bytes) == ("mixed", 1_000_000)
    assert {p.kind: p.targeted for p in view.payloads} == {"full": 3, "delta": 4}
    for name in "abcd":
        rig.applies(name)
    assert rig.main.installed == 4  # nobody waits for the other kind
    for name in "xyz":
        rig.holds(name, FULL, ObjectState.INSTALLED, FULL_CHUNKS)
    assert of(rig.effects, fx.PublishFinished)


def test_a_delta_that_was_insisted_on_is_refused_by_name() -> None:
    (refused,) = of(Rig("ab", "xy").publish(Payload.DELTA), fx.RequestRefused)
    assert isinstance(refused, fx.RequestRefused)
    assert (refused.kind, "x, y do not hold" in refused.message) == (fx.PublishErrorKind.INVALID, True)
    (refused,) = of(Rig("ab").publish(Payload.DELTA, bases=()), fx.RequestRefused)
    assert isinstance(refused, fx.RequestRefused)
    assert "none" in refused.message
    assert of(Rig("ab").publish(Payload.DELTA), fx.PublishAccepted)


def test_no_base_and_nobody_that_has_it() -> None:
    rig = Rig("", "xy")
    assert of(rig.publish(), fx.PublishAccepted) == [fx.PublishAccepted(1, 2, 131072)]
    rig.offer_full()
    assert rig.places() == ("xy", "")
    assert rig.main.payload_reason == "no worker holds the base"


def test_the_delta_is_not_made() -> None:
    for announced in (False, True):
        rig = Rig("ab", "x")
        rig.publish()
        rig.offer_full()
        if announced:
            rig.announce()
        assert rig.places() == ("x", "")
        rig.do(ev.SourceFailed("o", 1, DELTA, "no room"))
        assert rig.places() == ("abx", "")
        assert rig.main.payload_reason == "no room"
        rig.offer_delta()  # too late
        assert rig.lane is None


def test_one_that_cannot_apply_it_gets_the_full_object_and_is_not_offered_the_delta_again() -> None:
    rig = Rig("abc")
    rig.open()
    rig.holds("b", DELTA, ObjectState.RECEIVED, DELTA_CHUNKS)
    assert rig.main.received == 1
    rig.holds("b", DELTA, ObjectState.FAILED, DELTA_CHUNKS, "block 3 does not come out")
    assert rig.places() == ("b", "ac")
    assert rig.main.members["b"].why == "in full, block 3 does not come out: behind o"
    assert rig.targets("b") == {FULL}
    assert rig.main.received == 0
    rig.join("b", [BASE])
    assert rig.places() == ("b", "ac")
    rig.applies("a")
    rig.applies("c")
    rig.holds("b", FULL, ObjectState.INSTALLED, FULL_CHUNKS)
    assert (rig.main.phase, rig.main.installed) == (Phase.CLOSED, 3)


def test_a_failed_install_is_no_failed_delta() -> None:
    rig = Rig("ab")
    rig.open()
    rig.holds("a", DELTA, ObjectState.VERIFIED, DELTA_CHUNKS)
    failed = Holding(DELTA, ObjectState.FAILED, 2, ROOT, ((0, DELTA_CHUNKS),), DELTA_CHUNKS, "exit code 1")
    rig.do(ev.HoldingChanged("a", rig.sessions["a"], failed))
    assert rig.places() == ("", "ab")


def test_the_publisher_goes_before_the_delta_is_offered() -> None:
    rig = Rig("ab")
    rig.publish()
    rig.offer_full()
    rig.announce()
    rig.wait(8)
    assert rig.main.deltas == {}
    assert rig.places() == ("ab", "")


def test_the_publisher_goes_and_nobody_holds_all_of_the_delta() -> None:
    rig = Rig("abc")
    rig.open()
    rig.applies("a")  # and then it is gone
    rig.do(ev.SessionLost("a", rig.sessions.pop("a")))
    rig.wait(8)
    assert rig.places() == ("bc", "")
    rig.join("a", [Holding(FULL, ObjectState.INSTALLED, 2, ROOT, ((0, FULL_CHUNKS),), FULL_CHUNKS)])
    assert rig.main.reason == ""
    assert rig.main.layout.chains[0].members[0] == "a"


def test_the_publisher_goes_and_a_relay_feeds_the_others() -> None:
    rig = Rig("abc")
    rig.open()
    rig.holds("b", DELTA, ObjectState.RECEIVED, DELTA_CHUNKS)
    rig.wait(8)
    lane = rig.lane
    assert lane is not None
    assert rig.places() == ("", "abc")
    assert all(chain.rooted and chain.members[0] == "b" for chain in lane.layout.chains if chain.members)


def test_joiners_with_and_without_the_base_when_the_publisher_is_gone() -> None:
    rig = Rig("ab")
    rig.open()
    rig.applies("a")
    rig.applies("b")
    rig.wait(8)
    rig.join("x")
    assert rig.places() == ("ax", "ab")
    assert rig.targets("a") == {FULL, DELTA}
    rig.join("c", [BASE])
    assert rig.places() == ("ax", "abc")
    assert rig.targets("c") == {DELTA}


def test_a_newer_version_and_both_objects_yield_together() -> None:
    rig = Rig("ab", "x")
    rig.open()
    rig.do(ev.PublishRequested(2, "o", "e" * 32, 3, 1.0, ev.Topology.CHAINS, 0, 1000, 0.0))
    rig.do(ev.Offered("o", 1, "e" * 32, 3, "full", 1_000_000, 1_000_000, FULL_CHUNKS))
    assert rig.lane is not None
    # What is left of the delta is less than half of the new version: they finish it first; x has everything to go.
    assert rig.places() == ("", "ab")
    assert rig.main.phase is Phase.SUPERSEDED
    rig.do(ev.CancelRequested(3, 3))
    assert rig.main.phase is Phase.OPEN
    assert rig.places() == ("x", "ab")


def test_cancelling_ends_both() -> None:
    rig = Rig("ab", "x")
    rig.open()
    lane = rig.lane
    rig.do(ev.CancelRequested(7, 2))
    assert lane is not None
    assert (rig.main.phase, lane.phase) == (Phase.CANCELLED, Phase.CANCELLED)
    assert rig.targets("a") == rig.targets("x") == rig.targets("o") == set()


def test_a_coordinator_that_restarts_moves_nobody() -> None:
    rig = Rig("ab", "x")
    rig.open()
    before = rig.places()
    rig.restart_coordinator({"a": [BASE], "b": [BASE], "x": []})
    assert rig.places() == before
    rig.applies("a")
    assert rig.main.installed == 1


def test_the_base_is_kept_while_somebody_may_need_it() -> None:
    rig = Rig("ab")
    old = Publication("b" * 32, 1, "", 1.0, ev.Topology.CHAINS, 0, 65536, 1000, 0.0, phase=Phase.CLOSED, root=OLD)
    rig.fleet.state.publications[old.object_id] = old
    for number in (2, 3, 4):
        newer = Publication(str(number) * 32, number, "", 1.0, ev.Topology.CHAINS, 0, 65536, 1000, 0.0)
        newer.phase, newer.root, newer.retired = Phase.CLOSED, f"xxh3_128:{number:032x}", number < 4
        rig.fleet.state.publications[newer.object_id] = newer
    assert rig.fleet.state.keep_versions == (3, 4)
    rig.publish(version=5)
    rig.offer_full(version=5)
    assert rig.fleet.state.keep_versions == (1, 3, 4)


def test_a_version_is_retired_after_its_lanes() -> None:
    """Its publisher lets go of all objects of a version of which the main one is not wanted any more."""
    rig = Rig("ab")
    rig.open()
    rig.holds("a", DELTA, ObjectState.RECEIVING, 3)
    rig.applies("b")
    rig.do(
        ev.PublishRequested(2, "o", NEWER, 3, 1.0, ev.Topology.CHAINS, 0, SNAPSHOT_BYTES, 0.0, Payload.FULL, (), "none")
    )
    rig.offer_full(NEWER, 3)
    rig.do(ev.RootAnnounced("o", 1, NEWER, "xxh3_128:" + "3" * 32))
    assert rig.lane is not None
    assert rig.fleet.state.publications[NEWER].members["a"].deferred  # it finishes its delta first
    assert (rig.main.retired, rig.lane.retired) == (False, False)
    assert {FULL, DELTA} <= rig.targets("o")
    rig.applies("a")
    assert (rig.main.retired, rig.lane.retired) == (True, True)


def test_a_lane_that_was_retired_is_not_restored() -> None:
    """What had superseded the version comes to nothing: by then nobody holds the delta's chunks any more."""
    rig = Rig("ab")
    rig.open()
    rig.applies("b")
    rig.holds("a", DELTA, ObjectState.RECEIVING, 1)
    rig.do(ev.SessionLost("a", rig.sessions["a"]))
    rig.wait(7, silent="a")  # it lapses: nobody is on the way to version 2 any more
    rig.join("c", [BASE])
    rig.do(
        ev.PublishRequested(2, "o", NEWER, 3, 1.0, ev.Topology.CHAINS, 0, SNAPSHOT_BYTES, 0.0, Payload.FULL, (), "none")
    )
    rig.offer_full(NEWER, 3)
    rig.do(ev.RootAnnounced("o", 1, NEWER, "xxh3_128:" + "3" * 32))
    assert rig.lane is not None
    assert rig.lane.retired
    rig.do(ev.SourceFailed("o", 1, NEWER, "its files have changed"))
    assert rig.main.phase is not Phase.SUPERSEDED
    assert not rig.lane.active
    full, delta = rig.places()
    assert "c" in full
    assert delta == ""


def test_one_behind_nat_is_fed_the_full_object_when_nobody_can_reach_it_with_the_delta() -> None:
    """Its publisher cannot be dialled either, and the one that can be has applied another delta."""
    rig = Rig("ab")
    rig.do(ev.DialedBack("o", 1, False))
    rig.do(ev.DialedBack("a", rig.sessions["a"], False))
    rig.do(ev.DialedBack("b", rig.sessions["b"], True))
    rig.open()
    assert rig.lane is not None
    rig.applies("b")
    for chain in rig.lane.layout.chains:  # whoever could stand between has left the lane
        assert "a" not in chain.members or chain.members.index("a") > 0
    rig.do(ev.LeaveRequested("b", rig.sessions["b"]))
    rig.join("b", [Holding(FULL, ObjectState.INSTALLED, 2, ROOT, ((0, FULL_CHUNKS),), FULL_CHUNKS), BASE])
    told = rig.fleet.assignment("a")
    assert told is not None
    (edge,) = told[1]
    assert edge.parent is not None
    assert edge.parent.worker_id == "b"


def test_one_that_is_leaving_is_given_nobody_to_feed() -> None:
    rig = Rig("a", "b")
    rig.publish()
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.applies("a")
    rig.do(ev.LeaveRequested("a", rig.sessions["a"]))
    rig.join("c")
    assert "a" not in rig.main.layout


def test_an_empty_lane_keeps_no_fleet_from_being_probed() -> None:
    """All that were in it got the full object: it stays open, and nothing flows in it."""
    rig = Rig("ab")
    rig.open()
    for name in "ab":
        rig.holds(name, DELTA, ObjectState.FAILED, DELTA_CHUNKS, "a block does not come out")
    for name in "ab":
        rig.holds(name, FULL, ObjectState.INSTALLED, FULL_CHUNKS)
    assert rig.lane is not None
    assert (rig.lane.phase, rig.lane.targeted) == (Phase.OPEN, 0)
    assert rig.main.phase is Phase.CLOSED
    orders: list[fx.Effect] = []
    for _ in range(20):
        rig.now += 0.49
        for name, session in rig.sessions.items():
            rig.do(ev.Heard(name, session))
            orders += of(rig.effects, fx.StartProbe)
        rig.do(ev.Tick())
        orders += of(rig.effects, fx.StartProbe)
    assert orders


def test_one_that_has_all_of_the_delta_stays_in_the_lane_until_it_has_landed() -> None:
    """Places are given anew when a newer version comes to nothing."""
    rig = Rig("ab")
    rig.open()
    rig.holds("a", DELTA, ObjectState.RECEIVED, DELTA_CHUNKS)
    rig.holds("b", DELTA, ObjectState.RECEIVING, 3)
    rig.do(
        ev.PublishRequested(2, "o", NEWER, 3, 1.0, ev.Topology.CHAINS, 0, SNAPSHOT_BYTES, 0.0, Payload.FULL, (), "none")
    )
    rig.offer_full(NEWER, 3)
    rig.do(ev.SourceFailed("o", 1, NEWER, "its files have changed"))
    assert rig.places() == ("", "ab")


def test_one_that_nobody_can_reach_is_fed_once_somebody_that_can_be_dialled_has_landed() -> None:
    """It waits in the full object's chains, behind a publisher that is behind NAT like itself."""
    rig = Rig("a", "b")
    rig.do(ev.DialedBack("o", 1, False))
    rig.do(ev.DialedBack("b", rig.sessions["b"], False))
    rig.do(ev.DialedBack("a", rig.sessions["a"], True))
    rig.open()
    assert rig.places() == ("b", "a")
    rig.applies("a")
    assert rig.places() == ("ab", "a")
    told = rig.fleet.assignment("b")
    assert told is not None
    (edge,) = told[1]
    assert edge.parent is not None
    assert edge.parent.worker_id == "a"
