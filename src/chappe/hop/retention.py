"""What may go. The choice is a pure function of what is here and what is wanted; the store carries it out.

Kept are: the current version and the one before it, what the coordinator names, what a reader holds, what an adapter in
another store needs (`chappe.hop.spared`), what is landing, and each object of a kept version. All else is renamed into
the trash and deleted from there; who has a file open or mapped keeps its bytes, for nothing is ever truncated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Retained:
    """What `retain` removed."""

    versions: tuple[int, ...]
    objects: tuple[str, ...]


def choose(
    objects: Mapping[str, int | None],
    *,
    keep_objects: Collection[str],
    keep_versions: Collection[int],
    held_versions: Collection[int],
    current: int | None,
) -> Retained:
    """What to remove of `objects` (object_id to the version that it landed as, None while it is partial)."""
    versions = {version for version in objects.values() if version is not None}
    keep = set(keep_versions) | set(held_versions)
    keep |= {version for object_id, version in objects.items() if version is not None and object_id in keep_objects}
    if current is not None:
        keep.add(current)
        keep |= set(sorted(version for version in versions if version < current)[-1:])
    gone_versions = versions - keep
    gone_objects = {
        object_id
        for object_id, version in objects.items()
        if version in gone_versions or (version is None and object_id not in keep_objects)
    }
    return Retained(tuple(sorted(gone_versions)), tuple(sorted(gone_objects)))
