"""The other objects of a publication: deltas, made and offered while the full object is on its way already.

    compare (in a thread), served meanwhile where wanted ║ the full object's root ──▶ close ──▶ kept by the publisher
       └──▶ fold with the last kept delta, served meanwhile ──▶ fold with the one before ... until none is wanted
    what fails, for whatever reason ──▶ SourceFailed for it and all that build on it: those that waited get the full one

The delta from the last version is made whether or not anybody waits for it: it is a step of the publisher's history.
Decides nothing: who waits for which, the coordinator knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chappe.core.manifest import Manifest
from chappe.errors import ChappeError
from chappe.origin.bases import Making
from chappe.origin.blocksources import BlockSource, Compared, Folded
from chappe.origin.deltas import DeltaFile
from chappe.origin.encoders import Encoders
from chappe.origin.node import OriginNode
from chappe.origin.scan import Snapshot
from chappe.origin.steps import Base, Step
from chappe.origin.streaming import Streamed

log = logging.getLogger(__name__)

MakeFile = Callable[[BlockSource, Manifest], DeltaFile]


@dataclass(frozen=True, slots=True)
class DeltaPlanned:
    """What deltas of a publication can be made from: the base, and the steps that lead to it, oldest first.

    `object_ids` names the objects by the root that each would begin at, `expected_bytes` says what each may weigh.
    """

    base: Base
    target: Snapshot
    object_ids: dict[str, str]
    expected_bytes: dict[str, int]
    make: MakeFile
    encoders: Encoders | None = None

    def steps(self) -> Sequence[Step]:
        """Newest first."""
        return self.base.steps[::-1]


class DeltaOffers:
    """`run` it once; `stop` ends it at any time. `wanted` are the roots at which wanted deltas begin."""

    def __init__(
        self,
        node: OriginNode,
        version: int,
        planned: DeltaPlanned,
        manifest: Manifest,
        wanted: set[str],
        root: asyncio.Future[str],
        on_first: Callable[[], None],
    ) -> None:
        """`manifest` is that of the full object; `on_first` hears that the first chunks of one can leave."""
        self._node, self._version, self._planned, self._manifest = node, version, planned, manifest
        self._left = {base: planned.object_ids[base] for base in wanted if base in planned.object_ids}
        self._root, self._on_first = root, on_first
        self._served: dict[str, Streamed] = {}
        self._files = [planned.make(Compared(planned.base, planned.target, planned.encoders), manifest)]
        self._stopped = False
        self.making = Making(self._files[0], asyncio.get_running_loop().create_future())

    @property
    def direct(self) -> bool:
        """Somebody waits for the delta from the last version, which is made first. Before `run`."""
        return self._planned.base.root in self._left

    def owns(self, object_id: str) -> bool:
        return object_id in self._served or object_id in self._left.values()

    async def run(self) -> None:
        try:
            file = self.making.file
            await self._make(file)
            self.making.whole.set_result(True)
            for step in self._planned.steps():
                if not self._left or self._stopped:
                    break
                file = self._planned.make(Folded(step, file.path, file.plan), self._manifest)
                self._files.append(file)
                await self._make(file)
            self._fail("no longer kept by the publisher")
        except (ChappeError, OSError) as error:
            if not self._stopped:
                log.warning("version %d is sent without a delta: %s", self._version, error)
                self._fail(str(error))
        finally:
            if not self.making.whole.done():
                self.making.whole.set_result(False)

    async def _make(self, file: DeltaFile) -> None:
        object_id = self._left.pop(file.base_root, "")
        if not object_id or self._stopped:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, file.encode)
            await loop.run_in_executor(None, file.close, await asyncio.shield(self._root))
            return
        expected_bytes = self._planned.expected_bytes[file.base_root]
        served = self._served[object_id] = Streamed(
            self._node,
            object_id,
            self._version,
            file,
            expected_bytes,
            lambda reason: self._withdraw(object_id, reason),
            self._on_first,
        )
        try:
            await served.make(self._root)
        except (ChappeError, OSError) as error:
            if object_id in self._served:
                self._withdraw(object_id, str(error))
            raise

    def _fail(self, reason: str) -> None:
        """What has not been begun does not come."""
        while self._left and not self._stopped:
            _, object_id = self._left.popitem()
            self._node.session.source_failed(object_id, f"no delta: {reason}")

    def _withdraw(self, object_id: str, reason: str) -> None:
        self._node.session.source_failed(object_id, f"no delta: {reason}")
        self.unwanted(object_id)

    def unwanted(self, object_id: str) -> None:
        """Nobody is to be served this one any more; the others go on."""
        served = self._served.pop(object_id, None)
        if served is not None:
            served.stop()
        else:
            self._node.session.withdraw(object_id)

    def stop(self) -> None:
        """Idempotent. The delta from the last version goes on being made for as long as somebody holds it."""
        if self._stopped:
            return
        self._stopped = True
        for object_id in [*self._served, *self._left.values()]:
            self.unwanted(object_id)
        for file in self._files:
            file.discard()
