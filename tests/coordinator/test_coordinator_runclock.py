"""The run's clock goes on over restarts and reboots, and never back."""

from __future__ import annotations

import pytest

from chappe.coordinator.runclock import RunClock, read_boot_id
from chappe.errors import StoreCorruptError


def at(boot_s: float, wall_s: float, mark: dict[str, object] | None = None, boot_id: str = "one") -> RunClock:
    return RunClock.resume(mark, boot_id, lambda: boot_s, lambda: wall_s)


def test_a_new_run_uses_the_boot_clock() -> None:
    clock = at(1000.0, 5e9)
    assert clock.now() == 1000.0
    assert clock.saved_s == 0.0


def test_a_restart_in_the_same_boot_goes_on_whatever_the_wall_clock_did() -> None:
    clock = at(1030.0, 0.0, at(1000.0, 5e9).mark())
    assert clock.now() == 1030.0
    assert clock.saved_s == 1000.0


def test_after_a_reboot_the_wall_clock_says_how_long_it_took() -> None:
    before = at(1000.0, 5e9).mark()
    clock = at(20.0, 5e9 + 60.0, before, "two")
    assert clock.now() == 1060.0
    again = at(50.0, 0.0, clock.mark(), "two")
    assert again.now() == 1090.0


def test_a_wall_clock_that_was_set_back_does_not_turn_time_back() -> None:
    clock = at(20.0, 1.0, at(1000.0, 5e9).mark(), "two")
    assert clock.now() == 1000.0


@pytest.mark.parametrize("mark", [{}, {"boot_id": "x", "saved_s": "never", "wall_s": 0, "offset_s": 0}])
def test_a_damaged_mark_is_refused(mark: dict[str, object]) -> None:
    with pytest.raises(StoreCorruptError, match="damaged clock"):
        at(1.0, 1.0, mark)


def test_this_host_has_a_boot_id() -> None:
    assert len(read_boot_id()) == 36
