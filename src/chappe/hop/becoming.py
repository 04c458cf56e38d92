"""A received delta becomes a landed version: apply it beside everything else, take the result in as a full object.

objects/<delta>/applied/  ──root matches──▶ objects/<full>/  ──▶ landed like any other (see `chappe.hop.landing`)

crash while it is made        rubbish in the delta's directory: removed before the next attempt, and with the delta
crash after the rename        a full object without a journal: it holds nothing, and the next attempt replaces it
no room, an I/O error         what was made is removed; the delta is still here, its children are served from it
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Protocol

from chappe.errors import CodecError, DeltaError
from chappe.hop.applying import Base, apply_delta
from chappe.hop.disk import Disk
from chappe.hop.objects import StoredObject
from chappe.hop.records import LandingRecord
from chappe.payload.envelope import Envelope


class TakesIn(Protocol):
    """The store."""

    def take_in(self, made: Path, object_id: str, record: LandingRecord) -> StoredObject: ...


def become_full(store: TakesIn, disk: Disk, delta: StoredObject, base: Base, record: LandingRecord) -> StoredObject:
    """Blocking. Raises DeltaError, DiskFullError, StoreError, OSError; nothing is left of the attempt then."""
    work = delta.work
    try:
        with delta.open_delta() as (read, size_bytes):
            try:
                envelope = Envelope(read, size_bytes)
            except CodecError as error:
                raise DeltaError(f"the delta cannot be read: {error}") from error
            target = apply_delta(disk, work, envelope, base, record.root)
        return store.take_in(work.root, target.object_id, record)
    except (DeltaError, OSError):
        with contextlib.suppress(OSError):
            disk.remove_tree(work.root)
        raise
