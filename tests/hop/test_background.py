"""Niceness is a thread's own, and what is urgent goes to threads that never stepped back."""

import os
import threading

import pytest

from chappe.hop.background import STEP, Background, step_back


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
    with Background(1, "test", lambda: False) as threads:
        assert threads.submit(niceness).result() == niceness()


def test_what_is_urgent_goes_to_threads_that_have_not_stepped_back() -> None:
    mine, urgent = niceness(), False
    with Background(1, "test", lambda: urgent) as threads:
        assert threads.submit(niceness).result() == min(19, mine + STEP)
        urgent = True
        assert threads.submit(niceness).result() == mine
        urgent = False
        assert threads.submit(niceness).result() == min(19, mine + STEP)
