"""The store's only way to the file system: every change passes `Disk._step`, where a test can stop it.

Knows nothing of objects, versions or chunks. A failing call raises OSError; `store_error` turns it into one of ours.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chappe.errors import DiskFullError, StoreError
from chappe.hop import filesystem
from chappe.hop.allocate import allocate
from chappe.units import format_size

SYNC_THREADS_MAX = 8
HELPS = "Free some space"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_FICLONE = 0x40049409  # _IOW(0x94, 9, int), of linux/fs.h
_CLONE_REFUSED = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM)


def store_error(error: OSError, what: str, helps: str = HELPS) -> StoreError:
    """DiskFullError when there is no room (or quota), which says what helps; else StoreError."""
    if error.errno in _NO_ROOM:
        return DiskFullError(f"no room for {what}: {error.strerror}. {helps}, the transfer then goes on by itself")
    return StoreError(f"{what}: {error}")


def no_room(path: Path, needed_bytes: int, more: str = "") -> OSError | None:
    """What to raise where so many bytes are to be written below `path`, and are not free. None: they are."""
    free = free_bytes(path)
    if needed_bytes <= free:
        return None
    short, needed = format_size(needed_bytes - free), format_size(needed_bytes)
    return OSError(errno.ENOSPC, f"{short} short ({needed} needed, {format_size(free)} free in {path}){more}")


def with_shortage(error: OSError, path: Path, needed_bytes: int) -> OSError:
    """The same error, saying how much is missing where it is for want of room and that can be seen."""
    return (no_room(path, needed_bytes) if error.errno == errno.ENOSPC else None) or error


class Disk:
    """Stateless. `_step` is called before each operation that changes something or waits for the device."""

    def _step(self, operation: str) -> None:
        """Nothing here. A test raises from it: OSError for a fault, BaseException for the death of the process."""

    # ---- one file ----

    def create(self, path: Path, size_bytes: int) -> None:
        """A new file of this size, its room reserved where that is quick (`chappe.hop.allocate`)."""
        self._step("create")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            if size_bytes:
                self._step("allocate")
                allocate(fd, size_bytes)
        finally:
            os.close(fd)

    def resize(self, path: Path, size_bytes: int) -> None:
        self._step("resize")
        os.truncate(path, size_bytes)

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        self._step("open")
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> None:
        """All of it, or OSError."""
        self._step("pwrite")
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, memoryview(data)[written:], offset + written)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Shorter at the end of the file."""
        self._step("pread")
        return os.pread(fd, length, offset)

    def fsync(self, path: Path) -> None:
        """Of a file or a directory."""
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._step("fsync")
            os.fsync(fd)
        finally:
            os.close(fd)

    def fsync_all(self, paths: Sequence[Path]) -> None:
        """Files and directories side by side, so that they wait for one commit and one flush of the device together.

        The caller's thread takes the first. Raises the first error in their order, when nothing is under way any more.
        """
        if len(paths) < 2:
            for path in paths:
                self.fsync(path)
            return
        with ThreadPoolExecutor(SYNC_THREADS_MAX, "chappe-fsync") as threads:  # starts them only while all are busy
            others = [threads.submit(self.fsync, path) for path in paths[1:]]
            self.fsync(paths[0])
            for other in others:
                other.result()

    def write_record(self, path: Path, data: bytes | memoryview, *, durable: bool) -> None:
        """Replace a small file as a whole. Durable: it is on the device, name included, when this returns."""
        temporary = path.with_name(path.name + ".tmp")
        self._step("write_record")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            self.pwrite(fd, data, 0)
            if durable:
                self._step("fsync")
                os.fsync(fd)
        finally:
            os.close(fd)
        self.rename(temporary, path)
        if durable:
            self.fsync(path.parent)

    def write_json(self, path: Path, record: Mapping[str, Any], *, durable: bool = True) -> None:
        self.write_record(path, json.dumps(record, indent=1).encode() + b"\n", durable=durable)

    def unlink(self, path: Path) -> None:
        self._step("unlink")
        path.unlink(missing_ok=True)

    # ---- names ----

    def mkdir(self, path: Path) -> None:
        """With its parents; one that exists is fine."""
        self._step("mkdir")
        path.mkdir(parents=True, exist_ok=True)

    def chmod(self, path: Path, mode: int) -> None:
        self._step("chmod")
        path.chmod(mode)

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename")
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """A second name for a file that nobody writes to."""
        self._step("link")
        os.link(source, target, follow_symlinks=False)

    def clone(self, source: Path, target: Path) -> bool:
        """A new file that shares the blocks of `source` until either is written. False: not on this file system."""
        self._step("clone")
        with source.open("rb") as shared:
            fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                fcntl.ioctl(fd, _FICLONE, shared.fileno())
            except OSError as error:
                target.unlink()
                if error.errno in _CLONE_REFUSED:
                    return False
                raise
            finally:
                os.close(fd)
        return True

    def swap_symlink(self, link: Path, target: str) -> None:
        """Point `link` at `target`; a reader sees the old or the new one, never none. Durable on return, and with it
        whatever names were changed before where the file system `keeps_order`."""
        temporary = link.with_name(link.name + ".tmp")
        self.unlink(temporary)
        self._step("symlink")
        temporary.symlink_to(target)
        self.rename(temporary, link)
        self.fsync(link.parent)

    def keeps_order(self, path: Path) -> bool:
        """See `chappe.hop.filesystem`."""
        return filesystem.keeps_order(path)

    # ---- trees ----

    def move_tree(self, source: Path, target: Path) -> None:
        """Rename a directory; a read-only one is made writable first, or it could not change its parent."""
        self.chmod(source, 0o755)
        self.rename(source, target)

    def remove_tree(self, top: Path) -> None:
        """Unlink only: bytes that are mapped stay until they are unmapped."""
        if top.is_symlink() or not top.is_dir():
            self.unlink(top)
            return
        self.chmod(top, 0o755)
        for child in list(top.iterdir()):
            self.remove_tree(child)
        self._step("rmdir")
        top.rmdir()


def files_below(top: Path) -> tuple[list[Path], list[Path]]:
    """All files and all directories (without `top`) below it; symlinks count as files and are not followed."""
    files: list[Path] = []
    directories: list[Path] = []
    for parent, names, leaves in os.walk(top):
        files.extend(Path(parent, leaf) for leaf in leaves)
        for name in names:
            path = Path(parent, name)
            (files if path.is_symlink() else directories).append(path)
    return files, directories


def free_bytes(path: Path) -> int:
    """What an ordinary process may still write on this file system."""
    at = os.statvfs(path)
    return at.f_bavail * at.f_frsize
