"""Reads stored files back with a few threads, and tells the digests of their chunks and leaves in one pass.

A region is the larger of a chunk and a leaf, so that every chunk and every leaf lies in one region; of a delta, whose
leaves nobody asks for and whose file may still grow, it is a chunk. Memory is one region per thread. What the digests
should be is the caller's business.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from chappe.core.digest import Algorithm
from chappe.core.manifest import LEAF_BYTES, Manifest, ObjectKind
from chappe.core.ranges import RangeSet

HASH_THREADS_MAX = 8


@dataclass(frozen=True, slots=True)
class Region:
    file: int
    offset: int
    length: int


Regions = Iterable[Region]


@dataclass(frozen=True, slots=True)
class RegionDigests:
    """`chunks` and `leaves` are in order, from the region's start."""

    region: Region
    chunks: list[bytes]
    leaves: list[bytes]


def region_bytes(manifest: Manifest) -> int:
    return max(manifest.chunk_bytes, LEAF_BYTES if manifest.kind is ObjectKind.FULL else 0)


def region_at(manifest: Manifest, file: int, offset: int) -> Region:
    """The region that holds a byte."""
    step = region_bytes(manifest)
    start = offset - offset % step
    return Region(file, start, min(step, manifest.files[file].size_bytes - start))


def regions_of_file(manifest: Manifest, file: int) -> Iterator[Region]:
    for offset in range(0, manifest.files[file].size_bytes, region_bytes(manifest)):
        yield region_at(manifest, file, offset)


def regions_of_chunks(manifest: Manifest, chunks: RangeSet) -> Iterator[Region]:
    """Each region that holds one of the chunks, once."""
    last: Region | None = None
    for start, stop in chunks:
        for chunk in range(start, stop):
            place = manifest.place(chunk)
            region = region_at(manifest, place.file, place.offset)
            if region != last:
                yield region
            last = region


def chunks_of_region(manifest: Manifest, region: Region) -> range:
    first = manifest.chunks_of_file(region.file)[0] + region.offset // manifest.chunk_bytes
    return range(first, first + -(-region.length // manifest.chunk_bytes))


def digest_region(algorithm: Algorithm, chunk_bytes: int, data: memoryview) -> tuple[list[bytes], list[bytes]]:
    """(chunk digests, leaf digests). One hash where chunk and leaf are the same bytes."""
    if chunk_bytes == LEAF_BYTES or len(data) <= min(chunk_bytes, LEAF_BYTES):
        one = [algorithm.once(data)]
        return one, one
    chunks = [algorithm.once(data[i : i + chunk_bytes]) for i in range(0, len(data), chunk_bytes)]
    leaves = [algorithm.once(data[i : i + LEAF_BYTES]) for i in range(0, len(data), LEAF_BYTES)]
    return chunks, leaves


def hash_regions(
    manifest: Manifest,
    base: Path,
    regions: Regions,
    on_region: Callable[[Region, RegionDigests | None], None],
    threads: int = 0,
) -> None:
    """Read and hash all regions, in any order. `on_region` gets None for one that cannot be read in full.

    It is called by one thread at a time. Blocks until all is done; what it raises ends the work.
    """
    count = threads or min(os.cpu_count() or 1, HASH_THREADS_MAX)
    queue = iter(regions)
    taking, telling = threading.Lock(), threading.Lock()
    stopped = threading.Event()

    def work() -> None:
        reader = _Reader(manifest, base)
        try:
            while not stopped.is_set():
                with taking:
                    region = next(queue, None)
                if region is None:
                    return
                data = reader.read(region)
                found = None
                if data is not None:
                    found = RegionDigests(region, *digest_region(manifest.algorithm, manifest.chunk_bytes, data))
                with telling:
                    on_region(region, found)
        finally:
            stopped.set()  # the regions are used up, or a thread failed: the others finish what they have
            reader.close()

    if count == 1:
        work()
        return
    with ThreadPoolExecutor(count, "chappe-hash") as pool:
        for future in [pool.submit(work) for _ in range(count)]:
            future.result()


class _Reader:
    """One thread's file and buffer."""

    def __init__(self, manifest: Manifest, base: Path) -> None:
        self._manifest = manifest
        self._base = base
        self._buffer = bytearray(region_bytes(manifest))
        self._file = -1
        self._fd = -1

    def read(self, region: Region) -> memoryview | None:
        """The region's bytes, valid until the next read; None when they are not all there."""
        view = memoryview(self._buffer)[: region.length]
        try:
            if region.file != self._file:
                self.close()
                path = self._base / self._manifest.files[region.file].path
                self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                self._file = region.file
            done = 0
            while done < region.length:
                got = os.preadv(self._fd, [view[done:]], region.offset + done)
                if got == 0:
                    return None
                done += got
        except OSError:
            return None
        return view

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = self._file = -1
