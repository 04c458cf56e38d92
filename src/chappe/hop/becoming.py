"""A received delta becomes a landed version: apply it beside everything else, take the result in as a full object.

objects/<delta>/applied/  ──root matches──▶ objects/<full>/  ──▶ landed like any other (see `chappe.hop.landing`)
                          ──some blocks lack──▶ objects/<full>/, a part of it  ──▶ DeltaError: the rest must be fetched

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
from chappe.hop.salvage import Salvage


class TakesIn(Protocol):
    """The lander."""

    def take_in(self, made: Path, object_id: str, record: LandingRecord) -> StoredObject: ...

    def take_in_part(self, made: Path, object_id: str, salvage: Salvage) -> bool: ...


def become_full(lander: TakesIn, disk: Disk, delta: StoredObject, ahead: Ahead, record: LandingRecord) -> StoredObject:
    """Blocking. Raises DeltaError, DiskFullError, StoreError, OSError; nothing is left of the attempt then."""
    try:
        made = _made(ahead, record.root)
        if made.salvage is not None:
            raise _in_part(lander, delta, made, made.salvage)
        return lander.take_in(delta.work.root, made.target.object_id, record)
    except (DeltaError, OSError):
        with contextlib.suppress(OSError):
            disk.remove_tree(delta.work.root)
        raise


def _in_part(lander: TakesIn, delta: StoredObject, made: Made, salvage: Salvage) -> DeltaError:
    """Why it has to be fetched, and how much of it."""
    what = (
        f"{len(salvage.wrong)} of {salvage.blocks} blocks do not come out as the publisher's (the first is "
        f"{salvage.wrong[0]}): the version that the delta begins at is not what it was"
    )
    lacking = salvage.lacking_bytes(made.target)
    if lander.take_in_part(delta.work.root, made.target.object_id, salvage):
        fetched = f"{lacking} of {made.target.payload_bytes} bytes are fetched of the full object"
        return DeltaError(f"{what}; {fetched}", made.target.object_id)
    return DeltaError(what)


def _made(ahead: Ahead, root: str) -> Made:
    made = ahead.wait()
    if made.root != root:
        raise DeltaError(f"the delta leads to root {made.root}, announced is {root}")
    return made
