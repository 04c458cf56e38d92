"""A received delta becomes a landed version: apply it beside everything else, take the result in as a full object.

objects/<delta>/applied/  ──root matches──▶ objects/<full>/  ──▶ landed like any other (see `chappe.hop.landing`)

crash while it is made        the next process goes on there: what is the target's already is left alone
crash after the rename        a full object without a journal: it holds nothing, and the next attempt replaces it
no room, an I/O error         what was made is removed; the delta is still here, its children are served from it
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Protocol

from chappe.errors import DeltaError
from chappe.hop.ahead import Ahead, Made
from chappe.hop.disk import Disk
from chappe.hop.objects import StoredObject
from chappe.hop.records import LandingRecord


class TakesIn(Protocol):
    """The store."""

    def take_in(self, made: Path, object_id: str, record: LandingRecord) -> StoredObject: ...


def become_full(store: TakesIn, disk: Disk, delta: StoredObject, ahead: Ahead, record: LandingRecord) -> StoredObject:
    """Blocking. Raises DeltaError, DiskFullError, StoreError, OSError; nothing is left of the attempt then."""
    try:
        made = _made(ahead, record.root)
        return store.take_in(delta.work.root, made.target.object_id, record)
    except (DeltaError, OSError):
        with contextlib.suppress(OSError):
            disk.remove_tree(delta.work.root)
        raise


def _made(ahead: Ahead, root: str) -> Made:
    made = ahead.wait()
    if made.root != root:
        raise DeltaError(f"the delta leads to root {made.root}, announced is {root}")
    return made
