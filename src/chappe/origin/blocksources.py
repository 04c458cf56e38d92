"""Where the blocks of a delta come from: from comparing two snapshots, or from folding two deltas.

    Compared(base, target)   every block of both is read; the base is proven by then
    Whole(target)            every block is read, and compared with nothing: a compressed snapshot
    Folded(step, later)      a kept delta and the one that goes on from where it ends: neither snapshot is read

Blocking, for a thread; blocks are made by the mapper's threads or by processes, and come in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from chappe.core.digest import Algorithm
from chappe.errors import SnapshotError
from chappe.hop.ordered import MapOrdered
from chappe.origin.encoder import BlockMaker, Encoded, SeenLeaf, Task, plan_of
from chappe.origin.encoders import Encoders
from chappe.origin.proving import BaseProof
from chappe.origin.runs import Runs
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base, OpenDelta, OpenStep, Step
from chappe.payload.container import EncodedBlock
from chappe.payload.fold import fold, folded_plan
from chappe.payload.plan import DeltaPlan


class MakeBlocks(Protocol):
    """All blocks of the plan, in order, by so many hands of the mapper. Raises SnapshotError, CodecError."""

    def __call__(self, algorithm: Algorithm, mapper: MapOrdered, hands: int = 1, /) -> Iterator[EncodedBlock]: ...


class BlockSource(Protocol):
    """What `DeltaFile` packs."""

    @property
    def base_root(self) -> str: ...

    def opened(self) -> AbstractContextManager[tuple[DeltaPlan, MakeBlocks]]:
        """Raises SnapshotError when what it is made from is not what it was, ManifestError."""
        ...


class Compared:
    """base ──▶ target, block by block."""

    def __init__(self, base: Base, target: Snapshot, encoders: Encoders | None = None) -> None:
        self.base, self.target = base, target
        self._encoders = encoders

    @property
    def base_root(self) -> str:
        return self.base.root

    @contextmanager
    def opened(self) -> Iterator[tuple[DeltaPlan, MakeBlocks]]:
        plan = plan_of(self.base.snapshot, self.target)
        proof = BaseProof(self.base, plan)

        def blocks(algorithm: Algorithm, mapper: MapOrdered, hands: int = 1) -> Iterator[EncodedBlock]:
            task = Task(self.base.snapshot, self.target, algorithm.name, proof.algorithm)
            yield from made_in_runs(task, plan, self._encoders, mapper, hands, proof.seen)
            proof.prove(mapper)

        yield plan, blocks


class Whole:
    """All blocks of a snapshot, compared with nothing."""

    base_root = ""

    def __init__(self, target: Snapshot, encoders: Encoders | None = None) -> None:
        self._target, self._encoders = target, encoders

    @contextmanager
    def opened(self) -> Iterator[tuple[DeltaPlan, MakeBlocks]]:
        plan = plan_of(None, self._target)

        def blocks(algorithm: Algorithm, mapper: MapOrdered, hands: int = 1) -> Iterator[EncodedBlock]:
            return made_in_runs(Task(None, self._target, algorithm.name), plan, self._encoders, mapper, hands)

        yield plan, blocks


def made_in_runs(
    task: Task,
    plan: DeltaPlan,
    encoders: Encoders | None,
    mapper: MapOrdered,
    hands: int,
    seen: Callable[[Sequence[SeenLeaf]], None] = lambda _leaves: None,
) -> Iterator[EncodedBlock]:
    """All blocks of the plan, in order: runs of them by processes that are free, or by the mapper's threads. `seen`
    hears which leaves of the base were read."""
    with (
        closing(BlockMaker(task, plan)) as maker,
        nullcontext(_nobody) if encoders is None else encoders.encoding(task) as encode,
    ):

        def made(run: range) -> tuple[range, Encoded, float]:
            started_s = time.monotonic()
            encoded = encode(run) or maker.encode(run)
            return run, encoded, time.monotonic() - started_s

        def in_order(rows: Iterator[range]) -> Iterator[EncodedBlock]:
            for run, encoded, took_s in mapper(made, rows):
                seen(encoded.leaves)
                read_bytes = sum(plan.block(block.ordinal).length for block in encoded.blocks)
                runs.became(read_bytes, sum(block.piece_bytes for block in encoded.blocks), took_s)
                yield from encoded.blocks
                if len(encoded.blocks) < len(run):
                    yield from in_order(runs.again(run[len(encoded.blocks) :]))

        runs = Runs(plan.blocks_total, hands, lambda ordinal: plan.block(ordinal).length)
        yield from in_order(runs)


def _nobody(_run: range) -> Encoded | None:
    return None


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
            yield plan, lambda _algorithm, mapper, _hands=1: fold(step.delta, later.delta, mapper=mapper)
