"""RolloutSession against a Local service on a real socket: what is stamped, when weights change, what is reported."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chappe import RolloutSession
from chappe.errors import RelaydUnavailableError, UsageError, WaitTimeoutError
from chappe.rollouts import REPORT_ROLLOUTS_MIN
from chappe.snapshot import Snapshot
from tests.test_subscriber import Harness, in_thread


@pytest.fixture
def relayd(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path)
    harness.run(harness.fake.start())
    yield harness
    harness.run(harness.fake.stop())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_trajectory_bears_the_version_at_dispatch(relayd: Harness, tmp_path: Path) -> None:
    relayd.run(relayd.fake.land(3))
    loaded: list[int] = []
    session = RolloutSession(tmp_path, load=lambda snapshot: loaded.append(snapshot.version))
    with session.dispatch() as work:
        relayd.run(relayd.fake.land(4))
        assert session.refresh()
        assert (session.version, work.version, loaded) == (4, 3, [3, 4])
        made = [work.trajectory(data) for data in ("a", "b")]
    assert [(t.worker, t.version, t.data) for t in made] == [("w1", 3, "a"), ("w1", 3, "b")]
    assert made[0].session == made[1].session
    assert made[0].sequence != made[1].sequence
    assert pickle.loads(pickle.dumps(made[0])) == made[0]
    assert not session.refresh()  # nothing newer: nothing is loaded twice
    assert session.dispatch().version == 4


def test_the_first_dispatch_waits_for_the_first_version(relayd: Harness, tmp_path: Path) -> None:
    session = RolloutSession(tmp_path)
    with pytest.raises(WaitTimeoutError):
        session.dispatch(timeout_s=0.1)
    thread, found = in_thread(lambda: session.dispatch(timeout_s=60).version)
    relayd.run(relayd.fake.until_watched())
    relayd.run(relayd.fake.land(1))
    thread.join()
    assert found == [1]


def test_a_request_that_is_too_far_ahead_makes_the_worker_refresh_first(relayd: Harness, tmp_path: Path) -> None:
    relayd.run(relayd.fake.land(3))
    session = RolloutSession(tmp_path, max_gap=2)
    assert session.dispatch(learner_version=5).version == 3  # the gap is allowed
    watched = relayd.fake.watchers
    thread, found = in_thread(lambda: session.dispatch(learner_version=7, timeout_s=60).version)
    relayd.run(until_watchers(relayd, watched + 1))
    assert session.dispatch(learner_version=4).version == 3  # another request does with what there is
    relayd.run(relayd.fake.land(4))  # not new enough
    relayd.run(relayd.fake.land(6))
    thread.join()
    assert found == [6]
    with pytest.raises(WaitTimeoutError, match="above 7"):
        session.dispatch(learner_version=10, timeout_s=0.1)
    assert session.version == 6


async def until_watchers(relayd: Harness, least: int) -> None:
    async with relayd.fake.changed:
        await relayd.fake.changed.wait_for(lambda: relayd.fake.watchers >= least)


def test_weights_that_cannot_be_loaded_leave_the_version_before_in_use(relayd: Harness, tmp_path: Path) -> None:
    relayd.run(relayd.fake.land(1))

    def load(snapshot: Snapshot) -> None:
        if snapshot.version == 2:
            raise MemoryError("no room for it")

    session = RolloutSession(tmp_path, load=load, confirm=True)
    assert session.dispatch().version == 1
    relayd.run(relayd.fake.land(2))
    with pytest.raises(MemoryError):
        session.refresh()
    assert session.dispatch().version == 1
    relayd.run(relayd.fake.land(3))
    assert session.refresh()
    answers = [(c.version, c.ok, c.reason) for c in relayd.fake.confirmed]
    assert answers == [(1, True, ""), (2, False, "MemoryError: no room for it"), (3, True, "")]


@pytest.mark.parametrize("again", ["refresh", "dispatch"])
def test_a_relayd_that_restarts_while_weights_are_loaded_hears_of_it_later(
    relayd: Harness, tmp_path: Path, again: str
) -> None:
    relayd.run(relayd.fake.land(1))
    session = RolloutSession(tmp_path, load=lambda _: relayd.run(relayd.fake.stop()), confirm=True)
    assert session.refresh()
    assert session.dispatch().version == 1  # nobody is there to be told, and nobody is needed
    relayd.run(relayd.fake.start())
    for _ in range(2):
        getattr(session, again)()
    assert [(c.version, c.ok) for c in relayd.fake.confirmed] == [(1, True)]


def test_what_load_raises_comes_through_also_where_no_relayd_hears_it(relayd: Harness, tmp_path: Path) -> None:
    relayd.run(relayd.fake.land(1))

    def load(_: Snapshot) -> None:
        relayd.run(relayd.fake.stop())
        raise MemoryError("no room for it")

    with pytest.raises(MemoryError):
        RolloutSession(tmp_path, load=load, confirm=True).refresh()


def test_nothing_is_stamped_while_weights_change(relayd: Harness, tmp_path: Path) -> None:
    relayd.run(relayd.fake.land(1))
    changing, go_on = threading.Event(), threading.Event()

    def load(snapshot: Snapshot) -> None:
        if snapshot.version == 2:
            changing.set()
            assert go_on.wait(60)

    session = RolloutSession(tmp_path, load=load)
    session.dispatch().close()
    relayd.run(relayd.fake.land(2))
    refreshing, _ = in_thread(session.refresh)
    assert changing.wait(60)
    dispatching, found = in_thread(lambda: session.dispatch().version)
    assert found == []
    go_on.set()
    refreshing.join()
    dispatching.join()
    assert found == [2]


def test_the_rate_is_that_of_the_time_in_which_there_was_work(relayd: Harness, tmp_path: Path) -> None:
    relayd.run(relayd.fake.land(1))
    clock = Clock()
    session = RolloutSession(tmp_path, report_s=4, now=clock)
    for _ in range(REPORT_ROLLOUTS_MIN):
        with session.dispatch() as work:
            clock.now += 2
            work.trajectory()
        clock.now += 500  # the learner wants nothing
    assert relayd.fake.reported == [0.5]
    first, second = session.dispatch(), session.dispatch()  # two at once: twice the rate
    for _ in range(REPORT_ROLLOUTS_MIN // 2):
        clock.now += 2
        first.trajectory()
        second.trajectory()
    first.close()
    second.close()
    second.close()
    assert relayd.fake.reported == [0.5, 1.0]


def test_a_relayd_that_is_gone_stops_no_rollout(relayd: Harness, tmp_path: Path) -> None:
    relayd.run(relayd.fake.land(1))
    clock = Clock()
    session = RolloutSession(tmp_path, report_s=1, now=clock, worker="me")
    with session.dispatch() as work:
        relayd.run(relayd.fake.stop())
        clock.now += 100
        made = [work.trajectory(i) for i in range(2 * REPORT_ROLLOUTS_MIN)]
    assert [t.worker for t in made] == ["me"] * 2 * REPORT_ROLLOUTS_MIN
    with pytest.raises(RelaydUnavailableError):
        session.refresh()


@pytest.mark.parametrize("arguments", [{"max_gap": -1}, {"report_s": float("nan")}, {"report_s": -1.0}])
def test_bad_input_is_named(tmp_path: Path, arguments: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        RolloutSession(tmp_path, **arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="learner_version"):
        RolloutSession(tmp_path).dispatch(learner_version=-1)
