"""Where the blocks of a delta come from: from comparing two snapshots, or from folding two deltas.

    Compared(base, target)   every block of both is read; the base is proven by then
    Folded(step, later)      a kept delta and the one that goes on from where it ends: neither snapshot is read

Blocking, for a thread; blocks are made by the mapper's threads, and come in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from chappe.core.digest import Algorithm
from chappe.errors import SnapshotError
from chappe.hop.ordered import one_at_a_time
from chappe.origin.proving import ProvenReading
from chappe.origin.reading import Reading
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base, OpenDelta, OpenStep, Step
from chappe.payload.container import EncodedBlock
from chappe.payload.delta import Mapper, encode_block
from chappe.payload.fold import fold, folded_plan
from chappe.payload.plan import DeltaPlan
from chappe.payload.table import SnapshotTable


def table_of(snapshot: Snapshot) -> SnapshotTable:
    """Raises ManifestError for a snapshot of more tensors than the codec takes, or of types that it does not know."""
    return SnapshotTable.build(snapshot.entries, snapshot.tensors)


MakeBlocks: TypeAlias = Callable[[Algorithm, Mapper], Iterator[EncodedBlock]]
"""All blocks of the plan, in order. Raises SnapshotError, CodecError."""


class BlockSource(Protocol):
    """What `DeltaFile` packs."""

    @property
    def base_root(self) -> str: ...

    def opened(self) -> AbstractContextManager[tuple[DeltaPlan, MakeBlocks]]:
        """Raises SnapshotError when what it is made from is not what it was, ManifestError."""
        ...


class Compared:
    """base ──▶ target, block by block."""

    def __init__(self, base: Base, target: Snapshot) -> None:
        self.base, self.target = base, target

    @property
    def base_root(self) -> str:
        return self.base.root

    @contextmanager
    def opened(self) -> Iterator[tuple[DeltaPlan, MakeBlocks]]:
        plan = DeltaPlan.between(table_of(self.base.snapshot), table_of(self.target))
        with closing(ProvenReading(self.base, plan)) as old, closing(Reading(self.target)) as new:

            def blocks(algorithm: Algorithm, mapper: Mapper) -> Iterator[EncodedBlock]:
                yield from mapper(
                    lambda i: encode_block(plan, algorithm, i, old.read, new.read, brief=one_at_a_time),
                    range(plan.blocks_total),
                )
                old.prove()

            yield plan, blocks


class Folded:
    """What a kept step begins at ──▶ where the later delta leads to. `later` is a whole file, of this plan."""

    def __init__(self, step: Step, later: Path, later_plan: DeltaPlan) -> None:
        self.step = step
        self._later, self._later_plan = later, later_plan

    @property
    def base_root(self) -> str:
        return self.step.base_root

    @contextmanager
    def opened(self) -> Iterator[tuple[DeltaPlan, MakeBlocks]]:
        with ExitStack() as stack:
            step = OpenStep(self.step)
            stack.callback(step.close)
            later = OpenDelta(self._later, self._later_plan.base)
            stack.callback(later.close)
            try:
                plan = folded_plan(step.delta.plan, later.delta.plan)
            except ValueError as error:
                raise SnapshotError(f"the delta kept in {self.step.folder} does not fit the later ones") from error
            yield plan, lambda _algorithm, mapper: fold(step.delta, later.delta, mapper=mapper)
