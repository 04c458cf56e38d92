"""Directories that a bench works in. Their names carry the pid of their maker, so that `clean` knows whose are left."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PLACES = (Path(tempfile.gettempdir()), Path("/dev/shm"))
"""Where benches work unless they are told otherwise (--directory); what a crash leaves elsewhere is not found."""
_OURS = re.compile(r"chappe-[a-z-]+-(\d+)-\w+")


def prefix(bench: str) -> str:
    """Of a directory's name, for `tempfile`."""
    return f"chappe-{bench}-{os.getpid()}-"


def make(bench: str, directory: Path | None = None) -> Path:
    """A new empty directory; the caller removes it."""
    return Path(tempfile.mkdtemp(prefix=prefix(bench), dir=directory))


def leftovers(places: tuple[Path, ...] = PLACES) -> Iterator[Path]:
    """Directories that were made by processes which are gone."""
    for place in places:
        for entry in sorted(place.glob("chappe-*")):
            match = _OURS.fullmatch(entry.name)
            if match and entry.is_dir() and not entry.is_symlink() and not Path("/proc", match[1]).exists():
                yield entry


def clean(places: tuple[Path, ...] = PLACES) -> list[Path]:
    """Remove what crashed runs left, and return the paths; what belongs to somebody else is left alone."""
    removed = []
    for path in list(leftovers(places)):
        if path.stat().st_uid != os.geteuid():
            continue
        for parent, _, _ in os.walk(path):
            Path(parent).chmod(0o700)  # landed versions are read-only
        shutil.rmtree(path)
        removed.append(path)
    return removed
