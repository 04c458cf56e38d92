"""Versions of a store that others on this host need, and that its retention leaves alone while they do.

    who needs one     a shared lock on snapshots/<version>, which is only opened: it ends with that process
    retention         an exclusive one on what it might remove, for as long as it renames; what it does not get stays

Blocking, but for no longer than such a renaming.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chappe.hop.layout import StoreLayout


def hold(store: Path, version: int) -> int | None:
    """A descriptor: until it is closed the version stays in that store. None when it is not there (any more)."""
    path = StoreLayout(store).snapshot(version)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except OSError:  # it went meanwhile, or this file system has no locks
        pass
    os.close(descriptor)
    return None


@contextmanager
def held_elsewhere(layout: StoreLayout, versions: Iterable[int]) -> Iterator[list[int]]:
    """Which of these others hold. Until the block ends nobody gets hold of the rest."""
    held = []
    with ExitStack() as stack:
        for version in versions:
            try:
                descriptor = os.open(layout.snapshot(version), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError:
                continue
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(version)
            except OSError:  # this file system has no locks
                continue
        yield held
