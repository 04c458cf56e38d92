"""The deltas that a publisher has kept: each leads from one published version to the next, the last one to the base.

    v9 ──step──▶ v10 ──step──▶ v11 ──step──▶ v12, the base
       folded from the right: v11, v10, v9 ──▶ the next version            for whoever is behind
       undone from the right: the base ──▶ v11, v10, v9, byte for byte     for a way back

A step is a folder of its own: the delta as it was sent, the table of the version that it begins at, and the bytes of
that version which have no successor (headers and sidecars of another length, dropped tensors): a delta alone could not
be undone. What is read here was written by an earlier process and may be damaged: a step is hashed before it is used.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from chappe.core.digest import XXH3_128
from chappe.core.manifest import DELTA_FILE, LEAF_BYTES, Manifest
from chappe.errors import CodecError, ManifestError, SnapshotError, UnsafePathError
from chappe.origin.basefolder import kept_in
from chappe.origin.copying import copy_file
from chappe.origin.scan import Snapshot
from chappe.payload.delta import ReadRange
from chappe.payload.difference import TYPES, elements_of
from chappe.payload.envelope import Envelope
from chappe.payload.fold import Delta, inverse_plan
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import NO_BASE, Region, SnapshotTable
from chappe.wire.manifest import decode_header, encode_header, object_id_of

HEADER_FILE, DROPPED_FILE = "header", "dropped"
_TABLE_ID = "0" * 32
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Step:
    """`versions` are those that were published with the root that the step begins at."""

    folder: Path
    base_root: str
    versions: tuple[int, ...]
    root: str
    size_bytes: int  # on disk, all of it
    digest: str

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": self.folder.name,
            "base_root": self.base_root,
            "versions": list(self.versions),
            "root": self.root,
            "size_bytes": self.size_bytes,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, home: Path, data: dict[str, Any]) -> Step:
        """Raises KeyError, TypeError, ValueError for what is no step."""
        return cls(
            kept_in(home, data["folder"]),
            str(data["base_root"]),
            tuple(int(version) for version in data["versions"]),
            str(data["root"]),
            int(data["size_bytes"]),
            str(data["digest"]),
        )


@dataclass(frozen=True, slots=True)
class Base:
    """What was published last, as `versions`; its files are ours alone. The last of `steps` leads to it."""

    root: str
    versions: tuple[int, ...]
    snapshot: Snapshot
    steps: tuple[Step, ...] = ()

    @property
    def version(self) -> int:
        return self.versions[-1]


def keep_step(folder: Path, delta: Path, plan: DeltaPlan, base: Base, root: str) -> Step:
    """Blocking: copy a delta, and of its base what it takes to undo it. Raises SnapshotError, OSError."""
    folder.mkdir()
    copy_file(os.open(delta, os.O_RDONLY | os.O_CLOEXEC), folder / DELTA_FILE, threading.Event())
    table = Manifest(_TABLE_ID, XXH3_128, LEAF_BYTES, base.snapshot.entries, base.snapshot.tensors)
    (folder / HEADER_FILE).write_bytes(encode_header(table))
    with (folder / DROPPED_FILE).open("xb") as out:
        for region in _dropped(plan):
            source = base.snapshot.files[region.file]
            with os.fdopen(source.open(), "rb") as file:
                for offset in range(region.begin, region.end, _READ_BYTES):
                    out.write(os.pread(file.fileno(), min(_READ_BYTES, region.end - offset), offset))
    size, digest = _measure(folder)
    return Step(folder, base.root, base.versions, root, size, digest)


def _dropped(plan: DeltaPlan) -> list[Region]:
    """Regions of the base that nothing in the target is compared with."""
    taken = set(plan.mapping)
    return [region for number, region in enumerate(plan.base.regions) if number not in taken]


def _measure(folder: Path) -> tuple[int, str]:
    hasher = XXH3_128.start()
    size = 0
    for name in (DELTA_FILE, HEADER_FILE, DROPPED_FILE):
        with (folder / name).open("rb") as file:
            while data := file.read(_READ_BYTES):
                hasher.update(data)
                size += len(data)
            hasher.update(size.to_bytes(8, "little"))
    return size, hasher.digest().hex()


class _Chunks(Sequence[bytes]):
    """Those of a file: each is read when it is asked for."""

    def __init__(self, read: Callable[[int, int], bytes], spans: list[tuple[int, int]]) -> None:
        self._read, self._spans = read, spans

    def __len__(self) -> int:
        return len(self._spans)

    @overload
    def __getitem__(self, number: int) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> list[bytes]: ...
    def __getitem__(self, number: int | slice) -> bytes | list[bytes]:
        if isinstance(number, slice):
            return [self._read(*span) for span in self._spans[number]]
        return self._read(*self._spans[number])


class OpenDelta:
    """A whole delta in a file, to be folded or undone. Raises SnapshotError for what is not one; `close` it."""

    def __init__(self, path: Path, before: SnapshotTable) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            envelope = Envelope(self._read, os.fstat(self._fd).st_size)
            header = envelope.prologue.header
            target = decode_header(header, object_id_of(header))
            plan = DeltaPlan.between(before, SnapshotTable.build(target.files, target.tensors))
            self.delta = Delta.of(plan, target.algorithm, _Chunks(self._read, list(envelope.spans())))
        except (CodecError, ManifestError, UnsafePathError) as error:
            self.close()
            raise SnapshotError(f"{path} cannot be read: {error}") from error
        except BaseException:
            self.close()
            raise
        if before.digest(target.algorithm) != envelope.prologue.table:
            self.close()
            raise SnapshotError(f"{path} begins at other tensors than were kept with it")

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def close(self) -> None:
        os.close(self._fd)


class OpenStep:
    """A kept step, proven. Raises SnapshotError when it is not what was kept; `close` it."""

    def __init__(self, step: Step) -> None:
        with ExitStack() as stack:
            try:
                if _measure(step.folder)[1] != step.digest:
                    raise SnapshotError(f"the delta kept in {step.folder} is not what was kept")
                header = (step.folder / HEADER_FILE).read_bytes()
                self.manifest = decode_header(header, _TABLE_ID)
                self.before = SnapshotTable.build(self.manifest.files, self.manifest.tensors)
                opened = OpenDelta(step.folder / DELTA_FILE, self.before)
                stack.callback(opened.close)
                self._dropped = os.open(step.folder / DROPPED_FILE, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, self._dropped)
            except (OSError, ManifestError, UnsafePathError) as error:
                raise SnapshotError(f"the delta kept in {step.folder} cannot be read: {error}") from error
            self.delta = opened.delta
            self._places: dict[tuple[int, int], int] = {}  # in DROPPED_FILE, by where a region begins
            offset = 0
            for region in _dropped(self.delta.plan):
                self._places[region.file, region.begin] = offset
                offset += region.end - region.begin
            self._stack = stack.pop_all()
        self._successors = inverse_plan(self.delta.plan).mapping
        self._begins = [(region.file, region.begin) for region in self.before.regions]

    def close(self) -> None:
        self._stack.close()

    def before_from(self, after: ReadRange) -> ReadRange:
        """Reads the version that the step begins at, given one that reads where it leads to. Of tensors, whole
        elements."""

        def read(file: int, offset: int, length: int) -> bytes:
            return b"".join(self._parts(after, file, offset, length))

        return read

    def _parts(self, after: ReadRange, file: int, offset: int, length: int) -> Iterator[bytes]:
        begin, stop = offset, offset + length
        number = bisect_right(self._begins, (file, offset)) - 1
        while begin < stop:
            region = self.before.regions[number]
            end = min(stop, region.end)
            yield self._part(after, number, begin - region.begin, end - region.begin)
            begin, number = end, number + 1

    def _part(self, after: ReadRange, number: int, begin: int, end: int) -> bytes:
        """Bytes [begin, end) of a region."""
        region, successor = self.before.regions[number], self._successors[number]
        if successor == NO_BASE:
            return os.pread(self._dropped, end - begin, self._places[region.file, region.begin] + begin)
        now = self.delta.plan.target.regions[successor]
        difference = np.zeros((end - begin) // region.width, TYPES[region.width])
        self.delta.add_region(successor, begin, end, difference)
        data = after(now.file, now.begin + begin, end - begin)
        return (elements_of(data, region.width) - difference).tobytes()


def leading_to(root: str, steps: list[Step]) -> tuple[Step, ...]:
    """The last of them that follow one another, and end at the base."""
    kept: list[Step] = []
    for step in reversed(steps):
        if step.root != root:
            break
        kept.insert(0, step)
        root = step.base_root
    return tuple(kept)
