"""The one clock for durations and leases: CLOCK_BOOTTIME goes on while a host sleeps, and nobody can set it."""

from __future__ import annotations

import time


def boot_now() -> float:
    """Seconds since this host booted. Compare only with other values of the same host and boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
