"""Compares stored chunks with their pages, and keeps the leaves of what is right. Blocking, with a few threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from chappe.core.ranges import RangeSet
from chappe.hop import hashing
from chappe.hop.kept import KeptManifest
from chappe.hop.leaves import LeafTable


@dataclass(slots=True)
class Judged:
    """Chunks by what their bytes are. Without a page nothing can be said of a chunk: it is in `unknown`, and its digest
    in `digests`."""

    sound: RangeSet = field(default_factory=RangeSet)
    rotten: RangeSet = field(default_factory=RangeSet)
    unknown: RangeSet = field(default_factory=RangeSet)
    digests: dict[int, bytes] = field(default_factory=dict)


def judge(
    kept: KeptManifest,
    base: Path,
    regions: hashing.Regions,
    leaves: LeafTable | None,
    threads: int = 0,
    *,
    all_leaves: bool = False,
) -> Judged:
    """Hash the regions. `leaves` gets those of sound regions, with `all_leaves` of all that could be read."""
    judged = Judged()
    manifest = kept.known()

    def on_region(region: hashing.Region, found: hashing.RegionDigests | None) -> None:
        chunks = hashing.chunks_of_region(manifest, region)
        if found is None:
            judged.rotten.add(chunks.start, chunks.stop)
            return
        sound = 0
        for chunk, digest in zip(chunks, found.chunks, strict=True):
            wanted = kept.digest(chunk)
            verdict = judged.unknown if wanted is None else judged.sound if wanted == digest else judged.rotten
            verdict.add(chunk, chunk + 1)
            if wanted is None:
                judged.digests[chunk] = digest
            sound += verdict is judged.sound
        if leaves is not None and (all_leaves or sound == len(chunks)):
            first = leaves.number(region.file, region.offset)
            for i, leaf in enumerate(found.leaves):
                leaves.set(first + i, leaf)

    hashing.hash_regions(manifest, base, regions, on_region, threads)
    return judged
