"""`python -m bench.timed_relayd`: relayd that says when each step of its landings was done, in one log line of each.

`landing_steps`: seconds of the wall clock, as the log has them. `stored`: the chunk with which all was here; `begun`:
`Store.land` was called; `durable`: all bytes were on the device; `named`: the version had its name and was to become
current; `current`: that was on the device, too.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

import structlog

from chappe.core.manifest import Manifest
from chappe.hop import objects, store
from chappe.hop.disk import Disk
from chappe.hop.objects import StoredObject
from chappe.hop.records import LandedSnapshot, LandingRecord
from chappe.hop.retention import Retained
from chappe.hop.seals import Seals
from chappe.hop.source import Data
from chappe.hop.store import Store

_stored_s: dict[str, float] = {}  # by object
_steps: dict[str, float] = {}  # of the landing under way: there is one at a time


class TimedDisk(Disk):
    def swap_symlink(self, link: Path, target: str) -> None:
        _steps["named"] = time.time()
        super().swap_symlink(link, target)
        _steps["current"] = time.time()


class TimedSeals(Seals):
    def finish(self, record: LandingRecord, manifest: Manifest, *, files: bool) -> None:
        super().finish(record, manifest, files=files)
        _steps["durable"] = time.time()


class TimedObject(StoredObject):
    def _put_chunk(self, manifest: Manifest, chunk: int, data: Data, lent: bool) -> bool:
        new = super()._put_chunk(manifest, chunk, data, lent)
        if new and self.ledger.complete:
            _stored_s[self.object_id] = time.time()
        return new


def _land(self: Store, object_id: str, version: int, root: str) -> LandedSnapshot:
    _steps.update(stored=_stored_s.get(object_id, 0.0), begun=time.time())
    return _plain_land(self, object_id, version, root)


def _retain(self: Store, keep_objects: Collection[str], keep_versions: Collection[int]) -> Retained:
    """The next that happens after a landing was told: written before that, the steps would be one of them."""
    if "current" in _steps:
        structlog.get_logger().info("landing_steps", **_steps)
        _steps.clear()
    return _plain_retain(self, keep_objects, keep_versions)


_plain_land, _plain_retain = Store.land, Store.retain


def patch() -> None:
    store.Disk = TimedDisk  # type: ignore[misc]
    store.StoredObject = TimedObject  # type: ignore[misc]
    objects.Seals = TimedSeals  # type: ignore[misc]
    Store.land = _land  # type: ignore[method-assign]
    Store.retain = _retain  # type: ignore[method-assign]


if __name__ == "__main__":
    from relayd.__main__ import main  # raises malloc's thresholds when it is imported

    patch()
    main()
