"""The parts of the simulator alone: agenda, clocks, links, tracks, copies, loops."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chappe.core.manifest import CHUNKS_PER_PAGE
from chappe.core.ranges import RangeSet
from chappe.sim.clock import Agenda, HostClock
from chappe.sim.copies import Copy, SimObject, pieces
from chappe.sim.invariants import cycles
from chappe.sim.links import ANYBODY, Network, Pipe
from chappe.sim.tracks import Track

OBJECT = SimObject("0" * 32, 1, 1000, 65536, 1000 * 65536, "x:1")


def drain(agenda: Agenda) -> None:
    while agenda.step():
        pass


# ---- time ----------------------------------------------------------------------------------------------------------


def test_equal_times_happen_in_the_order_they_were_put_down() -> None:
    agenda = Agenda()
    seen: list[object] = []
    agenda.at(2.0, seen.append, "c")
    agenda.at(1.0, seen.append, "a")
    agenda.at(1.0, seen.append, "b")
    agenda.at(1.5, seen.append, "never").cancel()
    drain(agenda)
    assert (seen, agenda.now, agenda.events) == (["a", "b", "c"], 2.0, 3)


def test_what_should_have_happened_happens_now() -> None:
    agenda = Agenda()
    seen: list[object] = []
    agenda.at(5.0, lambda: agenda.at(1.0, lambda: seen.append(agenda.now)))
    drain(agenda)
    assert seen == [5.0]


def test_a_reboot_starts_the_boot_clock_anew_and_a_step_moves_only_the_wall() -> None:
    agenda = Agenda()
    clock = HostClock(agenda, booted_s=-100.0)
    before, wall = clock.boot_id, clock.wall()
    clock.step_wall(-3600.0)
    assert (clock.boot(), clock.wall()) == (100.0, wall - 3600.0)
    clock.reboot()
    assert clock.boot() == 0.0
    assert clock.boot_id != before


# ---- links ---------------------------------------------------------------------------------------------------------


def network(changes: list[int]) -> Network:
    made = Network(lambda: changes.append(1))
    for node in "abc":
        made.add(node, 0.5)
    return made


def test_cuts_have_a_direction_and_add_up() -> None:
    changes: list[int] = []
    net = network(changes)
    net.cut("a", "b")
    net.cut("a", ANYBODY)
    assert not net.passes("a", "b")
    assert net.passes("b", "a")
    net.mend("a", ANYBODY)
    assert not net.passes("a", "b")
    assert net.passes("a", "c")
    net.mend("a", "b")
    assert net.both("a", "b")
    assert net.clear("a")
    assert len(changes) == 4


def test_partitions_overlap() -> None:
    net = network([])
    both = net.part(["a", "b"])
    one = net.part(["b"])
    assert not net.passes("a", "b")
    net.join(["a", "b"], both)
    assert net.passes("a", "c")
    assert not net.passes("b", "c")
    net.join(["b"], one)
    assert net.passes("b", "c")


def test_a_pipe_keeps_order_and_waits_for_its_path() -> None:
    agenda, net = Agenda(), network([])
    heard: list[tuple[float, int]] = []
    pipe = Pipe(agenda, net, "a", "b", lambda m: heard.append((agenda.now, m)))
    pipe.send(1, extra_s=3.0)
    pipe.send(2)
    drain(agenda)
    assert heard == [(4.0, 1), (4.0, 2)]
    net.cut("a", "b")
    pipe.send(3)
    pipe.send(4)
    drain(agenda)
    assert len(heard) == 2
    net.mend("a", "b")
    drain(agenda)
    assert heard[2:] == [(5.0, 3), (5.0, 4)]
    pipe.send(5)
    pipe.close()
    drain(agenda)
    assert len(heard) == 4


# ---- payload -------------------------------------------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=6)


@given(RANGES, st.integers(0, 80), st.integers(0, 80))
def test_pieces_are_a_slice_of_the_numbers(drawn: list[tuple[int, int]], start: int, stop: int) -> None:
    ranges = [(a, a + n) for a, n in drawn]
    numbers = [n for a, b in ranges for n in range(a, b)]
    assert [n for a, b in pieces(ranges, start, stop) for n in range(a, b)] == numbers[start:stop]


@given(RANGES, st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.0, 30.0)), max_size=8))
def test_a_track_takes_each_chunk_once_and_in_order(
    drawn: list[tuple[int, int]], steps: list[tuple[float, float]]
) -> None:
    plan = list(RangeSet((a, a + n) for a, n in drawn))
    took: list[tuple[int, int]] = []
    track, now = Track(plan, 0.0, took.extend), 0.0
    for wait_s, rate in steps:
        track.turn(now, rate)
        now += wait_s
        track.settle(now)
    assert track.at(now) <= track.total
    numbers = [n for a, b in plan for n in range(a, b)]
    got = [n for a, b in took for n in range(a, b)]
    assert got == numbers[: len(got)]
    assert len(got) == int(track.at(now) + 1e-6)
    assert [n for a, b in track.left() for n in range(a, b)] == numbers[len(got) :]


def whole() -> Copy:
    return Copy(OBJECT, RangeSet([(0, 1000)]), header=True)


def test_rot_shows_where_the_page_is_checked_and_is_dropped_by_a_recheck() -> None:
    source, child = whole(), Copy(OBJECT)
    source.rot(500)
    assert child.mismatches(source) == [500]
    assert source.false_chunks() == []  # nobody has noticed
    assert source.recheck((499, 500)) == [500]
    assert 500 not in source.held
    assert child.mismatches(source) == []


def test_a_false_page_comes_with_its_chunk_and_shows_only_in_the_root() -> None:
    first, second = Copy(OBJECT), Copy(OBJECT)
    first.forged = 300
    first.store([(0, 1000)], whole())
    assert second.mismatches(first) == []
    second.store([(0, 1000)], first)
    assert (first.arrived, second.arrived, second.false_chunks()) == ({300: 1}, {300: 1}, [300])


def test_whoever_has_the_true_page_takes_no_false_chunk() -> None:
    source, child = Copy(OBJECT), Copy(OBJECT)
    child.store([(0, CHUNKS_PER_PAGE)], whole())
    source.forged = 2 * CHUNKS_PER_PAGE - 1
    child.store([(CHUNKS_PER_PAGE, CHUNKS_PER_PAGE + 1)], whole())
    assert child.mismatches(source) == [2 * CHUNKS_PER_PAGE - 1]


# ---- loops ---------------------------------------------------------------------------------------------------------


def test_loops_are_found_behind_chains_that_lead_into_them() -> None:
    edges = {"a": "b", "b": "c", "c": "b", "d": "o", "e": "e"}
    assert sorted(map(sorted, cycles(edges))) == [["b", "c"], ["e"]]


@given(st.dictionaries(st.integers(0, 12), st.integers(0, 12)))
def test_loops_are_what_a_walk_comes_back_to(parents: dict[int, int]) -> None:
    edges = {str(a): str(b) for a, b in parents.items()}
    expected = set()
    for start in edges:
        node = start
        for _ in range(len(edges) + 1):
            node = edges.get(node, "")
            if node == start:
                expected.add(start)
                break
    assert set().union(*cycles(edges)) == expected
