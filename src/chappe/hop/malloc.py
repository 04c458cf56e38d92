"""glibc's malloc, told to keep large buffers: the one option that clearly won on the hop (design.md, section 6).

By default glibc maps every message of 128 KiB and more anew and unmaps it after use, and each page of it faults. With
raised thresholds the buffers are reused. Import nothing from grpc before the call.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MMAP_THRESHOLD_BYTES = 32 << 20  # the most that glibc takes
_TRIM_THRESHOLD_BYTES = 16 << 20
_ARENAS = 2  # grpc's threads would each get their own, and each keeps its peak


def raise_thresholds() -> bool:
    """Raise the mmap and trim thresholds of this process. False, and nothing changed, without glibc's malloc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    return all(
        mallopt(option, value) == 1
        for option, value in (
            (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
            (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES),
            (_M_ARENA_MAX, _ARENAS),
        )
    )
