"""Reads a base for a delta and proves it in the same pass: a snapshot of 16 GB is not read once more only to be hashed.

    blocks, in order ──read──▶ bytes ──▶ hashed as leaves ──▶ leaves not seen whole ──▶ root == the one kept?

Only where blocks ask for the base's bytes about in the order in which they lie there, which is so for two versions of
one model. Otherwise few leaves would be seen whole: the base is then hashed in a pass of its own. Leaves that
lie in no run of blocks are read once more: what no block asks for, and the leaf where one run ends and another begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from chappe.core.digest import ALGORITHMS
from chappe.core.manifest import LEAF_BYTES, file_digest, snapshot_root
from chappe.errors import SnapshotChangedError
from chappe.hop.ordered import MapOrdered
from chappe.origin.encoder import SeenLeaf
from chappe.origin.hashing import hash_snapshot
from chappe.origin.reading import Reading
from chappe.origin.steps import Base
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import NO_BASE

SKIPPED_REGIONS_MAX = 16
"""Of the base, that no block asks for: all of them are read at the end."""


class BaseProof:
    """Of the base of a plan. `prove` before anything that was made from it is used."""

    def __init__(self, base: Base, plan: DeltaPlan) -> None:
        self._base = base
        self._algorithm = ALGORITHMS[base.root.partition(":")[0]]
        asked = [region for region in plan.mapping if region != NO_BASE]
        skipped = len(plan.base.regions) - len(asked)  # no region is taken twice
        self._on_the_way = asked == sorted(asked) and skipped <= SKIPPED_REGIONS_MAX
        self._leaves = [[b""] * -(-file.size_bytes // LEAF_BYTES) for file in base.snapshot.files]

    @property
    def algorithm(self) -> str:
        """By which the base is to be hashed while it is read for the blocks, or none."""
        return self._algorithm.name if self._on_the_way else ""

    def seen(self, leaves: Sequence[SeenLeaf]) -> None:
        """From any thread."""
        for file, number, digest in leaves:
            self._leaves[file][number] = digest

    def prove(self, mapper: MapOrdered) -> None:
        """When all blocks have been made. Raises SnapshotChangedError when the base is not what was published,
        SnapshotError."""
        if self._root(mapper) != self._base.root:
            raise SnapshotChangedError("the kept base of the delta is not what was published: full objects are sent")

    def _root(self, mapper: MapOrdered) -> str:
        snapshot, algorithm = self._base.snapshot, self._algorithm
        if not self._on_the_way:
            return hash_snapshot(snapshot, algorithm)
        missing = [
            (file, number)
            for file, leaves in enumerate(self._leaves)
            for number, digest in enumerate(leaves)
            if not digest
        ]
        with closing(Reading(snapshot)) as reading:

            def digest_of(leaf: tuple[int, int]) -> bytes:
                at = leaf[1] * LEAF_BYTES
                length = min(LEAF_BYTES, snapshot.files[leaf[0]].size_bytes - at)
                return algorithm.once(reading.read(leaf[0], at, length))

            for (file, number), digest in zip(missing, mapper(digest_of, missing), strict=True):
                self._leaves[file][number] = digest
        files = zip(snapshot.files, self._leaves, strict=True)
        digests = [file_digest(algorithm, file.size_bytes, leaves) for file, leaves in files]
        snapshot.unchanged()
        return snapshot_root(algorithm, snapshot.entries, digests)
