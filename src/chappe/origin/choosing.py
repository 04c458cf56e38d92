"""What is sent of a snapshot: its own bytes, deltas from those published before, or a compressed file.

    snapshot ──▶ an adapter: bound to its base, in full
            ├──▶ deltas, where a base is kept here and they are estimated to save bytes
            └──▶ compressed, where it is large and a sample of it gets smaller

The request says what can be made; which worker gets which is the coordinator's to decide.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

from chappe.core.manifest import Manifest
from chappe.errors import ManifestError, SnapshotError, UsageError
from chappe.origin.adapters import Bindings, base_root_of, bound_to
from chappe.origin.bases import Bases
from chappe.origin.blocksources import BlockSource, Whole
from chappe.origin.compressing import BYTES_MIN as COMPRESSED_BYTES_MIN
from chappe.origin.compressing import SHARE_MAX as COMPRESSED_SHARE_MAX
from chappe.origin.compressing import MakeCompressed, measure
from chappe.origin.deltaoffer import DeltaPlanned
from chappe.origin.deltas import SHARE_MAX, WORTH_SHARE, DeltaFile, chunk_bytes_of, estimate
from chappe.origin.encoders import Encoders
from chappe.origin.rollback import revive
from chappe.origin.scan import Snapshot
from chappe.origin.spool import SpooledSnapshot
from chappe.origin.steps import Base
from chappe.v1 import coordinator_pb2 as pb


class Payloads:
    """Makes the payloads of one publisher, from its `bases` and in its spool directory (None: chosen by room)."""

    def __init__(self, bases: Bases, spool_directory: Path | None, encoders: Encoders) -> None:
        self._bases = bases
        self._spool_directory = spool_directory
        self._bindings = Bindings(spool_directory)
        self._encoders = encoders

    def close(self) -> None:
        self._bindings.close()

    async def bound(
        self, request: pb.PublishRequest, snapshot: Snapshot, spool: SpooledSnapshot | None, adapter_of: str | None
    ) -> Snapshot:
        """An adapter with its binding, to be sent in full: relays look at that before they land it."""

        def bind() -> tuple[Snapshot, bool]:
            if adapter_of is None:
                return snapshot, bound_to(snapshot) is not None
            return self._bindings.bind(snapshot, base_root_of(adapter_of)), True

        try:
            found, adapter = await asyncio.get_running_loop().run_in_executor(None, bind)
        except BaseException:
            close_spool(spool)
            raise
        if adapter and request.payload not in ("auto", "full"):
            close_spool(spool)
            raise UsageError(f"payload={request.payload}: adapters are small, and sent in full")
        if adapter:
            request.payload, request.no_delta = "full", "adapters are sent in full"
        return found

    async def revive(self, run: str, version: int) -> SpooledSnapshot:
        """The bytes of a version published before. Raises SnapshotError when they cannot be made any more."""
        base = await self._bases.get(run)
        if base is None:
            raise SnapshotError(f"version {version} cannot be made any more: {self._bases.why}; publish the old files")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, revive, base, version, self._spool_directory)

    async def deltas_for(self, request: pb.PublishRequest, run: str, snapshot: Snapshot) -> DeltaPlanned | None:
        """The deltas that can be made; the request says which, or why there are none. Raises UsageError without one
        for payload delta."""
        if request.payload in ("full", "compressed"):
            request.no_delta = request.no_delta or f"payload {request.payload} was asked for"
            return None
        base, share = await self._bases.get(run), 0.0
        if base is None:
            request.no_delta = self._bases.why
        else:
            try:
                share = await asyncio.get_running_loop().run_in_executor(None, estimate, base.snapshot, snapshot)
            except (SnapshotError, ManifestError) as error:
                request.no_delta = f"the base of version {base.version} is of no use: {error}"
            else:
                if share > WORTH_SHARE and request.payload == "auto":
                    request.no_delta = f"a delta from version {base.version} would have about {share:.0%} of the bytes"
        if not request.no_delta and base is not None:
            expected_bytes = _bases_of(base, share, snapshot.snapshot_bytes)
            object_ids = {root: uuid4().hex for root in expected_bytes}
            (request.base_root, request.delta_object_id), *older = object_ids.items()
            request.older.extend(pb.DeltaFrom(base_root=root, object_id=object_id) for root, object_id in older)
            share_max = WORTH_SHARE if request.payload == "auto" else SHARE_MAX

            def make(source: BlockSource, full: Manifest) -> DeltaFile:
                chunk_bytes = chunk_bytes_of(expected_bytes.get(source.base_root, snapshot.snapshot_bytes))
                return DeltaFile(source, full, self._spool_directory, share_max=share_max, chunk_bytes=chunk_bytes)

            return DeltaPlanned(base, snapshot, object_ids, expected_bytes, make, self._encoders)
        if request.payload == "delta":
            raise UsageError(f"payload=delta: {request.no_delta}; publish with payload=auto")
        return None

    async def compressed_for(self, request: pb.PublishRequest, snapshot: Snapshot) -> MakeCompressed | None:
        """The compressed snapshot, if it is or may be wanted; the request says what it would weigh. Raises UsageError
        where it is insisted on and cannot be made."""
        asked = request.payload == "compressed"
        if not asked and (request.payload != "auto" or snapshot.snapshot_bytes < COMPRESSED_BYTES_MIN):
            return None
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, measure, snapshot)
        except (SnapshotError, ManifestError) as error:
            if asked:
                raise UsageError(f"payload=compressed: {error}; publish with payload=full") from error
            return None
        if not asked and found.payload_bytes > COMPRESSED_SHARE_MAX * snapshot.snapshot_bytes:
            return None
        request.compressed.CopyFrom(
            pb.Compressed(
                object_id=uuid4().hex,
                payload_bytes=found.payload_bytes,
                encode_bytes_per_s=found.encode_bytes_per_s,
                decode_bytes_per_s=found.decode_bytes_per_s,
            )
        )
        share_max = SHARE_MAX if asked else COMPRESSED_SHARE_MAX
        source = Whole(snapshot, self._encoders)
        return lambda full: DeltaFile(
            source, full, self._spool_directory, share_max=share_max, chunk_bytes=full.chunk_bytes
        )


def close_spool(spool: SpooledSnapshot | None) -> None:
    if spool is not None:
        spool.close()


def _bases_of(base: Base, share: float, snapshot_bytes: int) -> dict[str, int]:
    """The roots from which a delta may be worth its bytes, the newest first, and what it may have: folded, deltas have
    at most the sum of their bytes."""
    size = share * snapshot_bytes
    roots = {base.root: round(size)}
    for step in reversed(base.steps):
        size += step.size_bytes
        if size > WORTH_SHARE * snapshot_bytes:
            break
        if step.base_root not in roots:
            roots[step.base_root] = round(size)
    return roots
