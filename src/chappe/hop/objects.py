"""One object in the store: takes chunks from any number of parents, serves them to any number of children.

                put_header            put_page, put_chunks             land
    (unknown) ────────────▶ receiving ────────────────────▶ complete ───────▶ landed, read-only
                                ▲ recover (restart)                             │ rot: dropped, refetched into mends

A chunk is verified against its page, stored, and only then in the ledger, from which alone children are served. Knows
nothing of edges, epochs or which version is wanted. Its parts: header and pages (`kept`), where the bytes are
(`contents`), what is there and not proven (`claims`), the root (`rooting`), the journal, what is synced when (`seals`).

Called on the event loop's thread, except where it says blocking. `put_chunks`, and what a ChunkSource is read by, are
for any thread. From the look at the ledger until a chunk stands in it and in the journal, one thread has the
object: so no two write the same bytes, none writes once all is here, and none claims a chunk of an object that is gone.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from chappe.core.events import Holding, ObjectState
from chappe.core.manifest import ChunkPlace, Manifest, ObjectKind
from chappe.core.ranges import Range, RangeSet
from chappe.errors import ChappeError, ChunkMismatchError, ManifestError, StoreCorruptError, StoreError
from chappe.hop.claims import Claims
from chappe.hop.contents import Contents
from chappe.hop.disk import Disk, store_error, with_shortage
from chappe.hop.journal import Journal
from chappe.hop.kept import KeptManifest
from chappe.hop.layout import ObjectLayout, StoreLayout
from chappe.hop.leaves import LeafTable
from chappe.hop.records import LandingRecord
from chappe.hop.room import reserve
from chappe.hop.rooting import Rooting
from chappe.hop.seals import Seals
from chappe.hop.shared import SharedLedger
from chappe.hop.source import ChunkSpan, Data, Signal, SourceState
from chappe.hop.writeback import WriteBehind


class StoredObject:
    """A `ChunkSource` and a `ChunkSink`. Made by `Store`."""

    def __init__(self, disk: Disk, layout: StoreLayout, object_id: str, write_behind: WriteBehind) -> None:
        self.object_id = object_id
        self.ledger = SharedLedger()
        self.signal = Signal()
        self.state = SourceState.OPEN
        self.landed: LandingRecord | None = None
        self.installed = False
        self.busy = False
        """It is being landed: retention leaves it alone, and its files are not written to."""
        self.damaged = False
        """The device may have lost a write, and says so only once: the object must be received again."""
        self._disk = disk
        self._own = layout.object(object_id)
        self.seals = Seals(disk, self._own, write_behind.submit)
        self._kept = KeptManifest(disk, self._own, object_id)
        self._journal = Journal(disk, self._own.journal)
        self._contents = Contents(disk, self._own, write_behind)
        self._claims = Claims(self._kept, self.ledger)
        self._rooting: Rooting | None = None  # of a full object until it lands; of a delta nobody asks for the root
        self._lock = threading.RLock()  # of storing and forgetting chunks; held while one is written
        self._closed = False

    def load(self, landed: LandingRecord | None, snapshot: Path | None) -> None:
        """Take up what an earlier process left. Raises StoreCorruptError when it is not whole: to be fetched again."""
        base = snapshot or self._own.files
        try:
            manifest = self._kept.load()
            if landed is None and manifest.kind is not ObjectKind.FULL:
                self._end_file(manifest)  # a crash may have come between its last page and this
            for entry in manifest.files:
                if not manifest.open_end and (base / entry.path).lstat().st_size != entry.size_bytes:
                    raise StoreCorruptError(f"{base / entry.path} does not have {entry.size_bytes} bytes")
        except (OSError, ChappeError) as error:
            raise StoreCorruptError(f"object {self.object_id} is not whole: {error}") from error
        self._begin(manifest, base, landed)
        if landed is None:
            self._claims.claimed = RangeSet(self._journal.read().within(0, manifest.chunks_total))
        else:
            self.ledger.add(0, self._kept.chunks_known)
            self._contents.load_mends(manifest)
            self.installed = self._own.installed.exists()

    def _begin(self, manifest: Manifest, base: Path, landed: LandingRecord | None) -> None:
        self._contents.begin(manifest, base, landed=landed is not None)
        self._rooting = None
        if landed is None and manifest.kind is ObjectKind.FULL:
            self._rooting = Rooting(self._kept, self._contents)
            self.seals.began()
        self.landed = landed
        self._take_end(manifest)

    def _take_end(self, manifest: Manifest) -> None:
        self.ledger.total = None if manifest.open_end else manifest.chunks_total

    def _end_file(self, manifest: Manifest) -> None:
        """The file of an object whose end was open grows with its chunks, which come in any order. Raises OSError."""
        path = self._own.files / manifest.files[0].path
        if not manifest.open_end and path.lstat().st_size < manifest.payload_bytes:
            self._disk.resize(path, manifest.payload_bytes)

    # ---- what is on the disk and not held ----

    @property
    def claimed(self) -> RangeSet:
        """What the journal says and nobody has re-hashed yet: see `recover`."""
        return self._claims.claimed

    def recover(self, threads: int = 0) -> None:
        """Blocking, for a store without an event loop: `rehash`, then `adopt`."""
        self.adopt(self.rehash(threads))

    def rehash(self, threads: int = 0) -> list[Range]:
        """Blocking, from any thread: the claimed chunks that are really here, and sound neighbours. Of those whose page
        is not here the digests are remembered for when it comes."""
        if not self.claimed:
            return []
        return self._claims.rehash(self._contents.base, self._leaves(), threads)

    def adopt(self, sound: Sequence[Range]) -> None:
        """Hold what `rehash` found."""
        self._claims.adopt(sound)
        self._prove_claims()  # a page may have come meanwhile
        self.signal.fire()

    def expect(self, chunks: Mapping[int, bytes], leaves: Sequence[Sequence[bytes]]) -> None:
        """These digests are those of what is on the disk (none: not known), of chunks and of each file's leaves: held
        without being fetched once their page names the same."""
        self._claims.expect(chunks)
        if self._rooting is not None:
            self._rooting.know(leaves)

    def _prove_claims(self) -> None:
        with self._lock:
            self._claims.prove(self._leaves())

    def _leaves(self) -> LeafTable | None:
        return None if self._rooting is None else self._rooting.leaves

    # ---- source ----

    @property
    def manifest(self) -> Manifest | None:
        return self._kept.manifest

    @property
    def delta(self) -> bool:
        """It has to be applied before it is a version: a delta, or a compressed snapshot, which begins at nothing."""
        return self.manifest is not None and self.manifest.kind is not ObjectKind.FULL

    @property
    def base_root(self) -> str:
        """Of the version that a delta begins at; empty when that is nothing."""
        return self._kept.known().base_root

    @property
    def work(self) -> ObjectLayout:
        """Where a delta's full object is made."""
        return self._own.applied

    def open_delta(self) -> contextlib.AbstractContextManager[Callable[[int, int], bytes]]:
        """The delta's file, to be read from one thread: (offset, length) to bytes, fewer at its end."""
        return self._contents.open_file(0)

    @property
    def header_bytes(self) -> bytes | None:
        return self._kept.header

    @property
    def pages_held(self) -> int:
        return self._kept.pages_held

    def page_bytes(self, index: int) -> bytes:
        return self._kept.page_bytes(index)

    def read_chunk(self, chunk: int) -> Data:
        recent = self._contents.recent(chunk)
        if recent is not None:
            return recent
        if chunk not in self.ledger.held:
            raise OSError(errno.ENODATA, f"chunk {chunk} is not held", self.object_id)
        return self._contents.read(self._kept.known(), chunk)

    def open_chunk(self, chunk: int) -> contextlib.AbstractContextManager[ChunkSpan] | None:
        """See `ChunkFiles`."""
        return self._contents.span(self._kept.known(), chunk)

    def recheck(self, chunks: Sequence[int]) -> list[int]:
        dropped = [chunk for chunk in chunks if chunk in self.ledger.held and not self._is_sound(chunk)]
        with self._lock:
            for chunk in dropped:
                self.ledger.drop(chunk, chunk + 1)
                self._contents.drop_beside(chunk)
                if self._rooting is not None:
                    self._rooting.forget(self._kept.known().place(chunk))
        if dropped:
            self.signal.fire()
        return dropped

    def _is_sound(self, chunk: int) -> bool:
        self._contents.forget_recent(chunk)  # what counts is what the disk says
        try:
            data = self._contents.read(self._kept.known(), chunk)
        except OSError:
            return False
        return self._kept.known().algorithm.once(data) == self._kept.digest(chunk)

    # ---- sink ----

    def put_header(self, data: bytes) -> None:
        """Blocks for as long as the file system takes to reserve the room. See `ChunkSink` for what it raises."""
        self._refuse_if_dropped()
        if self._kept.header is not None:
            if data != self._kept.header:
                raise ManifestError(f"a second header of object {self.object_id} differs from the first")
            return
        manifest = self._kept.parse(data)
        try:
            reserve(self._disk, self._own, manifest)
            # Last, so that a header on disk means that all its files are there.
            self._kept.keep(manifest, data)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._disk.remove_tree(self._own.files)  # gives back the room
            needed = 0 if manifest.open_end else manifest.payload_bytes
            short = with_shortage(error, self._own.root.parent, needed)
            raise store_error(short, f"object {self.object_id} of {manifest.payload_bytes} bytes") from error
        self._begin(manifest, self._own.files, None)
        self.signal.fire()

    def put_page(self, data: bytes) -> None:
        """Raises ManifestError, DiskFullError."""
        self._refuse_if_dropped()
        try:
            new = self._kept.add_page(data)
            if self.delta:
                self._end_file(self._kept.known())
        except OSError as error:
            raise store_error(error, f"a page of object {self.object_id}") from error
        total = self.ledger.total
        self._take_end(self._kept.known())
        if new:
            if self._rooting is not None and self.pages_held == self._kept.known().pages_total:
                self.seals.pages_are_here(self._kept.known())
            self._prove_claims()
            # Where the end is, is news, and that all is here.
            self.signal.fire(soon=self.ledger.total == total and not self.ledger.complete)

    def put_chunks(self, chunks: Sequence[tuple[int, Data]], *, lent: bool = False) -> None:
        """See `ChunkSink`. What came before a chunk that is wrong or finds no room is stored and held."""
        self._refuse_if_dropped()
        manifest = self._kept.known()
        stored = 0
        try:
            for chunk, data in chunks:
                stored += self._put_chunk(manifest, chunk, data, lent)
        except OSError as error:
            lacking = 0 if manifest.open_end else manifest.chunks_total - self.ledger.arrived
            short = with_shortage(error, self._own.root.parent, lacking * manifest.chunk_bytes)
            raise store_error(short, f"chunks of object {self.object_id}") from error
        finally:
            if stored:
                if lent and self.ledger.complete and self._rooting is not None:
                    self.seals.begin()
                self.signal.fire(soon=not self.ledger.complete)

    def _put_chunk(self, manifest: Manifest, chunk: int, data: Data, lent: bool) -> bool:
        """Whether it was not there before."""
        digest = self._kept.digest(chunk)
        if digest is None:
            raise ManifestError(f"chunk {chunk} came before its page")
        if chunk in self.ledger.held:
            return False
        place = manifest.place(chunk)
        if len(data) != place.length or manifest.algorithm.once(data) != digest:
            raise ChunkMismatchError(chunk)
        with self._lock:
            self._refuse_if_dropped()
            if chunk in self.ledger.held:
                return False
            self._store(manifest, place, chunk, data, digest, lent)
        return True

    def _store(self, manifest: Manifest, place: ChunkPlace, chunk: int, data: Data, digest: bytes, lent: bool) -> None:
        if self.landed is not None or self.busy:
            self._contents.put_beside(chunk, data)
            self.ledger.add(chunk, chunk + 1)
            return
        self.seals.writes(place.file)
        self._contents.write(place, data)
        self.ledger.add(chunk, chunk + 1)
        if self._rooting is not None:
            self.seals.wrote(manifest, place.file, self.ledger.held)
        if not lent:
            self._contents.remember(chunk, data)
        if self._rooting is not None:
            self._rooting.take(place, data, digest, self.ledger.held)
        self._journal.add(chunk, place.length)

    # ---- the whole ----

    def computed_root(self, threads: int = 0) -> str:
        """Blocking where leaves must be read back. Raises StoreError while chunks are missing or rotten."""
        self._kept.known()  # not before there is a header
        if not self.ledger.complete:
            raise StoreError(f"object {self.object_id} is not complete")
        if self.landed is not None:
            return self.landed.root
        assert self._rooting is not None
        return self._rooting.finish(threads)

    def holding(self) -> Holding:
        chunks, total = self.ledger.held.ranges(), self.ledger.total
        if self.landed is not None:
            state = ObjectState.INSTALLED if self.installed else ObjectState.VERIFIED
            return Holding(self.object_id, state, self.landed.version, self.landed.root, chunks, total)
        state = ObjectState.RECEIVED if self.ledger.complete else ObjectState.RECEIVING
        return Holding(self.object_id, state, chunks=chunks, chunks_total=total)

    def flush(self) -> None:
        """Write the last claims. Raises OSError."""
        with self._lock:
            self._journal.flush()

    def relocate(self, record: LandingRecord, snapshot: Path, move: Callable[[], None]) -> None:
        """From any thread: `move` puts the files there, and from then on they are served from there."""
        with self._lock:
            self._contents.relocate(snapshot, move)
            self.landed = record
            self._rooting = None
            self._journal.close()

    def mend(self) -> int:
        """Blocking: put refetched chunks into a landed snapshot; returns how many files were replaced."""
        if self.landed is None:
            return 0
        try:
            return self._contents.mend(self._kept.known())
        except OSError as error:
            raise store_error(error, f"mending version {self.landed.version}") from error

    def drop(self) -> None:
        """Nothing is served or taken any more; children are told. The store removes the files."""
        with self._lock:
            self.state = SourceState.DROPPED
            self.close()
        self.signal.fire()

    def finish(self) -> None:
        """The process stops: write the last claims if that is possible, then close."""
        with self._lock:
            with contextlib.suppress(OSError):
                self.flush()
            self.close()

    def close(self) -> None:
        """Close all files, without a word to the disk. A thread that still brings a chunk finds the object closed."""
        with self._lock:
            self._closed = True
            self._contents.close()
            self._journal.close()
            self._kept.close()

    # ---- small ----

    def _refuse_if_dropped(self) -> None:
        if self.state is SourceState.DROPPED or self._closed:
            raise StoreError(f"object {self.object_id} was dropped")
