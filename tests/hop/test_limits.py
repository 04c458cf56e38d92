from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.hop.limits import TokenBucket


class Clock:
    """A clock that only sleeping moves, with a timer that is late by `late_s`."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.late_s = late_s

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        wake_s = self.now_s + seconds + self.late_s
        await asyncio.sleep(0)
        self.now_s = max(self.now_s, wake_s)

    def bucket(self, rate: float) -> TokenBucket:
        return TokenBucket(rate, now=self.now, sleep=self.sleep)


async def test_an_idle_link_takes_one_message_at_once_and_no_more() -> None:
    clock = Clock()
    bucket = clock.bucket(1000.0)
    await bucket.take(500)
    assert clock.now_s == 100.0
    await bucket.take(500)
    assert clock.now_s == pytest.approx(100.5)


@given(st.floats(1e4, 1e9), st.lists(st.integers(1, 1 << 20), min_size=1, max_size=50), st.floats(0, 0.015))
def test_the_rate_is_exact_over_a_long_run_even_with_a_late_timer(rate: float, sizes: list[int], late_s: float) -> None:
    async def run() -> None:
        clock = Clock(late_s)
        bucket = clock.bucket(rate)
        for size in sizes:
            await bucket.take(size)
        elapsed_s = clock.now_s - 100.0
        burst_s = max(0.02, *(s / rate for s in sizes)) if sizes else 0.02
        assert elapsed_s >= sum(sizes) / rate - burst_s - 1e-6
        assert elapsed_s <= sum(sizes) / rate + late_s + 1e-6

    asyncio.run(run())


async def test_unused_time_is_not_saved_up() -> None:
    clock = Clock()
    bucket = clock.bucket(1000.0)
    await bucket.take(10)
    clock.now_s += 60
    start_s = clock.now_s
    for _ in range(10):
        await bucket.take(100)
    assert clock.now_s - start_s == pytest.approx(0.9)


async def test_first_come_first_served() -> None:
    clock = Clock()
    bucket = clock.bucket(1000.0)
    order: list[str] = []

    async def user(name: str) -> None:
        for _ in range(3):
            await bucket.take(100)
            order.append(name)

    await asyncio.gather(user("a"), user("b"))
    assert order in (["a", "b"] * 3, ["a", "a", "b", "a", "b", "b"])
    assert clock.now_s == pytest.approx(100.5)


async def test_a_cancelled_user_gives_its_time_back() -> None:
    forever = asyncio.Event()

    async def sleep(_: float) -> None:
        await forever.wait()

    bucket = TokenBucket(1000.0, now=lambda: 100.0, sleep=sleep)
    await bucket.take(100)
    waiting = asyncio.ensure_future(bucket.take(5000))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    clock = Clock()
    bucket._sleep = clock.sleep
    bucket._now = clock.now
    await bucket.take(100)
    assert clock.now_s == pytest.approx(100.1)


async def test_a_long_wait_is_not_a_silence() -> None:
    clock = Clock()
    bucket = clock.bucket(1000.0)
    ticks: list[float] = []

    async def tick() -> None:
        ticks.append(clock.now_s)

    await bucket.take(2100)
    await bucket.take(100, tick)
    assert ticks == pytest.approx([100.5, 101.0, 101.5, 102.0])
    assert clock.now_s == pytest.approx(102.1)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(ValueError, match="a rate of"):
        TokenBucket(rate)


def test_threads_book_in_their_order_and_give_back_what_nobody_waits_behind() -> None:
    clock = Clock()
    bucket = clock.bucket(1000.0)
    assert bucket.book(500).wait_s <= 0
    second, third = bucket.book(500), bucket.book(100)
    assert second.wait_s == pytest.approx(0.5)
    assert third.wait_s == pytest.approx(1.0)
    bucket.give_back(second)  # somebody is behind it: the time is lost
    fourth = bucket.book(100)
    assert fourth.wait_s == pytest.approx(1.1)
    bucket.give_back(fourth)
    assert bucket.book(100).wait_s == pytest.approx(1.1)
