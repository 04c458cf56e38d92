"""What the store remembers of a landing: one small JSON file in the object's directory, written before the rename."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from chappe.hop.disk import Disk


@dataclass(frozen=True, slots=True)
class LandingRecord:
    """The object's files are (about to be) in `snapshots/<version>`, and their root was found to be this."""

    version: int
    root: str


@dataclass(frozen=True, slots=True)
class LandedSnapshot:
    """A version that is complete, verified and fsynced."""

    version: int
    root: str
    path: Path
    object_id: str
    installed: bool = False


def write_landing(disk: Disk, path: Path, record: LandingRecord) -> None:
    """Not durable yet: the caller syncs it with all that it speaks of."""
    disk.write_json(path, asdict(record), durable=False)


def read_landing(path: Path) -> LandingRecord | None:
    """None when there is none, or one that this program did not write."""
    try:
        fields = json.loads(path.read_bytes())
        record = LandingRecord(fields["version"], fields["root"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    sound = type(record.version) is int and record.version > 0 and isinstance(record.root, str) and record.root
    return record if sound else None
