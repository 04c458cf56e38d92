"""Who this store is: one process at a time, one worker for ever, one run.

worker.json {worker_id, generation, run}     worker_id is made once; generation grows with every start
lock         flock, held while the process lives; its content (a pid) is only for people
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from chappe.errors import StoreCorruptError, StoreLockedError, WrongRunError
from chappe.hop.disk import Disk
from chappe.hop.layout import StoreLayout


@dataclass(frozen=True, slots=True)
class Identity:
    worker_id: str
    generation: int
    run: str = ""


class StoreLock:
    """Exclusive, and released by the kernel when the process dies."""

    def __init__(self, path: Path) -> None:
        """Raises StoreLockedError with the holder's pid."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise StoreLockedError(
                f"store {path.parent} is in use by process {pid}: stop that one, or give another --store"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def begin(disk: Disk, layout: StoreLayout) -> Identity:
    """The identity for this start. Durable before it is returned, so that no generation is ever used twice."""
    old = _read(layout.identity)
    new = Identity(uuid.uuid4().hex, 1) if old is None else replace(old, generation=old.generation + 1)
    disk.write_json(layout.identity, asdict(new))
    return new


def bind(disk: Disk, layout: StoreLayout, identity: Identity, run: str) -> Identity:
    """Tie a new store to the run. Raises WrongRunError when it belongs to another one."""
    if not run:
        raise ValueError("a run has a name")
    if identity.run == run:
        return identity
    if identity.run:
        raise WrongRunError(
            f"store {layout.root} belongs to run {identity.run!r}, the coordinator serves run {run!r}: "
            f"give another --store, or remove {layout.root} if its snapshots are not needed any more"
        )
    bound = replace(identity, run=run)
    disk.write_json(layout.identity, asdict(bound))
    return bound


def _read(path: Path) -> Identity | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        record = json.loads(text)
        identity = Identity(record["worker_id"], record["generation"], record["run"])
    except (ValueError, KeyError, TypeError):
        identity = None
    if (
        identity is None
        or not isinstance(identity.worker_id, str)
        or not identity.worker_id
        or type(identity.generation) is not int
        or identity.generation < 1
        or not isinstance(identity.run, str)
    ):
        raise StoreCorruptError(
            f"{path} is not what this program wrote: restore it, or remove {path.parent} to start over as a new worker"
        )
    return identity
