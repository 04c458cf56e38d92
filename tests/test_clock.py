from __future__ import annotations

import time

from chappe.clock import boot_now


def test_boot_time_grows_and_counts_from_boot() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    first, second = boot_now(), boot_now()
    assert before <= first <= second <= time.clock_gettime(time.CLOCK_BOOTTIME)
