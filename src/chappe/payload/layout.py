"""How a snapshot's files become one payload: their order, the index of a sharded model, the tensor table.

Payload order is sidecars first (config, tokenizer, index: small, and what an engine wants to read before the weights),
then the safetensors files; each group by path. The order of travel does not enter the root.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from chappe.core.manifest import CHUNKS_PER_PAGE, TensorEntry
from chappe.errors import SafetensorsError, SnapshotError
from chappe.payload.paths import check_path
from chappe.payload.safetensors import SafetensorsHeader, parse_json_object

SAFETENSORS_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
INDEX_BYTES_MAX = 100_000_000
PAGE_PAYLOAD_BYTES = 16 << 20
"""A chunk can leave once its page is hashed, so a page's payload is what a slow disk makes the first child wait for."""


def is_safetensors(path: str) -> bool:
    return path.endswith(SAFETENSORS_SUFFIX)


def is_index(path: str) -> bool:
    return path.endswith(INDEX_SUFFIX)


def payload_position(path: str) -> tuple[bool, bytes]:
    """Sort key of payload order."""
    return is_safetensors(path), path.encode()


def chunks_per_page_for(chunk_bytes: int) -> int:
    """Chunks of about 16 MiB, and never more than the usual page has."""
    return max(1, min(CHUNKS_PER_PAGE, PAGE_PAYLOAD_BYTES // chunk_bytes))


def parse_index(path: str, data: bytes) -> dict[str, str]:
    """The weight map of an index file: tensor name to the snapshot's path of its shard.

    Raises SnapshotError for something that is no index, UnsafePathError for a shard outside the directory of the index.
    """
    try:
        fields = parse_json_object(data, "the index")
    except SafetensorsError as error:
        raise SnapshotError(f"{path}: {error}") from None
    weight_map = fields.get("weight_map")
    if not isinstance(weight_map, dict):
        raise SnapshotError(f"{path}: weight_map is not there, or is not a map from tensors to shards")
    directory = posixpath.dirname(path)
    shards: dict[str, str] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            raise SnapshotError(f"{path}: the shard of tensor {tensor[:120]!r} is not a file name")
        shards[tensor] = posixpath.join(directory, check_path(shard))
    return shards


def check_index(path: str, weight_map: Mapping[str, str], headers: Mapping[str, SafetensorsHeader]) -> None:
    """Every shard is there and holds the tensors that the index says. `headers` by the snapshot's paths.

    A tensor that a shard's metadata names as tied to one of its tensors counts as held. Raises SnapshotError.
    """
    held: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        if shard not in headers:
            raise SnapshotError(
                f"{path} names the shard {shard!r}, which is not in the snapshot: is the download complete?"
            )
        if shard not in held:
            header = headers[shard]
            held[shard] = {info.name for info in header.tensors} | header.aliases().keys()
        if tensor not in held[shard]:
            raise SnapshotError(f"{path} says that tensor {tensor[:120]!r} is in {shard!r}, and it is not")


def tensor_table(paths: Sequence[str], headers: Mapping[str, SafetensorsHeader]) -> tuple[TensorEntry, ...]:
    """The tensors of all files, in payload order, then by offset."""
    return tuple(
        TensorEntry(info.name, info.dtype, info.shape, file, info.begin, info.end)
        for file, path in enumerate(paths)
        if path in headers
        for info in headers[path].tensors
    )
