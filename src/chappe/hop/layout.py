"""Where everything in a store lies. Names only: nothing here reads or writes.

lock  worker.json  relayd.sock
objects/<object_id>/   header pages journal files/<path>     while it is received
                       header pages landing [installed]      once it has landed
                       header pages journal files/delta applied/   a delta, while it is being applied
snapshots/<version>/   exactly the publisher's files
current -> snapshots/<version>
trash/                 renamed here first, then deleted: a crash leaves garbage, never half a snapshot
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path

from chappe.core.manifest import OBJECT_ID_CHARS
from chappe.errors import StoreError

_OBJECT_ID = re.compile(f"[0-9a-f]{{{OBJECT_ID_CHARS}}}")
_VERSION = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    root: Path

    @property
    def header(self) -> Path:
        return self.root / "header"

    @property
    def pages(self) -> Path:
        return self.root / "pages"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def files(self) -> Path:
        return self.root / "files"

    @property
    def mends(self) -> Path:
        return self.root / "mends"

    @property
    def applied(self) -> ObjectLayout:
        """Where the full object is made that a delta leads to."""
        return ObjectLayout(self.root / "applied")

    @property
    def landing(self) -> Path:
        return self.root / "landing"

    @property
    def installed(self) -> Path:
        return self.root / "installed"


@dataclass(frozen=True, slots=True)
class StoreLayout:
    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def identity(self) -> Path:
        return self.root / "worker.json"

    @property
    def socket(self) -> Path:
        return self.root / "relayd.sock"

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def current(self) -> Path:
        return self.root / "current"

    @property
    def trash(self) -> Path:
        return self.root / "trash"

    def object(self, object_id: str) -> ObjectLayout:
        """Raises StoreError for an id that is not one: it may come from a peer and becomes a directory's name."""
        if not is_object_id(object_id):
            raise StoreError(f"object_id {object_id[:80]!r} is not {OBJECT_ID_CHARS} lower-case hex digits")
        return ObjectLayout(self.objects / object_id)

    def snapshot(self, version: int) -> Path:
        return self.snapshots / str(version)

    def trash_name(self, what: str) -> Path:
        return self.trash / f"{what}-{uuid.uuid4().hex}"


def is_object_id(text: str) -> bool:
    return _OBJECT_ID.fullmatch(text) is not None


def version_of(name: str) -> int | None:
    """The version that a directory's name stands for."""
    return int(name) if _VERSION.fullmatch(name) else None
