"""How a delta becomes the full object of its version, beside everything that is served, while its chunks still arrive.

    delta ──block by block──▶ links, or rooms for files ──▶ threads: base block + pieces, checked, hashed, written
      └── waits for what has not come                          └──▶ leaves, chunks ──▶ root, header, pages

    a block is   the target's already (a crash came before)    left alone
                 the base's                                    the target's once its pieces are added
                 neither                                       left out, fetched of the full object (see `salvage`)

Everything is made in one directory of its own, which becomes an object of the store by a rename. A crash before that
leaves it to be gone on with; a failure removes it. Nothing that is served or may be mapped is written to. Blocking;
memory is some blocks a thread. Knows nothing of versions or of what is wanted; whose root it is, the caller compares.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from chappe.core.manifest import LEAF_BYTES, Manifest, file_digest, snapshot_root
from chappe.errors import CodecError, DeltaError, ManifestError, UnsafePathError
from chappe.hop.ahead import Arriving, Base, Made
from chappe.hop.background import Background, Urgency
from chappe.hop.disk import Disk, no_room
from chappe.hop.filecache import FileCache
from chappe.hop.kept import KeptManifest
from chappe.hop.layout import ObjectLayout
from chappe.hop.ordered import OrderedMap, one_at_a_time
from chappe.hop.salvage import Salvage, keep_part
from chappe.hop.targetfiles import TargetFiles, Work
from chappe.hop.tiles import Tiles
from chappe.hop.writeback import EVERY_BYTES, start_writeback
from chappe.payload.delta import BlockState, apply_block
from chappe.payload.envelope import BlockStream, Envelope, ReadAt
from chappe.payload.plan import BLOCK_ELEMENTS, DeltaPlan
from chappe.payload.table import NO_BASE, SnapshotTable
from chappe.wire.manifest import decode_header, encode_page, object_id_of

THREADS_MAX = 8  # more only helps where the disk takes several GB/s
WRONG_SHARE_MAX = 0.5
"""Of the snapshot's bytes: a base in which more is not what it was is another one, and nothing of the work is kept."""


def target_of(envelope: Envelope) -> Manifest:
    """The manifest of the full object that a delta leads to. Raises DeltaError for a header that cannot be."""
    header = envelope.prologue.header
    try:
        return decode_header(header, object_id_of(header))
    except (ManifestError, UnsafePathError) as error:
        raise DeltaError(f"the delta names a snapshot that cannot be: {error}") from error


def apply_delta(disk: Disk, work: ObjectLayout, arriving: Arriving, read: ReadAt, base: Base, threads: int = 0) -> Made:
    """Make header, pages and files of the full object in `work`, going on with what a crash has left there.

    Where some of the base's blocks are not what they were, a part of it, without pages: see `Made.salvage`. Raises
    DeltaError when this delta and this base do not give what the delta says (another source of the version is needed),
    OSError: `work` is removed then. StoreError when it was stopped: `work` is left as it is.
    """
    try:
        try:
            return _apply(disk, work, arriving, read, base, threads)
        except CodecError as error:
            raise DeltaError(f"the delta cannot be applied: {error}") from error
        except ManifestError as error:
            raise DeltaError(f"the delta does not fit the version that it begins at: {error}") from error
    except (DeltaError, OSError):
        with arriving.acting():
            disk.remove_tree(work.root)
        raise


def _apply(disk: Disk, work: ObjectLayout, arriving: Arriving, read: ReadAt, base: Base, threads: int) -> Made:
    envelope = Envelope(read, arriving.size_bytes)
    target = target_of(envelope)
    have = SnapshotTable.build(base.manifest.files, base.manifest.tensors)
    if have.digest(target.algorithm) != envelope.prologue.table:
        raise DeltaError("the version that the delta begins at has other tensors here than at the publisher")
    plan = DeltaPlan.between(have, SnapshotTable.build(target.files, target.tensors))
    files = TargetFiles(disk, work, target, base, plan, arriving)
    files.clear()
    short = no_room(work.root, files.surely_written_bytes())
    if short is not None:  # asked first, so as not to fill the disk only to see that it does not fit
        raise short
    blocks = BlockStream(plan, target.algorithm, envelope)
    with _Applier(disk, work, target, base, plan) as applier:
        applier.run(blocks, files, threads or min(os.cpu_count() or 1, THREADS_MAX), arriving)
        assert blocks.closing is not None  # or there had been an error
        if applier.wrong:
            salvage = applier.salvage()
            with arriving.acting():
                keep_part(disk, work, target, envelope.prologue.header, salvage)
            return Made(target, blocks.closing.root, salvage)
        root, chunks = applier.digests()
    if root != blocks.closing.root:
        raise DeltaError(f"the delta gives root {root}, and says that it leads to {blocks.closing.root}")
    with arriving.acting():
        _keep(disk, work, target, envelope.prologue.header, chunks)
    return Made(target, root)


def _keep(disk: Disk, work: ObjectLayout, target: Manifest, header: bytes, chunks: list[bytes]) -> None:
    for path in (work.header, work.pages, work.journal):  # of an attempt that got as far
        disk.unlink(path)
    kept = KeptManifest(disk, work, target.object_id)
    try:
        kept.keep(target, header)
        for page in range(target.pages_total):
            start, stop = target.chunks_of_page(page)
            kept.add_page(encode_page(page, chunks[start:stop]))
    finally:
        kept.close()


class _Applier:
    """Applies blocks in threads. Use as a context manager."""

    def __init__(self, disk: Disk, work: ObjectLayout, target: Manifest, base: Base, plan: DeltaPlan) -> None:
        sizes = [entry.size_bytes for entry in target.files]
        self._disk, self._target, self._plan = disk, target, plan
        self._block_bytes_max = BLOCK_ELEMENTS * max((region.width for region in plan.target.regions), default=1)
        self._leaves = Tiles(target.algorithm, LEAF_BYTES, sizes)
        same = target.chunk_bytes == LEAF_BYTES
        self._chunks = self._leaves if same else Tiles(target.algorithm, target.chunk_bytes, sizes)
        self._base = FileCache(disk, base.path, [f.path for f in base.manifest.files], writable=False)
        self._made = FileCache(disk, work.files, [f.path for f in target.files], writable=True)
        self.wrong: list[int] = []
        """Blocks that do not come out right. From several threads."""
        self._wrong_bytes = 0
        self._written = 0  # since writing to the device was last begun
        self._local = threading.local()
        self._stack = ExitStack()

    def __enter__(self) -> _Applier:
        self._stack.callback(self._base.close)
        self._stack.callback(self._made.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, blocks: BlockStream, files: TargetFiles, threads: int, urgency: Urgency) -> None:
        """Ends with the first error. While chunks still arrive, receiving and forwarding them comes first."""
        with Background(threads, "chappe-apply", urgency) as pool:
            for _ in OrderedMap(pool, 2 * threads)(self._do, _works(blocks, files)):
                pass

    def digests(self) -> tuple[str, list[bytes]]:
        """The root of the files, and the digests of all chunks."""
        algorithm, files = self._target.algorithm, self._target.files
        digests = [file_digest(algorithm, entry.size_bytes, self._leaves.of(i)) for i, entry in enumerate(files)]
        chunks = [digest for i in range(len(files)) for digest in self._chunks.of(i)]
        return snapshot_root(algorithm, files, digests), chunks

    def _do(self, work: Work) -> None:
        block, whole, algorithm = work.block, work.whole, self._target.algorithm
        data = self._buffer()[: block.length]
        if not (work.look and self._is_there(work, data)):
            self._read_base(work, data)
            state = apply_block(
                self._plan, algorithm, whole.ordinal, whole.digest, whole.pieces, data, data, brief=one_at_a_time
            )
            if state is BlockState.WRONG:
                self._pass_over(work)
                return
            if work.write:
                self._write(work, data)
        if work.first:
            self._leaves.feed(block.file, block.offset, data)
            if self._chunks is not self._leaves:
                self._chunks.feed(block.file, block.offset, data)

    def _pass_over(self, work: Work) -> None:
        """Leave it out, of the digests, too. The second time that it is read it must not be the first to be wrong."""
        known = work.whole.ordinal in self.wrong
        if work.first:
            self.wrong.append(work.whole.ordinal)
            self._wrong_bytes += work.block.length
        if self._wrong_bytes > WRONG_SHARE_MAX * self._target.payload_bytes or not (work.first or known):
            raise DeltaError(
                f"block {work.whole.ordinal}, in {self._target.files[work.block.file].path!r}, does not come out as "
                "the publisher's: the version that the delta begins at is not what it was"
            )

    def salvage(self) -> Salvage:
        files = range(len(self._target.files))
        chunks = [digest for file in files for digest in self._chunks.known(file)]
        return Salvage(self._plan.blocks_total, sorted(self.wrong), chunks, [self._leaves.known(f) for f in files])

    def _buffer(self) -> memoryview:
        view: memoryview | None = getattr(self._local, "view", None)
        if view is None:
            view = self._local.view = np.empty(self._block_bytes_max, np.uint8).data
        return view

    def _is_there(self, work: Work, data: memoryview) -> bool:
        with self._made.fd(work.block.file) as fd:
            _fill(fd, data, work.block.offset)
        return self._target.algorithm.once(data) == work.whole.digest

    def _read_base(self, work: Work, data: memoryview) -> None:
        at = 0
        for source in self._plan.sources(work.block):
            part = data[at : at + source.length]
            if source.file == NO_BASE:
                part[:] = bytes(source.length)
            else:
                with self._base.fd(source.file) as fd:
                    _fill(fd, part, source.offset)
            at += source.length

    def _write(self, work: Work, data: memoryview) -> None:
        with self._made.fd(work.block.file) as fd:
            self._disk.pwrite(fd, data, work.block.offset)
            self._written += len(data)  # by several threads: a rough number is enough
            if self._written >= EVERY_BYTES:
                self._written = 0
                start_writeback(fd)


def _works(blocks: BlockStream, files: TargetFiles) -> Iterator[Work]:
    for whole in blocks:
        yield from files.take(whole)
    yield from files.end()


def _fill(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        got = os.preadv(fd, [data[done:]], offset + done)
        if got == 0:
            raise DeltaError("a file of the version that the delta begins at is shorter than it was")
        done += got
