"""What two processes decode that have nothing to do with each other: how much more than one this machine can do.

Each applies the delta of an update of its own, from memory to memory and with one thread. What is missing to twice the
speed of one is the machine's; what two threads of one process gain less than that goes to Python's lock.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

from bench.deltacodec import Codec
from bench.updates import adam_update
from chappe.hop.malloc import raise_thresholds

HANDS = 2
_codec: Codec | None = None


def decode_scaling(size_bytes: int, learning_rate: float, repeat: int) -> float:
    """How much more two processes decode than one, each half of so many bytes: at most 2."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        hands = [stack.enter_context(ProcessPoolExecutor(1, context)) for _ in range(HANDS)]
        for ready in [hand.submit(_prepare, size_bytes // HANDS, learning_rate) for hand in hands]:
            ready.result()
        took = [(_seconds(hands[:1]), _seconds(hands)) for _ in range(repeat)]
    return statistics.median(HANDS * alone / together for alone, together in took)


def _seconds(hands: list[ProcessPoolExecutor]) -> float:
    started = time.perf_counter()
    for done in [hand.submit(_decode) for hand in hands]:
        done.result()
    return time.perf_counter() - started


def _prepare(size_bytes: int, learning_rate: float) -> None:
    global _codec
    raise_thresholds()
    _codec = Codec(adam_update(size_bytes, learning_rate))


def _decode() -> None:
    assert _codec is not None
    _codec.decode(1)
