"""What a delta would be, tensor by tensor, before anything is published: densities, bytes, and what others would send.

The bytes of a delta are encoded, not estimated; those of a compressed full snapshot come from a sample of its blocks;
those of the plain formats follow from counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from chappe.core.digest import Algorithm
from chappe.payload.blocks import DENSE, PLAIN, SPARSE, encode
from chappe.payload.census import changed_by_region
from chappe.payload.container import CHUNK_BYTES_DEFAULT
from chappe.payload.delta import ReadRange, difference_of
from chappe.payload.difference import Difference, elements_of
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import NO_BASE

MODES = {SPARSE: "sparse", DENSE: "dense", PLAIN: "plain"}
FULL_SAMPLE_BLOCKS = 24
_RECORD_BYTES = 5  # of its numbers, about


@dataclass(frozen=True, slots=True)
class BlockSurvey:
    """`changed` counts elements by region; `delta_bytes` are by mode, digest and record included."""

    changed: dict[int, int]
    delta_bytes: dict[str, int]
    full_bytes: int | None  # where the block was in the sample
    block_bytes: int


@dataclass(frozen=True, slots=True)
class RegionSurvey:
    """Of one tensor, or of bytes that are none (`dtype` empty). `compared` is False without a base."""

    name: str
    dtype: str
    elements: int
    changed: int
    compared: bool

    @property
    def density(self) -> float:
        return self.changed / self.elements


@dataclass(frozen=True, slots=True)
class Survey:
    """All sizes in bytes. `elements` and `changed` count tensor data that has a base."""

    regions: tuple[RegionSurvey, ...]
    snapshot_bytes: int
    delta_bytes: int
    delta_bytes_by_mode: dict[str, int]
    full_compressed_bytes: int  # estimated
    index_value_bytes: int  # int32 index and value for every changed element
    gap_value_bytes: int  # u16 gap and value
    elements: int
    changed: int

    @property
    def density(self) -> float:
        return self.changed / self.elements if self.elements else 0.0


def survey_block(
    plan: DeltaPlan,
    algorithm: Algorithm,
    ordinal: int,
    read_base: ReadRange,
    read_target: ReadRange,
    *,
    chunk_bytes: int = CHUNK_BYTES_DEFAULT,
) -> BlockSurvey:
    block = plan.block(ordinal)
    difference = difference_of(plan, ordinal, read_base, read_target)
    by_mode: Counter[str] = Counter({"unchanged": algorithm.digest_bytes})
    if difference.changed:
        by_mode.clear()
        for piece in encode(difference, chunk_bytes):
            by_mode[MODES[piece[0] & 3]] += len(piece) + _RECORD_BYTES
        by_mode[next(iter(by_mode))] += algorithm.digest_bytes
    full = None
    if ordinal % max(1, plan.blocks_total // FULL_SAMPLE_BLOCKS) == 0:
        target = elements_of(read_target(block.file, block.offset, block.length), block.width)
        full = sum(map(len, encode(Difference.of(target), chunk_bytes)))
    return BlockSurvey(changed_by_region(plan, block, difference), dict(by_mode), full, block.length)


def collect(plan: DeltaPlan, blocks: Iterable[BlockSurvey]) -> Survey:
    """The whole, from its blocks in any order."""
    changed: Counter[int] = Counter()
    by_mode: Counter[str] = Counter()
    sampled = sampled_full = 0
    for block in blocks:
        changed.update(block.changed)
        by_mode.update(block.delta_bytes)
        if block.full_bytes is not None:
            sampled += block.block_bytes
            sampled_full += block.full_bytes
    regions, index_value, gap_value = [], 0, 0
    for number, region in enumerate(plan.target.regions):
        compared = plan.mapping[number] != NO_BASE
        count = (region.end - region.begin) // region.width
        regions.append(RegionSurvey(plan.target.label(number), region.dtype, count, changed[number], compared))
        if region.dtype and compared:
            index_value += changed[number] * (4 + region.width)
            gap_value += changed[number] * (2 + region.width)
        else:
            index_value += region.end - region.begin
            gap_value += region.end - region.begin
    tensors = [r for r in regions if r.dtype and r.compared]
    snapshot_bytes = plan.target.snapshot_bytes
    return Survey(
        regions=tuple(regions),
        snapshot_bytes=snapshot_bytes,
        delta_bytes=sum(by_mode.values()),
        delta_bytes_by_mode=dict(sorted(by_mode.items())),
        full_compressed_bytes=round(snapshot_bytes * sampled_full / sampled) if sampled else 0,
        index_value_bytes=index_value,
        gap_value_bytes=gap_value,
        elements=sum(r.elements for r in tensors),
        changed=sum(r.changed for r in tensors),
    )
