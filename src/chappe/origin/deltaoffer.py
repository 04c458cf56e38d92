"""The second object of a publication: a delta, made and offered while the full object is on its way already.

    encode (in a thread) ║ the full object's root ──▶ close ──▶ serve, offer ──▶ not wanted any more: stop
                      └── fails, for whatever reason ──▶ SourceFailed: whoever waited for it gets the full object

Decides nothing: who waits for it, the coordinator knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeAlias

from chappe.core.manifest import CHUNK_BYTES_MIN, Manifest
from chappe.errors import ChappeError
from chappe.origin.deltas import DeltaFile
from chappe.origin.node import OriginNode
from chappe.origin.session import ObjectOffer
from chappe.origin.source import DeltaOf, OriginObject

log = logging.getLogger(__name__)

MakeDelta: TypeAlias = Callable[[Manifest], DeltaFile]
"""From the manifest of the full object."""


class DeltaOffer:
    """`run` it once; `stop` ends it at any time, and takes its file away."""

    def __init__(
        self, node: OriginNode, object_id: str, version: int, file: DeltaFile, root: asyncio.Future[str]
    ) -> None:
        self.object_id = object_id
        self._node, self._version, self._file, self._root = node, version, file, root
        self._object: OriginObject | None = None
        self._stopped = False

    async def run(self) -> None:
        try:
            await self._run()
        except (ChappeError, OSError) as error:
            if not self._stopped:
                log.warning("version %d is sent without a delta: %s", self._version, error)
                self._fail(str(error))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        file = self._file
        await loop.run_in_executor(None, file.encode)
        root = await asyncio.shield(self._root)
        await loop.run_in_executor(None, file.close, root)
        manifest = file.manifest
        source = self._object = OriginObject(
            file.snapshot(),
            self.object_id,
            CHUNK_BYTES_MIN,
            manifest.algorithm,
            on_failed=self._fail,
            delta=DeltaOf(file.base.root, manifest.payload_bytes),
        )
        self._node.catalog.add(source)
        self._node.session.offer(
            ObjectOffer(
                object_id=self.object_id,
                version=self._version,
                payload_bytes=source.manifest.payload_bytes,
                snapshot_bytes=manifest.payload_bytes,
                chunks_total=source.manifest.chunks_total,
                delta=True,
                changed_elements=file.changed_elements,
                compared_elements=file.compared_elements,
            )
        )
        await source.hash()

    def _fail(self, reason: str) -> None:
        self._node.session.source_failed(self.object_id, f"no delta: {reason}")
        self.stop()

    def stop(self) -> None:
        """Idempotent."""
        self._stopped = True
        self._node.session.withdraw(self.object_id)
        self._node.catalog.remove(self.object_id)
        if self._object is not None:
            self._object.close()
        self._file.discard()
