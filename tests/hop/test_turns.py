"""Turns of stripes at a node's uplink: who is next, and what somebody costs who does not read, goes or comes late."""

from __future__ import annotations

import threading

import pytest

from chappe.hop import turns as module
from chappe.hop.turns import LAG_CHUNKS, TURNS, Share, Turns

PATIENT_S = 30.0


def nothing() -> None:
    return


class Waiting:
    """A stream that asks for a turn in a thread of its own. It stands in the queue when this returns."""

    def __init__(self, turns: Turns, share: Share) -> None:
        self.answer: bool | None = None
        self._thread = threading.Thread(target=self._run, args=(turns, share), daemon=True)
        self._thread.start()
        while share not in turns._waiting and self._thread.is_alive():
            self._thread.join(0.001)

    def _run(self, turns: Turns, share: Share) -> None:
        self.answer = turns.take(share, 1, nothing)

    def has(self) -> bool | None:
        """What it was told, when it has been."""
        self._thread.join(PATIENT_S)
        assert not self._thread.is_alive()
        return self.answer

    @property
    def waits(self) -> bool:
        return self.answer is None


def test_a_few_at_a_time_and_then_whoever_is_furthest_behind() -> None:
    turns = Turns()
    holding = [turns.join(0.25, 0) for _ in range(TURNS)]
    for share in holding:
        assert turns.take(share, 1, nothing)
    last, first, second = (Waiting(turns, turns.join(0.25, held)) for held in (7, 3, 5))
    turns.rest(holding[0])
    assert first.has()
    assert second.waits
    turns.rest(holding[1])
    assert second.has()
    assert last.waits
    turns.rest(holding[2])
    assert last.has()


def test_whoever_has_just_sent_is_next_when_it_is_furthest_behind() -> None:
    turns = Turns(1)
    wide, narrow = turns.join(0.8, 0), turns.join(0.2, 0)
    assert turns.take(wide, 1, nothing)
    other = Waiting(turns, narrow)
    turns.sent(wide, 0.0)
    again = Waiting(turns, wide)
    assert other.has()  # nobody has been sent less
    turns.sent(narrow, 0.0)
    third = Waiting(turns, narrow)
    assert again.has()
    for _ in range(2):
        turns.sent(wide, 0.0)
        assert turns.take(wide, 1, nothing)
        assert third.waits
    turns.leave(wide)
    assert third.has()


def test_who_comes_late_is_preferred_for_so_much_and_no_more() -> None:
    turns = Turns(1)
    old = turns.join(0.5, 0)
    for _ in range(1000):
        assert turns.take(old, 1, nothing)
        turns.sent(old, 0.0)
    late = turns.join(0.5, 0)
    assert old.served - late.served == pytest.approx(LAG_CHUNKS, abs=3)
    assert turns.join(0.5, 5000).served == 10000


def test_who_takes_too_long_keeps_nobody_waiting_and_counts_again_when_it_is_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S_MIN", 0.01)
    monkeypatch.setattr(module, "_FIRST_S", 0.001)
    turns = Turns(1)
    stuck, well = turns.join(0.5, 0), turns.join(0.5, 0)
    assert turns.take(stuck, 1, nothing)
    assert turns.take(well, 1, nothing)  # when patience with the first has ended
    stuck.began_s -= 60.0
    turns.sent(stuck, 0.0)
    assert stuck.slow
    assert turns.take(stuck, 1, nothing)  # at once, beside the other
    turns.sent(stuck, 0.0)
    assert not stuck.slow


def test_when_all_have_become_slow_that_is_what_turns_take() -> None:
    turns = Turns(1)
    share = turns.join(1.0, 0)
    for _ in range(100):
        assert turns.take(share, 1, nothing)
        share.began_s -= 3.0
        turns.sent(share, 0.0)
    assert not share.slow


def test_a_long_path_has_more_turns_until_it_is_left() -> None:
    turns = Turns(1)
    far, *near = (turns.join(0.25, 0) for _ in range(5))
    assert turns.take(far, 1, nothing)
    turns.sent(far, 2.5)
    turns.rest(far)
    for share in near[:3]:
        assert turns.take(share, 1, nothing)
    waiting = Waiting(turns, near[3])
    turns.leave(far)
    for share in near[:2]:
        turns.rest(share)
        assert waiting.waits
    turns.rest(near[2])
    assert waiting.has()


def test_a_stream_that_ends_while_it_waits_gets_none_and_costs_none() -> None:
    turns = Turns(1)
    first, ended = turns.join(0.5, 0), turns.join(0.5, 0)
    assert turns.take(first, 1, nothing)
    waiting = Waiting(turns, ended)
    turns.leave(ended)
    assert waiting.has() is False
    turns.sent(first, 0.0)
    assert turns.take(first, 1, nothing)
    turns.leave(first)
    assert not turns.take(first, 1, nothing)


def test_somebody_is_told_that_it_still_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEANWHILE_S", 0.001)
    turns = Turns(1)
    first, second = turns.join(0.5, 0), turns.join(0.5, 0)
    assert turns.take(first, 1, nothing)
    assert turns.take(second, 1, lambda: turns.rest(first))


def test_who_fails_in_its_wait_does_not_stand_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEANWHILE_S", 0.001)
    turns = Turns(1)
    first, failing, third = (turns.join(1 / 3, held) for held in (0, 0, 1))

    def fail() -> None:
        raise OSError("gone")

    assert turns.take(first, 1, nothing)
    with pytest.raises(OSError, match="gone"):
        turns.take(failing, 1, fail)
    waiting = Waiting(turns, third)
    turns.rest(first)
    assert waiting.has()
