"""Reads ranges of a snapshot that lies on this host's disk."""

from __future__ import annotations

import os

from chappe.errors import SnapshotError
from chappe.origin.hashing import OpenFiles, read_into
from chappe.origin.scan import Snapshot, read_at


class Reading:
    """Ranges of a snapshot's files, for any thread, as long as they are what they were."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._files = OpenFiles(snapshot.files)

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Raises SnapshotChangedError, SnapshotError."""
        source = self._snapshot.files[file]
        opened = self._files.get(file)
        try:
            data = read_at(source, opened.descriptor, offset, length)
            source.check(os.fstat(opened.descriptor))
        except OSError as error:
            raise SnapshotError(f"{source.location} cannot be read: {error.strerror}") from error
        return data

    def read_into(self, file: int, offset: int, data: memoryview) -> None:
        """Fill `data`, of at least a byte. Raises SnapshotChangedError, SnapshotError."""
        source = self._snapshot.files[file]
        opened = self._files.get(file)
        try:
            read_into(source, opened.descriptor, data, offset)
            source.check(os.fstat(opened.descriptor))
        except OSError as error:
            raise SnapshotError(f"{source.location} cannot be read: {error.strerror}") from error

    def close(self) -> None:
        self._files.close()
