"""The ledger: every reader gets every wanted chunk once, in the order of arrival, however it is interleaved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.ledger import OPEN_END, Cursor, Ledger
from chappe.core.ranges import RangeSet

TOTAL = 40
spans = st.tuples(st.integers(0, TOTAL - 1), st.integers(1, 9)).map(lambda p: (p[0], min(p[0] + p[1], TOTAL)))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("add"), spans),
        st.tuples(st.just("drop"), spans),
        st.tuples(st.just("take"), st.integers(1, 8).map(lambda n: (n, n))),
    ),
    max_size=40,
)


@given(actions, st.lists(spans, max_size=4))
def test_a_reader_gets_what_it_wants_once_and_in_order(
    script: list[tuple[str, tuple[int, int]]], wants: list[tuple[int, int]]
) -> None:
    ledger, cursor, wanted = Ledger(TOTAL), Cursor(), RangeSet(wants)
    asked = {i for a, b in wants for i in range(a, b)}
    got: list[int] = []
    arrived: list[int] = []  # arrivals in order, each re-arrival anew
    for verb, (a, b) in script:
        if verb == "add":
            arrived += [i for x, y in ledger.add(a, b) for i in range(x, y)]
        elif verb == "drop":
            ledger.drop(a, b)
        else:
            taken = ledger.take(cursor, wanted, a)
            assert len(taken) <= a
            assert all(i in ledger.held for i in taken)
            got += taken
    while taken := ledger.take(cursor, wanted, TOTAL):
        got += taken
    assert len(got) == len(set(got))
    assert set(got) <= asked
    assert {i for a, b in ledger.held for i in range(a, b)} & asked <= set(got)
    positions = iter(arrived)
    assert all(any(i == j for j in positions) for i in got), "not a subsequence of the arrivals"


def test_missing_is_open_until_the_total_is_known() -> None:
    ledger = Ledger()
    assert ledger.missing() == [(0, OPEN_END)]
    assert not ledger.complete
    ledger.total = 4
    ledger.add(1, 3)
    assert ledger.missing() == [(0, 1), (3, 4)]
    ledger.add(0, 4)
    assert ledger.missing() == []
    assert ledger.complete


def test_an_object_without_chunks_is_complete_as_soon_as_its_header_is_known() -> None:
    assert not Ledger().complete
    assert Ledger(0).complete


def test_what_was_held_before_counts_as_arrived_first() -> None:
    ledger = Ledger(10, RangeSet([(4, 6), (0, 2)]))
    ledger.add(8, 10)
    assert ledger.take(Cursor(), RangeSet([(0, 10)]), 10) == [0, 1, 4, 5, 8, 9]


def test_a_dropped_chunk_that_comes_again_reaches_a_reader_that_had_passed_it() -> None:
    ledger, cursor, wanted = Ledger(4), Cursor(), RangeSet([(0, 4)])
    ledger.add(0, 2)
    ledger.drop(0, 1)
    assert ledger.take(cursor, wanted, 4) == [1]
    ledger.add(0, 1)
    assert ledger.take(cursor, wanted, 4) == [0]


def test_refuses_chunks_past_the_end() -> None:
    with pytest.raises(ValueError, match="of an object of 4 chunks"):
        Ledger(4).add(3, 5)


def test_what_was_dropped_is_counted_whatever_came_since() -> None:
    ledger = Ledger(10)
    ledger.add(0, 5)
    ledger.drop(1, 3)
    ledger.add(5, 9)
    assert (len(ledger.held), ledger.dropped, ledger.arrived) == (7, 2, 9)
    ledger.add(0, 5)
    assert (len(ledger.held), ledger.dropped, ledger.arrived) == (9, 2, 11)
    ledger.drop(9, 10)  # never here
    assert ledger.dropped == 2


def test_what_is_expected_is_not_asked_for_and_not_held() -> None:
    ledger = Ledger(10, RangeSet([(0, 2)]))
    ledger.expected.add(3, 6)
    assert ledger.missing() == [(2, 3), (6, 10)]
    assert not ledger.complete
    assert ledger.take(Cursor(), RangeSet([(0, 10)]), 10) == [0, 1]
    ledger.expected.discard(4, 5)  # its page named another digest
    assert ledger.missing() == [(2, 3), (4, 5), (6, 10)]
    ledger.total = None
    assert ledger.missing() == [(2, 3), (4, 5), (6, 1 << 63)]
