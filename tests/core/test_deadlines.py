from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chappe.core.deadlines import Deadlines


def test_the_earliest_counts_and_comes_up_once() -> None:
    deadlines = Deadlines(0.1)
    deadlines.at("a", 5.0)
    deadlines.at("a", 3.0)
    deadlines.at("a", 9.0)
    deadlines.at("b", 4.0)
    assert deadlines.next_s == 3.0
    assert deadlines.pop(2.9) == []
    assert deadlines.pop(4.0) == ["a", "b"]
    assert deadlines.pop(100.0) == []
    assert deadlines.next_s is None


def test_many_come_up_together() -> None:
    deadlines = Deadlines(0.1)
    for i in range(1000):
        deadlines.at(str(i), 5.0 + i * 1e-5)
    times = set()
    while deadlines.next_s is not None:
        times.add(deadlines.next_s)
        deadlines.pop(deadlines.next_s)
    assert len(times) <= 2


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 100)), max_size=30))
def test_never_too_early_and_at_most_a_grain_late(wanted: list[tuple[str, float]]) -> None:
    deadlines = Deadlines(0.1)
    earliest: dict[str, float] = {}
    for key, time_s in wanted:
        deadlines.at(key, time_s)
        earliest[key] = min(time_s, earliest.get(key, time_s))
    came: dict[str, float] = {}
    while (next_s := deadlines.next_s) is not None:
        came.update(dict.fromkeys(deadlines.pop(next_s), next_s))
    assert came.keys() == earliest.keys()
    for key, time_s in earliest.items():
        assert time_s - 1e-6 <= came[key] <= time_s + 0.1 + 1e-6
