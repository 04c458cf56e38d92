"""The folders in which bases are kept between processes: one for each run, locked while a publisher uses it.

    DIRECTORY/<run>/lock          written to never, held while in use; its mtime says when that was last
                    base.json     what is kept here (see `chappe.origin.bases`)
                    <32 hex>/     a snapshot      step-<32 hex>/   a delta

A run that ended leaves a whole snapshot behind. What nobody has used for UNUSED_S goes when another run's base is
written; the empty folder and its lock stay, so that two processes never hold two locks of one name. Blocking.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from pathlib import Path

log = logging.getLogger(__name__)

RECORD = "base.json"
LOCK = "lock"
UNUSED_S = 14 * 86400.0
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_KEPT = re.compile(r"(step-)?[0-9a-f]{32}")


def default_cache() -> Path:
    """Where `chappe publish` keeps its base: $XDG_CACHE_HOME/chappe/base, by default ~/.cache/chappe/base."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "chappe" / "base"


def home_of(directory: Path, run: str) -> Path:
    return directory / (_UNSAFE.sub("_", run) or "run")


def kept_in(home: Path, name: object) -> Path:
    """A folder that a record names. Raises ValueError for a name that no folder of ours has: what it leads to would be
    removed one day."""
    if not isinstance(name, str) or not _KEPT.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a kept folder")
    return home / name


def lock_home(home: Path) -> int:
    """A descriptor that holds the lock. Raises BlockingIOError while another publisher does, OSError."""
    lock = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def used(lock: int, now_s: float) -> None:
    """Remember that the folder was in use at this time of the wall clock."""
    os.utime(lock, (now_s, now_s))


def prune(directory: Path, own: Path, now_s: float) -> list[Path]:
    """Empty the folders of other runs that nobody has used lately or uses now; which ones. What is not a base's stays,
    and what cannot be removed: this is housekeeping, and no reason for a publication to fail."""
    pruned = []
    for home in _others(directory, own):
        try:
            emptied = _unused(home, now_s) and _emptied(home, now_s)
        except FileNotFoundError:
            continue  # another publisher was here first
        except OSError as error:
            log.warning("the unused base in %s is not removed: %s", home, error)
            continue
        if emptied:
            log.info("the base in %s was not used for %d days: removed", home, UNUSED_S // 86400)
            pruned.append(home)
    return pruned


def _others(directory: Path, own: Path) -> list[Path]:
    try:
        return [home for home in directory.iterdir() if home != own and not home.is_symlink() and home.is_dir()]
    except OSError as error:
        log.warning("unused bases in %s are not removed: %s", directory, error)
        return []


def _unused(home: Path, now_s: float) -> bool:
    """Whether there is a base in it that was neither used nor written lately. Raises FileNotFoundError for none."""
    record_s = (home / RECORD).stat().st_mtime  # who had it before locks were stamped wrote this at the end
    return now_s - max(record_s, (home / LOCK).stat().st_mtime) > UNUSED_S


def _emptied(home: Path, now_s: float) -> bool:
    """False while a publisher uses it, or when one has meanwhile."""
    try:
        lock = lock_home(home)
    except BlockingIOError:
        return False
    try:
        if not _unused(home, now_s):
            return False
        (home / RECORD).unlink()  # first: what is named there must be whole
        for path in home.iterdir():
            if _KEPT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
    return True
