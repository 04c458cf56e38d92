from __future__ import annotations

import asyncio
import threading

from chappe.hop.signal import Bell, Signal


def test_a_ring_before_the_wait_is_not_lost_and_two_are_one() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    bell.wait(600.0)
    bell.wait(0.0)  # nothing more: returns because the time is over
    heard = threading.Event()
    waiting = threading.Thread(target=lambda: (bell.wait(600.0), heard.set()))
    waiting.start()
    bell.ring()
    assert heard.wait(30)
    waiting.join()


async def test_what_happened_before_the_wait_counts() -> None:
    signal = Signal()
    seen = signal.count
    signal.fire()
    assert await signal.wait(seen) == seen + 1
    assert await signal.wait(seen, 600.0) == seen + 1


async def in_thread(work: object) -> None:
    assert callable(work)
    await asyncio.to_thread(work)


async def test_fired_from_a_thread() -> None:
    signal = Signal()
    waiting = [asyncio.ensure_future(signal.wait(0, patience_s)) for patience_s in (0.0, 600.0)]
    await asyncio.sleep(0)
    await in_thread(signal.fire)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 30) == [1, 1]


async def test_patience_is_for_what_may_be_heard_soon_and_ends() -> None:
    signal = Signal()
    urgent = asyncio.ensure_future(signal.wait(0))
    patient = asyncio.ensure_future(signal.wait(0, 600.0))
    impatient = asyncio.ensure_future(signal.wait(0, 0.01))
    await asyncio.sleep(0)
    for fire in (lambda: signal.fire(soon=True), lambda: asyncio.to_thread(signal.fire, soon=True)):
        fired = fire()
        if fired is not None:
            await fired
    assert await asyncio.wait_for(urgent, 30) >= 1
    # Whoever has patience is woken together with the one that has the least of it, once for all that has happened.
    assert await asyncio.wait_for(impatient, 30) == 2
    assert await asyncio.wait_for(patient, 30) == 2


async def test_a_patient_one_is_not_woken_by_each_change_and_is_by_news() -> None:
    signal = Signal()
    patient = asyncio.ensure_future(signal.wait(0, 600.0))
    await asyncio.sleep(0)
    for _ in range(100):
        await in_thread(lambda: signal.fire(soon=True))
    assert not patient.done()
    await in_thread(signal.fire)
    assert await asyncio.wait_for(patient, 30) == 101


async def test_who_stopped_waiting_is_forgotten() -> None:
    signal = Signal()
    gone = asyncio.ensure_future(signal.wait(0))
    stays = asyncio.ensure_future(signal.wait(0))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    signal.fire()
    assert await asyncio.wait_for(stays, 30) == 1


def test_threads_hear_every_change_and_a_loop_that_is_gone_does_not_matter() -> None:
    signal = Signal()

    async def wait_once() -> None:
        waiting = asyncio.ensure_future(signal.wait(0))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(wait_once())
    bell = Bell()
    rounds = 200
    heard: list[int] = []

    def listen() -> None:
        with signal.ringing(bell):
            ready.set()
            while signal.count < rounds:
                bell.wait(30.0)
            heard.append(signal.count)

    ready = threading.Event()
    listening = threading.Thread(target=listen)
    listening.start()
    assert ready.wait(30)
    for _ in range(rounds):
        signal.fire(soon=True)
    listening.join(30)
    assert heard == [rounds]
    signal.fire()
    bell.wait(0.0)
    assert signal._bells == ()


def test_no_change_is_lost_between_many_threads() -> None:
    signal = Signal()
    threads = [threading.Thread(target=lambda: [signal.fire(soon=True) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert signal.count == 2000
