"""What else could be sent: the formats of systems that ship deltas today, and general tools. Sizes in bytes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zstandard

from bench.updates import Bf16

GAP_MAX = 65535


def index_value(base: Bf16, target: Bf16) -> int:
    """int32 index and bf16 value."""
    return int(np.count_nonzero(base != target)) * 6


def gap_value(base: Bf16, target: Bf16) -> int:
    """u16 gap and bf16 value; a longer gap takes extra u16s."""
    positions = np.flatnonzero(base != target)
    gaps = np.diff(positions, prepend=-1)
    return int(positions.size * 4 + 2 * np.sum(gaps // GAP_MAX))


def xor_zstd(level: int) -> Callable[[Bf16, Bf16], int]:
    def size(base: Bf16, target: Bf16) -> int:
        compressor = zstandard.ZstdCompressor(level=level)
        step = 1 << 24
        return sum(
            len(compressor.compress((base[i : i + step] ^ target[i : i + step]).data))
            for i in range(0, base.size, step)
        )

    return size


def zstd_patch_from(base: Bf16, target: Bf16) -> int | None:
    """`zstd --patch-from`, level 3; None without the program."""
    if shutil.which("zstd") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder) / "base", Path(folder) / "target"
        base.tofile(one)
        target.tofile(two)
        command = ["zstd", "-3", "--long=27", "-q", f"--patch-from={one}", str(two), "-o", f"{two}.zst"]
        subprocess.run(command, check=True, timeout=1800)
        return Path(f"{two}.zst").stat().st_size


def bsdiff(base: Bf16, target: Bf16) -> int | None:
    """None without the package (extra `bench`)."""
    try:
        import bsdiff4
    except ImportError:
        return None
    return len(bsdiff4.diff(base.tobytes(), target.tobytes()))


EXACT: dict[str, Callable[[Bf16, Bf16], int]] = {
    "index + value": index_value,
    "u16 gap + value": gap_value,
    "xor + zstd-1": xor_zstd(1),
    "xor + zstd-3": xor_zstd(3),
}
"""Run on all of the data; the two below on a part of it, since they are slow."""
SLOW: dict[str, Callable[[Bf16, Bf16], int | None]] = {"zstd --patch-from": zstd_patch_from, "bsdiff": bsdiff}
