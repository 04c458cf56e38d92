"""The manifest of an object: where each chunk lies, which digest it must have, and what the snapshot's root is.

    Header ──▶ geometry: chunk i = (file, offset, length)      known before a byte is hashed
    Page j ──▶ digests of chunks [j * chunks_per_page, ...)     follows as the publisher hashes
    root   ──▶ digest(file table, per file digest(its 1 MiB leaves))   closes the publication

Chunks never cross a file and `chunk_bytes` is a power of two, so that a leaf is either whole chunks or part of one.
The root does not depend on `chunk_bytes`: only on paths, sizes, bytes and the algorithm.
Nothing here does I/O. Everything parsed here may come from a hostile peer: every field is checked before it is used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from chappe.core.digest import ALGORITHMS, Algorithm
from chappe.errors import ManifestError

LEAF_BYTES = 1 << 20
CHUNK_BYTES_MIN = 1 << 14
CHUNK_BYTES_PLAIN = 1 << 16
"""The least where a hop carries everything: a smaller one costs CPU and gains nothing."""
CHUNK_BYTES_MAX = 1 << 21
CHUNKS_PER_PAGE = 128
CHUNKS_PER_PAGE_MAX = 4096
OBJECT_ID_CHARS = 32  # lower-case hex
ROOT_CHARS_MAX = 160
CHUNK_TIME_S = 0.010
"""A relay can forward nothing before a chunk is whole, so its duration is the pipeline's fill."""


DELTA_FILE = "delta"
"""The one file of a delta object (see `chappe.payload.envelope`)."""


class ObjectKind(StrEnum):
    FULL = "full"
    FULL_COMPRESSED = "full-compressed"
    DELTA = "delta"


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's place: `begin` and `end` are offsets in the file `files[file]`, headers included."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    begin: int
    end: int


class ChunkPlace(NamedTuple):
    file: int
    offset: int
    length: int


def chunk_bytes_for(link_bytes_per_s: float) -> int:
    """About 10 ms on the chain's links, as a power of two from 64 KiB to 1 MiB (2 MiB is the protocol's limit)."""
    wanted = link_bytes_per_s * CHUNK_TIME_S
    size = CHUNK_BYTES_PLAIN
    while size * 2 <= min(wanted * 1.42, LEAF_BYTES):  # round to the nearest power of two
        size *= 2
    return size


@dataclass(frozen=True)
class Manifest:
    """The header of an object. Build with `Manifest.build`, or from a peer with `chappe.wire.manifest`.

    A delta is one file, cut and hashed like any other; `target_bytes` is the size of the snapshot that it leads to,
    `base_root` the root that it begins at. A compressed snapshot is a delta that begins at nothing.

    With `open_end` the object travels while it is being made: the size of its file is what it has at most, `closed` is
    the same manifest once the last page has said how much it is. No chunk is beyond a page, so none is placed wrongly.
    Raises ManifestError from the constructor when a field is out of bounds, so that an instance is always sound (paths
    are checked by `chappe.payload.paths`).
    """

    object_id: str
    algorithm: Algorithm
    chunk_bytes: int
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...] = ()
    chunks_per_page: int = CHUNKS_PER_PAGE
    kind: ObjectKind = ObjectKind.FULL
    base_root: str = ""
    target_bytes: int = 0
    open_end: bool = False

    def __post_init__(self) -> None:
        self._check_kind()
        if len(self.object_id) != OBJECT_ID_CHARS or not set(self.object_id) <= set("0123456789abcdef"):
            raise ManifestError(f"object_id {self.object_id[:80]!r} is not {OBJECT_ID_CHARS} lower-case hex digits")
        if self.algorithm.name not in ALGORITHMS:
            raise ManifestError(f"digest algorithm {self.algorithm.name!r} is not known here")
        if not CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX or self.chunk_bytes & (self.chunk_bytes - 1):
            raise ManifestError(f"chunk_bytes {self.chunk_bytes} is not a power of two from 16 KiB to 2 MiB")
        if not 1 <= self.chunks_per_page <= CHUNKS_PER_PAGE_MAX:
            raise ManifestError(f"chunks_per_page {self.chunks_per_page} is not in 1..{CHUNKS_PER_PAGE_MAX}")
        if not self.files:
            raise ManifestError("a snapshot has at least one file")
        if len({f.path for f in self.files}) != len(self.files):
            raise ManifestError("two files of the snapshot have the same path")
        if any(not 0 <= f.size_bytes < 1 << 50 for f in self.files):
            raise ManifestError("a file's size is out of bounds")
        for t in self.tensors:
            if not 0 <= t.file < len(self.files) or not 0 <= t.begin <= t.end <= self.files[t.file].size_bytes:
                raise ManifestError(f"tensor {t.name[:80]!r} lies outside its file")

    def _check_kind(self) -> None:
        if self.kind is ObjectKind.FULL:
            if self.base_root or self.target_bytes or self.open_end:
                raise ManifestError("a full object with a base, or an open end")
            return
        if [f.path for f in self.files] != [DELTA_FILE] or self.tensors:
            raise ManifestError(f"a {self.kind.value} object that is not one file")
        if not 0 < self.target_bytes < 1 << 50:
            raise ManifestError(f"a {self.kind.value} object that does not say how large its snapshot is")
        begins = ":" in self.base_root and len(self.base_root) <= ROOT_CHARS_MAX
        if begins if self.kind is ObjectKind.FULL_COMPRESSED else not begins:
            raise ManifestError(f"a {self.kind.value} object that begins at {self.base_root[:80]!r}")

    def closed(self, index: int, digests: int, end_bytes: int) -> Manifest:
        """What this is when its last page is number `index`, of so many digests. Raises ManifestError if that cannot
        be."""
        most = self.files[0].size_bytes
        if not 0 < end_bytes <= most:
            raise ManifestError(f"an object of at most {most} bytes is said to end at {end_bytes}")
        manifest = replace(self, files=(FileEntry(self.files[0].path, end_bytes),), open_end=False)
        start, stop = manifest.chunks_of_page(index)
        if index != manifest.pages_total - 1 or stop - start != digests:
            raise ManifestError(f"page {index} of {digests} digests cannot be the last of {end_bytes} bytes")
        return manifest

    @property
    def payload_bytes(self) -> int:
        return sum(f.size_bytes for f in self.files)

    @property
    def snapshot_bytes(self) -> int:
        return self.payload_bytes if self.kind is ObjectKind.FULL else self.target_bytes

    @cached_property
    def _first_chunk(self) -> tuple[int, ...]:
        """Per file the number of its first chunk, and at the end the number of chunks."""
        firsts = [0]
        for f in self.files:
            firsts.append(firsts[-1] + -(-f.size_bytes // self.chunk_bytes))
        return tuple(firsts)

    @property
    def chunks_total(self) -> int:
        return self._first_chunk[-1]

    @property
    def pages_total(self) -> int:
        return -(-self.chunks_total // self.chunks_per_page)

    def place(self, chunk: int) -> ChunkPlace:
        """Where a chunk lies. Raises IndexError for a number outside the object."""
        if not 0 <= chunk < self.chunks_total:
            raise IndexError(f"chunk {chunk} of an object of {self.chunks_total}")
        file = bisect_right(self._first_chunk, chunk) - 1
        offset = (chunk - self._first_chunk[file]) * self.chunk_bytes
        return ChunkPlace(file, offset, min(self.chunk_bytes, self.files[file].size_bytes - offset))

    def chunks_of_file(self, file: int) -> tuple[int, int]:
        return self._first_chunk[file], self._first_chunk[file + 1]

    def page_of(self, chunk: int) -> int:
        return chunk // self.chunks_per_page

    def chunks_of_page(self, page: int) -> tuple[int, int]:
        start = page * self.chunks_per_page
        return start, min(start + self.chunks_per_page, self.chunks_total)

    def leaves_of_file(self, file: int) -> int:
        return -(-self.files[file].size_bytes // LEAF_BYTES)


def file_digest(algorithm: Algorithm, size_bytes: int, leaves: Iterable[bytes]) -> bytes:
    """The digest of a file from the digests of its 1 MiB leaves (the last may be shorter; an empty file has none)."""
    hasher = algorithm.start()
    hasher.update(b"chappe file\0" + size_bytes.to_bytes(8, "little"))
    for leaf in leaves:
        hasher.update(leaf)
    return hasher.digest()


def snapshot_root(algorithm: Algorithm, files: Sequence[FileEntry], digests: Sequence[bytes]) -> str:
    """The snapshot's identity, `algorithm:hex`. Files count in order of their paths, whatever order they travel in."""
    hasher = algorithm.start()
    hasher.update(b"chappe root 1\0" + algorithm.name.encode() + b"\0")
    for entry, digest in sorted(zip(files, digests, strict=True), key=lambda pair: pair[0].path.encode()):
        path = entry.path.encode()
        hasher.update(len(path).to_bytes(4, "little") + path + entry.size_bytes.to_bytes(8, "little") + digest)
    return f"{algorithm.name}:{hasher.digest().hex()}"


def check_page(manifest: Manifest, index: int, digests: bytes) -> list[bytes]:
    """Split a page into one digest per chunk. Raises ManifestError when it does not fit the manifest."""
    if not 0 <= index < manifest.pages_total:
        raise ManifestError(f"page {index} of an object of {manifest.pages_total} pages")
    start, stop = manifest.chunks_of_page(index)
    size = manifest.algorithm.digest_bytes
    if len(digests) != (stop - start) * size:
        raise ManifestError(f"page {index} has {len(digests)} bytes of digests, not {(stop - start) * size}")
    return [digests[i : i + size] for i in range(0, len(digests), size)]
