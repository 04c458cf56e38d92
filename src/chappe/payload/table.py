"""A snapshot as the delta codec sees it: regions, and which region of the base each is compared with.

    files, tensors ──▶ regions: tensor data by name, and the bytes that no tensor covers (headers, sidecars)
    base regions + target regions ──▶ mapping: for each target region the base region of the same name, type and length

A region without a base is compared with zeros, so that one arithmetic serves changed, new and whole snapshots.
Knows names and numbers only. Tables may come from a peer: they are checked here.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chappe.core.digest import Algorithm
from chappe.core.manifest import FileEntry, TensorEntry
from chappe.errors import ManifestError
from chappe.payload.safetensors import DTYPES

NO_BASE = -1
REGIONS_MAX = 1 << 22


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes [begin, end) of a file, as elements of `width` bytes. `dtype` is empty for what is not tensor data."""

    file: int
    begin: int
    end: int
    width: int
    name: str
    dtype: str


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """Files in payload order and the regions that tile them, in that order. Build with `SnapshotTable.build`."""

    files: tuple[FileEntry, ...]
    regions: tuple[Region, ...]

    @staticmethod
    def build(files: Sequence[FileEntry], tensors: Iterable[TensorEntry]) -> SnapshotTable:
        """Raises ManifestError when tensors overlap, leave their file or are not whole elements."""
        by_file: list[list[TensorEntry]] = [[] for _ in files]
        for tensor in tensors:
            if not 0 <= tensor.file < len(files):
                raise ManifestError(f"tensor {tensor.name[:120]!r} lies outside its file")
            by_file[tensor.file].append(tensor)
        regions: list[Region] = []
        for number, (file, inside) in enumerate(zip(files, by_file, strict=True)):
            regions += _tile(number, file, sorted(inside, key=lambda t: (t.begin, t.end)))
        if len(regions) > REGIONS_MAX:
            raise ManifestError(f"a snapshot of {len(regions)} tensors; the codec takes {REGIONS_MAX}")
        return SnapshotTable(tuple(files), tuple(regions))

    @property
    def snapshot_bytes(self) -> int:
        return sum(f.size_bytes for f in self.files)

    def label(self, region: int) -> str:
        """The tensor's name, or the file's where it is not tensor data: for messages."""
        r = self.regions[region]
        return r.name if r.dtype else self.files[r.file].path

    def digest(self, algorithm: Algorithm) -> bytes:
        """Two hosts number the same regions when this is the same."""
        hasher = algorithm.start()
        hasher.update(b"chappe table 1\0")
        for file in self.files:
            hasher.update(_text(file.path) + struct.pack("<Q", file.size_bytes))
        for r in self.regions:
            hasher.update(struct.pack("<IQQB", r.file, r.begin, r.end, r.width) + _text(r.name) + _text(r.dtype))
        return hasher.digest()


NOTHING = SnapshotTable((FileEntry("nothing", 0),), ())
"""What a compressed snapshot begins at: a base without a byte, so that every block is compared with zeros."""


def element_width(dtype: str) -> int:
    """Bytes of the integers that elements are compared as: 1, 2, 4 or 8; packed sub-byte types count as bytes."""
    bits = DTYPES.get(dtype)
    if bits is None:
        raise ManifestError(f"dtype {dtype[:80]!r} is not known here: upgrade this node")
    if dtype == "C64":  # two floats: their halves change on their own
        return 4
    return max(1, bits // 8)


def match(base: SnapshotTable, target: SnapshotTable) -> tuple[int, ...]:
    """For each target region the number of its base region, or NO_BASE.

    The same name in the same file comes first. A tensor that moved to another shard is found by its name when that name
    is unique on both sides. Type and length must agree, the shape need not. No base region is taken twice.
    """
    here = {(base.files[r.file].path, r.name): i for i, r in enumerate(base.regions)}
    base_names, target_names = (Counter(r.name for r in table.regions if r.dtype) for table in (base, target))
    anywhere = {r.name: i for i, r in enumerate(base.regions) if r.dtype and base_names[r.name] == 1}
    mapping = []
    for region in target.regions:
        found = here.get((target.files[region.file].path, region.name))
        if found is None and region.dtype and target_names[region.name] == 1:
            found = anywhere.get(region.name)
        fits = found is not None and _alike(base.regions[found], region)
        mapping.append(found if found is not None and fits else NO_BASE)
    return tuple(mapping)


def check_mapping(base: SnapshotTable, target: SnapshotTable, mapping: Sequence[int]) -> tuple[int, ...]:
    """A mapping from a peer. Raises ManifestError for one that cannot be."""
    if len(mapping) != len(target.regions):
        raise ManifestError(f"a delta maps {len(mapping)} regions of a snapshot of {len(target.regions)}")
    taken = [i for i in mapping if i != NO_BASE]
    if len(set(taken)) != len(taken):
        raise ManifestError("a delta takes a region of its base twice")
    for number, region in zip(mapping, target.regions, strict=True):
        if number != NO_BASE and not (0 <= number < len(base.regions) and _alike(base.regions[number], region)):
            raise ManifestError(f"a delta compares {region.name[:120]!r} with a region that is not like it")
    return tuple(mapping)


def _alike(one: Region, other: Region) -> bool:
    return one.dtype == other.dtype and one.end - one.begin == other.end - other.begin


def _tile(number: int, file: FileEntry, tensors: Sequence[TensorEntry]) -> list[Region]:
    regions: list[Region] = []
    cursor = holes = 0
    for tensor in tensors:
        if not cursor <= tensor.begin <= tensor.end <= file.size_bytes:
            raise ManifestError(f"tensor {tensor.name[:120]!r} overlaps another one or leaves its file")
        width = element_width(tensor.dtype)
        if (tensor.end - tensor.begin) % width:
            raise ManifestError(f"tensor {tensor.name[:120]!r} is not a whole number of elements")
        if tensor.begin > cursor:
            regions.append(Region(number, cursor, tensor.begin, 1, _hole_name(holes), ""))
            holes += 1
        if tensor.end > tensor.begin:
            regions.append(Region(number, tensor.begin, tensor.end, width, tensor.name, tensor.dtype))
        cursor = tensor.end
    if cursor < file.size_bytes:
        regions.append(Region(number, cursor, file.size_bytes, 1, _hole_name(holes), ""))
    return regions


def _hole_name(number: int) -> str:
    return f"\0{number}"  # no tensor of the same file meets it: see _alike, which compares dtypes


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(data)) + data
