"""What changed in a block, as unsigned integers modulo the element's width: the input and the output of the codec.

Nothing here interprets an element: a NaN with a payload, -0.0 and a packed 4-bit pair are integers like all others.
numpy releases the GIL in all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from chappe.core.digest import Hasher
from chappe.payload.planes import Buffer

Elements: TypeAlias = npt.NDArray[Any]  # unsigned, little-endian, 1 to 8 bytes wide
Positions: TypeAlias = npt.NDArray[np.int64]

SPARSE_UNDER = 0.30
"""The share of changed elements up to which a difference is kept as positions and values."""
TYPES = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_WORD = np.dtype("<u8")
_WORDS_MIN = 1 << 12
_WORDS_UNDER = 0.25
"""The share of changed words of 8 bytes up to which those are looked for first, then what has changed in them."""
_FEW, _FEW_UNDER = 1 << 9, 0.1
"""Of a mask: where numpy looks for one after the other, each a branch that the processor does not foresee."""


def elements_of(data: Buffer, width: int) -> Elements:
    return np.frombuffer(data, TYPES[width])


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a block or a piece. Sparse (`positions`, `values`) up to 30 % of changed elements, dense (`values`) above."""

    elements: int
    width: int
    changed: int
    values: Elements
    positions: Positions | None

    @staticmethod
    def between(base: Elements | None, target: Elements, hasher: Hasher | None = None) -> Difference:
        """`base` None stands for zeros. `hasher` is given the target's bytes on the way."""
        if base is None:
            _feed(hasher, target)
            return Difference.of(target)
        few = _few(base, target)
        if few is not None:
            _feed(hasher, target)
            return Difference(target.size, target.itemsize, few[0].size, few[1], few[0])
        differs = target != base
        changed = int(np.count_nonzero(differs))
        _feed(hasher, target)
        if changed > SPARSE_UNDER * target.size:
            return Difference(target.size, target.itemsize, changed, target - base, None)
        positions = _where(differs, changed)
        values = target.take(positions) - base.take(positions)
        return Difference(target.size, target.itemsize, changed, values, positions)

    @staticmethod
    def of(values: Elements) -> Difference:
        """The same choice, from the differences of all elements."""
        mask = values != 0
        changed = int(np.count_nonzero(mask))
        if changed > SPARSE_UNDER * values.size:
            return Difference(values.size, values.itemsize, changed, values, None)
        positions = _where(mask, changed)
        return Difference(values.size, values.itemsize, changed, values.take(positions), positions)

    def dense(self) -> Elements:
        if self.positions is None:
            return self.values
        values = np.zeros(self.elements, TYPES[self.width])
        values[self.positions] = self.values
        return values

    def add_to(self, base: Elements | None, out: Elements, hasher: Hasher | None = None) -> None:
        """`out` = `base` (or zeros) + this, hashed on the way. `out` may be `base`."""
        if self.positions is None:
            np.add(0 if base is None else base, self.values, out=out)
        else:
            if base is not out:
                out[:] = 0 if base is None else base
            out[self.positions] = out.take(self.positions) + self.values
        _feed(hasher, out)

    def slice(self, start: int, stop: int) -> Difference:
        if self.positions is None:
            return Difference.of(self.values[start:stop])
        low, high = np.searchsorted(self.positions, (start, stop))
        values = self.values[low:high]
        if high - low > SPARSE_UNDER * (stop - start):
            dense = np.zeros(stop - start, TYPES[self.width])
            dense[self.positions[low:high] - start] = values
            return Difference(stop - start, self.width, int(high - low), dense, None)
        return Difference(stop - start, self.width, int(high - low), values, self.positions[low:high] - start)


def _few(base: Elements, target: Elements) -> tuple[Positions, Elements] | None:
    """Positions and values where few words differ: of 2-byte elements numpy then writes and looks through a mask of a
    quarter of the length. None where this would not be sooner done."""
    width = target.itemsize
    each = _WORD.itemsize // width
    words = target.size // each
    if each == 1 or words < _WORDS_MIN or not (base.flags.aligned and target.flags.aligned):
        return None
    old, new = base[: words * each].view(_WORD), target[: words * each].view(_WORD)
    if not (old.flags.aligned and new.flags.aligned):  # numpy would copy them
        return None
    middle = slice(words // 2, words // 2 + _WORDS_MIN // 2)
    if np.count_nonzero(new[middle] != old[middle]) > _WORDS_UNDER * _WORDS_MIN // 2:
        return None
    differs = new != old
    changed = int(np.count_nonzero(differs))
    if changed > _WORDS_UNDER * words:
        return None
    at = _where(differs, changed)
    steps = new.take(at).view(target.dtype)
    steps -= old.take(at).view(target.dtype)
    inner = (steps != 0).nonzero()[0]
    values = steps.take(inner)
    positions = at.take(inner >> each.bit_length() - 1)
    positions *= each
    inner &= each - 1
    positions += inner
    if words * each < target.size:
        end = words * each
        more = (target[end:] != base[end:]).nonzero()[0] + end
        positions = np.concatenate((positions, more))
        values = np.concatenate((values, target.take(more) - base.take(more)))
    return positions, values


def _where(mask: npt.NDArray[np.bool_], count: int) -> Positions:
    """`mask.nonzero()`, of which `count` are true, sooner: where they are few, eights of them first, then in those."""
    if count < _FEW or count > _FEW_UNDER * mask.size:
        return mask.nonzero()[0]
    whole = mask.size & ~7
    eights = mask[:whole].view(_WORD)
    some = eights != 0
    these = _where(some, int(np.count_nonzero(some)))
    inner = eights.take(these).view(np.bool_).nonzero()[0]
    positions = these.take(inner >> 3)
    positions <<= 3
    inner &= 7
    positions += inner
    rest = mask[whole:].nonzero()[0]
    return np.concatenate((positions, rest + whole)) if rest.size else positions


def copy_elements(base: Elements | None, out: Elements, hasher: Hasher) -> None:
    """What `Difference.add_to` does where nothing changes."""
    if base is not out:
        out[:] = 0 if base is None else base
    _feed(hasher, out)


def _feed(hasher: Hasher | None, elements: Elements) -> None:
    if hasher is not None and elements.size:
        hasher.update(elements.view(np.uint8).data)
