"""The closed forms at the published point: 16.4 GB over 100 Mbit/s links."""

from __future__ import annotations

import pytest

from chappe.planning.broadcast import (
    PUBLISHED_CHUNK_BYTES,
    EqualFleet,
    chain_pipelined_s,
    delta_bytes,
    floor_s,
    snapshot_bytes,
    star_limited_s,
    star_unlimited_s,
)
from chappe.planning.errors import PlanInputError

MBIT = 1e6 / 8
F = snapshot_bytes(8.2e9, 2)


def fleet(workers: int, b0_mbit: float) -> EqualFleet:
    return EqualFleet(F, b0_mbit * MBIT, 100 * MBIT, workers)


def test_size_and_floor() -> None:
    assert F == 16.4e9
    assert all(floor_s(fleet(n, b0)) == pytest.approx(1312) for n in (4, 6, 9, 20) for b0 in (300, 800))
    assert star_unlimited_s(fleet(20, 300)) == pytest.approx(1312)


@pytest.mark.parametrize(
    ("workers", "star_300", "star_800", "chains_300", "chains_800"),
    [
        (4, 1749, 1312, 1317, 1312),
        (6, 2624, 1312, 1317, 1312),
        (9, 3936, 1476, 1322, 1317),
        (20, 8747, 3280, 1343, 1322),
    ],
)
def test_published_times(workers: int, star_300: int, star_800: int, chains_300: int, chains_800: int) -> None:
    assert star_limited_s(fleet(workers, 300)) == pytest.approx(star_300, abs=0.5)
    assert star_limited_s(fleet(workers, 800)) == pytest.approx(star_800, abs=0.5)
    assert chain_pipelined_s(fleet(workers, 300), chunk_bytes=PUBLISHED_CHUNK_BYTES) == pytest.approx(
        chains_300, abs=0.5
    )
    assert chain_pipelined_s(fleet(workers, 800), chunk_bytes=PUBLISHED_CHUNK_BYTES) == pytest.approx(
        chains_800, abs=0.5
    )


def test_small_chunks_leave_the_pipeline_almost_empty() -> None:
    assert chain_pipelined_s(fleet(20, 300)) == pytest.approx(1312 + 6 * 131072 / 12.5e6)


def test_fractions_are_layers() -> None:
    at = [chain_pipelined_s(fleet(9, 300), f, chunk_bytes=PUBLISHED_CHUNK_BYTES) for f in (1 / 3, 0.5, 0.9, 1.0)]
    assert at == pytest.approx([1312, 1317.12, 1322.24, 1322.24])
    assert star_limited_s(fleet(9, 300), 0.5) == star_limited_s(fleet(9, 300), 1.0)


def test_an_uplink_below_one_link_is_one_slow_chain() -> None:
    slow = EqualFleet(1000.0, 50.0, 100.0, 3)
    assert slow.chains == 1
    assert chain_pipelined_s(slow, chunk_bytes=10) == pytest.approx(20 + 2 * 0.2)
    assert floor_s(slow) == 20


def test_a_delta_costs_its_indices_too() -> None:
    assert delta_bytes(16.4e9, 0.01, bytes_per_element=2, bytes_per_change=1.37) == pytest.approx(8.2e9 * 0.0137)


def test_bad_input_is_named() -> None:
    with pytest.raises(PlanInputError, match="workers"):
        EqualFleet(1, 1, 1, 0)
    with pytest.raises(PlanInputError, match="fraction"):
        chain_pipelined_s(fleet(3, 300), 0)
    with pytest.raises(PlanInputError, match="density"):
        delta_bytes(1, 1.5, bytes_per_element=2, bytes_per_change=1)
