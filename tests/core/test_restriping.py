"""The rest of a striped broadcast is laid anew: each row of the list in `core/restriping`, over the real fleet machine.

Played by `bench.fleetfluid`, in simulated time, with the invariants of every stripe checked after every event.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest
from striped_fluid import HALF, MBIT, MIB, UPS, broadcast

from bench.fleetfluid import FleetFluid, Line
from chappe.core import events as ev
from chappe.core import restriping
from chappe.core.laying import Laying
from chappe.core.restriping import COOL_S, PLAN_S, Restriping

NOISE = {0: 0.6, 1: 0.8, 2: 0.7, 4: 1.2, 5: 0.6}


def anew(fluid: FleetFluid) -> list[float]:
    """When the rest was laid anew, in seconds."""
    return [float(line[:6]) for line in fluid.trail if " restriped " in line]


def started(**options: object) -> FleetFluid:
    """A broadcast up to the moment when its rest was laid anew."""
    fluid = broadcast(**options)  # type: ignore[arg-type]
    fluid.begin()
    fluid.until(lambda: bool(anew(fluid)))
    return fluid


def seconds(fluid: FleetFluid, count: float) -> None:
    end_s = fluid.now + count
    fluid.until(lambda: fluid.now >= end_s)


@pytest.fixture
def only_moves(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and nothing is laid anew any more."""
    return lambda: monkeypatch.setattr(Restriping, "look", lambda *_: False)


@pytest.mark.parametrize(("slow", "share"), [(HALF, 0.97), ({0: 0.5, 3: 0.5}, 0.97), (NOISE, 1.0)], ids=str)
def test_links_that_carry_less_cost_less_than_by_moves_alone(
    slow: dict[int, float], share: float, only_moves: Callable[[], None]
) -> None:
    fluid = broadcast(slow=slow)
    outcome = fluid.run()
    assert anew(fluid)
    only_moves()
    assert outcome.t_all_s < share * broadcast(slow=slow).run().t_all_s


def test_chunks_change_stripes_and_what_is_held_is_not_sent_again() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    before = fluid.publication.stripes
    had: dict[str, int] = {}

    def remember() -> bool:
        if not anew(fluid):
            had.update({name: len(node.arrivals) for name, node in fluid.nodes.items()})
        return bool(anew(fluid))

    fluid.until(remember)
    assert fluid.publication.stripes != before
    assert all(had.values())
    fluid.run()
    for node in fluid.nodes.values():
        assert len(node.arrivals) == len(set(node.arrivals)) == fluid.total


def test_status_says_when_and_why() -> None:
    fluid = started(slow=HALF)
    grounds = fluid.publication.grounds
    assert grounds.why.startswith("laid anew after ")
    assert "for the rest: " in grounds.why
    assert "stripes, together" in grounds.why
    elapsed_s = fluid.now - fluid.start_s
    rest_s = fluid.payload_bytes / (grounds.rate_bytes_per_s or 1.0) / 2
    assert elapsed_s + rest_s < (grounds.striped_s or 0.0) < (grounds.plain_s or 0.0)
    assert fluid.publication.members["w0"].why.startswith(("inner in", "tail in"))


def test_r10_what_goes_as_promised_is_left_alone_and_hardly_planned_again() -> None:
    fluid = broadcast()
    with patch.object(Laying, "judge_rest", autospec=True, side_effect=Laying.judge_rest) as planned:
        outcome = fluid.run()
    assert not anew(fluid)
    assert planned.call_count <= outcome.t_all_s / PLAN_S


def test_r1_nothing_while_somebody_has_lost_its_session() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    seconds(fluid, 4.0)
    assert not anew(fluid)
    fluid.kill("w5")
    fluid.until(lambda: bool(anew(fluid)))
    out = next(float(line[:6]) for line in fluid.trail if "removed" in line and "'relay': 'w5'" in line)
    assert anew(fluid)[0] >= out
    assert len(fluid.run().done_s) == len(UPS) - 1


def test_r2_nothing_while_somebody_waits_for_room() -> None:
    fluid = broadcast(slow=HALF)
    fluid.nodes["w5"].claims = "full"
    assert len(fluid.run().done_s) == len(UPS)
    assert not [at for at in anew(fluid) if at < (fluid.nodes["w5"].done_s or 0.0)]


@pytest.mark.parametrize("claims", ["nothing", "half"])
def test_r3_who_says_less_than_it_holds_costs_little(claims: str) -> None:
    fluid = broadcast()
    fluid.nodes["w4"].claims = claims
    outcome = fluid.run()
    assert all(b - a >= COOL_S * 2**i for i, (a, b) in enumerate(pairwise(anew(fluid))))
    honest = broadcast().run()
    assert max(outcome.done_s.values()) <= 1.3 * max(honest.done_s.values())


def test_r4_who_says_that_it_has_everything_does_not_stop_the_others() -> None:
    fluid = broadcast(slow=HALF)
    fluid.nodes["w5"].claims = "all"
    assert set(fluid.run().done_s) >= {f"w{i}" for i in range(len(UPS)) if i != 5}


def test_r5_nothing_while_somebody_is_silent() -> None:
    fluid = broadcast(slow=HALF)
    fluid.nodes["w5"].claims = "silence"
    assert len(fluid.run().done_s) == len(UPS)
    assert not [at for at in anew(fluid) if at < (fluid.nodes["w5"].done_s or 0.0)]


def test_r6_nothing_without_the_origin() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    seconds(fluid, 4.0)
    fluid.kill("origin")
    seconds(fluid, 30.0)
    assert not anew(fluid)


def test_r7_a_coordinator_that_restarts_keeps_the_new_map() -> None:
    fluid = started(slow=HALF)
    stripes, layout = fluid.publication.stripes, fluid.publication.layout.to_json()
    fluid.restart_coordinator()
    assert (fluid.publication.stripes, fluid.publication.layout.to_json()) == (stripes, layout)
    assert len(fluid.run().done_s) == len(UPS)


def test_r8_who_joins_is_waited_for_and_then_has_its_part_in_it() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    seconds(fluid, 3.0)
    fluid.join(Line("late", 20 * MBIT, 30 * MBIT, 20 * MBIT, 30 * MBIT))
    outcome = fluid.run()
    assert len(outcome.done_s) == len(UPS) + 1


@pytest.mark.parametrize("dead", ["w0", "w3", "w7"])
def test_r9_a_worker_dies_just_after(dead: str) -> None:
    fluid = started(slow=HALF)
    fluid.kill(dead)
    assert set(fluid.run().done_s) == {f"w{i}" for i in range(len(UPS))} - {dead}


def test_r11_where_it_does_not_help_it_is_tried_ever_more_rarely() -> None:
    fluid = broadcast(slow_down={1: 0.2}, size=64 * MIB)  # no plan can help a downlink
    fluid.run()
    times = anew(fluid)
    assert all(b - a >= COOL_S * 2**i for i, (a, b) in enumerate(pairwise(times)))


def test_r12_nothing_while_two_versions_share_the_links() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    size = 64 * MIB
    fluid.tell(ev.PublishRequested(2, "origin", "xxh3:next", 2, 1.0, ev.Topology.CHAINS, 0, size, 0.0))
    fluid.tell(ev.Offered("origin", fluid.session("origin"), "xxh3:next", 2, "full", size, size, 512))
    seconds(fluid, 30.0)
    assert not anew(fluid)


def test_r13_nothing_once_somebody_of_an_older_release_has_ended_the_stripes() -> None:
    fluid = broadcast(slow=HALF)
    fluid.begin()
    seconds(fluid, 3.0)
    assert not anew(fluid)
    fluid.join(Line("old", 20 * MBIT, 30 * MBIT, 20 * MBIT, 30 * MBIT), stripes=False)
    assert fluid.publication.stripes.plain
    assert len(fluid.run().done_s) == len(UPS) + 1
    assert not anew(fluid)


def test_every_row_of_the_list_has_its_test() -> None:
    rows = set(re.findall(r"^  (r\d+) ", restriping.__doc__ or "", re.MULTILINE))
    assert rows == set(re.findall(r"^def test_(r\d+)_", Path(__file__).read_text(), re.MULTILINE))
    assert len(rows) == 13
