"""Two small snapshots, the delta between them, and all three as an origin would hold them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chappe.core.digest import XXH3_128
from chappe.core.manifest import DELTA_FILE, LEAF_BYTES, FileEntry, Manifest, ObjectKind, file_digest, snapshot_root
from chappe.payload.container import Packer
from chappe.payload.delta import encode_delta
from chappe.payload.envelope import Prologue, pack_chunk, pack_prologue
from chappe.payload.layout import tensor_table
from chappe.payload.plan import DeltaPlan
from chappe.payload.safetensors import parse_header
from chappe.payload.table import SnapshotTable
from chappe.wire.manifest import encode_header
from tests.hop.storekit import Model, OpenModel
from tests.payload.deltakit import MemorySnapshot, safetensors_file

ELEMENTS = 700_000  # two blocks and a half of two tensors, in all


def files_of(seed: int, *, step: int = 0) -> dict[str, bytes]:
    """A sharded model. Each step changes about 1 % of the first shard and the config; the second shard stays."""
    rng = np.random.default_rng(seed)
    weights = [rng.integers(0, 1 << 16, ELEMENTS, dtype=np.uint16) for _ in range(4)]
    for number in range(step):
        rng = np.random.default_rng(1000 * seed + number)
        for tensor in weights[:3]:
            at = rng.choice(ELEMENTS, ELEMENTS // 100, replace=False)
            tensor[at] += rng.integers(1, 4, at.size, dtype=np.uint16)
    shards = [
        [(f"layers.{i}.weight", "BF16", (ELEMENTS,), weights[i].tobytes()) for i in numbers]
        for numbers in ((0, 1, 2), (3,))
    ]
    return {
        "config.json": f'{{"step": {step}}}'.encode(),
        "empty.txt": b"",
        "model-00001-of-00002.safetensors": safetensors_file(shards[0]),
        "sub/model-00002-of-00002.safetensors": safetensors_file(shards[1]),
    }


def full_model(files: dict[str, bytes], object_id: str, *, chunk_bytes: int = 1 << 16) -> Model:
    """As `model_of`, with the tensors that the files' headers name."""
    entries = tuple(FileEntry(path, len(data)) for path, data in files.items())
    headers = {p: parse_header(d, len(d)) for p, d in files.items() if p.endswith(".safetensors")}
    manifest = Manifest(object_id, XXH3_128, chunk_bytes, entries, tensor_table(list(files), headers), 16)
    digests = [
        file_digest(XXH3_128, len(d), [XXH3_128.once(d[i : i + LEAF_BYTES]) for i in range(0, len(d), LEAF_BYTES)])
        for d in files.values()
    ]
    return Model(files, manifest, snapshot_root(XXH3_128, entries, digests))


@dataclass(frozen=True)
class DeltaModel:
    """`delta.root` is the target's."""

    base: Model
    target: Model
    delta: Model


def delta_model(base: Model, target: Model, object_id: str, *, closing_root: str | None = None) -> DeltaModel:
    old, new = MemorySnapshot.of(dict(base.files)), MemorySnapshot.of(dict(target.files))
    assert list(old.files) == list(base.files)  # payload order is the order here
    plan = DeltaPlan.between(old.table, new.table)
    packer = Packer(XXH3_128)
    chunks = [*packer.pack(encode_delta(plan, XXH3_128, old.read, new.read)), packer.close(closing_root or target.root)]
    prologue = Prologue(base.root, old.table.digest(XXH3_128), encode_header(target.manifest))
    data = pack_prologue(prologue) + b"".join(map(pack_chunk, chunks))
    return DeltaModel(base, target, envelope_model(data, base, target, object_id))


def envelope_model(data: bytes, base: Model, target: Model, object_id: str) -> Model:
    manifest = Manifest(
        object_id,
        XXH3_128,
        1 << 16,
        (FileEntry(DELTA_FILE, len(data)),),
        chunks_per_page=4,
        kind=ObjectKind.DELTA,
        base_root=base.root,
        target_bytes=target.manifest.payload_bytes,
    )
    return OpenModel({DELTA_FILE: data}, manifest, target.root)


def with_bytes(delta: Model, data: bytes) -> Model:
    """The same object with other bytes, of which its publisher has made pages and all."""
    return OpenModel({DELTA_FILE: data}, replace(delta.manifest, files=(FileEntry(DELTA_FILE, len(data)),)), delta.root)


def table_of(model: Model) -> SnapshotTable:
    return SnapshotTable.build(model.manifest.files, model.manifest.tensors)


def compressed_model(target: Model, object_id: str, *, closing_root: str | None = None) -> Model:
    """The snapshot compressed: a delta that begins at nothing."""
    new = MemorySnapshot.of(dict(target.files))
    assert list(new.files) == list(target.files)
    plan = DeltaPlan.whole(new.table)
    packer = Packer(XXH3_128)
    chunks = [*packer.pack(encode_delta(plan, XXH3_128, new.read, new.read)), packer.close(closing_root or target.root)]
    prologue = Prologue("", plan.base.digest(XXH3_128), encode_header(target.manifest))
    data = pack_prologue(prologue) + b"".join(map(pack_chunk, chunks))
    manifest = Manifest(
        object_id,
        XXH3_128,
        1 << 16,
        (FileEntry(DELTA_FILE, len(data)),),
        chunks_per_page=4,
        kind=ObjectKind.FULL_COMPRESSED,
        target_bytes=target.manifest.payload_bytes,
    )
    return OpenModel({DELTA_FILE: data}, manifest, target.root)
