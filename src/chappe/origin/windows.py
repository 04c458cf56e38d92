"""A file that is written once from its beginning, cut into equal windows, which are hashed while their bytes are hot.

    write, write, ... ──▶ file            windows ├────┼────┼──          told in groups of a page, in order
    finish ──▶ the last, shorter window ──▶ the rest of the windows, and how long the file is

A page is told as soon as it is full, but for what `finish` brings: the last page must not be empty. Used by one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, TypeAlias

from chappe.core.digest import Algorithm

OnPage: TypeAlias = Callable[[list[bytes]], None]
"""The digests of a full page; its bytes are in the file."""


class Windows:
    def __init__(
        self, file: BinaryIO, algorithm: Algorithm, window_bytes: int, windows_per_page: int, on_page: OnPage
    ) -> None:
        """`file` is new and unbuffered: what it has is what others can read."""
        self._file, self._algorithm = file, algorithm
        self._window_bytes, self._per_page, self._on_page = window_bytes, windows_per_page, on_page
        self._hasher = algorithm.start()
        self._room = window_bytes  # of the open window
        self._pending: list[bytes] = []
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        """More comes after it. Raises OSError."""
        self._append(data)
        while len(self._pending) >= self._per_page:
            self._on_page(self._pending[: self._per_page])
            del self._pending[: self._per_page]

    def finish(self, data: bytes) -> list[bytes]:
        """The last bytes, at least one. Returns the digests of the last page. Raises OSError."""
        self._append(data)
        if self._room < self._window_bytes:
            self._pending.append(self._hasher.digest())
        while len(self._pending) > self._per_page:
            self._on_page(self._pending[: self._per_page])
            del self._pending[: self._per_page]
        return self._pending

    def close(self) -> None:
        self._file.close()

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += self._file.write(view[done:])
        self.size_bytes += len(view)
        while len(view):
            part, view = view[: self._room], view[self._room :]
            self._hasher.update(part)
            self._room -= len(part)
            if not self._room:
                self._pending.append(self._hasher.digest())
                self._hasher, self._room = self._algorithm.start(), self._window_bytes
