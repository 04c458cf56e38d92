"""Publishing an adapter: its own files, and one that binds it to its base (see `chappe.payload.adapter`).

The binding is a file in a directory of the publisher's own, shared by all that it publishes for that base, and served
like the adapter's other files. Blocking.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

from chappe.errors import ChappeError, SnapshotError, UsageError
from chappe.hop.verify import record_of
from chappe.origin.scan import Snapshot, read_at, source_file
from chappe.origin.spool import choose_directory, make_directory, remove_leftovers
from chappe.payload.adapter import BINDING_BYTES_MAX, BINDING_FILE, is_root, pack_binding, parse_binding
from chappe.payload.layout import payload_position


def base_root_of(base: str) -> str:
    """A root as it is, or that of what has landed at a path. Raises UsageError."""
    if is_root(base):
        return base
    try:
        return record_of(Path(base)).root
    except (ChappeError, OSError) as error:
        raise UsageError(
            f"adapter_of {base!r} is not a root (`chappe status --json` has it) and nothing that has landed: {error}"
        ) from None


def bound_to(snapshot: Snapshot) -> str | None:
    """The root that a snapshot is bound to already. Raises SnapshotError for a binding that cannot be read."""
    for file in snapshot.files:
        if file.path == BINDING_FILE:
            descriptor = file.open()
            try:
                return parse_binding(read_at(file, descriptor, 0, min(file.size_bytes, BINDING_BYTES_MAX + 1)))
            finally:
                os.close(descriptor)
    return None


class Bindings:
    """Of one publisher. `close` it."""

    def __init__(self, spool: Path | None) -> None:
        self._spool = spool
        self._directory: Path | None = None
        self._lock = -1

    def bind(self, snapshot: Snapshot, base_root: str) -> Snapshot:
        """The snapshot with its binding. Raises SnapshotError; UsageError when it is bound to another base."""
        known = bound_to(snapshot)
        if known is not None and known != base_root:
            raise UsageError(f"this snapshot is an adapter of {known} (its {BINDING_FILE} says so), not of {base_root}")
        if known is not None:
            return snapshot
        try:
            own = source_file(BINDING_FILE, self._file(base_root))
        except OSError as error:
            raise SnapshotError(f"the binding of the adapter cannot be written: {error}") from error
        at = bisect_left([payload_position(file.path) for file in snapshot.files], payload_position(BINDING_FILE))
        moved = (replace(t, file=t.file + 1) if t.file >= at else t for t in snapshot.tensors)
        return Snapshot((*snapshot.files[:at], own, *snapshot.files[at:]), tuple(moved))

    def _file(self, base_root: str) -> Path:
        if self._directory is None:
            home = self._spool or choose_directory(BINDING_BYTES_MAX)
            remove_leftovers(home)
            self._directory, self._lock = make_directory(home)
        path = self._directory / (base_root.replace(":", "-") + ".json")
        if not path.exists():
            path.write_bytes(pack_binding(base_root))
        return path

    def close(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            os.close(self._lock)
            self._directory = None
