"""When one connection is too few: a long link that loses packets, kept busy, with nothing waiting in front of it."""

from __future__ import annotations

import pytest

from chappe.hop.linkwatch import LOOK_S, LOOKS, LinkWatch
from chappe.hop.tcp_info import TcpInfo

RATE = 200_000.0


def after(looks: int, **other: float) -> TcpInfo:
    """1 % of the segments of a busy connection over 200 ms is lost."""
    steady = {
        "unanswered": 0,
        "round_trip_s": 0.21,
        "round_trip_s_min": 0.2,
        "segments_sent": 300 * looks,
        "segments_again": 3 * looks,
        "bytes_acknowledged": int(RATE * LOOK_S * looks),
        "silent_s": 0.0,
        "busy_s": 0.95 * LOOK_S * looks,
    }
    return TcpInfo(**(steady | other))  # type: ignore[arg-type]


NOTHING = after(0)


def too_few(watch: LinkWatch, infos: list[TcpInfo | None], congestion_control: str = "cubic") -> list[bool]:
    return [watch.one_is_too_few(info, congestion_control, LOOK_S * n) for n, info in enumerate(infos)]


@pytest.mark.parametrize("congestion_control", ["cubic", "reno"])
@pytest.mark.parametrize("expected", [0.0, 10 * RATE])
def test_a_long_link_that_loses_packets(congestion_control: str, expected: float) -> None:
    seen = too_few(LinkWatch(expected), [NOTHING, *(after(n) for n in range(1, 5))], congestion_control)
    assert seen == [n >= LOOKS for n in range(5)]


@pytest.mark.parametrize(
    ("why_not", "other"),
    [
        ("nothing is lost", {"segments_again": 0}),
        ("it is short", {"round_trip_s": 0.01, "round_trip_s_min": 0.01}),
        ("packets wait in front of it: it is full", {"round_trip_s": 0.3}),
        ("the parent has nothing to send", {"busy_s": 0.0}),
    ],
)
def test_one_is_enough(why_not: str, other: dict[str, float]) -> None:
    assert not any(too_few(LinkWatch(), [NOTHING, *(after(n, **other) for n in range(1, 9))])), why_not


def test_one_that_goes_by_the_rate_is_enough() -> None:
    for name in ("bbr", "bbr3", ""):
        assert not any(too_few(LinkWatch(), [NOTHING, *(after(n) for n in range(1, 9))], name))


def test_one_that_carries_what_is_expected_is_enough() -> None:
    assert not any(too_few(LinkWatch(1.2 * RATE), [NOTHING, *(after(n) for n in range(1, 9))]))


def test_a_loss_now_and_then_is_not_enough() -> None:
    """Every second look has seen one, as at a link that is filled; and the kernel says nothing for a while."""
    again = [0, 5, 5, 9, 9, 12, 12]
    infos: list[TcpInfo | None] = [after(n, segments_again=lost) for n, lost in enumerate(again)]
    assert not any(too_few(LinkWatch(), infos))
    assert not any(too_few(LinkWatch(), [NOTHING, after(1), None, after(3), None, after(5)]))
