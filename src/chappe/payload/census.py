"""How much of a block has changed, region by region: what a person is told of a step.

Only tensors that have a base say something about it: a new tensor differs from zeros everywhere, and a tokenizer's
bytes are no elements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chappe.payload.container import EncodedBlock
from chappe.payload.difference import Difference
from chappe.payload.plan import Block, DeltaPlan, Span


def counted(
    plan: DeltaPlan, ordinal: int, digest: bytes, difference: Difference, pieces: Sequence[bytes]
) -> EncodedBlock:
    """The block as it travels, with what its tensors say."""
    changed = changed_of_tensors(plan, plan.block(ordinal), difference)
    size = sum(map(len, pieces)) * changed // difference.changed if changed else 0
    return EncodedBlock(ordinal, digest, changed, size, tuple(pieces))


def changed_of_tensors(plan: DeltaPlan, block: Block, difference: Difference) -> int:
    """Elements of tensors that have a base."""
    if not difference.changed:
        return 0
    spans = plan.spans(block)
    told = [span for span in spans if plan.has_base(span.region)]
    if len(told) == len(spans):
        return difference.changed
    return sum(_changed(difference, block.width, span) for span in told)


def changed_by_region(plan: DeltaPlan, block: Block, difference: Difference) -> dict[int, int]:
    return {span.region: _changed(difference, block.width, span) for span in plan.spans(block)}


def _changed(difference: Difference, width: int, span: Span) -> int:
    start, stop = span.at // width, (span.at + span.end - span.begin) // width
    if difference.positions is None:
        return int(np.count_nonzero(difference.values[start:stop]))
    low, high = np.searchsorted(difference.positions, (start, stop))
    return int(high - low)
