"""RangeSet against a plain set of integers."""

from __future__ import annotations

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.ranges import Range, RangeSet

spans = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
steps = st.lists(st.tuples(st.sampled_from(["add", "discard"]), spans), max_size=30)


def numbers(ranges: list[Range]) -> list[int]:
    return [i for a, b in ranges for i in range(a, b)]


def assert_canonical(ranges: RangeSet) -> None:
    listed = list(ranges)
    assert all(a < b for a, b in listed)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(listed))


@given(steps)
def test_behaves_like_a_set(script: list[tuple[str, Range]]) -> None:
    ranges, plain = RangeSet(), set[int]()
    for verb, (start, stop) in script:
        members = set(range(start, stop))
        if verb == "add":
            assert numbers(ranges.add(start, stop)) == sorted(members - plain)
            plain |= members
        else:
            assert numbers(ranges.discard(start, stop)) == sorted(members & plain)
            plain -= members
        assert_canonical(ranges)
        assert numbers(list(ranges)) == sorted(plain)
        assert ranges.ranges() == tuple(iter(ranges))
        assert len(ranges) == len(plain)
        assert bool(ranges) == bool(plain)


@given(steps, spans)
def test_questions_agree_with_a_set(script: list[tuple[str, Range]], span: Range) -> None:
    ranges, plain = RangeSet(), set[int]()
    for verb, (start, stop) in script:
        (ranges.add if verb == "add" else ranges.discard)(start, stop)
        plain = plain | set(range(start, stop)) if verb == "add" else plain - set(range(start, stop))
    wanted = set(range(*span))
    assert numbers(ranges.within(*span)) == sorted(plain & wanted)
    assert numbers(ranges.missing(*span)) == sorted(wanted - plain)
    assert ranges.covers(*span) == (wanted <= plain)
    assert all((i in ranges) == (i in plain) for i in range(80))


def test_copy_is_independent() -> None:
    first = RangeSet([(0, 3)])
    second = first.copy()
    second.add(5, 6)
    assert first == RangeSet([(0, 3)])
    assert second == RangeSet([(5, 6), (0, 3)])


@pytest.mark.parametrize("span", [(-1, 2), (4, 3)])
def test_refuses_what_is_no_range(span: Range) -> None:
    with pytest.raises(ValueError, match="not a range"):
        RangeSet().add(*span)


def test_a_tuple_of_ranges_takes_room_for_ranges_only() -> None:
    assert sys.getsizeof(RangeSet([(0, 10_000_000)]).ranges()) == sys.getsizeof(((0, 1),))
