"""Good copies of chunks that rotted in a landed snapshot.

A landed file may be mapped and is never written to. A refetched chunk is kept beside it and served from there; `mend`
puts a repaired copy of the file in the old one's place (who has the old one mapped keeps it).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from chappe.core.manifest import Manifest
from chappe.hop.disk import Disk
from chappe.hop.filecache import FileCache


class Mends:
    """One small file per chunk, named by its number."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._chunks: set[int] = set()

    def load(self, manifest: Manifest) -> None:
        if self._directory.is_dir():
            numbers = (int(p.name) for p in self._directory.iterdir() if p.name.isascii() and p.name.isdigit())
            self._chunks = {number for number in numbers if number < manifest.chunks_total}

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def put(self, chunk: int, data: bytes | memoryview) -> None:
        self._disk.mkdir(self._directory)
        self._disk.write_record(self._directory / str(chunk), data, durable=False)
        self._chunks.add(chunk)

    def get(self, chunk: int) -> bytes:
        return (self._directory / str(chunk)).read_bytes()

    def drop(self, chunk: int) -> None:
        if chunk in self._chunks:
            self._chunks.discard(chunk)
            self._disk.unlink(self._directory / str(chunk))

    def mend(self, manifest: Manifest, files: FileCache) -> int:
        """Blocking: repair the landed files and return how many were. A crash leaves the old or the new file."""
        mended = 0
        for file, chunks in self._by_file(manifest):
            target = files.base / manifest.files[file].path
            copy = self._directory / "copy.tmp"
            self._disk.unlink(copy)
            shutil.copyfile(target, copy)
            fd = self._disk.open(copy, write=True)
            try:
                for chunk in chunks:
                    self._disk.pwrite(fd, self.get(chunk), manifest.place(chunk).offset)
            finally:
                os.close(fd)
            self._disk.chmod(copy, 0o444)
            self._disk.fsync(copy)
            self._disk.chmod(target.parent, 0o755)
            files.relocate(files.base, lambda copy=copy, target=target: self._disk.rename(copy, target))  # type: ignore[misc]
            self._disk.chmod(target.parent, 0o555)
            self._disk.fsync(target.parent)
            for chunk in chunks:
                self.drop(chunk)
            mended += 1
        return mended

    def _by_file(self, manifest: Manifest) -> Iterator[tuple[int, list[int]]]:
        files: dict[int, list[int]] = {}
        for chunk in sorted(self._chunks):
            files.setdefault(manifest.place(chunk).file, []).append(chunk)
        yield from files.items()
