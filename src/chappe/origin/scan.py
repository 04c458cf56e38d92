"""Decides what a path to publish is: which files belong to the snapshot, that they are sound, and whether they change.

    one file           NAME.safetensors
    a directory        a Hugging Face model directory, recursively: at least one .safetensors file, any sidecars

- Names that begin with a dot are left out, with all below them (.git, .cache, .gitattributes): not the model's.
- Every .safetensors header is parsed and validated, every *.safetensors.index.json checked against its shards.
- A symlink is followed only to a regular file inside the directory, or, when the directory is a snapshot in a Hugging
  Face hub cache (`<repo>/snapshots/<revision>`), into that cache's `<repo>/blobs`. All else is refused, also symlinks
  to directories. The path that the user named may itself be a symlink.
- Files are identified by size, mtime, inode and device. Whoever opens one later gets these bytes or an error.

Blocking; reads headers, not data. Knows nothing of chunks, digests and versions.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chappe.core.manifest import FileEntry, TensorEntry
from chappe.errors import SafetensorsError, SnapshotChangedError, SnapshotError, UnsafePathError
from chappe.payload.layout import (
    INDEX_BYTES_MAX,
    SAFETENSORS_SUFFIX,
    check_index,
    is_index,
    is_safetensors,
    parse_index,
    payload_position,
    tensor_table,
)
from chappe.payload.paths import check_tree
from chappe.payload.safetensors import LENGTH_BYTES, SafetensorsHeader, header_span, parse_header

_LFS_POINTER = b"version "


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the snapshot as it was when it was scanned. `location` is absolute and has no symlink in it."""

    path: str  # in the snapshot, '/'-separated
    location: Path
    size_bytes: int
    mtime_ns: int
    inode: int
    device: int

    def open(self) -> int:
        """A descriptor to read exactly this file. Raises SnapshotChangedError, SnapshotError. The caller closes it."""
        try:
            descriptor = os.open(self.location, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise SnapshotChangedError(f"{self.location} was removed while it was being published") from None
        except OSError as error:
            raise SnapshotError(f"{self.location} cannot be read: {error.strerror}") from error
        try:
            self.check(os.fstat(descriptor))
        except SnapshotChangedError:
            os.close(descriptor)
            raise
        return descriptor

    def check(self, now: os.stat_result) -> None:
        """Raises SnapshotChangedError when this is not the file that was scanned."""
        if now.st_size != self.size_bytes:
            what = f"its size went from {self.size_bytes} to {now.st_size} bytes"
        elif (now.st_ino, now.st_dev) != (self.inode, self.device):
            what = "another file took its place"
        elif now.st_mtime_ns != self.mtime_ns:
            what = "it was written to"
        else:
            return
        raise SnapshotChangedError(
            f"{self.location} changed while it was being published ({what}): publish a copy that nobody writes to"
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files in payload order, and the tensors in them (see `chappe.payload.layout`)."""

    files: tuple[SourceFile, ...]
    tensors: tuple[TensorEntry, ...]

    @property
    def snapshot_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        return tuple(FileEntry(file.path, file.size_bytes) for file in self.files)

    def unchanged(self) -> None:
        """Look at every file again. Raises SnapshotChangedError naming the first that is not what it was."""
        for file in self.files:
            try:
                now = file.location.lstat()
            except FileNotFoundError:
                raise SnapshotChangedError(f"{file.location} was removed while it was being published") from None
            except OSError as error:
                raise SnapshotError(f"{file.location} cannot be read: {error.strerror}") from error
            file.check(now)


def scan(path: Path) -> Snapshot:
    """Find, open and validate everything of a snapshot.

    Raises SnapshotError (also SafetensorsError, UnsafePathError, SnapshotChangedError): the message names the file.
    """
    try:
        root = path.resolve(strict=True)
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}") from None
    except RuntimeError:
        raise SnapshotError(f"{path} cannot be read: a loop of symlinks") from None
    if (root / "snapshots").is_dir() and (root / "objects").is_dir():
        raise SnapshotError(f"{path} is the store of a relay: name its `current`, or one of its snapshots/<version>")
    try:
        files = [source_file(name, location) for name, location in (_walk(root) if root.is_dir() else _single(root))]
    except OSError as error:
        raise SnapshotError(f"{error.filename or path} cannot be read: {error.strerror}") from error
    check_tree(file.path for file in files)
    files.sort(key=lambda file: payload_position(file.path))
    headers = {file.path: _read_header(file) for file in files if is_safetensors(file.path)}
    if not headers:
        raise SnapshotError(f"{path} has no {SAFETENSORS_SUFFIX} file in it")
    for file in files:
        if is_index(file.path):
            check_index(file.path, parse_index(file.path, _read(file, INDEX_BYTES_MAX)), headers)
    return Snapshot(tuple(files), tensor_table([file.path for file in files], headers))


def _single(root: Path) -> Iterator[tuple[str, Path]]:
    if not is_safetensors(root.name):
        raise SnapshotError(f"{root} is neither a {SAFETENSORS_SUFFIX} file nor a directory with one")
    yield root.name, root


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    pending = [("", root)]
    while pending:
        prefix, directory = pending.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = prefix + entry.name
                if entry.is_symlink():
                    yield name, _follow(Path(entry.path), root, blobs)
                elif entry.is_dir(follow_symlinks=False):
                    pending.append((name + "/", Path(entry.path)))
                else:
                    yield name, Path(entry.path)


def _follow(link: Path, root: Path, blobs: Path | None) -> Path:
    """Where a symlink of the directory leads, if it may."""
    try:
        target = link.resolve(strict=True)
    except (FileNotFoundError, RuntimeError):
        raise SnapshotError(f"{link} is a symlink to nothing") from None
    if target.is_dir():
        raise UnsafePathError(f"{link} is a symlink to a directory: put the files there themselves")
    if root not in target.parents and (blobs is None or blobs not in target.parents):
        raise UnsafePathError(f"{link} is a symlink out of {root}: put the file there itself")
    return target


def source_file(name: str, location: Path) -> SourceFile:
    """A file as it is now. Raises SnapshotError for what is not a regular one, OSError."""
    now = location.lstat()
    if not stat.S_ISREG(now.st_mode):
        raise SnapshotError(f"{location} is not a regular file")
    return SourceFile(name, location, now.st_size, now.st_mtime_ns, now.st_ino, now.st_dev)


def _read(file: SourceFile, bytes_max: int) -> bytes:
    if file.size_bytes > bytes_max:
        raise SnapshotError(f"{file.location} has {file.size_bytes} bytes; the limit for such a file is {bytes_max}")
    descriptor = file.open()
    try:
        return read_at(file, descriptor, 0, file.size_bytes)
    finally:
        os.close(descriptor)


def read_at(file: SourceFile, descriptor: int, offset: int, length: int) -> bytes:
    """`length` bytes at `offset` of an open file. Raises SnapshotChangedError when the file ends before, OSError."""
    data = os.pread(descriptor, length, offset)
    while len(data) < length:  # one call reads at most 2 GiB, and may be interrupted on some file systems
        more = os.pread(descriptor, length - len(data), offset + len(data))
        if not more:
            raise SnapshotChangedError(f"{file.location} was truncated while it was being published")
        data += more
    return data


def _read_header(file: SourceFile) -> SafetensorsHeader:
    descriptor = file.open()
    prefix = b""
    try:
        prefix = read_at(file, descriptor, 0, min(LENGTH_BYTES, file.size_bytes))
        return parse_header(read_at(file, descriptor, 0, header_span(prefix, file.size_bytes)), file.size_bytes)
    except SafetensorsError as error:
        hint = " (a Git LFS pointer instead of the file: run `git lfs pull`)" if prefix == _LFS_POINTER else ""
        raise SafetensorsError(f"{file.location}: {error}{hint}") from None
    except OSError as error:
        raise SnapshotError(f"{file.location} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
