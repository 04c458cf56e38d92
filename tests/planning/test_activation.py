from __future__ import annotations

import itertools
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import UsageError
from chappe.planning.activation import Candidate, cheapest_prefix, exact_set, gap, order_prices, prefix_in_order
from chappe.planning.errors import Infeasible, PlanInputError

fleets = st.lists(st.tuples(st.floats(0.05, 5), st.floats(0.01, 2)), min_size=1, max_size=9).map(
    lambda rows: [Candidate(f"w{i}", price, mu) for i, (price, mu) in enumerate(rows)]
)


def brute_force(fleet: list[Candidate], target: float) -> float:
    """The cheapest price of any set that clears the target."""
    return min(
        (
            math.fsum(c.price_per_hour for c in chosen)
            for size in range(len(fleet) + 1)
            for chosen in itertools.combinations(fleet, size)
            if math.fsum(c.rollouts_per_s for c in chosen) >= target * (1 - 1e-12)
        ),
        default=math.inf,
    )


@given(fleets, st.one_of(st.just(0.0), st.floats(0.01, 1)))
def test_the_exact_set_is_as_cheap_as_brute_force_and_the_prefix_never_cheaper(
    fleet: list[Candidate], share: float
) -> None:
    target = share * math.fsum(c.rollouts_per_s for c in fleet)
    best = exact_set(fleet, target, gamma=1.0)
    prefix = cheapest_prefix(fleet, target, gamma=1.0)
    assert best.price_per_hour == pytest.approx(brute_force(fleet, target), rel=1e-6, abs=1e-9)
    assert prefix.rollouts_per_s >= target * (1 - 1e-9)
    assert gap(prefix, best) >= -1e-6
    dearest = max(c.price_per_hour for c in fleet)
    assert prefix.price_per_hour <= best.price_per_hour + dearest + 1e-9, "off by at most the last member"


def test_cheapest_per_rollout_comes_first() -> None:
    fleet = [Candidate("dear", 1.0, 1.0), Candidate("cheap", 0.4, 1.0), Candidate("slow", 0.3, 0.5)]
    assert cheapest_prefix(fleet, 1.2, gamma=1.0).names == ("cheap", "slow")
    assert cheapest_prefix(fleet, 1.2, gamma=1.5).names == ("cheap", "slow", "dear")
    assert prefix_in_order(fleet, 1.2, gamma=1.0).names == ("dear", "cheap")


def test_a_fleet_that_cannot_make_it_says_what_would_help() -> None:
    with pytest.raises(Infeasible, match="add workers, lower gamma, or raise kappa"):
        cheapest_prefix([Candidate("a", 1, 1)], 1.0, gamma=1.1)


def test_orders_are_priced_as_they_come() -> None:
    fleet = [Candidate("dear", 1.0, 1.0), Candidate("cheap", 0.4, 1.0)]
    assert order_prices([fleet, fleet[::-1]], 1.0, gamma=1.0) == [1.0, 0.4]


def test_without_scipy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UsageError, match=r"pip install 'chappe\[plan\]'"):
        exact_set([Candidate("a", 1, 1)], 0.5)


def test_bad_input_is_named() -> None:
    with pytest.raises(PlanInputError, match="rollouts_per_s of 'a'"):
        Candidate("a", 1, 0)
