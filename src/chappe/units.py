"""Rates, sizes and times as people write them, and back.

Internally a rate is bytes per second, a size is bytes, a time is seconds: names end in `_bytes_per_s`, `_bytes`, `_s`.
"""

from __future__ import annotations

import math
import re

from chappe.errors import UsageError

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z/]*)\s*")
_SIZES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIMES = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _split(text: str, what: str, examples: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a {what}: write it like {examples}")
    return float(match[1]), match[2]


def parse_rate(text: str) -> float:
    """`100mbit`, `2.5gbit` (decimal bits per second), `12MB`, `12MB/s` (bytes per second) to bytes per second.

    Raises UsageError for another unit, a missing unit, or a rate that is not positive.
    """
    examples = "100mbit, 2.5gbit or 12MB"
    number, unit = _split(text, "rate", examples)
    unit = unit.removesuffix("/s")
    if unit.lower() in _BITS:
        rate = number * _BITS[unit.lower()] / 8
    elif unit in _SIZES:
        rate = number * _SIZES[unit]
    else:
        raise UsageError(f"{text!r} is not a rate: write it like {examples}")
    if not rate > 0 or not math.isfinite(rate):
        raise UsageError(f"{text!r} is not a rate: it must be more than zero")
    return rate


def parse_size(text: str) -> int:
    """`64MiB`, `16.4GB`, `123` to bytes. Raises UsageError."""
    examples = "64MiB or 16.4GB"
    number, unit = _split(text, "size", examples)
    if unit not in _SIZES and unit != "":
        raise UsageError(f"{text!r} is not a size: write it like {examples}")
    return round(number * _SIZES.get(unit, 1))


def parse_duration(text: str) -> float:
    """`90s`, `15m`, `1.5h`, `250ms` to seconds. Raises UsageError for a missing unit."""
    examples = "90s or 15m"
    number, unit = _split(text, "time", examples)
    if unit not in _TIMES:
        raise UsageError(f"{text!r} is not a time: write it like {examples}")
    return number * _TIMES[unit]


def format_rate(bytes_per_s: float) -> str:
    """Bytes per second as `99.5 Mbit/s`."""
    bits = bytes_per_s * 8
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= scale:
            return f"{bits / scale:.3g} {unit}" if bits < 1000 * scale else f"{bits / scale:.0f} {unit}"
    return f"{bits:.0f} bit/s"


def format_size(size_bytes: float) -> str:
    """Bytes as `90.9 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return (
                f"{size_bytes / scale:.3g} {unit}" if size_bytes < 1000 * scale else f"{size_bytes / scale:.0f} {unit}"
            )
    return f"{size_bytes:.0f} B"


def format_duration(seconds: float) -> str:
    """Seconds as `8.2 s`, `3 min 05 s`, `1 h 02 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest:02d} min"
