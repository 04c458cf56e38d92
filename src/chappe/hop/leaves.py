"""The digests of a full object's 1 MiB leaves, taken as its chunks arrive, so that the root needs no second pass.

A chunk that is a leaf shares its digest. A larger one is hashed again, leaf by leaf. Smaller ones feed a running hasher
as long as they come in order; a leaf whose chunks do not is left for `missing`, to be read back from the page cache.
No I/O here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from chappe.core.digest import Hasher
from chappe.core.manifest import LEAF_BYTES, ChunkPlace, Manifest, file_digest, snapshot_root

RUNNING_MAX = 16
"""Leaves being hashed at a time: one per stripe and parent is enough; more only means that nothing comes in order."""


@dataclass(slots=True)
class _Running:
    hasher: Hasher
    at: int


class LeafTable:
    """Leaves are numbered through all files. Digests may be set from any thread, each leaf by one at a time."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._first = [0]
        for file in range(len(manifest.files)):
            self._first.append(self._first[-1] + manifest.leaves_of_file(file))
        self._size = manifest.algorithm.digest_bytes
        self._digests = bytearray(self._first[-1] * self._size)
        self._have = bytearray(self._first[-1])
        self._running: OrderedDict[int, _Running] = OrderedDict()

    def feed(self, place: ChunkPlace, data: bytes | memoryview, digest: bytes) -> bool:
        """Take a verified chunk. False when its leaf was not hashed on the way (see `missing`)."""
        leaf, inner = self._first[place.file] + place.offset // LEAF_BYTES, place.offset % LEAF_BYTES
        if inner == 0 and place.length <= LEAF_BYTES and place.length == self._leaf_length(place):
            self.set(leaf, digest)
            return True
        if place.length > LEAF_BYTES:
            view = memoryview(data)
            for i in range(0, place.length, LEAF_BYTES):
                self.set(leaf + i // LEAF_BYTES, self._manifest.algorithm.once(view[i : i + LEAF_BYTES]))
            return True
        return self._run(leaf, inner, place, data)

    def _run(self, leaf: int, inner: int, place: ChunkPlace, data: bytes | memoryview) -> bool:
        running = self._running.get(leaf)
        if inner == 0:
            running = self._running[leaf] = _Running(self._manifest.algorithm.start(), 0)
            if len(self._running) > RUNNING_MAX:
                self._running.popitem(last=False)
        elif running is None:
            return False
        elif running.at != inner:
            del self._running[leaf]
            return False
        running.hasher.update(data)
        running.at += place.length
        if running.at == self._leaf_length(place):
            self.set(leaf, running.hasher.digest())
            del self._running[leaf]
        return True

    def _leaf_length(self, place: ChunkPlace) -> int:
        start = place.offset - place.offset % LEAF_BYTES
        return min(LEAF_BYTES, self._manifest.files[place.file].size_bytes - start)

    def number(self, file: int, offset: int) -> int:
        """The number of the leaf that holds a byte."""
        return self._first[file] + offset // LEAF_BYTES

    def has(self, leaf: int) -> bool:
        return bool(self._have[leaf])

    def set(self, leaf: int, digest: bytes) -> None:
        self._digests[leaf * self._size : (leaf + 1) * self._size] = digest
        self._have[leaf] = 1

    def drop(self, place: ChunkPlace) -> None:
        """The chunk turned out not to be there: forget every leaf that it touches."""
        first = self.number(place.file, place.offset)
        for leaf in range(first, self.number(place.file, place.offset + max(place.length, 1) - 1) + 1):
            self._have[leaf] = 0
            self._running.pop(leaf, None)

    def missing(self, file: int) -> list[int]:
        """Byte offsets, in the file, of the leaves without a digest."""
        first, end = self._first[file], self._first[file + 1]
        if self._have.count(1, first, end) == end - first:
            return []
        return [(leaf - first) * LEAF_BYTES for leaf in range(first, end) if not self._have[leaf]]

    def file_digest(self, file: int) -> bytes:
        """Raises ValueError while a leaf of the file is missing."""
        if self.missing(file):
            raise ValueError(f"file {file} still lacks leaves")
        first, end = self._first[file], self._first[file + 1]
        leaves = (bytes(self._digests[i * self._size : (i + 1) * self._size]) for i in range(first, end))
        return file_digest(self._manifest.algorithm, self._manifest.files[file].size_bytes, leaves)

    def root(self) -> str:
        """The snapshot's root. Raises ValueError while a leaf is missing."""
        digests = [self.file_digest(file) for file in range(len(self._manifest.files))]
        return snapshot_root(self._manifest.algorithm, self._manifest.files, digests)
