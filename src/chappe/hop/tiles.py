"""Digests of equal pieces of files whose bytes come in portions, in any order and from several threads at a time.

    portion ├──────────┤├──────────┤├─────────┤      blocks of a delta: they begin where tensors do
    tiles   ├────┼────┼────┼────┼────┼────┼───┤      leaves or chunks: they begin at multiples of a power of two

A tile that lies in one portion is hashed at once, while its bytes are in the core's cache. One that does not is hashed
as far as its bytes come in order; what comes too early is copied until then, less than two tiles a portion.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from chappe.core.digest import Algorithm, Hasher


@dataclass(slots=True)
class _Open:
    """A tile in parts. `early` are parts that wait for those before them, by their offset in the tile."""

    hasher: Hasher
    at: int = 0
    early: dict[int, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Tiles:
    """Of files of these sizes. A file's bytes are fed once, each portion by one thread."""

    def __init__(self, algorithm: Algorithm, step: int, sizes: Sequence[int]) -> None:
        self._algorithm, self._step, self._sizes = algorithm, step, sizes
        self._digests: list[list[bytes]] = [[b""] * -(-size // step) for size in sizes]
        self._open: dict[tuple[int, int], _Open] = {}
        self._lock = threading.Lock()

    def feed(self, file: int, offset: int, data: memoryview) -> None:
        """`data` is good for this call only."""
        at = 0
        while at < len(data):
            tile, inner = divmod(offset + at, self._step)
            length = self._length(file, tile)
            part = data[at : at + length - inner]
            if len(part) == length:
                self._digests[file][tile] = self._algorithm.once(part)
            else:
                self._join(file, tile, inner, part, length)
            at += len(part)

    def of(self, file: int) -> list[bytes]:
        """Raises ValueError while bytes of the file are missing."""
        digests = self._digests[file]
        if not all(digests):
            raise ValueError(f"not all bytes of file {file} were seen")
        return digests

    def known(self, file: int) -> list[bytes]:
        """As far as its bytes were seen; empty where some were not."""
        return self._digests[file]

    def _length(self, file: int, tile: int) -> int:
        return min(self._step, self._sizes[file] - tile * self._step)

    def _join(self, file: int, tile: int, inner: int, part: memoryview, length: int) -> None:
        with self._lock:
            tiled = self._open.get((file, tile))
            if tiled is None:
                tiled = self._open[file, tile] = _Open(self._algorithm.start())
        with tiled.lock:
            if inner != tiled.at:
                tiled.early[inner] = bytes(part)
                return
            tiled.hasher.update(part)
            tiled.at += len(part)
            while (early := tiled.early.pop(tiled.at, None)) is not None:
                tiled.hasher.update(early)
                tiled.at += len(early)
            if tiled.at < length:
                return
            self._digests[file][tile] = tiled.hasher.digest()
        with self._lock:
            del self._open[file, tile]
