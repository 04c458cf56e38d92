"""How a delta that has been received becomes the full object of its version, beside everything that is served.

    delta ──index──▶ whole? ──▶ base's table is the one meant? ──▶ files that do not change: linked
      └──block by block──▶ threads: base block + pieces, hashed while in cache ──▶ in order: pwrite, leaves, chunks
                                                               root of the bytes written == announced? ──▶ header, pages

Everything is made in one directory of its own, which becomes an object of the store by a rename: a crash before that
leaves rubbish, never half an object. Nothing that is served or may be mapped is written to. Blocking; memory is some
blocks a thread. Knows nothing of versions or of what is wanted.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from chappe.core.digest import Algorithm
from chappe.core.manifest import LEAF_BYTES, Manifest, file_digest, snapshot_root
from chappe.errors import CodecError, DeltaError, ManifestError, UnsafePathError
from chappe.hop.disk import Disk, free_bytes
from chappe.hop.kept import KeptManifest
from chappe.hop.layout import ObjectLayout
from chappe.hop.ordered import OrderedMap
from chappe.payload.delta import BlockState, apply_block, base_bytes
from chappe.payload.envelope import Envelope, WholeBlock, blocks_of, index_of
from chappe.payload.plan import Block, DeltaPlan
from chappe.payload.table import SnapshotTable
from chappe.wire.manifest import decode_header, encode_page, object_id_of

THREADS_MAX = 8  # more only helps where the disk takes several GB/s
_READ_BYTES = 1 << 20
_LINK_REFUSED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Base:
    """A landed version: its manifest, and the directory with its files."""

    manifest: Manifest
    path: Path


class _Files:
    """Files below a directory, open for reading by several threads."""

    def __init__(self, path: Path, manifest: Manifest, stack: ExitStack) -> None:
        self._fds: dict[int, int] = {}
        for number, entry in enumerate(manifest.files):
            fd = os.open(path / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            self._fds[number] = fd

    def read(self, file: int, offset: int, length: int) -> bytes:
        data = os.pread(self._fds[file], length, offset)
        while len(data) < length:
            more = os.pread(self._fds[file], length - len(data), offset + len(data))
            if not more:
                raise DeltaError("a file of the version that the delta begins at is shorter than it was")
            data += more
        return data


class _Cutter:
    """Digests of equal pieces of a file whose bytes come in order, in whatever portions."""

    def __init__(self, algorithm: Algorithm, step: int) -> None:
        self._algorithm, self._step = algorithm, step
        self._hasher = algorithm.start()
        self._filled = 0
        self.digests: list[bytes] = []

    def feed(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            take = min(self._step - self._filled, len(data) - at)
            if take == self._step:
                self.digests.append(self._algorithm.once(data[at : at + take]))
            else:
                self._hasher.update(data[at : at + take])
                self._filled += take
                if self._filled == self._step:
                    self.end()
            at += take

    def end(self) -> None:
        """The file ends here."""
        if self._filled:
            self.digests.append(self._hasher.digest())
            self._hasher, self._filled = self._algorithm.start(), 0


class _Writer:
    """Writes the target's files in order, and takes their digests on the way."""

    def __init__(self, disk: Disk, manifest: Manifest, top: Path) -> None:
        self._disk, self._manifest, self._top = disk, manifest, top
        self._leaves = _Cutter(manifest.algorithm, LEAF_BYTES)
        same = manifest.chunk_bytes == LEAF_BYTES
        self._chunks = self._leaves if same else _Cutter(manifest.algorithm, manifest.chunk_bytes)
        self._file, self._fd = 0, -1
        self._file_digests: list[bytes] = []
        self._leaves_done = 0

    def goto(self, file: int) -> None:
        """Everything of the files before this one has been written."""
        while self._file < file:
            self._leaves.end()
            if self._chunks is not self._leaves:
                self._chunks.end()
            size = self._manifest.files[self._file].size_bytes
            leaves = self._leaves.digests[self._leaves_done :]
            self._leaves_done = len(self._leaves.digests)
            self._file_digests.append(file_digest(self._manifest.algorithm, size, leaves))
            self.close()
            self._file += 1

    def write(self, file: int, data: memoryview, offset: int) -> None:
        self.goto(file)
        if self._fd < 0:
            self._fd = self._disk.open(self._top / self._manifest.files[file].path, write=True)
        self._disk.pwrite(self._fd, data, offset)
        self.see(data)

    def see(self, data: memoryview) -> None:
        self._leaves.feed(data)
        if self._chunks is not self._leaves:
            self._chunks.feed(data)

    def end(self) -> tuple[str, list[bytes]]:
        """The root of what was written, and the digests of all chunks."""
        self.goto(len(self._manifest.files))
        root = snapshot_root(self._manifest.algorithm, self._manifest.files, self._file_digests)
        return root, self._chunks.digests

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def target_of(envelope: Envelope) -> Manifest:
    """The manifest of the full object that a delta leads to. Raises DeltaError for a header that cannot be."""
    header = envelope.prologue.header
    try:
        return decode_header(header, object_id_of(header))
    except (ManifestError, UnsafePathError) as error:
        raise DeltaError(f"the delta names a snapshot that cannot be: {error}") from error


def apply_delta(
    disk: Disk, work: ObjectLayout, envelope: Envelope, base: Base, root: str, threads: int = 0
) -> Manifest:
    """Make header, pages and files of the full object in `work`, whose files have exactly this root.

    Raises DeltaError when this delta and this base do not give it (another source of the version is needed), OSError.
    `work` is removed first, and again when this fails.
    """
    disk.remove_tree(work.root)
    try:
        return _apply(disk, work, envelope, base, root, threads)
    except CodecError as error:
        raise DeltaError(f"the delta cannot be applied: {error}") from error
    except ManifestError as error:
        raise DeltaError(f"the delta does not fit the version that it begins at: {error}") from error


def _apply(disk: Disk, work: ObjectLayout, envelope: Envelope, base: Base, root: str, threads: int) -> Manifest:
    target = target_of(envelope)
    have = SnapshotTable.build(base.manifest.files, base.manifest.tensors)
    if have.digest(target.algorithm) != envelope.prologue.table:
        raise DeltaError("the version that the delta begins at has other tensors here than at the publisher")
    plan = DeltaPlan.between(have, SnapshotTable.build(target.files, target.tensors))
    index, closing = index_of(plan, target.algorithm, envelope)
    if closing.root != root:
        raise DeltaError(f"the delta leads to root {closing.root}, announced is {root}")
    _reserve(disk, work, target)
    linked = _link(disk, work, target, base, plan.linkable_files(index.unchanged()))
    found, chunks = _write(disk, work, target, base, plan, envelope, linked, threads)
    if found != root:
        raise DeltaError(f"the delta gives root {found}, announced is {root}")
    kept = KeptManifest(disk, work, target.object_id)
    try:
        kept.keep(target, envelope.prologue.header)
        for page in range(target.pages_total):
            start, stop = target.chunks_of_page(page)
            kept.add_page(encode_page(page, chunks[start:stop]))
    finally:
        kept.close()
    return target


def _reserve(disk: Disk, work: ObjectLayout, target: Manifest) -> None:
    free = free_bytes(work.root.parent)
    if target.payload_bytes > free:  # asked first, so as not to fill the disk only to see that it does not fit
        raise OSError(errno.ENOSPC, f"only {free} bytes are free")
    disk.mkdir(work.files)


def _link(disk: Disk, work: ObjectLayout, target: Manifest, base: Base, wanted: dict[int, int]) -> set[int]:
    """Link what does not change, make room for the rest. Returns the files that are links."""
    linked = set()
    for number, entry in enumerate(target.files):
        path = work.files / entry.path
        disk.mkdir(path.parent)
        source = wanted.get(number)
        if source is not None:
            try:
                disk.link(base.path / base.manifest.files[source].path, path)
            except OSError as error:
                if error.errno not in _LINK_REFUSED:
                    raise
            else:
                linked.add(number)
                continue
        disk.create(path, entry.size_bytes)
    return linked


def _write(
    disk: Disk,
    work: ObjectLayout,
    target: Manifest,
    base: Base,
    plan: DeltaPlan,
    envelope: Envelope,
    linked: set[int],
    threads: int,
) -> tuple[str, list[bytes]]:
    count = threads or min(os.cpu_count() or 1, THREADS_MAX)
    writer = _Writer(disk, target, work.files)
    with ExitStack() as stack:
        stack.callback(writer.close)
        files = _Files(base.path, base.manifest, stack)

        def make(whole: WholeBlock) -> tuple[Block, memoryview]:
            block = plan.block(whole.ordinal)
            out = memoryview(bytearray(block.length))
            read = base_bytes(plan, block, files.read)
            state = apply_block(plan, target.algorithm, whole.ordinal, whole.digest, whole.pieces, read, out)
            if state is BlockState.WRONG:
                raise DeltaError(
                    f"block {whole.ordinal}, in {target.files[block.file].path!r}, does not come out as the "
                    "publisher's: the version that the delta begins at is not what it was"
                )
            return block, out

        pool = stack.enter_context(ThreadPoolExecutor(count, "chappe-apply"))
        whole = blocks_of(plan, target.algorithm, envelope)
        written = (block for block in whole if plan.block(block.ordinal).file not in linked)
        left = deque(sorted(linked))
        for block, out in OrderedMap(pool, 2 * count)(make, written):
            _see_linked(writer, work, target, left, block.file)
            writer.write(block.file, out, block.offset)
        _see_linked(writer, work, target, left, len(target.files))
        return writer.end()


def _see_linked(writer: _Writer, work: ObjectLayout, target: Manifest, left: deque[int], before: int) -> None:
    """The digests of linked files up to here: their bytes are proven like all others."""
    while left and left[0] < before:
        number = left.popleft()
        writer.goto(number)
        fd = os.open(work.files / target.files[number].path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            offset = 0
            while data := os.pread(fd, _READ_BYTES, offset):
                writer.see(memoryview(data))
                offset += len(data)
        finally:
            os.close(fd)
