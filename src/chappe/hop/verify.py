"""`chappe verify DIR`: re-hash a landed snapshot against the manifest that the store keeps of it.

Needs no lock and changes nothing: what has landed is never written to, so a running relay does not matter.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from chappe.core.manifest import Manifest
from chappe.errors import ChappeError, StoreCorruptError, UsageError
from chappe.hop import hashing
from chappe.hop.disk import Disk, files_below
from chappe.hop.judging import judge
from chappe.hop.kept import KeptManifest
from chappe.hop.layout import StoreLayout, is_object_id, version_of
from chappe.hop.leaves import LeafTable
from chappe.hop.records import LandingRecord, read_landing


class FileState(StrEnum):
    OK = "ok"
    MISMATCH = "mismatch"
    MISSING = "missing"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class FileReport:
    path: str
    state: FileState
    size_bytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`root_actual` is empty when a file is not all there. Files in order of their paths."""

    path: Path
    version: int
    root_expected: str
    root_actual: str
    files: tuple[FileReport, ...]

    @property
    def ok(self) -> bool:
        return self.root_expected == self.root_actual and all(f.state is FileState.OK for f in self.files)

    @property
    def snapshot_bytes(self) -> int:
        return sum(f.size_bytes for f in self.files if f.state is not FileState.EXTRA)


def verify_directory(path: Path, threads: int = 0) -> VerifyReport:
    """`path` is a store, its `current`, or one of its `snapshots/<version>`. Blocking.

    Raises UsageError for another directory, StoreCorruptError when the store's own records cannot be read.
    """
    layout, snapshot, version = _find(path)
    object_id, record = _record_of(layout, snapshot, version)
    kept = KeptManifest(Disk(), layout.object(object_id), object_id)
    try:
        manifest = kept.load()
    except (OSError, ChappeError) as error:
        raise StoreCorruptError(f"the manifest of version {version} cannot be read: {error}") from error
    finally:
        kept.close()
    reports = {entry.path: _look(snapshot, entry.path, entry.size_bytes) for entry in manifest.files}
    leaves = LeafTable(manifest)
    whole = [f for f, entry in enumerate(manifest.files) if reports[entry.path].state is FileState.OK]
    regions = (region for file in whole for region in hashing.regions_of_file(manifest, file))
    # A page that is not readable any more says nothing about its chunks; the root still does.
    rotten = judge(kept, snapshot, regions, leaves, threads, all_leaves=True).rotten
    bad: dict[int, list[int]] = {}
    for start, stop in rotten:
        for chunk in range(start, stop):
            bad.setdefault(manifest.place(chunk).file, []).append(chunk)
    for file, chunks in bad.items():
        entry = manifest.files[file]
        detail = f"{len(chunks)} of {len(range(*manifest.chunks_of_file(file)))} chunks differ, the first at byte "
        detail += str(manifest.place(chunks[0]).offset)
        reports[entry.path] = FileReport(entry.path, FileState.MISMATCH, entry.size_bytes, detail)
    complete = not any(leaves.missing(file) for file in range(len(manifest.files)))
    root = leaves.root() if complete and len(whole) == len(manifest.files) else ""
    for extra in _extras(snapshot, manifest):
        reports[extra] = FileReport(extra, FileState.EXTRA, 0, "not part of the snapshot")
    files = tuple(reports[name] for name in sorted(reports))
    return VerifyReport(snapshot, version, record.root, root, files)


def record_of(path: Path) -> LandingRecord:
    """What a store says of its `current`, or of one of its `snapshots/<version>`. Raises as `verify_directory`."""
    return _record_of(*_find(path))[1]


def _find(path: Path) -> tuple[StoreLayout, Path, int]:
    at = path.absolute()
    if (at / "snapshots").is_dir() and (at / "objects").is_dir():
        at = StoreLayout(at).current
        if not at.is_symlink():
            raise UsageError(f"nothing has landed in {path} yet")
    if not at.is_dir():
        raise UsageError(f"{path} is not a directory: name a store, its `current`, or one of its snapshots/<version>")
    at = at.resolve()
    version = version_of(at.name)
    if version is None or at.parent.name != "snapshots" or not (at.parent.parent / "objects").is_dir():
        raise UsageError(f"{path} is not in a store: name a store, its `current`, or one of its snapshots/<version>")
    return StoreLayout(at.parent.parent), at, version


def _record_of(layout: StoreLayout, snapshot: Path, version: int) -> tuple[str, LandingRecord]:
    for own in sorted(layout.objects.iterdir()):
        record = read_landing(own / "landing") if is_object_id(own.name) else None
        if record is not None and record.version == version and not (own / "files").exists():
            return own.name, record
    raise StoreCorruptError(f"the store has no record of {snapshot}: it is not known what it should be")


def _look(snapshot: Path, name: str, size_bytes: int) -> FileReport:
    try:
        found = (snapshot / name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return FileReport(name, FileState.MISSING, size_bytes)
    if not stat.S_ISREG(found.st_mode):
        return FileReport(name, FileState.MISMATCH, size_bytes, "not a regular file")
    if found.st_size != size_bytes:
        return FileReport(name, FileState.MISMATCH, size_bytes, f"{found.st_size} bytes, not {size_bytes}")
    return FileReport(name, FileState.OK, size_bytes)


def _extras(snapshot: Path, manifest: Manifest) -> list[str]:
    known = {entry.path for entry in manifest.files}
    found = (path.relative_to(snapshot).as_posix() for path in files_below(snapshot)[0])
    return [name for name in found if name not in known]
