"""Segments that lag move to idle uplinks: each row of the list in `core/rebalance`, over the real fleet machine.

The broadcasts are played by `bench.fleetfluid`: whole chunks over max-min fair links, in simulated time, with the
invariants of every stripe checked after every event.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
from striped_fluid import HALF, MBIT, MIB, UPS, broadcast

from bench.fleetfluid import OBJECT, FleetFluid
from chappe.core import events as ev
from chappe.core.chain import Chain, Layout
from chappe.core.paces import Paces
from chappe.core.rebalance import MOVES_MAX, TWICE_SHARE, Rebalance
from chappe.core.restriping import Restriping


@pytest.fixture(autouse=True)
def _only_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laying the rest anew has tests of its own."""
    monkeypatch.setattr(Restriping, "look", lambda *_: False)


def moved(fluid: FleetFluid) -> int:
    return fluid.logs["segment_moved"]


def started(**options: object) -> FleetFluid:
    """A broadcast up to its first move."""
    fluid = broadcast(**options)  # type: ignore[arg-type]
    fluid.begin()
    assert not fluid.publication.stripes.plain
    fluid.until(lambda: moved(fluid) > 0)
    return fluid


def moves(fluid: FleetFluid) -> list[dict[str, str]]:
    """What was logged of each: `relay`, `parent`, `stripe`."""
    return [ast.literal_eval(line.split("laggard ")[1]) for line in fluid.trail if "segment_moved" in line]


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and nothing is moved any more."""
    return lambda: monkeypatch.setattr(Rebalance, "look", lambda self: None)


@pytest.mark.parametrize("slow", [HALF, {0: 0.5, 3: 0.5}, {0: 0.6, 1: 0.8, 2: 0.7, 4: 1.2, 5: 0.6}], ids=str)
def test_uplinks_that_are_less_than_declared_cost_less_time(slow: dict[int, float], static: Callable[[], None]) -> None:
    adaptive = broadcast(slow=slow, drains=False).run()
    static()
    assert adaptive.t_all_s < 0.93 * broadcast(slow=slow).run().t_all_s
    assert adaptive.twice_bytes <= TWICE_SHARE * 64 * MIB * len(UPS)


def test_m9_a_plan_that_holds_is_left_alone(static: Callable[[], None]) -> None:
    fluid = broadcast()
    outcome = fluid.run()
    static()
    assert outcome.t_all_s <= 1.01 * broadcast().run().t_all_s
    assert moved(fluid) <= 2


def test_m1_the_new_parent_dies_just_after() -> None:
    fluid = started(slow=HALF)
    parent = moves(fluid)[-1]["parent"]
    if parent == "origin":
        fluid.until(lambda: moves(fluid)[-1]["parent"] != "origin")
        parent = moves(fluid)[-1]["parent"]
    fluid.kill(parent)
    outcome = fluid.run()
    assert set(outcome.done_s) >= {f"w{i}" for i in range(len(UPS))} - {parent}


def test_m2_a_look_moves_few_and_touches_nobody_twice() -> None:
    fluid = started(slow={0: 0.3, 1: 0.3})
    before = moved(fluid)
    assert before <= MOVES_MAX
    parents = [move["parent"] for move in moves(fluid)]
    assert len(parents) == len(set(parents))


def test_m3_who_lies_that_it_holds_everything_gets_next_to_nobody() -> None:
    fluid = broadcast(slow=HALF)
    fluid.nodes["w5"].claims = "all"
    outcome = fluid.run()
    assert set(outcome.done_s) == {f"w{i}" for i in range(len(UPS)) if i != 5}
    behind = [move for move in moves(fluid) if move["parent"] == "w5"]
    assert 2 <= len(behind) <= 7, "one in each look until two are judged"


@pytest.mark.parametrize(("claims", "most"), [("nothing", 0), ("half", 12)])
def test_m4_who_lies_that_it_is_far_behind_is_moved_a_few_times(claims: str, most: int) -> None:
    fluid = broadcast()
    fluid.nodes["w4"].claims = claims
    outcome = fluid.run()
    mine = [move for move in moves(fluid) if move["relay"] == "w4"]
    assert len(mine) <= most
    honest = broadcast().run()
    others = [name for name in honest.done_s if name != "w4"]
    assert max(outcome.done_s[n] for n in others) <= 1.25 * max(honest.done_s[n] for n in others)


def test_m5_who_does_not_report_is_left_where_it_is() -> None:
    fluid = broadcast(slow=HALF)
    fluid.nodes["w4"].claims = "silence"
    outcome = fluid.run()
    assert len(outcome.done_s) == len(UPS)
    trail = [t for t in fluid.trail if "segment_moved" in t and float(t[:6]) < outcome.done_s["w4"]]
    assert trail
    assert not [t for t in trail if "'relay': 'w4'" in t or "'parent': 'w4'" in t]


def test_m6_a_pace_begins_anew_with_chunks_that_are_lost() -> None:
    fluid = broadcast()
    fluid.begin()
    publication, worker = fluid.publication, fluid.fleet.state.workers["w0"]
    total, paces = publication.chunks_total, Paces()

    def report(held: int, now: float) -> None:
        worker.holdings[OBJECT] = ev.Holding(
            OBJECT, ev.ObjectState.RECEIVING, 0, "", ((0, held),) if held else (), total
        )
        paces.note(publication, worker, now)

    report(0, 1.0)
    assert paces.of(publication, "w0", 1.0) is None, "one report is no pace"
    report(90, 3.0)
    pace = paces.of(publication, "w0", 3.0)
    assert pace is not None
    assert sum(pace.held) == 90
    assert sum(pace.per_s) == pytest.approx(45.0)
    assert paces.of(publication, "w0", 7.0) is None, "it has been silent"
    report(30, 7.5)
    assert paces.of(publication, "w0", 7.5) is None, "some were lost"
    report(50, 9.5)
    again = paces.of(publication, "w0", 9.5)
    assert again is not None
    assert sum(again.per_s) == pytest.approx(10.0)
    paces.keep(set())
    assert paces.of(publication, "w0", 9.5) is None


def test_m7_the_origin_goes_when_somebody_has_everything() -> None:
    fluid = broadcast(slow={0: 0.3})
    fluid.begin()
    fluid.until(lambda: any(node.done_s is not None for node in fluid.nodes.values()))
    fluid.kill("origin")
    before = len(fluid.trail)
    outcome = fluid.run()
    assert len(outcome.done_s) == len(UPS)
    out = next(i for i, t in enumerate(fluid.trail) if i >= before and "rerooted" in t)
    assert not [t for t in fluid.trail[out:] if "segment_moved" in t and "'parent': 'origin'" in t]


def test_m8_a_coordinator_that_restarts_keeps_the_map_and_looks_again() -> None:
    fluid = started(slow=HALF)
    stripes, before = fluid.publication.stripes, moved(fluid)
    fluid.restart_coordinator()
    assert fluid.publication.stripes == stripes
    outcome = fluid.run()
    assert len(outcome.done_s) == len(UPS)
    assert moved(fluid) > before


def test_m10_a_slow_downlink_is_found_and_its_owner_is_no_parent_any_more() -> None:
    fluid = broadcast(slow_down={1: 0.4}, size=48 * MIB, chunk=64 << 10)
    outcome = fluid.run()
    assert fluid.logs["downlink_short"] >= 1
    assert outcome.downs["w1"] == pytest.approx(0.4 * 30 * MBIT, rel=0.2)
    assert all(other == 0.0 or other > 20 * MBIT for name, other in outcome.downs.items() if name != "w1")


def test_m11_nobody_is_put_where_neither_side_can_dial() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    for name in ("w2", "w5"):
        fluid.tell(ev.DialedBack(name, fluid.session(name), False))
    assert len(fluid.run().done_s) == len(UPS)  # `broken` looks at every event


def test_m12_two_versions_on_their_way_stay_where_they_are() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    size = 64 * MIB
    fluid.tell(ev.PublishRequested(2, "origin", "xxh3:next", 2, 1.0, ev.Topology.CHAINS, 0, size, 0.0))
    fluid.tell(ev.Offered("origin", fluid.session("origin"), "xxh3:next", 2, "full", size, size, 512))
    for _ in range(1700):
        fluid.step()
    assert moved(fluid) == 0


def test_m13_who_waits_for_room_on_its_disk_is_left_alone() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    full = ev.Holding(OBJECT, ev.ObjectState.DISK_FULL, 0, "", (), fluid.total, "no room")
    fluid.nodes["w3"].claims = "silence"
    fluid.tell(ev.HoldingChanged("w3", fluid.session("w3"), full))
    for second in range(38):
        for _ in range(50):
            fluid.step()
        if fluid.nodes["w3"].done_s is None:
            fluid.tell(ev.HoldingChanged("w3", fluid.session("w3"), full))
        assert second >= 0
    assert moved(fluid) > 0
    assert not [move for move in moves(fluid) if "w3" in (move["relay"], move["parent"])]


# ---- the change itself ----


def segment_layout() -> Layout:
    return Layout([Chain(0, 0, ["a", "b", "c"]), Chain(0, 1, ["d", "e"]), Chain(1, 0, list("abcde"))])


@pytest.mark.parametrize(
    ("worker", "onto", "at", "expected"),
    [
        ("b", 1, 2, [["a"], ["d", "e", "b", "c"]]),
        ("b", 1, 1, [["a"], ["d", "b", "c", "e"]]),
        ("a", 1, 0, [[], ["a", "b", "c", "d", "e"]]),
        ("c", 0, 1, [["a", "c", "b"], ["d", "e"]]),
        ("c", 0, 0, [["c", "a", "b"], ["d", "e"]]),
    ],
)
def test_a_segment_to_another_position(worker: str, onto: int, at: int, expected: list[list[str]]) -> None:
    layout = segment_layout()
    place = layout.place(0, worker)
    assert place is not None
    near = layout.transplant(place, layout.chains[onto], at)
    assert [chain.members for chain in layout.chains] == [*expected, list("abcde")]
    assert worker in near
    for chain in layout.of_stripe(0):
        for position, member in enumerate(chain.members):
            found = layout.place(0, member)
            assert found is not None
            assert (found.chain, found.position) == (chain, position)


def test_a_segment_cannot_be_moved_into_itself_or_another_stripe() -> None:
    layout = segment_layout()
    place = layout.place(0, "b")
    assert place is not None
    for onto, at in ((0, 1), (0, 3), (2, 0)):
        with pytest.raises(ValueError, match="a segment of stripe 0"):
            layout.transplant(place, layout.chains[onto], at)
