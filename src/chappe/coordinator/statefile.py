"""The file of an SQLite state, watched while it is in use.

SQLite goes on writing to a file that somebody has removed or put another in the place of: nothing fails, and a restart
finds nothing of it. So every write looks, and the log says it while the fleet still runs.
"""

from __future__ import annotations

import os
from pathlib import Path


class StateFile:
    """As it is when it is opened. Raises OSError for one that is not there."""

    def __init__(self, path: Path) -> None:
        self._path, self._is = path, _identity(path.stat())

    def is_there(self) -> bool:
        """Whether who opens the path finds what this coordinator writes."""
        try:
            return _identity(self._path.stat()) == self._is
        except OSError:
            return False


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
