"""Admission: by age when it is used, each one once, counted by worker and version, shown to Prometheus."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from chappe import Admission, Trajectory
from chappe.admission import OLDER, Counts
from chappe.errors import UsageError


def made(version: int, worker: str = "w1", sequence: int = 0) -> Trajectory:
    return Trajectory(worker, version, f"session of {worker}", sequence, None)


def test_a_trajectory_is_admitted_while_it_is_at_most_s_versions_old() -> None:
    admission = Admission(3, learner_version=10)
    assert [admission.admit(made(v)) for v in (6, 7, 10, 11)] == [False, True, True, True]
    admission.advance(11)
    assert not admission.admit(made(7, sequence=1))


def test_what_waits_in_the_buffer_ages_and_the_share_falls() -> None:
    admission = Admission(2)
    shares = []
    for step in range(1, 7):
        admission.advance(step)
        admission.sift(made(max(1, step - lag), sequence=100 * step + lag) for lag in range(step))
        shares.append(admission.totals().admitted_share)
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[2]


def test_one_that_comes_twice_is_used_once_and_is_no_second_rollout() -> None:
    admission = Admission(3, learner_version=5)
    twin = made(5)
    assert admission.sift([twin, twin, replace(twin, sequence=1), replace(twin, session="after a restart")]) == [
        twin,
        replace(twin, sequence=1),
        replace(twin, session="after a restart"),
    ]
    assert admission.totals() == Counts(admitted=3, duplicates=1)
    assert admission.totals().generated == 3


def test_counts_by_worker_and_version_go_as_far_back_as_they_can_matter() -> None:
    admission = Admission(2, learner_version=4)
    for sequence, (worker, version) in enumerate([("a", 4), ("a", 3), ("b", 2), ("b", 1), ("b", 0)]):
        admission.admit(made(version, worker, sequence))
    assert admission.counts() == {
        ("a", 4): Counts(1),
        ("a", 3): Counts(1),
        ("b", 2): Counts(1),
        ("b", 1): Counts(discarded=1),
        ("b", OLDER): Counts(discarded=1),
    }
    admission.advance(40)
    assert admission.by_version() == {OLDER: Counts(3, 2)}
    assert admission.by_worker() == {"a": Counts(2), "b": Counts(1, 2)}


def test_a_restored_learner_goes_back_and_takes_what_is_newer() -> None:
    admission = Admission(1, learner_version=10)
    admission.advance(5)
    assert admission.admit(made(9))
    with pytest.raises(UsageError):
        admission.advance(-1)
    with pytest.raises(UsageError, match="staleness"):
        Admission(-1)


class Told:
    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []

    def learner(self, version: int, *, admitted: int = 0, discarded: int = 0) -> None:
        self.told.append((version, admitted, discarded))


def test_the_publisher_is_told_how_far_the_learner_is_and_what_it_made_of_all() -> None:
    told = Told()
    admission = Admission(1, publisher=told, learner_version=5)
    admission.sift([made(5), made(4, sequence=1), made(2, sequence=2)])
    admission.advance(6)
    assert told.told == [(6, 2, 1)]


def test_prometheus_sees_totals_workers_and_the_versions_that_count() -> None:
    registry = CollectorRegistry()
    admission = Admission(1, learner_version=5, registry=registry)
    admission.sift([made(5), made(4, "w2", 1), made(2, "w2", 2)])
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'chappe_trajectories_total{admitted="true"} 2.0',
        'chappe_trajectories_total{admitted="false"} 1.0',
        'chappe_worker_trajectories_total{admitted="false",worker="w2"} 1.0',
        'chappe_version_trajectories{admitted="true",version="4"} 1.0',
        'chappe_version_trajectories{admitted="false",version="0"} 1.0',
    ):
        assert line in lines, line


@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 3), st.integers(0, 12)), max_size=60),
)
def test_nothing_is_lost_in_the_counts(staleness: int, script: list[tuple[str, int, int, int]]) -> None:
    admission, admitted, seen = Admission(staleness), 0, 0
    for worker, version, sequence, learner in script:
        admission.advance(learner)
        seen += 1
        admitted += admission.admit(made(version, worker, sequence))
        assert admission.admit(made(version, worker, sequence)) is False
        seen += 1
        totals = admission.totals()
        assert totals.admitted == admitted
        assert totals.admitted + totals.discarded + totals.duplicates == seen
        assert sum(c.generated for c in admission.by_worker().values()) == totals.generated
        assert sum(c.generated for c in admission.by_version().values()) == totals.generated
        assert all(v == OLDER or v >= learner - staleness - 1 for v in admission.by_version())
