"""The grid of a delta: which bytes of the target are block i, and which bytes of the base it is compared with.

    target file   ├ header ┤├──── tensors of one element width, one after another ────┤
    blocks        ├ block 0 ┤├ block 1: 2^20 elements ┤├ block 2 ┤├ block 3 (the rest) ┤

A block is one range of one target file, so that it is hashed and written at once; small tensors share one. The grid
follows from the target's table alone: two deltas to the same target have the same blocks, which is what folding needs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property

from chappe.errors import CodecError
from chappe.payload.table import NO_BASE, NOTHING, Region, SnapshotTable, check_mapping, match

BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes [offset, offset + length) of a target file. `region` is the first that it has bytes of."""

    file: int
    offset: int
    length: int
    width: int
    region: int

    @property
    def elements(self) -> int:
        return self.length // self.width


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes of a base file (or zeros, when `file` is NO_BASE) that the next `length` bytes are compared with."""

    file: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Span:
    """The part [begin, end) of a region that lies in a block; `at` is its place in the block. All in bytes."""

    region: int
    begin: int
    end: int
    at: int


@dataclass(frozen=True, slots=True)
class _Run:
    file: int
    begin: int
    end: int
    width: int
    first_region: int
    first_block: int


@dataclass(frozen=True)
class DeltaPlan:
    """Base, target and what is compared with what. Sound by construction; build with `DeltaPlan.between`."""

    base: SnapshotTable
    target: SnapshotTable
    mapping: tuple[int, ...]

    def __post_init__(self) -> None:
        check_mapping(self.base, self.target, self.mapping)

    @staticmethod
    def between(base: SnapshotTable, target: SnapshotTable) -> DeltaPlan:
        return DeltaPlan(base, target, match(base, target))

    @staticmethod
    def whole(target: SnapshotTable) -> DeltaPlan:
        """No base: the object is a compressed full snapshot."""
        return DeltaPlan(NOTHING, target, (NO_BASE,) * len(target.regions))

    @cached_property
    def _runs(self) -> tuple[_Run, ...]:
        runs: list[_Run] = []
        blocks = 0
        regions = self.target.regions
        for number, region in enumerate(regions):
            last = regions[number - 1] if number else None
            if last is not None and _continues(last, region):
                runs[-1] = replace(runs[-1], end=region.end)
                continue
            if runs:
                blocks = runs[-1].first_block + _blocks_of(runs[-1])
            runs.append(_Run(region.file, region.begin, region.end, region.width, number, blocks))
        return tuple(runs)

    @cached_property
    def _first_blocks(self) -> tuple[int, ...]:
        return tuple(run.first_block for run in self._runs)

    @cached_property
    def _first_regions(self) -> tuple[int, ...]:
        return tuple(run.first_region for run in self._runs)

    @cached_property
    def _region_begins(self) -> tuple[tuple[int, int], ...]:
        return tuple((region.file, region.begin) for region in self.target.regions)

    @cached_property
    def blocks_total(self) -> int:
        return self._runs[-1].first_block + _blocks_of(self._runs[-1]) if self._runs else 0

    def block(self, ordinal: int) -> Block:
        """Raises CodecError for a block that is not in the plan."""
        if not 0 <= ordinal < self.blocks_total:
            raise CodecError(f"block {ordinal} of a snapshot of {self.blocks_total} blocks")
        run = self._runs[bisect_right(self._first_blocks, ordinal) - 1]
        offset = run.begin + (ordinal - run.first_block) * BLOCK_ELEMENTS * run.width
        length = min(BLOCK_ELEMENTS * run.width, run.end - offset)
        region = bisect_right(self._region_begins, (run.file, offset)) - 1
        return Block(run.file, offset, length, run.width, region)

    def block_at(self, file: int, offset: int) -> int:
        """The block that has this byte of a target file."""
        region = bisect_right(self._region_begins, (file, offset)) - 1
        run = self._runs[bisect_right(self._first_regions, region) - 1]
        return run.first_block + (offset - run.begin) // (BLOCK_ELEMENTS * run.width)

    def has_base(self, region: int) -> bool:
        """It is of a tensor, and compared with that of the base."""
        return bool(self.target.regions[region].dtype) and self.mapping[region] != NO_BASE

    def spans(self, block: Block) -> list[Span]:
        """The regions that a block has bytes of, in order, without a hole."""
        spans = []
        at, number = 0, block.region
        while at < block.length:
            region = self.target.regions[number]
            begin = block.offset + at - region.begin
            end = min(region.end - region.begin, begin + block.length - at)
            spans.append(Span(number, begin, end, at))
            at += end - begin
            number += 1
        return spans

    def sources(self, block: Block) -> list[Source]:
        """Where the block's base bytes are, in order: one source when the base has them in one piece."""
        sources: list[Source] = []
        for span in self.spans(block):
            number, length = self.mapping[span.region], span.end - span.begin
            if number == NO_BASE:
                source = Source(NO_BASE, 0, length)
            else:
                region = self.base.regions[number]
                source = Source(region.file, region.begin + span.begin, length)
            if sources and _adjoins(sources[-1], source):
                source = Source(sources[-1].file, sources[-1].offset, sources[-1].length + length)
                sources[-1] = source
            else:
                sources.append(source)
        return sources


def _continues(last: Region, region: Region) -> bool:
    """Tensors of one width that follow one another share blocks; headers and sidecars stand alone."""
    return bool(last.dtype and region.dtype) and (last.file, last.end, last.width) == (
        region.file,
        region.begin,
        region.width,
    )


def _blocks_of(run: _Run) -> int:
    return -(-(run.end - run.begin) // (BLOCK_ELEMENTS * run.width))


def _adjoins(last: Source, source: Source) -> bool:
    return last.file == source.file and (source.file == NO_BASE or last.offset + last.length == source.offset)
