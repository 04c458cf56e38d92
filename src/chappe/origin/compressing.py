"""The full snapshot compressed: what it would weigh and cost, its blocks, and its offer beside the full object.

    measure (a few blocks) ──▶ the coordinator decides ──▶ encode, served meanwhile ║ the full object's root ──▶ close
                          what fails, for whatever reason ──▶ SourceFailed: those that waited get the full one

It is a delta that begins at nothing: byte planes and zstd-1, in the blocks and chunks that relays apply anyway. Of bf16
weights (MiniLM's, and Adam-like ones of `bench/updates.py`) one core makes 68.0 % and 68.5 % of the bytes at 0.34 to
0.39 GB/s and undoes it at 0.9 to 1.0; blosc2 with SHUFFLE and zstd-1 69.0 % and 69.3 % at 0.39 to 0.44, and 1.8 back;
its zstd-3 and -5 were larger and slower. So ours is smaller, and brings no dependency.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from chappe.core.digest import XXH3_128
from chappe.core.manifest import Manifest
from chappe.errors import ChappeError
from chappe.origin.deltas import THREADS, DeltaFile
from chappe.origin.encoder import plan_of
from chappe.origin.node import OriginNode
from chappe.origin.reading import Reading
from chappe.origin.scan import Snapshot
from chappe.origin.streaming import Streamed
from chappe.payload.blocks import parse_piece
from chappe.payload.delta import apply_block, encode_block
from chappe.payload.plan import DeltaPlan

log = logging.getLogger(__name__)

MakeCompressed: TypeAlias = Callable[[Manifest], DeltaFile]
"""From the manifest of the full object."""

SAMPLE_BLOCKS = 3
BYTES_MIN = 4 << 20
"""Smaller snapshots are through before anything would be gained."""
SHARE_MAX = 0.95
"""Of the bytes: above, a busy machine decides whether it pays."""


@dataclass(frozen=True, slots=True)
class Compressible:
    """As a sample says. Rates are of the snapshot's bytes: encoding with this host's cores, decoding with one."""

    payload_bytes: int
    encode_bytes_per_s: float
    decode_bytes_per_s: float


def measure(target: Snapshot, threads: int = 0) -> Compressible:
    """From a few blocks: some 20 ms. Raises SnapshotError, ManifestError."""
    plan = plan_of(None, target)
    encoded = covered = 0
    encode_s = decode_s = 0.0
    with closing(Reading(target)) as reading:
        for ordinal in _sample(plan):
            block = plan.block(ordinal)
            data = reading.read(block.file, block.offset, block.length)
            before = time.perf_counter()
            made = encode_block(plan, XXH3_128, ordinal, reading.read, lambda *_, data=data: data)
            between = time.perf_counter()
            pieces = [parse_piece(piece, block.elements, block.width) for piece in made.pieces]
            apply_block(plan, XXH3_128, ordinal, made.digest, pieces, None, memoryview(bytearray(block.length)))
            encode_s, decode_s = encode_s + between - before, decode_s + time.perf_counter() - between
            encoded, covered = encoded + sum(map(len, made.pieces)), covered + block.length
    cores = threads or THREADS
    return Compressible(
        round(target.snapshot_bytes * encoded / max(covered, 1)),
        max(1.0, cores * covered / max(encode_s, 1e-9)),
        max(1.0, covered / max(decode_s, 1e-9)),
    )


def _sample(plan: DeltaPlan) -> list[int]:
    """The largest blocks of equal parts of the snapshot."""
    total = plan.blocks_total
    bounds = [total * part // SAMPLE_BLOCKS for part in range(SAMPLE_BLOCKS + 1)]
    parts = [range(start, min(stop, start + 64)) for start, stop in pairwise(bounds) if stop > start]
    return [max(part, key=lambda ordinal: plan.block(ordinal).length) for part in parts]


class CompressedOffer:
    """`run` it once; `stop` ends it at any time, and takes its file away."""

    def __init__(
        self,
        node: OriginNode,
        object_id: str,
        version: int,
        file: DeltaFile,
        expected_bytes: int,
        root: asyncio.Future[str],
        on_first: Callable[[], None],
    ) -> None:
        """`expected_bytes` is what a sample has told; `on_first` hears that the first chunks can leave."""
        self.object_id = object_id
        self._node, self._version, self._file, self._root = node, version, file, root
        self._served = Streamed(node, object_id, version, file, expected_bytes, self._fail, on_first)
        self._stopped = False

    async def run(self) -> None:
        try:
            await self._served.make(self._root)
        except (ChappeError, OSError) as error:
            if not self._stopped:
                log.warning("version %d is sent without compression: %s", self._version, error)
                self._fail(str(error))

    def _fail(self, reason: str) -> None:
        self._node.session.source_failed(self.object_id, f"not compressed: {reason}")
        self.stop()

    def stop(self) -> None:
        """Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._served.stop()
        self._file.discard()
