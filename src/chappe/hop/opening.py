"""What a store finds when it is opened: it finishes or undoes what a crash left, and sets aside what is not whole.

What is set aside goes to the trash and is fetched again: a relay that starts with one version less beats one that does
not start. Changes the disk; see `landing.survey` for how it tells what is what.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from chappe.errors import StoreCorruptError
from chappe.hop import landing
from chappe.hop.disk import Disk
from chappe.hop.layout import StoreLayout
from chappe.hop.objects import StoredObject
from chappe.hop.records import LandingRecord
from chappe.hop.writeback import WriteBehind


@dataclass(slots=True)
class TakenUp:
    """`notes` name what was damaged, for the log."""

    objects: dict[str, StoredObject] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def take_up(disk: Disk, layout: StoreLayout, write_behind: WriteBehind) -> TakenUp:
    """Raises OSError. Partial objects hold nothing until they are recovered."""
    taken = TakenUp()
    found = landing.survey(layout)
    for object_id in found.trash:
        set_aside(disk, layout, object_id)
    for object_id in found.stale:
        disk.unlink(layout.object(object_id).landing)
    for object_id in found.partial:
        _load(disk, layout, write_behind, taken, object_id, None)
    for object_id, record in found.landed.items():
        if _load(disk, layout, write_behind, taken, object_id, record):
            landing.seal_modes(disk, layout.snapshot(record.version))
            landing.settle(disk, layout, object_id, record.version)
    versions = {held.landed.version for held in taken.objects.values() if held.landed is not None}
    for path in list(layout.snapshots.iterdir()):
        if path.name not in {str(version) for version in versions}:
            taken.notes.append(f"{path} belongs to no object here: set aside")
            disk.move_tree(path, layout.trash_name(path.name))
    _restore_current(disk, layout, versions)
    return taken


def set_aside(disk: Disk, layout: StoreLayout, object_id: str) -> None:
    disk.move_tree(layout.object(object_id).root, layout.trash_name(object_id))


def _load(
    disk: Disk,
    layout: StoreLayout,
    write_behind: WriteBehind,
    taken: TakenUp,
    object_id: str,
    record: LandingRecord | None,
) -> bool:
    held = StoredObject(disk, layout, object_id, write_behind)
    try:
        held.load(record, None if record is None else layout.snapshot(record.version))
    except StoreCorruptError as error:
        if record is not None or layout.object(object_id).header.exists():  # else it never got its header
            taken.notes.append(f"{error}: set aside")
        held.close()
        set_aside(disk, layout, object_id)
        return False
    taken.objects[object_id] = held
    return True


def _restore_current(disk: Disk, layout: StoreLayout, versions: Collection[int]) -> None:
    """The newest version is current: also when a crash came before the swap, or rot took what was current."""
    if versions:
        if landing.current_version(layout) not in versions:
            disk.unlink(layout.current)
        landing.advance(disk, layout, max(versions))
    elif layout.current.is_symlink():
        disk.unlink(layout.current)
