"""What two processes encode that have nothing to do with each other: how much more than one this machine can do.

Each reads and encodes its half of the blocks, with what a publisher's encoders do and as they do it, and keeps nothing:
no publisher waits for the blocks in order, packs them, writes them. What is missing to twice the speed is the
machine's: its processors share caches and memory, and may be shared with other machines.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.pool import Pool

from chappe.origin.encoder import BlockMaker, Task, plan_of
from chappe.origin.runs import RUN_BLOCKS_MAX


@contextmanager
def processes(count: int) -> Iterator[Pool]:
    """Started, not forked, like a publisher's."""
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        yield pool


def alone_s(pool: Pool, task: Task, parts: int) -> float:
    """Seconds until so many processes have encoded all blocks, each its part."""
    started = time.perf_counter()
    pool.starmap(_encode_part, [(task, part, parts) for part in range(parts)], chunksize=1)
    return time.perf_counter() - started


def _encode_part(task: Task, part: int, parts: int) -> int:
    plan = plan_of(task.base, task.target)
    first, stop = (plan.blocks_total * i // parts for i in (part, part + 1))
    encoded_bytes = 0
    with closing(BlockMaker(task, plan)) as maker:
        while first < stop:
            blocks = maker.encode(range(first, min(first + RUN_BLOCKS_MAX, stop))).blocks
            encoded_bytes += sum(block.piece_bytes for block in blocks)
            first += len(blocks)
    return encoded_bytes
