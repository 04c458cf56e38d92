"""Where an object's bytes will lie: all its files, before the first chunk comes."""

from __future__ import annotations

from chappe.core.manifest import Manifest
from chappe.hop.disk import Disk, no_room
from chappe.hop.layout import ObjectLayout


def reserve(disk: Disk, own: ObjectLayout, manifest: Manifest) -> None:
    """Raises OSError (ENOSPC before anything is written); what was made by then is for the caller to remove."""
    # Asked first, so as not to fill the disk only to see that it does not fit. What is still being made may have
    # far less than it has at most: nothing is reserved, and a full disk shows when a chunk is written.
    if not manifest.open_end and (short := no_room(own.root.parent, manifest.payload_bytes)) is not None:
        raise short
    disk.remove_tree(own.files)
    disk.mkdir(own.files)
    for entry in manifest.files:
        path = own.files / entry.path
        disk.mkdir(path.parent)
        disk.create(path, 0 if manifest.open_end else entry.size_bytes)
