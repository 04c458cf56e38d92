"""What is on the disk of an object without being held: nobody has proven it yet.

    journal of a former process ─▶ claimed ─rehash─▶ right by its page: held       wrong: forgotten, fetched again
                                                └──▶ its page is not here: the digest is expected ─▶ page comes: held
    what a delta gave of it (`hop/salvage`) ───────────────────────────────────▶ expected            or forgotten

Changes the ledger, and nothing on the disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from chappe.core.ranges import Range, RangeSet
from chappe.hop import hashing
from chappe.hop.judging import judge
from chappe.hop.kept import KeptManifest
from chappe.hop.leaves import LeafTable
from chappe.hop.shared import SharedLedger


class Claims:
    """Of one object. `leaves` are those of a full object that is being received, None for any other."""

    def __init__(self, kept: KeptManifest, ledger: SharedLedger) -> None:
        self.claimed = RangeSet()
        """What the journal says and nobody has re-hashed yet."""
        self._kept = kept
        self._ledger = ledger
        self._expected: dict[int, bytes] = {}  # digests of what is on the disk, of chunks whose page is not here

    def rehash(self, base: Path, leaves: LeafTable | None, threads: int) -> list[Range]:
        """Blocking, from any thread: the claimed chunks that are really in the files of `base`, and sound neighbours.

        Of those whose page is not here the digests are remembered for when it comes.
        """
        regions = hashing.regions_of_chunks(self._kept.known(), self.claimed)
        judged = judge(self._kept, base, regions, leaves, threads)
        unknown = {chunk for start, stop in judged.unknown for chunk in range(start, stop) if chunk in self.claimed}
        self._expected = {chunk: judged.digests[chunk] for chunk in unknown}
        return list(judged.sound)

    def adopt(self, sound: Sequence[Range]) -> None:
        """Hold what `rehash` found."""
        self.claimed = RangeSet()
        for start, stop in sound:
            self._ledger.add(start, stop)
        self._expect()

    def expect(self, digests: Mapping[int, bytes]) -> None:
        """These are what the chunks on the disk hash to (none: not known)."""
        self.claimed = RangeSet()
        self._expected = {chunk: digest for chunk, digest in digests.items() if digest}
        self._expect()

    def _expect(self) -> None:
        self._ledger.expected = RangeSet((chunk, chunk + 1) for chunk in self._expected)

    def prove(self, leaves: LeafTable | None) -> None:
        """Pages have come: those of their chunks that are here and right are held from now on."""
        known = self._kept.chunks_known
        for start, stop in self._ledger.expected.within(0, known):
            for chunk in range(start, stop):
                if self._expected.pop(chunk) == self._kept.digest(chunk):
                    self._ledger.add(chunk, chunk + 1)
                elif leaves is not None:
                    leaves.drop(self._kept.known().place(chunk))
        self._ledger.expected.discard(0, known)
