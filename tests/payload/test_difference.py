"""What has changed is found the same way round, whichever way it is looked for: by words, by elements, or all of it."""

from __future__ import annotations

import numpy as np
import pytest

from chappe.payload.difference import SPARSE_UNDER, TYPES, Difference, Elements

LENGTHS = (1, 4096, 32768, 32769, 65543, 300_007)
"""The first are too short to be looked at by words; the last two end within a word."""


def scattered(rng: np.random.Generator, length: int) -> list[np.ndarray]:
    """Which elements change: from none to all, and such that the middle says something else than the rest."""
    masks = [rng.random(length) < density for density in (0, 1e-4, 0.01, 0.06, 0.12, 0.28, 0.35, 1)]
    masks += [np.zeros(length, np.bool_) for _ in range(3)]
    masks[-3][length // 2 : length // 2 + length // 5] = True  # dense where it is looked first
    masks[-2][: length // 4] = True  # sparse there
    masks[-1][-1:] = True
    return masks


def found(base: Elements, target: Elements) -> None:
    """As by comparing element by element."""
    difference = Difference.between(base, target)
    positions = np.flatnonzero(target != base)
    assert difference.changed == positions.size
    assert (difference.elements, difference.width) == (target.size, target.itemsize)
    if positions.size > SPARSE_UNDER * target.size:
        assert difference.positions is None
        np.testing.assert_array_equal(difference.values, target - base)
    else:
        assert difference.positions is not None
        assert difference.positions.dtype == np.int64
        assert difference.values.dtype == target.dtype
        np.testing.assert_array_equal(difference.positions, positions)
        np.testing.assert_array_equal(difference.values, (target - base)[positions])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_every_changed_element_and_no_other(width: int, length: int) -> None:
    rng = np.random.default_rng(length + width)
    base = np.frombuffer(rng.bytes(length * width), TYPES[width])
    for mask in scattered(rng, length):
        target = base.copy()
        target[mask] += rng.integers(1, 200, length).astype(TYPES[width])[mask]
        found(base, target)


@pytest.mark.parametrize("offsets", [(2, 0), (0, 2), (1, 0), (1, 3)])
def test_bytes_that_do_not_begin_at_a_word(offsets: tuple[int, int]) -> None:
    """As where several tensors share a file: the base's bytes lie elsewhere than the target's."""
    rng = np.random.default_rng(0)
    old, new = bytearray(rng.bytes(1 << 17)), bytearray(1 << 17)
    length = 60_001
    base, target = (np.frombuffer(data, TYPES[2], length, at) for data, at in zip((old, new), offsets, strict=True))
    for mask in scattered(rng, length):
        target[:] = base
        target[mask] ^= TYPES[2].type(0x8001)
        found(base, target)
