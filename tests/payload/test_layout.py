from __future__ import annotations

import json

import pytest

from chappe.core.manifest import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, CHUNKS_PER_PAGE, LEAF_BYTES, TensorEntry
from chappe.errors import SnapshotError, UnsafePathError
from chappe.payload.layout import check_index, chunks_per_page_for, parse_index, payload_position, tensor_table
from chappe.payload.safetensors import SafetensorsHeader, TensorInfo

HEADER = SafetensorsHeader(16, (TensorInfo("a", "U8", (2,), 16, 18), TensorInfo("b", "U8", (), 18, 19)), {"tied": "a"})


def test_sidecars_travel_before_the_weights() -> None:
    paths = ["model-2.safetensors", "a.safetensors", "tokenizer.json", "z/config.json", "m.safetensors.index.json"]
    assert sorted(paths, key=payload_position) == [
        "m.safetensors.index.json",
        "tokenizer.json",
        "z/config.json",
        "a.safetensors",
        "model-2.safetensors",
    ]


def test_a_page_covers_about_16_mib() -> None:
    assert chunks_per_page_for(CHUNK_BYTES_MIN) == CHUNKS_PER_PAGE
    assert chunks_per_page_for(LEAF_BYTES) == 16
    assert chunks_per_page_for(CHUNK_BYTES_MAX) == 8


def test_an_index_names_shards_beside_it() -> None:
    data = json.dumps({"metadata": {"total_size": 3}, "weight_map": {"a": "x.safetensors", "b": "s/y.safetensors"}})
    assert parse_index("m.safetensors.index.json", data.encode()) == {"a": "x.safetensors", "b": "s/y.safetensors"}
    assert parse_index("d/m.safetensors.index.json", data.encode()) == {
        "a": "d/x.safetensors",
        "b": "d/s/y.safetensors",
    }


@pytest.mark.parametrize("shard", ["../x.safetensors", "/x.safetensors", "C:x.safetensors", "a/../../x.safetensors"])
def test_a_shard_outside_is_refused(shard: str) -> None:
    with pytest.raises(UnsafePathError):
        parse_index("d/i.safetensors.index.json", json.dumps({"weight_map": {"a": shard}}).encode())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "weight_map"),
        (b'{"weight_map": ["a"]}', "weight_map"),
        (b'{"weight_map": {"a": 1}}', "'a' is not a file name"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', "'a' is there twice"),
    ],
)
def test_what_is_no_index_is_refused_by_name(data: bytes, message: str) -> None:
    with pytest.raises(SnapshotError, match=r"i\.safetensors\.index\.json") as caught:
        parse_index("i.safetensors.index.json", data)
    assert message in str(caught.value)


def test_an_index_must_be_true() -> None:
    headers = {"x.safetensors": HEADER}
    check_index("i", {"a": "x.safetensors", "b": "x.safetensors", "tied": "x.safetensors"}, headers)
    with pytest.raises(SnapshotError, match=r"names the shard 'y\.safetensors'"):
        check_index("i", {"a": "y.safetensors"}, headers)
    with pytest.raises(SnapshotError, match="tensor 'c' is in"):
        check_index("i", {"c": "x.safetensors"}, headers)


def test_the_tensor_table_follows_the_files() -> None:
    assert tensor_table(["config.json", "x"], {"x": HEADER}) == (
        TensorEntry("a", "U8", (2,), 1, 16, 18),
        TensorEntry("b", "U8", (), 1, 18, 19),
    )
