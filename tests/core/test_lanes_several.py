"""Several deltas of one version: workers that are behind by more than one version. See `chappe.core.lanes`.

| happens                                               | then |
|-------------------------------------------------------|------|
| workers prove different bases                         | a lane for each base, the full object for the rest |
| one proves several                                    | the delta from the newest of them |
| more bases than lanes                                 | that from the last version, then those that most need |
| a worker tells that its base has gone                 | no delta begins there |
| payload delta, and all prove some base                | accepted |
| one that was away comes back behind                   | the folded delta, from a peer when the publisher is gone |
| one of the deltas is not made                         | only those that waited for it get the full object |
| ... and they prove another base, too                  | they get the delta from that one |
| a worker loses its folded delta's base on the way     | that one gets the full object |
| the publisher goes between the offers of two deltas   | the lane that is there goes on, the others get full |
| the coordinator restarts                              | nobody is moved |
| a folded delta has more changed elements              | no alarm of a jump in density |
"""

from __future__ import annotations

from lane_rig import (
    BASE,
    DELTA,
    DELTA_CHUNKS,
    FOLDED,
    FOLDED_TWICE,
    FULL,
    OLD,
    OLDER,
    OLDEST,
    Rig,
    of,
)

from chappe.core import effects as fx
from chappe.core import events as ev
from chappe.core.events import Holding, ObjectState, Payload
from chappe.core.publication import Phase, Publication
from chappe.core.status import publication_view

BEHIND = Holding("b2" * 16, ObjectState.INSTALLED, 1, OLDER, ((0, 10),), 10)
FAR_BEHIND = Holding("b3" * 16, ObjectState.INSTALLED, 1, OLDEST, ((0, 10),), 10)
ALL = (OLD, OLDER, OLDEST)


def behind(rig: Rig, **names: list[Holding]) -> None:
    for name, holdings in names.items():
        rig.join(name, holdings)


def mixed_fleet() -> Rig:
    rig = Rig("ab", "x")
    behind(rig, p=[BEHIND], q=[BEHIND], r=[FAR_BEHIND])
    return rig


def opened(rig: Rig) -> Rig:
    rig.publish(bases=ALL)
    rig.offer_full()
    rig.announce()
    for object_id in (DELTA, FOLDED, FOLDED_TWICE):
        rig.offer_delta(object_id)
    return rig


def test_a_lane_for_each_base_and_the_full_object_for_the_rest() -> None:
    rig = mixed_fleet()
    (accepted,) = of(rig.publish(bases=ALL), fx.PublishAccepted)
    assert isinstance(accepted, fx.PublishAccepted)
    assert accepted.base_roots == ALL
    rig.offer_full()
    rig.announce()
    assert rig.stand_in(FULL) == "x"
    rig.offer_delta()
    assert not of(rig.effects, fx.PublishFinished)
    rig.offer_delta(FOLDED)
    rig.offer_delta(FOLDED_TWICE)
    assert [rig.stand_in(i) for i in (FULL, DELTA, FOLDED, FOLDED_TWICE)] == ["x", "ab", "pq", "r"]
    assert rig.fleet.state.keep_versions == (2,)  # the bases' publications are not known here: nothing to name
    heads = sum(bool(c.members) for p in rig.fleet.state.publications.values() for c in p.layout.chains)
    assert heads <= 4  # of B0 at the assumed rate
    for name, object_id in (("a", DELTA), ("b", DELTA), ("p", FOLDED), ("q", FOLDED), ("r", FOLDED_TWICE)):
        rig.applies(name, object_id)
    view = publication_view(rig.fleet.state, rig.main, "run", rig.now)
    assert [(p.kind, p.targeted, p.installed) for p in view.payloads] == [
        ("full", 1, 0),
        ("delta", 2, 2),
        ("delta", 2, 2),
        ("delta", 1, 1),
    ]
    assert view.kind == "mixed"
    assert view.payload_reason == "5 of 6 workers hold one of 3 bases"


def test_deltas_of_all_kinds_are_deltas() -> None:
    rig = Rig("a")
    behind(rig, p=[BEHIND])
    assert of(rig.publish(Payload.DELTA, bases=ALL), fx.PublishAccepted)
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.applies("a")
    assert not of(rig.effects, fx.PublishFinished)
    rig.offer_delta(FOLDED)
    rig.applies("p", FOLDED)
    assert (rig.main.phase, rig.main.installed) == (Phase.CLOSED, 2)
    assert rig.main.finished
    assert publication_view(rig.fleet.state, rig.main, "run", rig.now).kind == "delta"


def test_whoever_proves_several_bases_gets_the_delta_from_the_newest() -> None:
    rig = Rig("")
    behind(rig, a=[BEHIND, BASE], p=[FAR_BEHIND, BEHIND])
    opened(rig)
    assert [rig.stand_in(i) for i in (FULL, DELTA, FOLDED, FOLDED_TWICE)] == ["", "a", "p", ""]


def test_more_bases_than_lanes() -> None:
    rig = mixed_fleet()
    behind(rig, s=[FAR_BEHIND], t=[FAR_BEHIND])
    rig.fleet.config = rig.fleet._context.config = type(rig.fleet.config)("run", lanes_max=2)
    rig.publish(bases=ALL)
    assert list(rig.main.deltas) == [DELTA, FOLDED_TWICE]
    rig.offer_full()
    assert rig.stand_in(FULL) == "pqx"
    (refused,) = of(mixed_fleet().publish(Payload.DELTA, bases=ALL), fx.RequestRefused)
    assert isinstance(refused, fx.RequestRefused)
    assert "x do not hold" in refused.message


def test_one_that_is_away_and_may_come_back() -> None:
    rig = mixed_fleet()
    for name in "qpr":
        rig.do(ev.SessionLost(name, rig.sessions.pop(name)))
    rig.wait(8, silent="")
    rig.fleet.config = rig.fleet._context.config = type(rig.fleet.config)("run", lanes_max=2)
    opened_two = rig.publish(bases=ALL)
    assert of(opened_two, fx.PublishAccepted)
    assert list(rig.main.deltas) == [DELTA, FOLDED]  # more of them have been heard of with this base
    rig.offer_full()
    rig.announce()
    for object_id in (DELTA, FOLDED):
        rig.offer_delta(object_id)
    for name in "ab":
        rig.applies(name)
    rig.holds("x", FULL, ObjectState.INSTALLED, 100)
    assert rig.main.phase is Phase.CLOSED
    rig.join("q", [BEHIND])
    assert rig.stand_in(FOLDED) == "q"
    rig.applies("q", FOLDED)
    rig.join("r", [FAR_BEHIND])
    assert "r" in rig.stand_in(FULL)
    rig.wait(8)  # the publisher goes
    rig.join("p", [BEHIND])
    assert rig.stand_in(FOLDED) == "pq"  # from the one that has it


def test_what_a_worker_no_longer_has_is_no_base() -> None:
    """A publisher may come with an older base than the fleet's: its cache is that of another host, or was put back."""
    rig = Rig("ab")
    behind(rig, c=[BEHIND, BASE])
    for name in "abc":
        rig.do(ev.HoldingChanged(name, rig.sessions[name], Holding.gone(BASE.object_id)))
        assert BASE.object_id not in rig.fleet.state.workers[name].holdings  # nor does the list of them grow
    (refused,) = of(rig.publish(Payload.DELTA, bases=ALL), fx.RequestRefused)
    assert isinstance(refused, fx.RequestRefused)
    assert "a, b do not hold the base" in refused.message
    (accepted,) = of(rig.publish(bases=ALL), fx.PublishAccepted)
    assert isinstance(accepted, fx.PublishAccepted)
    assert accepted.base_roots == (OLDER,)


def test_one_of_the_deltas_is_not_made() -> None:
    rig = mixed_fleet()
    behind(rig, p=[BEHIND, FAR_BEHIND])
    rig.publish(bases=ALL)
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.do(ev.SourceFailed("o", 1, FOLDED, "a kept delta is damaged"))
    assert rig.stand_in(FULL) == "qx"
    rig.offer_delta(FOLDED)  # too late
    rig.offer_delta(FOLDED_TWICE)
    assert [rig.stand_in(i) for i in (FULL, DELTA, FOLDED, FOLDED_TWICE)] == ["qx", "ab", "", "pr"]


def test_one_whose_base_goes_on_the_way() -> None:
    rig = opened(mixed_fleet())
    rig.holds("p", FOLDED, ObjectState.RECEIVED, DELTA_CHUNKS)
    rig.holds("p", FOLDED, ObjectState.FAILED, DELTA_CHUNKS, "block 7 does not come out as the publisher's")
    assert [rig.stand_in(i) for i in (FULL, FOLDED)] == ["px", "q"]
    rig.join("p", [BEHIND])
    assert [rig.stand_in(i) for i in (FULL, FOLDED)] == ["px", "q"]


def test_the_publisher_goes_between_two_offers() -> None:
    rig = mixed_fleet()
    rig.publish(bases=ALL)
    rig.offer_full()
    rig.announce()
    rig.offer_delta()
    rig.holds("a", DELTA, ObjectState.RECEIVED, DELTA_CHUNKS)
    rig.wait(8)
    assert list(rig.main.deltas) == [DELTA]
    assert [rig.stand_in(i) for i in (FULL, DELTA)] == ["pqrx", "ab"]
    rig.applies("a")
    assert rig.stand_in(FULL) == "apqrx"  # who has landed it feeds those who lack it
    assert rig.main.layout.chains[0].members[0] == "a"


def test_a_coordinator_that_restarts_moves_nobody() -> None:
    rig = opened(mixed_fleet())
    before = [rig.stand_in(i) for i in (FULL, DELTA, FOLDED, FOLDED_TWICE)]
    rig.restart_coordinator(
        {"a": [BASE], "b": [BASE], "x": [], "p": [BEHIND], "q": [BEHIND], "r": [FAR_BEHIND]},
    )
    assert [rig.stand_in(i) for i in (FULL, DELTA, FOLDED, FOLDED_TWICE)] == before
    rig.applies("p", FOLDED)
    assert rig.main.installed == 1


def test_an_alarm_compares_steps_with_steps() -> None:
    rig = mixed_fleet()
    for version, root in ((0, OLDER), (1, OLD)):
        old = Publication(f"{version:032x}", version, "", 1.0, ev.Topology.CHAINS, 0, 65536, 1000, 0.0)
        old.phase, old.root, old.retired = Phase.CLOSED, root, True
        rig.fleet.state.publications[old.object_id] = old
    step = Publication("57" * 16, 1, "", 1.0, ev.Topology.CHAINS, 0, 65536, 1000, 0.0, main=f"{1:032x}")
    step.phase, step.root, step.base_root = Phase.CLOSED, OLD, OLDER
    step.changed_elements, step.compared_elements = 10, 1000
    rig.fleet.state.publications[step.object_id] = step
    rig.publish(bases=ALL)
    rig.offer_full()
    for object_id, changed in ((DELTA, 40), (FOLDED, 80)):
        rig.do(
            ev.Offered("o", 1, object_id, 2, "delta", 100, 1000, 4, changed_elements=changed, compared_elements=1000)
        )
    alarms = {i: rig.fleet.state.publications[i].alarm for i in (DELTA, FOLDED)}
    assert "4.00% of the elements changed, 1.00% the time before" in alarms[DELTA]
    assert alarms[FOLDED] == ""


def test_an_alarm_counts_the_bytes_of_what_changed() -> None:
    """New tensors and a larger tokenizer are in the payload, and say nothing of a step."""
    for told, said in ((150_000, ""), (0, "10.00 bytes for each changed element")):
        rig = Rig("ab")
        rig.publish()
        rig.offer_full()
        rig.announce()
        counts = {"changed_elements": 100_000, "compared_elements": 10_000_000, "changed_bytes": told}
        effects = rig.do(ev.Offered("o", 1, DELTA, 2, "delta", 1_000_000, 20_000_000, 4, **counts))
        assert rig.fleet.state.publications[DELTA].alarm.startswith(said)
        assert [log.warning for log in of(effects, fx.Log) if log.event == "delta_alarm"] == [True] * bool(said)


def test_a_delta_under_an_object_id_that_is_known_is_refused() -> None:
    rig = opened(Rig("a"))
    request = ev.PublishRequested(
        5, "o", "e" * 32, 3, 1.0, ev.Topology.CHAINS, 0, 1000, 0.0, deltas=(ev.DeltaFrom(OLD, DELTA),)
    )
    (refused,) = of(rig.do(request), fx.RequestRefused)
    assert isinstance(refused, fx.RequestRefused)
    assert "is known already" in refused.message
