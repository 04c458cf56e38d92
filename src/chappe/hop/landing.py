"""How a complete object becomes a version, so that a crash at any step leaves the old or the new one, never half.

    complete, root matches
      │ 1 seal        files 0444, directories below 0555      a crash up to the rename: still an object being received
      │ 2 wait        files, header, pages and the record objects/<id>/landing are on the device (`chappe.hop.seals`)
      │ 3 rename      objects/<id>/files -> snapshots/<v>     the moment; a crash after it: open() does the rest
      │ 4 settle      snapshots/<v> 0555, both parents fsynced
      ▼ 5 advance     current -> snapshots/<v>, unless it is newer already; fsynced; journal gone

The device is waited for twice, in 2 and 5. Power lost before the rename is durable: the object, with its files, as
before step 1. After that: a version whose every byte was durable before it had its name, and `current` is the old one
or the new one, both whole. For that the rename must not be lost where the swap is not. Where a file system keeps the
order of names (`chappe.hop.filesystem`) one fsync after 5 serves both; elsewhere 4 waits for a third one. Modes may be
lost, bytes not: open() sets them again.

A record says nothing while the object still has its files. A version that is there with the same root is adopted: in
step 3 the object's own files go to the trash instead. Everything here blocks. What the disk says at start is read back
by `survey`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chappe.errors import DiskFullError, StoreError, VersionConflictError
from chappe.hop.disk import HELPS, Disk, files_below, store_error
from chappe.hop.layout import StoreLayout, is_object_id, version_of
from chappe.hop.objects import StoredObject
from chappe.hop.records import LandingRecord, read_landing

FILE_MODE = 0o444
DIRECTORY_MODE = 0o555


def land(
    disk: Disk, layout: StoreLayout, held: StoredObject, record: LandingRecord, *, adopt: bool, helps: str = HELPS
) -> None:
    """All steps. Raises DiskFullError (try again when there is room) or StoreError (receive it again)."""
    own, target = layout.object(held.object_id), layout.snapshot(record.version)
    if not adopt and target.exists():
        raise VersionConflictError(f"{target} exists and nothing here says what it is: move it away")
    try:
        held.flush()
        _seal(disk, layout, held, record, adopt)
        if adopt:
            trashed = layout.trash_name(held.object_id)
            held.relocate(record, target, lambda: disk.move_tree(own.files, trashed))
        else:
            held.relocate(record, target, lambda: disk.rename(own.files, target))
        settle(disk, layout, held.object_id, record.version)
    except OSError as error:
        raise store_error(error, f"landing version {record.version}", helps) from error


def _seal(disk: Disk, layout: StoreLayout, held: StoredObject, record: LandingRecord, adopt: bool) -> None:
    own, manifest = layout.object(held.object_id), held.manifest
    assert manifest is not None  # it is complete
    if not adopt:
        seal_modes(disk, own.files)
    try:
        held.seals.finish(record, manifest, files=not adopt)
    except OSError as error:
        # The kernel reports a lost write once and then calls the page clean: a second fsync would prove nothing.
        failure = store_error(error, f"object {held.object_id}")
        if not isinstance(failure, DiskFullError):
            held.damaged = True
            with contextlib.suppress(OSError):
                disk.unlink(own.journal)
            raise StoreError(f"{failure}. The device lost a write: the object must be received again") from error
        raise


def seal_modes(disk: Disk, top: Path) -> None:
    """Nobody writes to what is below `top`. Raises OSError."""
    files, directories = files_below(top)
    for paths, mode in ((files, FILE_MODE), (directories, DIRECTORY_MODE)):
        for path in paths:
            if path.stat().st_mode & 0o777 != mode:
                disk.chmod(path, mode)


def settle(disk: Disk, layout: StoreLayout, object_id: str, version: int) -> None:
    """Steps 4 and 5; doing it twice is doing it once. Raises OSError."""
    own = layout.object(object_id)
    disk.chmod(layout.snapshot(version), DIRECTORY_MODE)
    together = _is_older(current_version(layout), version) and disk.keeps_order(layout.root)
    if not together:
        disk.fsync_all([layout.snapshots, own.root])
    advance(disk, layout, version)
    disk.unlink(own.journal)


def _is_older(current: int | None, version: int) -> bool:
    return current is None or current < version


def current_version(layout: StoreLayout) -> int | None:
    """What `current` points at, or None when it points at nothing of ours."""
    try:
        target = layout.current.readlink()
    except OSError:
        return None
    return version_of(target.name) if target.parent.name == layout.snapshots.name else None


def advance(disk: Disk, layout: StoreLayout, version: int) -> None:
    """Step 5: never backwards. Raises OSError."""
    if _is_older(current_version(layout), version):
        disk.swap_symlink(layout.current, f"{layout.snapshots.name}/{version}")


@dataclass(slots=True)
class Survey:
    """What an earlier process left, by object. `stale` records never got to their rename, `trash` is of no use."""

    partial: list[str] = field(default_factory=list)
    landed: dict[str, LandingRecord] = field(default_factory=dict)
    stale: list[str] = field(default_factory=list)
    trash: list[str] = field(default_factory=list)


def survey(layout: StoreLayout) -> Survey:
    """Sort the objects by what their files say, changing nothing.

    An object has landed when it has a record, its version is there, and its own files are not: they are the version
    (or were given up for it). One that still has its files never got to the rename, whatever its record says.
    """
    found = Survey()
    for object_id in _object_ids(layout):
        own = layout.object(object_id)
        record = read_landing(own.landing)
        if own.files.is_dir():
            found.partial.append(object_id)
            if own.landing.exists():
                found.stale.append(object_id)
        elif record is not None and layout.snapshot(record.version).is_dir():
            found.landed[object_id] = record
        else:
            found.trash.append(object_id)
    return found


def _object_ids(layout: StoreLayout) -> Iterator[str]:
    for path in sorted(layout.objects.iterdir()):
        if is_object_id(path.name) and path.is_dir():
            yield path.name
