"""A delta's file offered while it is being made: its chunks leave while later blocks are still being compared.

    encode (in a thread) ──the file is there──▶ Offer, its end open ──page by page──▶ served
       └──▶ the full object's root ──▶ close ──▶ Offer, what it really has ──▶ the last page
    what fails, also in its middle ──▶ `on_failed`: those that have got some of it get the version another way

The coordinator is told how much the object has before any relay can know: what a relay says of its end can be compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from chappe.errors import ChappeError, ManifestError, SnapshotError
from chappe.origin.deltas import DeltaFile
from chappe.origin.growing import GrowingObject
from chappe.origin.node import OriginNode
from chappe.origin.session import ObjectOffer

log = logging.getLogger(__name__)  # a library in somebody's trainer: nothing is printed uninvited


class Streamed:
    """One object. `make` it once; `stop` ends its serving at any time, and leaves the file to its holders."""

    def __init__(
        self,
        node: OriginNode,
        object_id: str,
        version: int,
        file: DeltaFile,
        expected_bytes: int,
        on_failed: Callable[[str], None],
        on_first: Callable[[], None],
    ) -> None:
        """`expected_bytes` is what the coordinator is told until it is known; `on_failed` hears what is found wrong
        after all has been made, `on_first` that the first chunks can leave, or that there is no more to encode."""
        self.object_id, self.file = object_id, file
        self._node, self._version, self._expected_bytes = node, version, expected_bytes
        self._object: GrowingObject | None = None
        self._offer: ObjectOffer | None = None
        self._on_failed, self._on_first = on_failed, on_first
        self._failure = ""
        self._made = self._stopped = False

    async def make(self, root: asyncio.Future[str]) -> None:
        """Return when all of it is served. Raises what making it raises, SnapshotError for a file found wrong."""
        loop, file = asyncio.get_running_loop(), self.file
        file.on_open = lambda: _tell(loop, self._begin)
        file.on_page = lambda digests: _tell(loop, self._announce, digests)
        try:
            try:
                await loop.run_in_executor(None, file.encode)
            finally:
                self._on_first()  # less than a page leaves with the root only
            log.info("version %d: %d bytes of object %s are encoded", self._version, file.payload_bytes, self.object_id)
            await loop.run_in_executor(None, file.close, await asyncio.shield(root))
        except ChappeError as error:
            raise (SnapshotError(self._failure) if self._failure else error) from error
        if self._failure:
            raise SnapshotError(self._failure)
        self._made = True
        self._end()

    def _begin(self) -> None:
        if self._stopped:
            return
        try:
            manifest = self.file.object_manifest(self.object_id)
            served = self._object = GrowingObject(self.file.path, manifest, self._failed)
        except (OSError, ManifestError) as error:
            self._failed(str(error))
            return
        self._node.catalog.add(served)
        self._offer = ObjectOffer(
            object_id=self.object_id,
            version=self._version,
            payload_bytes=self._expected_bytes,
            snapshot_bytes=manifest.target_bytes,
            chunks_total=max(1, -(-self._expected_bytes // manifest.chunk_bytes)),
            kind=manifest.kind,
            open_end=True,
        )
        self._node.session.offer(self._offer)
        log.info("version %d: object %s is offered, and being encoded", self._version, self.object_id)

    def _announce(self, digests: list[bytes]) -> None:
        if self._object is not None:
            self._object.announce(digests)
            if self._object.pages_held == 1:
                log.info("version %d: the first chunks of object %s can leave", self._version, self.object_id)
                self._on_first()

    def _end(self) -> None:
        served, offer, file = self._object, self._offer, self.file
        if self._stopped or served is None or offer is None:
            return
        manifest = served.manifest.closed(served.pages_held, len(file.last_page), file.payload_bytes)
        offer.payload_bytes, offer.chunks_total, offer.open_end = manifest.payload_bytes, manifest.chunks_total, False
        offer.changed_elements, offer.compared_elements = file.changed_elements, file.compared_elements
        offer.changed_bytes = file.changed_bytes
        self._node.session.offer(offer)
        served.close_end(file.last_page, file.payload_bytes)
        log.info("version %d: the last chunks of object %s can leave", self._version, self.object_id)

    def _failed(self, reason: str) -> None:
        """It cannot be served, or a child has found it wrong."""
        if self._made:
            self._on_failed(reason)
            return
        self._failure = reason
        self.file.give_up()

    def stop(self) -> None:
        """Nobody is to be served it any more. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._node.session.withdraw(self.object_id)
        self._node.catalog.remove(self.object_id)
        if self._object is not None:
            self._object.close()


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *args: object) -> None:
    """From the thread that encodes."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is served any more
        loop.call_soon_threadsafe(what, *args)
