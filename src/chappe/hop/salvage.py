"""What a delta has made right of a version although its base was damaged: kept as a part of the full object.

    blocks that came out right ──▶ chunks that lie in them whole ──▶ objects/<full>/ with a header, files, a journal
    a block that did not        ──▶ every chunk that has a byte of it ──▶ asked for, like any chunk that is missing

Nothing of it is believed: a chunk counts as held, and is served, only when its page has come and names its digest (see
`StoredObject.expect`). So a delta, a base or a disk that is wrong costs bytes, never a wrong version. It is kept for as
long as the delta is, until the object is asked for (`chappe.core.holding.Held.part`). Every file is one that nobody
else has: what had become a link to the base's is copied, and hashed again on the way. Blocking.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from chappe.core.manifest import ChunkPlace, Manifest
from chappe.hop.disk import Disk
from chappe.hop.journal import Journal
from chappe.hop.kept import KeptManifest
from chappe.hop.layout import ObjectLayout


@dataclass(slots=True)
class Salvage:
    """Of `blocks` blocks those numbered `wrong` are not here. Digests of all chunks, and of the leaves of each file, as
    they are on the disk; empty ones are not known."""

    blocks: int
    wrong: list[int]
    chunks: list[bytes]
    leaves: list[list[bytes]] = field(default_factory=list)

    def lacking_bytes(self, target: Manifest) -> int:
        """What has to be fetched."""
        return sum(target.place(chunk).length for chunk, digest in enumerate(self.chunks) if not digest)


def keep_part(disk: Disk, work: ObjectLayout, target: Manifest, header: bytes, salvage: Salvage) -> None:
    """Make `work` a partial object: no page, and a journal that claims what may be right. Raises OSError."""
    for path in (work.header, work.pages, work.journal):  # of an attempt that got as far
        disk.unlink(path)
    for file in range(len(target.files)):
        _own(disk, work, target, file, salvage.chunks)
    journal = Journal(disk, work.journal)
    try:
        for chunk, digest in enumerate(salvage.chunks):
            if digest:
                journal.add(chunk, target.place(chunk).length)
        journal.flush()
    finally:
        journal.close()
    kept = KeptManifest(disk, work, target.object_id)
    try:
        kept.keep(target, header)  # last: with a header all the rest is there
    finally:
        kept.close()


def _own(disk: Disk, work: ObjectLayout, target: Manifest, file: int, chunks: list[bytes]) -> None:
    """A file with another name becomes a copy; a chunk that is not read as it was before is not known any more."""
    path = work.files / target.files[file].path
    at = path.lstat()
    if at.st_nlink == 1:
        return
    copy = work.root / "copy.tmp"  # beside the files: any name among them may be the snapshot's
    disk.unlink(copy)
    disk.create(copy, at.st_size)
    source, out = disk.open(path), -1
    try:
        out = disk.open(copy, write=True)
        for chunk, place in _places(target, file):
            data = disk.pread(source, place.length, place.offset)
            if chunks[chunk] and target.algorithm.once(data) != chunks[chunk]:
                chunks[chunk] = b""
            disk.pwrite(out, data, place.offset)
    finally:
        os.close(source)
        if out >= 0:
            os.close(out)
    disk.rename(copy, path)


def _places(target: Manifest, file: int) -> Iterator[tuple[int, ChunkPlace]]:
    for chunk in range(*target.chunks_of_file(file)):
        yield chunk, target.place(chunk)
