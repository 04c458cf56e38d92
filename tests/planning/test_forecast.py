"""Forecasts against the closed forms where links are equal, and against what is plain where they are not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.planning.broadcast import EqualFleet, chain_pipelined_s, floor_s, star_limited_s
from chappe.planning.errors import PlanInputError
from chappe.planning.forecast import chain_forecast, equal_links, physical_bound_s, star_forecast
from chappe.planning.topology import Link

MBIT = 1e6 / 8
F = 16.4e9


@pytest.mark.parametrize("b0", [300, 800])
@pytest.mark.parametrize("workers", [4, 6, 9, 20])
def test_equal_links_are_the_closed_forms(workers: int, b0: float) -> None:
    links = equal_links(workers, 100 * MBIT, 100 * MBIT)
    closed = EqualFleet(F, b0 * MBIT, 100 * MBIT, workers)
    chains = chain_forecast(F, b0 * MBIT, links)
    assert len(chains.chains) == closed.chains
    for fraction in (0.25, 0.5, 0.9, 1.0):
        assert chains.at(fraction) == pytest.approx(chain_pipelined_s(closed, fraction), rel=1e-9)
        assert star_forecast(F, b0 * MBIT, links).at(fraction) == pytest.approx(star_limited_s(closed, fraction))
    assert physical_bound_s(F, b0 * MBIT, links) == pytest.approx(floor_s(closed))


def test_a_given_chunk_is_what_each_hop_adds() -> None:
    links = equal_links(9, 100 * MBIT, 100 * MBIT)
    assert chain_forecast(F, 300 * MBIT, links, chunk_bytes=64e6).at(1.0) == pytest.approx(1322.24)


def test_chains_can_be_told() -> None:
    links = equal_links(6, 100 * MBIT, 100 * MBIT)
    one = chain_forecast(F, 300 * MBIT, links, chains=1)
    assert [len(chain) for chain in one.chains] == [6]
    assert one.chains[0] == ("worker-1", "worker-2", "worker-3", "worker-4", "worker-5", "worker-6")


def test_what_is_behind_two_that_cannot_be_dialled_is_never_reached() -> None:
    links = [Link(n, n, 10.0, 10.0, "declared", dialable=False) for n in ("a", "b", "c")]
    found = chain_forecast(1000.0, 10.0, links, chains=1)
    assert found.at(1 / 3) < math.inf
    assert found.at(1.0) == math.inf


hosts = st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100), st.booleans()), min_size=1, max_size=8).map(
    lambda rows: [Link(f"h{i}", f"h{i}", u, d, "declared", dialable=nat) for i, (u, d, nat) in enumerate(rows)]
)


@given(hosts, st.floats(1, 300), st.sampled_from([0.3, 0.5, 0.9, 1.0]))
def test_no_forecast_beats_the_bound_and_everybody_is_in_it_once(links: list[Link], b0: float, fraction: float) -> None:
    bound = physical_bound_s(1000.0, b0, links, fraction=fraction)
    for found in (chain_forecast(1000.0, b0, links, fraction=fraction), star_forecast(1000.0, b0, links)):
        assert found.at(fraction) >= bound * (1 - 1e-9)
        assert sorted(name for chain in found.chains for name in chain) == [link.name for link in links]


@pytest.mark.parametrize(("change", "named"), [({"payload_bytes": 0}, "payload"), ({"b0_bytes_per_s": -1}, "b0")])
def test_bad_input_is_named(change: dict[str, float], named: str) -> None:
    arguments = {"payload_bytes": 1.0, "b0_bytes_per_s": 1.0} | change
    with pytest.raises(PlanInputError, match=named):
        chain_forecast(**arguments, links=equal_links(2, 1.0, 1.0))
    with pytest.raises(PlanInputError, match=named):
        star_forecast(**arguments, links=equal_links(2, 1.0, 1.0))
    with pytest.raises(PlanInputError, match="downlink"):
        equal_links(2, float("nan"), 1.0)
