"""Niceness is a thread's own, and what is urgent goes to threads that never stepped back."""

import os
import threading
from pathlib import Path

import pytest

from chappe.hop import background
from chappe.hop.background import REST_TIMES, STEP, WAITED_SHARE, Background, rest_s, step_back, waited_s


class Wanted:
    """Whose work it is; notes how long a thread would have rested."""

    def __init__(self) -> None:
        self.now, self.rests = False, list[float]()

    def urgent(self) -> bool:
        return self.now

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_thread_steps_back_alone_and_never_too_far() -> None:
    mine, seen = niceness(), []

    def work() -> None:
        for _ in range(3):
            step_back()
            seen.append(niceness())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [min(19, mine + STEP * n) for n in (1, 2, 3)]
    assert niceness() == mine


def test_where_it_is_forbidden_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread pool whose initializer raises does nothing any more."""

    def forbidden(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", forbidden)
    with Background(1, "test", Wanted()) as threads:
        assert threads.submit(niceness).result() == niceness()


def test_what_is_urgent_goes_to_threads_that_have_not_stepped_back() -> None:
    mine, wanted = niceness(), Wanted()
    with Background(1, "test", wanted) as threads:
        assert threads.submit(niceness).result() == min(19, mine + STEP)
        wanted.now = True
        assert threads.submit(niceness).result() == mine
        wanted.now = False
        assert threads.submit(niceness).result() == min(19, mine + STEP)


def test_who_had_to_wait_for_most_of_the_time_rests_several_times_as_long() -> None:
    assert rest_s(1.0, 0.0) == 0
    assert rest_s(1.0, WAITED_SHARE) == 0
    assert rest_s(1.0, 0.8) == pytest.approx(REST_TIMES * 0.8)


def test_a_thread_that_had_to_wait_rests_before_its_next_work_unless_that_is_urgent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = iter([0.0, 1e6, 1e6, 1e6])  # far longer than any work takes; then never again
    monkeypatch.setattr(background, "waited_s", lambda: next(waits))
    wanted = Wanted()
    with Background(1, "test", wanted) as threads:
        for _ in range(2):
            threads.submit(niceness).result()
        wanted.now = True
        threads.submit(niceness).result()
    assert wanted.rests[0] == 0
    assert len(wanted.rests) == 2
    assert wanted.rests[1] > 0


def test_the_kernel_tells_how_long_a_thread_has_waited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert 0 <= waited_s() < float("inf")
    (tmp_path / "schedstat").write_text("5000000 2500000 12\n")
    monkeypatch.setattr(background, "_SCHEDSTAT", tmp_path / "schedstat")
    assert waited_s() == 0.0025
    monkeypatch.setattr(background, "_SCHEDSTAT", tmp_path / "missing")
    assert waited_s() == 0
