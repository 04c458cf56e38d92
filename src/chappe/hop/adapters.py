"""Whether this host may take an adapter: only where the snapshot that it is bound to has landed.

    received ──▶ has it a binding? ── no ──▶ lands like any other
                       │ yes
                       ▼
             in the base store? ── no ──▶ refused, and looked at again; children are served from what was received

The base store is another relay's on this host, which may be running: it is only read. Blocking.
"""

from __future__ import annotations

from pathlib import Path

from chappe.errors import SnapshotError, StoreError
from chappe.hop.layout import StoreLayout, is_object_id
from chappe.hop.objects import StoredObject
from chappe.hop.records import read_landing
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


def refusal(held: StoredObject, base_store: Path | None) -> str:
    """Why this object cannot land here; empty when it can."""
    try:
        root = binding_of(held)
    except (SnapshotError, StoreError, OSError) as error:
        return f"an adapter whose binding cannot be read: {error}"
    if root is None:
        return ""
    if base_store is None:
        return f"an adapter of {root}: this relay has no base (--base-store)"
    if root in landed_roots(base_store):
        return ""
    return f"an adapter of {root}, which has not landed in {base_store}"
