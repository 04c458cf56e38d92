"""Reads a base for a delta and proves it in the same pass: a snapshot of 16 GB is not read once more only to be hashed.

    blocks, in order ──read──▶ bytes ──▶ hashed as leaves ──▶ what no block asked for ──▶ root == the one kept?

Only where blocks ask for the base's bytes about in the order in which they lie there, which is so for two versions of
one model. Otherwise leaves would wait half hashed in memory: the base is then hashed first (`hash_snapshot`).
"""

from __future__ import annotations

from chappe.core.digest import ALGORITHMS
from chappe.core.manifest import LEAF_BYTES, file_digest, snapshot_root
from chappe.errors import SnapshotChangedError
from chappe.hop.tiles import Tiles
from chappe.origin.hashing import hash_snapshot
from chappe.origin.reading import Reading
from chappe.origin.steps import Base
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import NO_BASE

SKIPPED_REGIONS_MAX = 16
"""Of the base, that no block asks for: each may leave a leaf half hashed until the end."""
_READ_BYTES = 4 << 20


class ProvenReading(Reading):
    """Of the base of a plan. `prove` it before anything that was made from it is used."""

    def __init__(self, base: Base, plan: DeltaPlan) -> None:
        super().__init__(base.snapshot)
        self._base, self._plan = base, plan
        self._algorithm = ALGORITHMS[base.root.partition(":")[0]]
        asked = [region for region in plan.mapping if region != NO_BASE]
        self._skipped = sorted(set(range(len(plan.base.regions))) - set(asked))
        self._on_the_way = asked == sorted(asked) and len(self._skipped) <= SKIPPED_REGIONS_MAX
        self._leaves = Tiles(self._algorithm, LEAF_BYTES, [file.size_bytes for file in base.snapshot.files])

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Each byte that blocks ask for once. Raises SnapshotChangedError, SnapshotError."""
        data = super().read(file, offset, length)
        if self._on_the_way:
            self._leaves.feed(file, offset, memoryview(data))
        return data

    def prove(self) -> None:
        """When all blocks have been made. Raises SnapshotChangedError when the base is not what was published."""
        if self._root() != self._base.root:
            raise SnapshotChangedError("the kept base of the delta is not what was published: full objects are sent")

    def _root(self) -> str:
        if not self._on_the_way:
            return hash_snapshot(self._base.snapshot, self._algorithm)
        for number in self._skipped:
            region = self._plan.base.regions[number]
            for at in range(region.begin, region.end, _READ_BYTES):
                self.read(region.file, at, min(_READ_BYTES, region.end - at))
        files = self._base.snapshot.files
        digests = [file_digest(self._algorithm, file.size_bytes, self._leaves.of(i)) for i, file in enumerate(files)]
        self._base.snapshot.unchanged()
        return snapshot_root(self._algorithm, self._base.snapshot.entries, digests)
