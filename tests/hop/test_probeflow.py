"""What one direction of a probe has under way, and what it makes of acknowledgements."""

from __future__ import annotations

import asyncio
import math
from collections import deque

import pytest

from chappe.clock import boot_now
from chappe.hop.probeflow import PIECE_MAX_BYTES, PIECE_MIN_BYTES, WINDOW_MIN_BYTES, Limits, Window


def carried_over(rate_bytes_per_s: float, round_trip_s: float, seconds: float) -> tuple[Window, int]:
    """A window whose pieces go over such a link, and the most that was ever under way."""
    window, now, most = Window(), 0.0, 0
    window.taken(0, now)
    under_way: deque[tuple[float, int]] = deque()
    link_free_s = 0.0
    while now < seconds:
        while window.sent_bytes - window.taken_bytes + window.piece_bytes <= window.bytes:
            size = window.piece_bytes
            window.sent(size, now)
            link_free_s = max(link_free_s, now) + size / rate_bytes_per_s
            under_way.append((link_free_s + round_trip_s, window.sent_bytes))
        most = max(most, window.sent_bytes - window.taken_bytes)
        now, taken = under_way.popleft()
        window.taken(taken, now)
    return window, most


@pytest.mark.parametrize(
    ("rate_bytes_per_s", "round_trip_s"),
    [(125e3, 0.0005), (1.25e6, 0.0005), (1.25e6, 0.1), (12.5e6, 0.2), (125e6, 0.02), (1.25e9, 0.0005)],
)
def test_the_link_is_filled_and_little_more(rate_bytes_per_s: float, round_trip_s: float) -> None:
    window, most = carried_over(rate_bytes_per_s, round_trip_s, 20 * round_trip_s + 200 * (1 << 16) / rate_bytes_per_s)
    assert window.bytes >= rate_bytes_per_s * round_trip_s  # or else the link would stand still at times
    queued = rate_bytes_per_s * (round_trip_s + PIECE_MAX_BYTES / rate_bytes_per_s)
    assert most <= max(WINDOW_MIN_BYTES, 2 * queued) + PIECE_MAX_BYTES


def test_without_an_acknowledgement_there_is_no_window() -> None:
    assert Window().bytes == math.inf


def test_pieces_grow_with_the_rate_within_limits() -> None:
    assert Window().piece_bytes == PIECE_MIN_BYTES
    assert carried_over(3e6, 0.001, 1.0)[0].piece_bytes == pytest.approx(30_000, rel=0.2)
    assert carried_over(1e9, 0.001, 0.1)[0].piece_bytes == PIECE_MAX_BYTES


def test_a_pause_of_the_sender_is_none_of_the_link() -> None:
    window, _ = carried_over(1.25e6, 0.01, 0.5)
    while_it_flowed = window.bytes
    window.taken(window.sent_bytes, 1.0)
    window.sent(PIECE_MIN_BYTES, 9.0)  # the bucket, or a busy processor
    window.taken(window.sent_bytes, 9.02)
    assert window.bytes == while_it_flowed


@pytest.mark.parametrize("total", [0, 3 << 20])
def test_what_cannot_have_been_taken_is_an_error(total: int) -> None:
    window = Window()
    window.sent(1 << 20, 0.0)
    window.taken(1 << 19, 0.1)
    with pytest.raises(ValueError, match="that were sent"):
        window.taken(total, 0.2)


async def test_a_full_window_waits_for_the_far_end() -> None:
    window = Window()
    window.taken(0, boot_now())
    pieces = Limits(1 << 20, 2.0).filler(None, window)
    sent = 0
    while sent + PIECE_MIN_BYTES <= WINDOW_MIN_BYTES:
        sent += len(await anext(pieces))
    waits = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    assert not waits.done()
    window.taken(sent, boot_now())
    assert await asyncio.wait_for(waits, 30)


async def test_a_far_end_that_says_nothing_more_costs_no_more_than_the_time() -> None:
    window = Window()
    window.taken(0, boot_now())
    total = sum([len(piece) async for piece in Limits(1 << 30, 0.05).filler(None, window)])
    assert total == WINDOW_MIN_BYTES
