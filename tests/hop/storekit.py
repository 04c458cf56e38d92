"""Snapshots, and disks that fail, for the tests of the store."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chappe.core.digest import XXH3_128, Algorithm
from chappe.core.manifest import LEAF_BYTES, FileEntry, Manifest, file_digest, snapshot_root
from chappe.hop.disk import Disk
from chappe.hop.objects import StoredObject
from chappe.hop.store import Store
from chappe.wire.manifest import encode_header, encode_page

KIB = 1 << 10
MIB = 1 << 20


def some_bytes(size_bytes: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


@dataclass(frozen=True)
class Model:
    """What an origin would hold: all of one object."""

    files: Mapping[str, bytes]
    manifest: Manifest
    root: str

    @property
    def object_id(self) -> str:
        return self.manifest.object_id

    @property
    def header(self) -> bytes:
        return encode_header(self.manifest)

    @property
    def pages(self) -> list[bytes]:
        once = self.manifest.algorithm.once
        return [
            encode_page(page, [once(self.chunk(c)) for c in range(*self.manifest.chunks_of_page(page))])
            for page in range(self.manifest.pages_total)
        ]

    def chunk(self, number: int) -> bytes:
        place = self.manifest.place(number)
        data = self.files[self.manifest.files[place.file].path]
        return data[place.offset : place.offset + place.length]

    def chunks(self, numbers: Iterable[int] | None = None) -> list[tuple[int, bytes]]:
        wanted = range(self.manifest.chunks_total) if numbers is None else numbers
        return [(number, self.chunk(number)) for number in wanted]


@dataclass(frozen=True)
class OpenModel(Model):
    """As it travels while it is being made: the header says what it has at most, the last page what it has."""

    most_bytes: int = 0

    @property
    def header(self) -> bytes:
        (file,) = self.manifest.files
        files = (FileEntry(file.path, self.most_bytes or 3 * file.size_bytes),)
        return encode_header(replace(self.manifest, files=files, open_end=True))

    @property
    def pages(self) -> list[bytes]:
        last = self.manifest.pages_total - 1
        once, chunks_of = self.manifest.algorithm.once, self.manifest.chunks_of_page
        last_page = encode_page(
            last, [once(self.chunk(c)) for c in range(*chunks_of(last))], self.manifest.payload_bytes
        )
        return [*super().pages[:-1], last_page]


DEFAULT_FILES = {
    "config.json": 300,
    "model.safetensors": 3 * MIB + 70 * KIB + 5,
    "empty": 0,
    "tokenizer/vocab.txt": 65 * KIB,
}


def make_model(
    seed: int = 1,
    files: Mapping[str, int] = DEFAULT_FILES,
    *,
    chunk_bytes: int = 64 * KIB,
    algorithm: Algorithm = XXH3_128,
    chunks_per_page: int = 8,
    object_id: str | None = None,
) -> Model:
    data = {path: some_bytes(size, seed * 1000 + i) for i, (path, size) in enumerate(files.items())}
    return model_of(
        data,
        object_id=object_id or f"{seed:032x}",
        chunk_bytes=chunk_bytes,
        algorithm=algorithm,
        chunks_per_page=chunks_per_page,
    )


def model_of(
    data: Mapping[str, bytes],
    *,
    object_id: str,
    chunk_bytes: int = 64 * KIB,
    algorithm: Algorithm = XXH3_128,
    chunks_per_page: int = 8,
) -> Model:
    entries = tuple(FileEntry(path, len(content)) for path, content in data.items())
    manifest = Manifest(object_id, algorithm, chunk_bytes, entries, chunks_per_page=chunks_per_page)
    digests = [
        file_digest(algorithm, len(c), [algorithm.once(c[i : i + LEAF_BYTES]) for i in range(0, len(c), LEAF_BYTES)])
        for c in data.values()
    ]
    return Model(data, manifest, snapshot_root(algorithm, entries, digests))


def receive(store: Store, model: Model, numbers: Iterable[int] | None = None) -> StoredObject:
    """The object with its header, all pages, and the chunks (all of them by default), put in this order."""
    held = store.create(model.object_id)
    held.put_header(model.header)
    for page in model.pages:
        held.put_page(page)
    for chunk in model.chunks(numbers):
        held.put_chunks([chunk])
    return held


def synced_ahead(held: StoredObject) -> list[BaseException]:
    """Wait for what threads sync of it while it is received. Returns what failed."""
    seals = held.seals
    futures = [seals._named, seals._kept, *seals._earlier, *seals._files.values()]
    return [error for future in futures if future is not None and (error := future.exception()) is not None]


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


class CrashError(BaseException):
    """The process died here. Not an Exception: nothing handles it."""


class FaultyDisk(Disk):
    """Counts operations; dies at the `crash_at`-th, or fails those named in `faults`, from then on, with an errno."""

    def __init__(self, crash_at: int | None = None, *, ordered: bool | None = None) -> None:
        """`ordered`: whether this file system keeps the order of names; None asks it."""
        self.operations: list[str] = []
        self.moments: list[tuple[str, Path]] = []
        """What was synced ("fsync") and what got a new name ("rename", the new one), when that was done."""
        self.ordered = ordered
        self.crash_at = crash_at
        self.faults: dict[str, int] = {}

    def _step(self, operation: str) -> None:
        self.operations.append(operation)
        if self.crash_at is not None and len(self.operations) > self.crash_at:
            raise CrashError(operation)
        if operation in self.faults:
            code = self.faults[operation]
            raise OSError(code, os.strerror(code))

    def keeps_order(self, path: Path) -> bool:
        return super().keeps_order(path) if self.ordered is None else self.ordered

    def fsync(self, path: Path) -> None:
        super().fsync(path)
        self.moments.append(("fsync", path))

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.moments.append(("rename", target))

    def fail(self, operations: Sequence[str], code: int = errno.ENOSPC) -> None:
        self.faults = dict.fromkeys(operations, code)

    def heal(self) -> None:
        self.faults = {}
        self.crash_at = None


def abandon(store: Store) -> None:
    """What the kernel does when a process dies: files are closed, the lock is gone, nothing more is written."""
    for held in store.objects().values():
        held.close()
    store._lock.release()


def rot(held: StoredObject, chunk: int, base: Path) -> None:
    """One bit of a chunk flips on the disk."""
    assert held.manifest is not None
    place = held.manifest.place(chunk)
    path = base / held.manifest.files[place.file].path
    mode = path.stat().st_mode
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(place.offset)
        byte = file.read(1)[0]
        file.seek(place.offset)
        file.write(bytes([byte ^ 1]))
    path.chmod(mode)
