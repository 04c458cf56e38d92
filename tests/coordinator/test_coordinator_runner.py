"""Effects leave in order and after what they rest on is written; a state that cannot be written stops everything.

One that cannot be written for now only holds it up: nothing is decided, nothing said, and then all of it in order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from chappe.coordinator import runner as runner_module
from chappe.coordinator.runclock import RunClock
from chappe.coordinator.runner import Runner, RunnerStoppedError
from chappe.coordinator.state import Batch
from chappe.core import effects as fx
from chappe.core.effects import Effect
from chappe.core.events import Event, Heard, StoodStill, Tick
from chappe.core.rows import Json, RowKey
from chappe.errors import StateAwayError, StoreError, StoreLockedError


@dataclass
class ScriptedMachine:
    """Answers every event with what the test says, and counts versions of its one document."""

    script: Callable[[Event], list[Effect]]
    seen: list[tuple[Event, float]] = field(default_factory=list)
    documents: list[str] = field(default_factory=list)  # whose were made

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.seen.append((event, now))
        return self.script(event)

    def worker_document(self, worker_id: str) -> Json | None:
        self.documents.append(worker_id)
        return None if worker_id == "gone" else {"after": len(self.seen)}

    def publication_rows(self, object_id: str) -> dict[RowKey, Json | None] | None:
        self.documents.append(object_id)
        return {("head", ""): {"object": object_id}}


class Disk:
    """A state store whose writes the test lets through."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.started = threading.Semaphore(0)
        self.may_go = threading.Event()
        self.error: StoreError | None = None
        self.tried: list[Batch] = []

    def write(self, batch: Batch) -> None:
        self.tried.append(batch)
        self.started.release()
        assert self.may_go.wait(30)
        if self.error is not None:
            raise self.error
        self.batches.append(batch)

    def away(self) -> None:
        self.error = StateAwayError("the database restarts")
        self.may_go.set()


def event(session: int) -> Event:
    return Heard("w", session)


def done(request: int) -> Effect:
    return fx.RequestDone(request)


def clock_at(now: Callable[[], float]) -> RunClock:
    return RunClock("boot", 0.0, 0.0, now, lambda: 0.0)


@dataclass
class Rig:
    machine: ScriptedMachine
    disk: Disk
    delivered: list[Effect]
    counted: list[fx.Count]
    runner: Runner


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    machine, disk = ScriptedMachine(lambda _event: []), Disk()
    delivered: list[Effect] = []
    counted: list[fx.Count] = []
    runner = Runner(
        machine, write=disk.write, deliver=delivered.append, count=counted.append, clock=clock_at(lambda: 5.0)
    )
    yield Rig(machine, disk, delivered, counted, runner)
    disk.may_go.set()
    await runner.close()


async def started(disk: Disk) -> None:
    assert await asyncio.to_thread(disk.started.acquire, timeout=30)


async def test_what_needs_no_writing_is_delivered_at_once(rig: Rig) -> None:
    rig.machine.script = lambda _event: [done(1), fx.Count("c"), done(2), fx.Log("e", "r", {"n": 1})]
    rig.runner.post(event(1))
    assert rig.delivered == [done(1), done(2)]
    assert rig.counted == [fx.Count("c")]
    assert rig.machine.seen == [(event(1), 5.0)]
    assert rig.runner.changed.count == 1


async def test_nothing_is_said_before_it_is_written_and_the_order_is_kept(rig: Rig) -> None:
    def script(event: Event) -> list[Effect]:
        assert isinstance(event, Heard)
        if event.session == 1:
            return [done(1), fx.PersistWorker("w"), fx.PersistEpoch(100)]
        return [done(event.session)]

    rig.machine.script = script
    first = asyncio.ensure_future(rig.runner.submit(event(1)))
    await started(rig.disk)
    rig.runner.post(event(2))  # has nothing to write, and still may not overtake
    assert rig.delivered == []
    rig.disk.may_go.set()
    await first
    await rig.runner.submit(event(3))
    assert rig.delivered == [done(1), done(2), done(3)]
    assert [(b.workers, b.epoch_reserved) for b in rig.disk.batches] == [({"w": {"after": 1}}, 100)]
    assert rig.disk.batches[0].clock is not None
    assert rig.disk.batches[0].clock["saved_s"] == 5.0


async def test_a_document_is_made_once_for_a_transaction(rig: Rig) -> None:
    rig.machine.script = lambda _event: [fx.PersistWorker("w"), fx.PersistPublication("o")]
    rig.runner.post(event(1))
    await started(rig.disk)
    rig.machine.documents.clear()
    for session in range(2, 50):
        rig.runner.post(event(session))
    rig.disk.may_go.set()
    await rig.runner.submit(event(50))
    assert len(rig.disk.batches) == 2
    assert rig.machine.documents == ["w", "o"]


async def test_news_that_nobody_waits_for_gathers_until_somebody_does(rig: Rig) -> None:
    def script(event: Event) -> list[Effect]:
        assert isinstance(event, Heard)
        told = [fx.PublishProgress("o", (1,)) if event.session < 9 else done(9)]
        return [fx.PersistWorker(f"w{event.session}"), *told]

    rig.machine.script = script
    rig.disk.may_go.set()
    for session in range(1, 10):
        rig.runner.post(event(session))
    await rig.runner.submit(event(10))
    assert [list(batch.workers) for batch in rig.disk.batches] == [[f"w{n}" for n in range(1, 11)]]
    assert rig.delivered == [*(fx.PublishProgress("o", (1,)) for _ in range(8)), done(9), done(9)]
    rig.runner.post(event(1))
    await started(rig.disk)  # alone, it is written nevertheless


async def test_events_during_a_write_share_the_next_transaction(rig: Rig) -> None:
    rig.machine.script = lambda _event: [fx.PersistWorker("w"), fx.PersistPublication("o"), fx.PersistWorker("gone")]
    rig.runner.post(event(1))
    await started(rig.disk)
    waiting = [asyncio.ensure_future(rig.runner.submit(event(n))) for n in range(2, 10)]
    await asyncio.sleep(0)
    rig.disk.may_go.set()
    await asyncio.gather(*waiting)
    assert len(rig.disk.batches) == 2
    assert rig.disk.batches[1].workers == {"w": {"after": 9}, "gone": None}
    assert rig.disk.batches[1].publications == {"o": {("head", ""): {"object": "o"}}}


async def test_what_is_written_is_the_state_after_all_events_of_the_transaction(rig: Rig) -> None:
    rig.machine.script = lambda e: [fx.PersistWorker("w")] if e in (event(1), event(2)) else []
    rig.runner.post(event(1))
    await started(rig.disk)
    rig.runner.post(event(2))
    rig.runner.post(event(3))
    rig.disk.may_go.set()
    await rig.runner.submit(event(4))
    assert [batch.workers for batch in rig.disk.batches] == [{"w": {"after": 1}}, {"w": {"after": 4}}]


async def test_a_failed_write_stops_the_runner_and_says_nothing(rig: Rig) -> None:
    rig.machine.script = lambda _event: [fx.PersistWorker("w"), done(1)]
    rig.disk.error = StoreError("no space left")
    first, second = (asyncio.ensure_future(rig.runner.submit(event(n))) for n in (1, 2))
    await started(rig.disk)
    rig.disk.may_go.set()
    for call in (first, second):
        with pytest.raises(RunnerStoppedError, match="no space left"):
            await call
    assert rig.runner.stopped.is_set()
    assert str(rig.runner.failure) == "no space left"
    assert rig.delivered == []
    rig.runner.post(event(3))
    with pytest.raises(RunnerStoppedError):
        await rig.runner.submit(event(4))
    assert len(rig.machine.seen) == 2


@pytest.mark.parametrize("where", ["rows", "disk"])
async def test_an_error_that_nobody_thought_of_stops_it_while_it_writes(
    rig: Rig, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No call waits for ever for a writer that is no more."""

    def broken(*_: object) -> None:
        raise KeyError("member w9")

    rig.machine.script = lambda _event: [fx.PersistPublication("o"), done(1)]
    rig.disk.may_go.set()
    if where == "rows":
        monkeypatch.setattr(rig.machine, "publication_rows", broken)
    else:
        monkeypatch.setattr(rig.runner, "_write", broken)
    with pytest.raises(RunnerStoppedError, match="member w9"):
        async with asyncio.timeout(30):
            await rig.runner.submit(event(1))
    assert rig.runner.stopped.is_set()
    assert rig.delivered == []
    await rig.runner.close()


async def test_a_machine_that_raises_stops_the_runner(rig: Rig) -> None:
    def broken(_event: Event) -> list[Effect]:
        raise AssertionError("two children")

    rig.machine.script = broken
    with pytest.raises(AssertionError, match="two children"):
        await rig.runner.submit(event(1))
    assert rig.runner.stopped.is_set()
    assert "Heard" in str(rig.runner.failure)


async def test_close_writes_what_is_pending_and_takes_no_more(rig: Rig) -> None:
    rig.machine.script = lambda _event: [fx.PersistWorker("w"), done(1)]
    rig.runner.post(event(1))
    await started(rig.disk)
    closing = asyncio.ensure_future(rig.runner.close())
    await asyncio.sleep(0)
    rig.runner.post(event(2))
    rig.disk.may_go.set()
    await closing
    assert rig.delivered == [done(1)]
    assert [e for e, _ in rig.machine.seen] == [event(1)]


async def test_the_newest_wake_up_is_the_one_that_counts() -> None:
    now = 0.0
    ticked = asyncio.Event()

    def script(e: Event) -> list[Effect]:
        if isinstance(e, Tick):
            ticked.set()
            return []
        return [fx.WakeAt(10_000.0), fx.WakeAt(now)]

    machine = ScriptedMachine(script)
    runner = Runner(
        machine,
        write=lambda _batch: None,
        deliver=lambda _effect: None,
        count=lambda _count: None,
        clock=clock_at(lambda: now),
    )
    runner.post(event(1))
    async with asyncio.timeout(30):
        await ticked.wait()
    assert [e for e, _ in machine.seen] == [event(1), Tick()]
    await runner.close()


def worker_and_answer(event: Event) -> list[Effect]:
    return [fx.PersistWorker("w"), done(event.session)] if isinstance(event, Heard) else []


async def test_while_the_database_is_away_nothing_is_decided_or_said_and_then_all_of_it_in_order(rig: Rig) -> None:
    rig.machine.script = worker_and_answer
    rig.disk.away()
    first = asyncio.ensure_future(rig.runner.submit(event(1)))
    for _ in range(3):
        await started(rig.disk)
    later = [asyncio.ensure_future(rig.runner.submit(event(n))) for n in (2, 3)]
    await asyncio.sleep(0)
    rig.runner.post(Tick())
    assert rig.runner.standstill == "the database restarts"
    assert ([e for e, _ in rig.machine.seen], rig.delivered) == ([event(1)], [])
    rig.disk.error = None
    await asyncio.gather(first, *later)
    assert rig.runner.standstill == ""
    assert [e for e, _ in rig.machine.seen] == [event(1), StoodStill(), event(2), event(3), Tick()]
    assert rig.delivered == [done(1), done(2), done(3)]
    assert rig.runner.failure is None
    first_tries = [batch for batch in rig.disk.tried if batch.workers == {"w": {"after": 1}}]
    assert len(first_tries) >= 4
    assert all(batch is first_tries[0] for batch in first_tries)  # rows are made once, and are not there again
    assert [batch.workers for batch in rig.disk.batches] == [{"w": {"after": 1}}, {"w": {"after": 5}}]


async def test_a_database_that_goes_while_nothing_is_written_holds_up_what_comes_then(rig: Rig) -> None:
    rig.machine.script = worker_and_answer
    probed = threading.Semaphore(0)
    away = threading.Event()
    away.set()

    def probe() -> None:
        probed.release()
        if away.is_set():
            raise StateAwayError("the database restarts")

    checking = asyncio.ensure_future(rig.runner.check(probe))
    for _ in range(2):
        assert await asyncio.to_thread(probed.acquire, timeout=30)
    asking = asyncio.ensure_future(rig.runner.submit(event(1)))
    await asyncio.sleep(0)
    assert (rig.machine.seen, rig.runner.standstill) == ([], "the database restarts")
    rig.disk.may_go.set()
    away.clear()
    await asyncio.gather(checking, asking)
    assert rig.delivered == [done(1)]


async def test_a_write_that_takes_long_holds_up_what_comes_but_nobody_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "SLOW_WRITE_S", 0.0)
    rig.machine.script = worker_and_answer
    first = asyncio.ensure_future(rig.runner.submit(event(1)))
    await started(rig.disk)
    await rig.runner.changed.wait(0)
    second = asyncio.ensure_future(rig.runner.submit(event(2)))
    await asyncio.sleep(0)
    assert ([e for e, _ in rig.machine.seen], rig.runner.standstill) == ([event(1)], "")
    rig.disk.may_go.set()
    await asyncio.gather(first, second)
    assert rig.delivered == [done(1), done(2)]


async def test_a_runner_that_is_stopped_while_the_database_is_away_leaves_nobody_waiting(rig: Rig) -> None:
    rig.machine.script = worker_and_answer
    rig.disk.away()
    first = asyncio.ensure_future(rig.runner.submit(event(1)))
    for _ in range(2):
        await started(rig.disk)
    second = asyncio.ensure_future(rig.runner.submit(event(2)))
    await asyncio.sleep(0)
    await rig.runner.close()
    for call in (first, second):
        with pytest.raises(RunnerStoppedError):
            await call
    assert (rig.delivered, rig.disk.batches, rig.runner.failure) == ([], [], None)


async def test_a_machine_that_raises_once_it_can_go_on_leaves_nobody_waiting(rig: Rig) -> None:
    rig.machine.script = worker_and_answer
    rig.disk.away()
    first = asyncio.ensure_future(rig.runner.submit(event(1)))
    for _ in range(2):
        await started(rig.disk)
    later = [asyncio.ensure_future(rig.runner.submit(event(n))) for n in (2, 3)]
    await asyncio.sleep(0)

    def broken(_event: Event) -> list[Effect]:
        raise AssertionError("two children")

    rig.machine.script = broken
    rig.disk.error = None
    await first
    for call in later:
        with pytest.raises(RunnerStoppedError):
            await call
    assert "StoodStill" in str(rig.runner.failure)


async def test_a_database_that_another_has_taken_over_is_the_end(rig: Rig) -> None:
    rig.machine.script = worker_and_answer
    rig.disk.away()
    first = asyncio.ensure_future(rig.runner.submit(event(1)))
    await started(rig.disk)
    rig.disk.error = StoreLockedError("another coordinator")
    with pytest.raises(RunnerStoppedError, match="another coordinator"):
        await first
    assert rig.runner.stopped.is_set()
    assert rig.delivered == []
