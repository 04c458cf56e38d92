"""Makes a delta on the publisher's disk, as the one file of an object.

    estimate ──▶ worth it? ──▶ encode: blocks compared or folded by threads ──▶ close: the target's root
                                 └─ page after page is told while it grows ──────────┘

The file is private, beside the copies of tensors (see `chappe.origin.spool`), and goes with its last holder. Blocking,
for an executor. Knows nothing of workers: who gets the delta is decided elsewhere.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from chappe.core.digest import XXH3_128
from chappe.core.manifest import CHUNK_BYTES_MIN, CHUNK_BYTES_PLAIN, DELTA_FILE, FileEntry, Manifest, ObjectKind
from chappe.errors import CodecError, DiskFullError, PublicationCancelledError, SnapshotError
from chappe.hop.disk import store_error
from chappe.hop.ordered import OrderedMap, one_at_a_time
from chappe.origin.blocksources import BlockSource, Folded, MakeBlocks
from chappe.origin.encoder import plan_of
from chappe.origin.growing import pages_of
from chappe.origin.reading import Reading
from chappe.origin.scan import Snapshot
from chappe.origin.spool import choose_directory, make_directory, remove_leftovers
from chappe.origin.windows import OnPage, Windows
from chappe.payload.container import Packer
from chappe.payload.delta import encode_block
from chappe.payload.envelope import Prologue, pack_chunk, pack_prologue
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import NO_BASE
from chappe.sigpipe import block_sigpipe
from chappe.wire.manifest import encode_header

THREADS = min(os.cpu_count() or 1, 32)
SAMPLE_BLOCKS = 12
WORTH_SHARE = 0.85
"""A delta of more than this share of the snapshot saves less than applying it costs."""
SHARE_MAX = 1.02
"""No encoding of a snapshot has more of its bytes: a block that does not get smaller travels as it is."""
CHUNKS_WANTED = 64
BESIDE_BYTES_MAX = 1 << 20
"""What a container may have beside that, and beside its prologue."""


def estimate(base: Snapshot, target: Snapshot) -> float:
    """About what share of the snapshot's bytes a delta would have, from a sample of blocks spread over it."""
    plan = plan_of(base, target)
    ordinals = _sample(plan)
    old, new = Reading(base), Reading(target)

    def encoded_bytes(ordinal: int) -> int:
        block = encode_block(plan, XXH3_128, ordinal, old.read, new.read, brief=one_at_a_time)
        return block.piece_bytes

    try:
        with ThreadPoolExecutor(THREADS, "chappe-sample") as pool:  # the publication waits for it
            encoded = sum(pool.map(encoded_bytes, ordinals))
    finally:
        old.close()
        new.close()
    return encoded / max(sum(plan.block(ordinal).length for ordinal in ordinals), 1)


def _sample(plan: DeltaPlan) -> list[int]:
    """Blocks at equal distances, the largest regions first among neighbours: headers say little."""
    total = plan.blocks_total
    step = max(1, total // SAMPLE_BLOCKS)
    return [
        max(range(start, min(start + min(step, 4), total)), key=lambda i: plan.block(i).length)
        for start in range(0, total, step)
    ]


def chunk_bytes_of(expected_bytes: int) -> int:
    """The largest power of two, from `CHUNK_BYTES_MIN` to `CHUNK_BYTES_PLAIN`, of which a delta has `CHUNKS_WANTED`.

    A relay can forward nothing before a chunk is whole: over the hops of a chain each costs a small delta that share.
    """
    chunk_bytes = CHUNK_BYTES_PLAIN
    while chunk_bytes > CHUNK_BYTES_MIN and expected_bytes < CHUNKS_WANTED * chunk_bytes:
        chunk_bytes //= 2
    return chunk_bytes


class DeltaFile:
    """A delta being made. `encode`, then `close` with the root. Whoever wants the file holds it; it goes when the last
    one has let go of it, with `discard`, at any time and from any thread."""

    def __init__(
        self,
        source: BlockSource,
        manifest: Manifest,
        spool: Path | None,
        *,
        share_max: float = SHARE_MAX,
        chunk_bytes: int = CHUNK_BYTES_PLAIN,
    ) -> None:
        """`manifest` is that of the full object that the delta leads to; of its bytes the delta has at most about
        `share_max`, or it is given up. Of a folded one that is `WORTH_SHARE`: no sample has told what it will have. The
        maker is its first holder."""
        self.source = source
        self.manifest = manifest
        self.on_open: Callable[[], None] = _nothing
        """The file is there, still empty: before any page. From the thread that encodes, as the next one."""
        self.on_page: OnPage = _ignore
        self.last_page: list[bytes] = []
        """Once it is closed."""
        if isinstance(source, Folded):
            share_max = min(share_max, WORTH_SHARE)
        self._share_max, self._chunk_bytes = share_max, chunk_bytes
        self._bytes_max = 0
        self._spool = spool
        self._stopped = threading.Event()
        self._working = False
        self._claim = threading.Lock()  # between work in a thread, `hold` and `discard`
        self._holders = 1
        # Nothing is written before a container's chunk is full: it is no larger than what travels.
        self._packer = Packer(manifest.algorithm, min(chunk_bytes, CHUNK_BYTES_PLAIN))
        self._plan: DeltaPlan | None = None
        self._windows: Windows | None = None
        self._directory: Path | None = None
        self._lock = -1

    @property
    def base_root(self) -> str:
        return self.source.base_root

    @property
    def plan(self) -> DeltaPlan:
        """Once it is encoded."""
        assert self._plan is not None
        return self._plan

    @property
    def path(self) -> Path:
        """Once it is encoded."""
        assert self._directory is not None
        return self._directory / DELTA_FILE

    @property
    def compared_elements(self) -> int:
        return 0 if self._plan is None else _compared(self._plan)

    @property
    def changed_elements(self) -> int:
        """Of tensor data that has a base."""
        return self._packer.changed

    @property
    def changed_bytes(self) -> int:
        """About what those take of the payload."""
        return self._packer.changed_bytes

    @property
    def payload_bytes(self) -> int:
        return self._windows.size_bytes if self._windows is not None else 0

    def object_manifest(self, object_id: str) -> Manifest:
        """Of the object that the file is, while its end is open. Once the file is there."""
        return Manifest(
            object_id,
            self.manifest.algorithm,
            self._chunk_bytes,
            (FileEntry(DELTA_FILE, self._bytes_max),),
            (),
            pages_of(self._chunk_bytes),
            kind=ObjectKind.DELTA if self.base_root else ObjectKind.FULL_COMPRESSED,
            base_root=self.base_root,
            target_bytes=self.manifest.payload_bytes,
            open_end=True,
        )

    def encode(self, threads: int = 0) -> None:
        """Everything but the closing chunk. Raises SnapshotError (also for a base that is not what it was, and for a
        delta that saves nothing), DiskFullError, PublicationCancelledError when it was discarded meanwhile."""
        with self._work():
            try:
                self._encode(threads)
            except CodecError as error:
                raise SnapshotError(f"a kept delta cannot be read: {error}") from error
            except OSError as error:
                raise self._trouble(error) from error

    @contextmanager
    def _work(self) -> Iterator[None]:
        with self._claim:
            self._go_on()
            self._working = True
        try:
            yield
        finally:
            with self._claim:
                self._working = False
                if self._stopped.is_set():
                    self._remove()

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise PublicationCancelledError("the delta is not wanted any more")

    def _encode(self, threads: int) -> None:
        algorithm = self.manifest.algorithm
        with self.source.opened() as (plan, blocks):
            self._plan = plan
            prologue = pack_prologue(
                Prologue(self.base_root, plan.base.digest(algorithm), encode_header(self.manifest))
            )
            self._bytes_max = round(self._share_max * self.manifest.payload_bytes) + len(prologue) + BESIDE_BYTES_MAX
            windows = self._open()
            self.on_open()  # before the prologue: of a snapshot of many tensors it fills pages of its own
            windows.write(prologue)
            self._write_blocks(windows, blocks, threads or THREADS)

    def _open(self) -> Windows:
        most = self.manifest.payload_bytes
        home = self._spool or choose_directory(most // 4 if self.base_root else most)
        remove_leftovers(home)
        self._directory, self._lock = make_directory(home)
        self._windows = Windows(
            (self._directory / DELTA_FILE).open("xb", buffering=0),
            self.manifest.algorithm,
            self._chunk_bytes,
            pages_of(self._chunk_bytes),
            lambda digests: self.on_page(digests),
        )
        return self._windows

    def _write_blocks(self, windows: Windows, blocks: MakeBlocks, threads: int) -> None:
        with ThreadPoolExecutor(threads, "chappe-delta", initializer=block_sigpipe) as pool:
            for chunk in self._packer.pack(blocks(self.manifest.algorithm, OrderedMap(pool, threads), threads)):
                self._go_on()
                packed = pack_chunk(chunk)
                self._refuse_more_than(len(packed))
                windows.write(packed)

    def _refuse_more_than(self, more: int) -> None:
        if self.payload_bytes + more > self._bytes_max:
            what = f"a delta from {self.base_root}" if self.base_root else "the snapshot, compressed,"
            raise SnapshotError(f"{what} has more than {self._share_max:.0%} of the bytes")

    def close(self, root: str) -> None:
        """The target's root is known: the file is whole. Raises DiskFullError, SnapshotError."""
        with self._work():
            assert self._windows is not None
            packed = pack_chunk(self._packer.close(root))
            self._refuse_more_than(len(packed))
            try:
                self.last_page = self._windows.finish(packed)
            except OSError as error:
                raise self._trouble(error) from error

    def _trouble(self, error: OSError) -> SnapshotError | DiskFullError:
        told = store_error(error, f"a delta of {self.payload_bytes} bytes so far")
        return told if isinstance(told, DiskFullError) else SnapshotError(f"the delta cannot be written: {told}")

    def hold(self) -> None:
        """One more wants the file. Before the maker has let go of it."""
        with self._claim:
            self._holders += 1

    def discard(self) -> None:
        """One less. With the last one the file goes; a thread that is at work stops soon, and cleans up behind
        itself."""
        with self._claim:
            self._holders -= 1
            if self._holders > 0:
                return
            self._stopped.set()
            if not self._working:
                self._remove()

    def give_up(self) -> None:
        """Whoever holds it gets nothing any more: a thread that is at work stops soon."""
        self._stopped.set()

    def _remove(self) -> None:
        if self._windows is not None:
            self._windows.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _nothing() -> None:
    """Nobody listens."""


def _ignore(_digests: list[bytes]) -> None:
    """Nobody listens."""


def _compared(plan: DeltaPlan) -> int:
    """Elements of tensors that have a base."""
    regions = zip(plan.target.regions, plan.mapping, strict=True)
    return sum((r.end - r.begin) // r.width for r, base in regions if base != NO_BASE and r.dtype)
