"""Pairs of bf16 snapshots as training makes them: an Adam-like step on fp32 masters, both sides rounded to bf16.

A bf16 element changes when its master crosses a rounding boundary, so that the density follows from the learning rate
and the weights' sizes, and large steps are large where the weights are small. Nothing is chosen per element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bf16 = npt.NDArray[np.uint16]
ROW_ELEMENTS = 4096
_PART_ELEMENTS = 1 << 22
WEIGHT_SCALE = 0.02
STEP_SCALE = 0.35
"""Spread of m / sqrt(v), which Adam bounds by about one."""


@dataclass(frozen=True)
class Update:
    """`learning_rate` gave this density."""

    base: Bf16
    target: Bf16
    learning_rate: float
    density: float


def to_bf16(values: npt.NDArray[np.float32]) -> Bf16:
    """Round to nearest even, as torch does for finite values."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def _part(seed: int, count: int, learning_rate: float) -> tuple[Bf16, Bf16]:
    rng = np.random.default_rng(seed)
    scales = WEIGHT_SCALE * np.exp(rng.normal(0, 0.5, -(-count // ROW_ELEMENTS))).astype(np.float32)
    masters = rng.standard_normal(count, np.float32) * np.repeat(scales, ROW_ELEMENTS)[:count]
    steps = np.clip(rng.standard_normal(count, np.float32) * np.float32(STEP_SCALE), -1, 1)
    return to_bf16(masters), to_bf16(masters - np.float32(learning_rate) * steps)


def adam_update(size_bytes: int, learning_rate: float) -> Update:
    count = size_bytes // 2
    base, target = np.empty(count, np.uint16), np.empty(count, np.uint16)
    for seed, start in enumerate(range(0, count, _PART_ELEMENTS)):
        stop = min(start + _PART_ELEMENTS, count)
        base[start:stop], target[start:stop] = _part(seed, stop - start, learning_rate)
    return Update(base, target, learning_rate, float(np.count_nonzero(base != target)) / count)


def learning_rate_for(density: float) -> float:
    """By bisection on one part."""
    low, high = 1e-9, 1.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        base, target = _part(0, 1 << 18, middle)
        if np.count_nonzero(base != target) < density * base.size:
            low = middle
        else:
            high = middle
    return high
