"""Whether this host may take an adapter: only where the snapshot that it is bound to has landed.

    received ──▶ has it a binding? ── no ──▶ lands like any other
                       │ yes
                       ▼
             in the base store? ── no ──▶ refused, and looked at again; children are served from what was received

The base store is another relay's on this host, which may be running: it is only read. The base of an adapter that is
here is kept in it (`chappe.hop.spared`), also when it has newer versions: an engine that is started again needs both.
Blocking.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from pathlib import Path

from chappe.errors import SnapshotError, StoreError
from chappe.hop.layout import StoreLayout, is_object_id
from chappe.hop.objects import StoredObject
from chappe.hop.records import read_landing
from chappe.hop.spared import hold
from chappe.payload.adapter import BINDING_BYTES_MAX, BINDING_FILE, parse_binding


def landed_roots(store: Path) -> dict[str, int]:
    """Root to version of all that has landed in a store; empty when there is none (yet)."""
    layout = StoreLayout(store)
    try:
        names = [path.name for path in layout.objects.iterdir() if is_object_id(path.name)]
    except OSError:
        return {}
    records = [read_landing(layout.object(name).landing) for name in names]
    return {record.root: record.version for record in records if record and layout.snapshot(record.version).is_dir()}


def binding_of(held: StoredObject) -> str | None:
    """The root that a received full object is bound to; None: no adapter. Raises SnapshotError, OSError."""
    manifest = held.manifest
    if manifest is None or held.delta:
        return None
    for number, entry in enumerate(manifest.files):
        if entry.path == BINDING_FILE:
            if entry.size_bytes > BINDING_BYTES_MAX:
                raise SnapshotError(f"{BINDING_FILE} has {entry.size_bytes} bytes")
            chunks = range(*manifest.chunks_of_file(number))
            return parse_binding(b"".join(bytes(held.read_chunk(chunk)) for chunk in chunks))
    return None


def bound_in(snapshot: Path) -> str | None:
    """The root that a landed version is bound to; None for no adapter, and for what says nothing that can be read."""
    try:
        with (snapshot / BINDING_FILE).open("rb") as file:
            return parse_binding(file.read(BINDING_BYTES_MAX + 1))
    except (SnapshotError, OSError):
        return None


class BaseHolds:
    """The versions of a base store that the adapters of this relay need. Any thread."""

    def __init__(self, base_store: Path | None) -> None:
        self._base_store = base_store
        self._held: dict[str, int] = {}  # descriptors by root
        self._lock = threading.Lock()

    def take(self, root: str) -> bool:
        """False when it has not landed there, or not any more."""
        with self._lock:
            if root in self._held:
                return True
            version = None if self._base_store is None else landed_roots(self._base_store).get(root)
            if self._base_store is None or version is None:
                return False
            descriptor = hold(self._base_store, version)
            if descriptor is None:
                return False
            self._held[root] = descriptor
            return True

    def keep_only(self, roots: Collection[str]) -> None:
        """The others may go."""
        with self._lock:
            for root in [root for root in self._held if root not in roots]:
                os.close(self._held.pop(root))


def refusal(held: StoredObject, bases: BaseHolds, base_store: Path | None) -> str:
    """Why this object cannot land here; empty when it can: its base then stays where it is."""
    try:
        root = binding_of(held)
    except (SnapshotError, StoreError, OSError) as error:
        return f"an adapter whose binding cannot be read: {error}"
    if root is None:
        return ""
    if base_store is None:
        return f"an adapter of {root}: this relay has no base (--base-store)"
    if bases.take(root):
        return ""
    return f"an adapter of {root}, which has not landed in {base_store}"
