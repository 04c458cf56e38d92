"""The codec of deltas from memory to memory: encode, decode and, for comparison, copy; with one thread or some."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np

from bench.updates import Update
from chappe.core.digest import XXH3_128
from chappe.core.manifest import FileEntry, TensorEntry
from chappe.hop.ordered import OrderedMap, one_at_a_time
from chappe.payload.container import DataChunk, Packer, parse_chunk
from chappe.payload.delta import BlockState, apply_block, base_bytes, encode_delta
from chappe.payload.fold import Delta
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import SnapshotTable

ROOT = "xxh3_128:" + "0" * 32
_COPY_BYTES = 2 << 20


class Codec:
    """Of one update, whose delta it holds. Raises AssertionError when that is not exact."""

    def __init__(self, update: Update) -> None:
        self.update = update
        self.full_bytes = update.base.nbytes
        table = _whole(update.base.size)
        self._plan = DeltaPlan.between(table, table)
        self._base, self._target = (memoryview(values).cast("B") for values in (update.base, update.target))
        self._out = np.empty_like(update.base)
        self._decoded = memoryview(self._out).cast("B")
        self.chunks = self.encode(1)
        self._delta = Delta.of(self._plan, XXH3_128, self.chunks)
        self._groups = _whole_block_groups(self._plan, self.chunks)
        self.copy(1)  # the pages are there
        self.decode(1)
        if not np.array_equal(self._out, update.target):
            raise AssertionError("the delta is not exact")

    def encode(self, threads: int) -> list[bytes]:
        packer = Packer(XXH3_128)
        with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
            mapper = map if pool is None else OrderedMap(pool, 2 * threads)
            blocks = encode_delta(
                self._plan, XXH3_128, self._read_base, self._read_target, mapper=mapper, brief=one_at_a_time
            )
            chunks = list(packer.pack(blocks))
        return [*chunks, packer.close(ROOT)]

    def decode(self, threads: int) -> None:
        if threads == 1:
            for group in self._groups:
                self._apply(group)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(self._apply, self._groups))

    def copy(self, threads: int) -> None:
        """What no decoder on this machine can do without: read the base, write the target."""
        new, old = self._out.view(np.uint8), self.update.base.view(np.uint8)

        def part(at: int) -> None:
            np.copyto(new[at : at + _COPY_BYTES], old[at : at + _COPY_BYTES])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(part, range(0, self.full_bytes, _COPY_BYTES)))

    def _read_base(self, _: int, offset: int, length: int) -> memoryview:
        return self._base[offset : offset + length]

    def _read_target(self, _: int, offset: int, length: int) -> memoryview:
        return self._target[offset : offset + length]

    def _apply(self, group: Sequence[int]) -> None:
        plan = self._plan
        parsed = [c for c in (parse_chunk(plan, XXH3_128, self.chunks[i]) for i in group) if isinstance(c, DataChunk)]
        for ordinal in range(parsed[0].first, parsed[-1].stop):
            block = plan.block(ordinal)
            pieces = [piece for chunk in parsed for piece in chunk.pieces_of(ordinal)]
            part = self._decoded[block.offset : block.offset + block.length]
            have = base_bytes(plan, block, self._read_base)
            state = apply_block(
                plan, XXH3_128, ordinal, self._delta.digest(ordinal), pieces, have, part, brief=one_at_a_time
            )
            if state is not BlockState.APPLIED:
                raise AssertionError(f"block {ordinal} came out wrong")


def _whole(elements: int) -> SnapshotTable:
    size = 2 * elements
    return SnapshotTable.build(
        [FileEntry("model.safetensors", size)], [TensorEntry("w", "BF16", (elements,), 0, 0, size)]
    )


def _whole_block_groups(plan: DeltaPlan, chunks: Sequence[bytes]) -> list[list[int]]:
    """Chunk numbers, cut where a block ends: what one thread applies."""
    groups: list[list[int]] = []
    stop = -1
    for number, data in enumerate(chunks):
        chunk = parse_chunk(plan, XXH3_128, data)
        if isinstance(chunk, DataChunk):
            if chunk.first >= stop:
                groups.append([])
            groups[-1].append(number)
            stop = chunk.stop
    return groups
