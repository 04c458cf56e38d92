"""The root of a full object while it is received: leaves are hashed while their bytes are hot, the rest is read back.

chunk stored ──▶ its leaf goes on (`hop/leaves`), or is read back once all chunks of it have come
all is here  ──▶ leaves that are still missing are read, chunks compared with their pages meanwhile ──▶ root
"""

from __future__ import annotations

from collections.abc import Sequence

from chappe.core.manifest import ChunkPlace
from chappe.core.ranges import RangeSet
from chappe.errors import StoreError
from chappe.hop import hashing
from chappe.hop.contents import Contents
from chappe.hop.judging import Judged, judge
from chappe.hop.kept import KeptManifest
from chappe.hop.leaves import LeafTable
from chappe.hop.source import Data


class Rooting:
    """Of one object. `take` and `forget` are called with the object's lock."""

    def __init__(self, kept: KeptManifest, contents: Contents) -> None:
        self.leaves = LeafTable(kept.known())
        self._kept = kept
        self._contents = contents

    def take(self, place: ChunkPlace, data: Data, digest: bytes, held: RangeSet) -> None:
        """A chunk is stored. Raises OSError when its leaf had to be read back and could not be."""
        if self.leaves.feed(place, data, digest):
            return
        manifest = self._kept.known()
        region = hashing.region_at(manifest, place.file, place.offset)
        chunks = hashing.chunks_of_region(manifest, region)
        if held.covers(chunks.start, chunks.stop):
            whole = self._contents.read_at(region.file, region.offset, region.length)
            if len(whole) == region.length:
                self.leaves.set(self.leaves.number(region.file, region.offset), manifest.algorithm.once(whole))

    def forget(self, place: ChunkPlace) -> None:
        """A stored chunk has turned out not to be right."""
        self.leaves.drop(place)

    def know(self, digests: Sequence[Sequence[bytes]]) -> None:
        """Leaves of what is on the disk, for each file (none: not known)."""
        for file, of_file in enumerate(digests):
            first = self.leaves.number(file, 0)
            for number, digest in enumerate(of_file):
                if digest:
                    self.leaves.set(first + number, digest)

    def finish(self, threads: int) -> str:
        """All chunks are here. Blocking where leaves must be read back. Raises StoreError for what has rotted."""
        manifest = self._kept.known()
        files = range(len(manifest.files))
        regions = {hashing.region_at(manifest, file, at): None for file in files for at in self.leaves.missing(file)}
        judged = judge(self._kept, self._contents.base, regions, self.leaves, threads) if regions else Judged()
        if judged.rotten:
            raise StoreError(
                f"chunks {list(judged.rotten)[:5]} of object {manifest.object_id} rotted on disk: "
                "recheck and refetch them"
            )
        return self.leaves.root()
