"""Where the bytes of an object's chunks are: in its files, beside them once it has landed, the last in memory, too.

Knows neither digests nor which chunks are held: it reads and writes what it is told to (`hop/objects` decides).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from chappe.core.manifest import ChunkPlace, Manifest
from chappe.hop.disk import Disk
from chappe.hop.filecache import FileCache
from chappe.hop.layout import ObjectLayout
from chappe.hop.mends import Mends
from chappe.hop.recent import RecentChunks
from chappe.hop.source import ChunkSpan, Data
from chappe.hop.writeback import WriteBehind


class Contents:
    """Of one object; nothing is asked of it before `begin`. Reads are for any thread, writes for one at a time."""

    def __init__(self, disk: Disk, own: ObjectLayout, write_behind: WriteBehind) -> None:
        self._disk = disk
        self._write_behind = write_behind
        self._mends = Mends(disk, own.mends)
        self._recent = RecentChunks()
        self._files: FileCache | None = None

    def begin(self, manifest: Manifest, base: Path, *, landed: bool) -> None:
        """The files are in `base`. A landed one is never written to."""
        self._files = FileCache(self._disk, base, [f.path for f in manifest.files], writable=not landed)

    def load_mends(self, manifest: Manifest) -> None:
        """What an earlier process kept beside the files."""
        self._mends.load(manifest)

    @property
    def base(self) -> Path:
        return self._place().base

    # ---- reading ----

    def recent(self, chunk: int) -> Data | None:
        """From memory, if it came just now."""
        return self._recent.get(chunk)

    def read(self, manifest: Manifest, chunk: int) -> bytes:
        """From the disk. Raises OSError."""
        if chunk in self._mends:
            return self._mends.get(chunk)
        place = manifest.place(chunk)
        data = self.read_at(place.file, place.offset, place.length)
        if len(data) != place.length:
            raise OSError(errno.EIO, f"chunk {chunk} is cut short", str(self.base))
        return data

    def read_at(self, file: int, offset: int, length: int) -> bytes:
        """Of one of the files: fewer bytes at its end. Raises OSError."""
        with self._place().fd(file) as fd:
            return self._disk.pread(fd, length, offset)

    @contextlib.contextmanager
    def open_file(self, file: int) -> Iterator[Callable[[int, int], bytes]]:
        """One of the files, to be read from one thread: (offset, length) to bytes, fewer at its end."""
        with self._place().fd(file) as fd:
            yield lambda offset, length: self._disk.pread(fd, length, offset)

    def span(self, manifest: Manifest, chunk: int) -> contextlib.AbstractContextManager[ChunkSpan] | None:
        """The chunk within its file; None when its bytes are beside it."""
        return None if chunk in self._mends else self._span(manifest.place(chunk))

    @contextlib.contextmanager
    def _span(self, place: ChunkPlace) -> Iterator[ChunkSpan]:
        with self._place().fd(place.file) as fd:
            yield ChunkSpan(fd, place.offset)

    # ---- writing ----

    def write(self, place: ChunkPlace, data: Data) -> None:
        """Into its file. Raises OSError."""
        files = self._place()
        with files.fd(place.file) as fd:
            self._disk.pwrite(fd, data, place.offset)
        self._write_behind.wrote(files, place.file, place.length)

    def put_beside(self, chunk: int, data: Data) -> None:
        """For a file that may be mapped. Raises OSError."""
        self._mends.put(chunk, data)

    def remember(self, chunk: int, data: Data) -> None:
        """In memory, for a child that has caught up."""
        self._recent.put(chunk, data)

    def forget_recent(self, chunk: int) -> None:
        self._recent.forget(chunk)

    def drop_beside(self, chunk: int) -> None:
        self._mends.drop(chunk)

    # ---- the whole ----

    def relocate(self, base: Path, move: Callable[[], None]) -> None:
        """`move` puts the files into `base`; from then on they are read from there, and not written to."""
        self._place().relocate(base, move)
        self._recent = RecentChunks()

    def mend(self, manifest: Manifest) -> int:
        """Blocking: files in which chunks had rotted are replaced by good copies; returns how many. Raises OSError."""
        return self._mends.mend(manifest, self._place()) if self._mends else 0

    def close(self) -> None:
        if self._files is not None:
            self._files.close()

    def _place(self) -> FileCache:
        assert self._files is not None
        return self._files
