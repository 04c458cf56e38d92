"""One direction of a user-space link: what is lost, what waits, what arrives when. No device, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.wire import Counts, Impairment, Line


def frames(count: int, size_bytes: int = 100) -> list[bytes]:
    return [number.to_bytes(4, "big") + bytes(size_bytes - 4) for number in range(count)]


def passed(line: Line, sent: list[bytes], every_s: float = 0.001) -> list[bytes]:
    for number, frame in enumerate(sent):
        line.push(frame, number * every_s)
    return line.pop(1e9)


def test_nothing_is_early_and_nothing_is_left() -> None:
    line = Line(Impairment(delay_s=0.05))
    assert line.next_due_s() is None
    line.push(b"a", 1.0)
    line.push(b"b", 1.02)
    assert line.next_due_s() == pytest.approx(1.05)
    assert line.pop(1.0499) == []
    assert line.pop(1.0501) == [b"a"]
    assert line.counts == Counts(taken=2, delivered=1)
    assert line.pop(1.08) == [b"b"]
    assert line.next_due_s() is None


@given(st.floats(0, 1), st.integers(0, 2**32), st.floats(0, 0.2))
def test_every_frame_is_delivered_or_counted_and_order_is_kept(loss: float, seed: int, jitter_s: float) -> None:
    sent = frames(200)
    line = Line(Impairment(delay_s=0.01, jitter_s=jitter_s, loss=loss, seed=seed))
    arrived = passed(line, sent)
    assert arrived == [frame for frame in sent if frame in set(arrived)]
    assert line.counts.taken == 200
    assert line.counts.delivered == len(arrived)
    assert line.counts.delivered + line.counts.lost == 200


def test_a_seed_loses_the_same_frames_and_about_the_share_that_was_asked_for() -> None:
    sent = frames(20_000)
    first, again = (passed(Line(Impairment(loss=0.01, seed=7)), sent) for _ in range(2))
    assert first == again
    assert passed(Line(Impairment(loss=0.01, seed=8)), sent) != first
    assert 120 < 20_000 - len(first) < 280  # 200 expected, 14 is one standard deviation


def test_only_where_asked_for_does_jitter_reorder() -> None:
    sent = frames(500)
    assert passed(Line(Impairment(jitter_s=0.05, seed=1)), sent) == sent
    shuffled = passed(Line(Impairment(jitter_s=0.05, seed=1, reorder=True)), sent)
    assert shuffled != sent
    assert sorted(shuffled) == sent


def test_a_rate_spaces_frames_out_and_its_queue_is_bounded() -> None:
    line = Line(Impairment(rate_bytes_per_s=10_000, queue_bytes=1000))
    for frame in frames(30):
        line.push(frame, 0.0)
    assert line.counts.overflowed == 19  # one on the wire, ten waiting
    assert len(line.pop(0.0101)) == 1
    assert len(line.pop(0.0501)) == 4
    assert len(line.pop(0.1101)) == 6


def test_a_change_holds_for_what_comes_after_it() -> None:
    line = Line(Impairment(delay_s=0.1))
    line.push(b"a", 0.0)
    line.change(Impairment(delay_s=0.02))
    line.push(b"b", 0.05)
    assert line.pop(0.0999) == []
    assert line.pop(0.1001) == [b"a", b"b"]  # in order: b waits for a
    line.change(Impairment(loss=1))
    line.push(b"c", 0.2)
    assert line.pop(1.0) == []
    assert line.counts.lost == 1


@pytest.mark.parametrize(
    "wrong", [{"delay_s": -1.0}, {"jitter_s": -0.1}, {"loss": 1.5}, {"loss": -0.1}, {"rate_bytes_per_s": 0.0}]
)
def test_what_no_link_does_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"delay|loss|rate"):
        Impairment(**wrong)  # type: ignore[arg-type]
