"""Which chunks are whose, against a stupid counter."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.core.ledger import OPEN_END
from chappe.core.ranges import RangeSet
from chappe.core.stripemap import PLAIN, RUNS_WANTED, StripeMap

maps = st.builds(StripeMap, st.lists(st.integers(1, 6), min_size=1, max_size=8).map(tuple), st.integers(1, 5))
totals = st.integers(0, 400)


def owner(stripes: StripeMap, chunk: int) -> int:
    pattern = stripes.pattern()
    return pattern[chunk // stripes.run % len(pattern)]


def members(stripes: StripeMap, stripe: int, total: int) -> list[int]:
    return [c for a, b in stripes.within(stripe, [(0, OPEN_END)], total) for c in range(a, b)]


@given(maps, totals)
def test_every_chunk_is_in_one_stripe_and_that_is_its_patterns(stripes: StripeMap, total: int) -> None:
    owners = {c: s for s in range(len(stripes.weights)) for c in members(stripes, s, total)}
    assert sorted(owners) == list(range(total))
    assert sum(len(members(stripes, s, total)) for s in range(len(stripes.weights))) == total
    assert all(owners[c] == owner(stripes, c) for c in owners)
    assert all(stripes.stripe_of(c) == owner(stripes, c) for c in owners)


@given(maps)
def test_a_period_has_each_stripe_as_often_as_its_weight_and_well_spread(stripes: StripeMap) -> None:
    pattern = stripes.pattern()
    assert Counter(pattern) == dict(enumerate(stripes.weights))
    whole = sum(stripes.weights)
    for stripe, weight in enumerate(stripes.weights):
        had = 0
        for i, chosen in enumerate(pattern, start=1):
            had += chosen == stripe
            assert abs(had - i * weight / whole) < len(stripes.weights), "never far from its share"


@given(maps, totals, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=6))
def test_restrict_and_lacks_are_what_counting_says(
    stripes: StripeMap, total: int, spans: list[tuple[int, int]]
) -> None:
    held = RangeSet()
    for start, length in spans:
        held.add(min(start, total), min(start + length, total))
    lacked = [c for c in range(total) if c not in held]
    missing = RangeSet(held.missing(0, OPEN_END))
    for stripe in range(len(stripes.weights)):
        mine = [c for c in lacked if owner(stripes, c) == stripe]
        assert [c for a, b in stripes.restrict(stripe, missing, total) for c in range(a, b)] == mine
        assert stripes.lacks(stripe, held.ranges(), total) == bool(mine)


def test_one_stripe_is_everything() -> None:
    assert PLAIN.plain
    assert list(PLAIN.within(0, [(3, 5), (9, OPEN_END)], 12)) == [(3, 5), (9, 12)]


def test_large_objects_have_longer_runs() -> None:
    assert StripeMap.of((1, 1, 1, 1), 400).run == 1
    large = StripeMap.of((1,) * 16, 1_000_000)
    assert RUNS_WANTED <= 1_000_000 / large.run < 2 * RUNS_WANTED


@pytest.mark.parametrize(
    ("weights", "run"), [((), 1), ((0, 1), 1), ((1, 1), 0), ((1,) * 65, 1), ((200, 100), 1), ((1, 1), 1 << 40)]
)
def test_maps_that_nobody_would_make_are_refused(weights: tuple[int, ...], run: int) -> None:
    with pytest.raises(ValueError, match="stripe"):
        StripeMap(weights, run)


@given(maps, totals, st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)), max_size=6))
def test_how_many_of_each_stripe_are_in_ranges(stripes: StripeMap, total: int, spans: list[tuple[int, int]]) -> None:
    held = RangeSet((start, start + length) for start, length in spans)
    expected = Counter(owner(stripes, c) for a, b in held for c in range(a, min(b, total)))
    assert stripes.counts(held.ranges(), total) == [expected[s] for s in range(len(stripes.weights))]
