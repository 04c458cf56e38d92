"""Open files of one object: few at a time, whatever number it has, and none closed under a reader.

Used from the event loop and from threads. `relocate` is the moment of landing: the directory is renamed while no file
is being opened, and from then on nothing is opened for writing.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chappe.hop.disk import Disk

OPEN_FILES_MAX = 32


@dataclass(slots=True)
class _Handle:
    fd: int
    users: int = 0
    retired: bool = False


class Use:
    """One use of a file. Not a generator: it is entered twice for every chunk that passes."""

    __slots__ = ("_cache", "_file", "_handle")

    def __init__(self, cache: FileCache, file: int) -> None:
        self._cache, self._file = cache, file
        self._handle: _Handle | None = None

    def __enter__(self) -> int:
        self._handle = self._cache.take(self._file)
        return self._handle.fd

    def __exit__(self, *_: object) -> None:
        assert self._handle is not None
        self._cache.give_back(self._handle)


class FileCache:
    """Files by their number in the manifest."""

    def __init__(
        self, disk: Disk, base: Path, names: Sequence[str], *, writable: bool, limit: int = OPEN_FILES_MAX
    ) -> None:
        self._disk = disk
        self._base = base
        self._names = names
        self._writable = writable
        self._limit = limit
        self._open: OrderedDict[int, _Handle] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def base(self) -> Path:
        return self._base

    def __len__(self) -> int:
        return len(self._open)

    def fd(self, file: int) -> Use:
        """For a `with` block: the descriptor of a file, open at least until the block ends. Raises OSError."""
        return Use(self, file)

    def take(self, file: int) -> _Handle:
        """For `Use`."""
        with self._lock:
            handle = self._open.get(file)
            if handle is None:
                handle = self._open_file(file)
            else:
                self._open.move_to_end(file)
            handle.users += 1
            return handle

    def give_back(self, handle: _Handle) -> None:
        """For `Use`."""
        with self._lock:
            handle.users -= 1
            if handle.retired and handle.users == 0:
                os.close(handle.fd)

    def relocate(self, base: Path, move: Callable[[], None]) -> None:
        """Run `move`, and open files in `base`, read-only, from then on. When `move` raises, nothing has changed."""
        with self._lock:
            move()
            self._base = base
            self._writable = False
            self._retire_all()

    def close(self) -> None:
        """Files in use are closed by their last user; nothing opens any more."""
        with self._lock:
            self._closed = True
            self._retire_all()

    def _open_file(self, file: int) -> _Handle:
        if self._closed:
            raise OSError(errno.EBADF, "the object was dropped", str(self._base))
        while len(self._open) >= self._limit:
            self._retire(self._open.popitem(last=False)[1])
        handle = _Handle(self._open_fd(self._base / self._names[file]))
        self._open[file] = handle
        return handle

    def _open_fd(self, path: Path) -> int:
        try:
            return self._disk.open(path, write=self._writable)
        except PermissionError:
            if not self._writable:
                raise
            self._disk.chmod(path, 0o644)  # a landing that did not get to its rename had sealed it
            return self._disk.open(path, write=True)

    def _retire(self, handle: _Handle) -> None:
        if handle.users == 0:
            os.close(handle.fd)
        else:
            handle.retired = True

    def _retire_all(self) -> None:
        while self._open:
            self._retire(self._open.popitem(last=False)[1])
