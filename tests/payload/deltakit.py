"""Small snapshots in memory, deltas between them, and the plainest possible way to apply one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chappe.core.digest import XXH3_128
from chappe.core.manifest import FileEntry, TensorEntry
from chappe.payload.container import CHUNK_BYTES_DEFAULT, DataChunk, Packer, parse_chunk
from chappe.payload.delta import BlockState, apply_block, base_bytes, encode_delta
from chappe.payload.fold import Delta
from chappe.payload.index import Index
from chappe.payload.layout import payload_position, tensor_table
from chappe.payload.plan import DeltaPlan
from chappe.payload.planes import Buffer
from chappe.payload.safetensors import TensorSpec, build_header, data_bytes, parse_header
from chappe.payload.table import SnapshotTable

ROOT = "xxh3_128:" + "0" * 32
Tensors = Sequence[tuple[str, str, tuple[int, ...], bytes]]


@dataclass(frozen=True)
class MemorySnapshot:
    files: dict[str, bytes]
    table: SnapshotTable

    @staticmethod
    def of(files: Mapping[str, bytes]) -> MemorySnapshot:
        paths = sorted(files, key=payload_position)
        headers = {p: parse_header(files[p], len(files[p])) for p in paths if p.endswith(".safetensors")}
        tensors: tuple[TensorEntry, ...] = tensor_table(paths, headers)
        return MemorySnapshot(
            {p: files[p] for p in paths}, SnapshotTable.build([FileEntry(p, len(files[p])) for p in paths], tensors)
        )

    def read(self, file: int, offset: int, length: int) -> memoryview:
        return memoryview(list(self.files.values())[file])[offset : offset + length]


def safetensors_file(tensors: Tensors, *, pad: int = 0) -> bytes:
    """`pad` spaces in the header move the data off its alignment."""
    header = build_header([TensorSpec(name, dtype, shape) for name, dtype, shape, _ in tensors], {"format": "pt"})
    for name, dtype, shape, data in tensors:
        assert len(data) == data_bytes(dtype, shape), name
    text = json.dumps(json.loads(header[8:])).encode() + b" " * pad
    return len(text).to_bytes(8, "little") + text + b"".join(data for *_, data in tensors)


def make_delta(
    base: MemorySnapshot, target: MemorySnapshot, *, chunk_bytes: int = CHUNK_BYTES_DEFAULT
) -> tuple[DeltaPlan, list[bytes]]:
    plan = DeltaPlan.between(base.table, target.table)
    packer = Packer(XXH3_128, chunk_bytes)
    chunks = list(packer.pack(encode_delta(plan, XXH3_128, base.read, target.read, chunk_bytes=chunk_bytes)))
    chunks.append(packer.close(ROOT))
    assert packer.payload_bytes == sum(map(len, chunks))
    return plan, chunks


def apply_delta(plan: DeltaPlan, chunks: Sequence[Buffer], base: MemorySnapshot) -> dict[str, bytes]:
    """The target's files. Every block must come out right."""
    delta = Delta.of(plan, XXH3_128, chunks)
    files = {f.path: bytearray(f.size_bytes) for f in plan.target.files}
    for ordinal in range(plan.blocks_total):
        block = plan.block(ordinal)
        out = memoryview(files[plan.target.files[block.file].path])[block.offset : block.offset + block.length]
        state = apply_block(
            plan,
            XXH3_128,
            ordinal,
            delta.digest(ordinal),
            delta.pieces(ordinal),
            base_bytes(plan, block, base.read),
            out,
        )
        assert state is BlockState.APPLIED
    return {path: bytes(data) for path, data in files.items()}


def indexed(plan: DeltaPlan, chunks: Sequence[Buffer]) -> Index:
    index = Index(plan)
    for number, data in enumerate(chunks):
        chunk = parse_chunk(plan, XXH3_128, data)
        if isinstance(chunk, DataChunk):
            index.add(number, chunk)
    return index
