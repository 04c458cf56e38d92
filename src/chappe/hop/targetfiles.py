"""The files that a delta leads to, while they are made: what is linked, what is written, and how far.

    nothing of the file has changed so far ──▶ blocks are only looked at ──▶ end of file: a link to the base's
        │ a block changes                                                       └─ no links here: as below
        ▼ new file: a clone of the base's where the file system can, and what changes is written to it; elsewhere what
          was passed over is written, then every block as it comes

Room is asked for where it is sure to be needed: at first for files that can be no link and no clone, and for the others
when it is known that they are written. What a link or a clone shares takes none.

A crash leaves files of the right size with whatever got into them: each block of such a file is looked at first, and
left alone when it is the target's. Only a file that has this one name is ever written to: what is served, or may be
mapped, has another. Used by one thread.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chappe.core.manifest import Manifest
from chappe.hop.ahead import Arriving, Base
from chappe.hop.disk import Disk, files_below, no_room
from chappe.hop.layout import ObjectLayout
from chappe.payload.envelope import WholeBlock
from chappe.payload.plan import Block, DeltaPlan
from chappe.payload.table import NO_BASE

CLONE_BYTES_MIN = 8 << 20
"""Smaller files are written. A larger one is cloned at its first change, before it is known whether anything of it
stays as it is: where all changes, that takes longer than to write a new file, but little beside the rest of applying.
"""
_LINK_REFUSED = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done with a block. `look`: at what a crash left there, first. `first`: nobody has hashed it yet."""

    whole: WholeBlock
    block: Block
    write: bool
    look: bool = False
    first: bool = True


@dataclass(slots=True)
class _Same:
    """A file that is the base's so far. `source` is the base's file, `passed` what was only looked at."""

    source: int
    passed: list[WholeBlock] = field(default_factory=list)


class TargetFiles:
    def __init__(
        self, disk: Disk, work: ObjectLayout, target: Manifest, base: Base, plan: DeltaPlan, arriving: Arriving
    ) -> None:
        self._disk, self._top, self._target, self._base = disk, work.files, target, base
        self._plan, self._arriving = plan, arriving
        self._file = -1
        self._same: _Same | None = None  # of the file at hand, until it is written
        self._left = False  # the file at hand was there before us
        self._cloned = NO_BASE  # the base's file whose bytes it has where nothing is written

    def clear(self) -> None:
        """Take away what is not the target's."""
        names = {self._top / entry.path for entry in self._target.files}
        with self._arriving.acting():
            self._disk.mkdir(self._top)
            for path in files_below(self._top)[0]:
                if path not in names:
                    self._disk.unlink(path)

    def surely_written_bytes(self) -> int:
        """Of files that are as long as none of the base's, less what is there of them already."""
        known = {entry.size_bytes for entry in self._base.manifest.files}
        files = (entry for entry in self._target.files if entry.size_bytes not in known)
        return sum(entry.size_bytes - _there_bytes(self._top / entry.path) for entry in files)

    def take(self, whole: WholeBlock) -> Iterator[Work]:
        """What a block asks for; blocks come in order."""
        block = self._plan.block(whole.ordinal)
        yield from self._goto(block.file)
        if self._same is not None:
            if self._is_same(self._same, block, whole):
                self._same.passed.append(whole)
                yield Work(whole, block, write=False)
                return
            yield from self._begin_writing(self._in_place(block))
        there = not whole.pieces and self._cloned != NO_BASE and self._in_place(block) == self._cloned
        yield Work(whole, block, write=not there, look=self._left)

    def end(self) -> Iterator[Work]:
        """After the last block."""
        yield from self._goto(len(self._target.files))

    def _goto(self, file: int) -> Iterator[Work]:
        while self._file < file:
            if self._same is not None and not self._linked(self._same):
                yield from self._begin_writing(self._same.source)
            self._file += 1
            self._same, self._left, self._cloned = _Same(NO_BASE), False, NO_BASE

    def _is_same(self, same: _Same, block: Block, whole: WholeBlock) -> bool:
        source = NO_BASE if whole.pieces else self._in_place(block)
        if source == NO_BASE or same.source not in (NO_BASE, source):
            return False
        same.source = source
        return True

    def _in_place(self, block: Block) -> int:
        """The base's file in which the block has been at this place, and which is as long; or NO_BASE."""
        sources = self._plan.sources(block)
        if len(sources) != 1 or sources[0].file == NO_BASE or sources[0].offset != block.offset:
            return NO_BASE
        sizes = self._base.manifest.files[sources[0].file].size_bytes, self._target.files[block.file].size_bytes
        return sources[0].file if sizes[0] == sizes[1] else NO_BASE

    def _path(self) -> Path:
        return self._top / self._target.files[self._file].path

    def _source_path(self, source: int) -> Path:
        return self._base.path / self._base.manifest.files[source].path

    def _linked(self, same: _Same) -> bool:
        if same.source == NO_BASE:  # an empty file
            return False
        source, path = self._source_path(same.source), self._path()
        with self._arriving.acting():
            self._disk.mkdir(path.parent)
            try:
                if not path.exists() or not path.samefile(source):
                    self._disk.unlink(path)
                    self._disk.link(source, path)
            except OSError as error:
                if error.errno not in _LINK_REFUSED:
                    raise
                return False
        return True

    def _begin_writing(self, like: int) -> Iterator[Work]:
        """`like`: the base's file that the file at hand may go on like; or NO_BASE."""
        same, self._same = self._same, None
        assert same is not None
        path, size_bytes = self._path(), self._target.files[self._file].size_bytes
        like = like if same.source == NO_BASE else same.source
        with self._arriving.acting():
            self._disk.mkdir(path.parent)
            self._left = _may_be_written(path, size_bytes)
            if not self._left:
                self._disk.unlink(path)
                to_be_cloned = like != NO_BASE and size_bytes >= CLONE_BYTES_MIN
                if to_be_cloned and self._disk.clone(self._source_path(like), path):
                    self._cloned = like
                else:
                    self._ask_for_room(path.parent, size_bytes, to_be_cloned)
                    self._disk.create(path, size_bytes)
        if self._cloned == NO_BASE:
            for whole in same.passed:
                yield Work(whole, self._plan.block(whole.ordinal), write=True, look=self._left, first=False)

    def _ask_for_room(self, directory: Path, size_bytes: int, to_be_cloned: bool) -> None:
        more = "; a store on XFS or btrfs needs room only for what changes in a file" if to_be_cloned else ""
        if (short := no_room(directory, size_bytes, more)) is not None:
            raise short


def _there_bytes(path: Path) -> int:
    try:
        at = path.lstat()
    except FileNotFoundError:
        return 0
    return min(at.st_blocks * 512, at.st_size)


def _may_be_written(path: Path, size_bytes: int) -> bool:
    """An earlier attempt's: a file of this size with no other name, which has not been sealed."""
    try:
        at = path.lstat()
    except FileNotFoundError:
        return False
    ours = stat.S_ISREG(at.st_mode) and at.st_nlink == 1 and bool(at.st_mode & stat.S_IWUSR)
    return ours and at.st_size == size_bytes
