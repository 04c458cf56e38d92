"""Decides which names of files may become paths on a host. Knows names only: it never looks at a file system.

A name from a peer is never trusted as a path. A name from the publisher's own directory is checked by the same rules
before it leaves, so that what one host sends every host can store:

- relative, parts joined by `/`; no empty part, no `.`, no `..`
- no backslash and no colon: a separator, a drive or a stream on some hosts
- no control character, valid UTF-8, at most 255 bytes a part and 1024 bytes in all
- two names must not meet: none is a directory of another, and none differ only in letter case or Unicode normalization,
  since a case-insensitive or normalizing file system would merge them and one would overwrite the other
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from chappe.errors import UnsafePathError

PART_BYTES_MAX = 255
PATH_BYTES_MAX = 1024


def check_path(path: str) -> str:
    """Return the path as it is, or raise UnsafePathError with the rule that it breaks."""
    broken = _broken_rule(path)
    if broken is not None:
        shown = path if len(path) <= 120 else path[:120] + "..."
        raise UnsafePathError(f"{shown!r} is not a safe file name: {broken}")
    return path


def _broken_rule(path: str) -> str | None:
    if len(path) > PATH_BYTES_MAX:
        return f"longer than {PATH_BYTES_MAX} bytes"
    if any(unicodedata.category(char) == "Cs" for char in path):
        return "not valid UTF-8"
    if len(path.encode()) > PATH_BYTES_MAX:
        return f"longer than {PATH_BYTES_MAX} bytes"
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in path):
        return "it has a control character"
    if "\\" in path:
        return "it has a backslash"
    if ":" in path:
        return "it has a colon"
    if path.startswith("/"):
        return "it is absolute"
    for part in path.split("/"):
        if part == "":
            return "it has an empty part"
        if part in (".", ".."):
            return f"it has the part {part!r}"
        if len(part.encode()) > PART_BYTES_MAX:
            return f"it has a part longer than {PART_BYTES_MAX} bytes"
    return None


def _folded(path: str) -> str:
    """What a case-insensitive, normalizing file system may take the path for."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def check_tree(paths: Iterable[str]) -> None:
    """Check every path, and that all of them can exist side by side. Raises UnsafePathError."""
    files: dict[str, str] = {}
    for path in paths:
        check_path(path)
        folded = _folded(path)
        if folded in files:
            raise UnsafePathError(_collision(files[folded], path))
        files[folded] = path
    for folded, path in files.items():
        parts = folded.split("/")
        for depth in range(1, len(parts)):
            parent = files.get("/".join(parts[:depth]))
            if parent is not None:
                raise UnsafePathError(f"{parent!r} is a file and also a directory of {path!r}")


def _collision(one: str, other: str) -> str:
    if one == other:
        return f"two files have the path {one!r}"
    return f"{one!r} and {other!r} are the same file on some hosts: rename one"
