"""Keeps secrets out of snapshots: what is published lies readable on every host of the fleet.

A file counts as private by its name (a key's, or a file of settings such as `prod.env`) or by its content: one that
begins as PEM, OpenSSH, PGP or PuTTY text and has a private key in it. Weights are not looked into. This is a guard
against `chappe publish .` beside the fleet's keys, not a search for everything that could be secret. Blocking.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePath

from chappe.errors import SnapshotError
from chappe.origin.scan import Snapshot, SourceFile, read_at, scan
from chappe.payload.layout import is_safetensors

NAMES = (
    "*.key",
    "*-key.pem",
    "*.p12",
    "*.pfx",
    "*.ppk",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
    "*.env",
    ".env.*",
)
_HEAD_BYTES = 64 * 1024
"""A PEM file may hold its certificates before the key."""
_PEM = b"-----BEGIN "
_PRIVATE = re.compile(rb"^(-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|PuTTY-User-Key-File-)", re.MULTILINE)
_STARTS = (_PEM, b"PuTTY-User-Key-File-")


def scan_to_publish(path: Path) -> Snapshot:
    """`scan`, and nothing private in it. Raises as `scan` and `refuse_private`."""
    snapshot = scan(path)
    refuse_private(snapshot)
    return snapshot


def refuse_private(snapshot: Snapshot) -> None:
    """Raises SnapshotError naming the first file that nobody would want on every host; SnapshotChangedError."""
    for file in snapshot.files:
        why = _why_private(file)
        if why is not None:
            raise SnapshotError(
                f"{file.location} is not published: {why}, and every host would get it, readable for all. "
                "Move it out of the directory (names that begin with a dot are left out) and publish again; "
                "nothing was sent"
            )


def _why_private(file: SourceFile) -> str | None:
    for name in (PurePath(file.path).name.lower(), file.location.name.lower()):  # two, where it is a symlink
        if any(fnmatchcase(name, pattern) for pattern in NAMES):
            return "its name is that of a private key or of secrets"
    if not is_safetensors(file.path) and _holds_private_key(file):
        return "there is a private key in it"
    return None


def _holds_private_key(file: SourceFile) -> bool:
    descriptor = file.open()
    try:
        head = read_at(file, descriptor, 0, min(_HEAD_BYTES, file.size_bytes)).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise SnapshotError(f"{file.location} cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return head.startswith(_STARTS) and _PRIVATE.search(head) is not None
