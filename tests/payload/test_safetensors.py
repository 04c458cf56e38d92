from __future__ import annotations

import json
from typing import Any

import pytest
import safetensors
from hypothesis import assume, given
from hypothesis import strategies as st

from chappe.errors import SafetensorsError
from chappe.payload.safetensors import (
    DTYPES,
    HEADER_BYTES_MAX,
    TensorSpec,
    build_header,
    data_bytes,
    header_span,
    parse_header,
    payload_order,
)


def framed(text: str | bytes | dict[str, Any]) -> bytes:
    raw = json.dumps(text).encode() if isinstance(text, dict) else text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(8, "little") + raw


def tensor(dtype: str = "U8", shape: Any = (3,), offsets: Any = (0, 3), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def refusal(head: bytes, data_length: int) -> str:
    with pytest.raises(SafetensorsError) as caught:
        parse_header(head, len(head) + data_length)
    return str(caught.value)


def test_a_header_gives_absolute_offsets_in_order_of_the_file() -> None:
    head = framed({"b": tensor("F32", [2], [3, 11]), "a": tensor(), "__metadata__": {"format": "pt"}})
    header = parse_header(head + b"rest", len(head) + 11)
    assert header.header_bytes == len(head)
    assert header.metadata == {"format": "pt"}
    assert [(t.name, t.dtype, t.shape, t.begin - len(head), t.end - len(head)) for t in header.tensors] == [
        ("a", "U8", (3,), 0, 3),
        ("b", "F32", (2,), 3, 11),
    ]


def test_scalars_empty_tensors_unknown_fields_and_padding_are_allowed() -> None:
    fields = {"s": tensor("F32", [], [0, 4]), "e": tensor("F32", [0, 7], [4, 4]), "u": tensor(offsets=[4, 7], more=1)}
    head = framed(json.dumps(fields) + "   ")
    assert {t.name: t.shape for t in parse_header(head, len(head) + 7).tensors} == {"s": (), "e": (0, 7), "u": (3,)}


def test_a_file_without_tensors_is_one() -> None:
    assert parse_header(framed("{}      "), 16).tensors == ()


def test_aliases_are_metadata_that_name_a_tensor() -> None:
    head = build_header([TensorSpec("w", "U8", (3,))], {"tied": "w", "format": "pt", "w": "w"})
    assert parse_header(head, len(head) + 3).aliases() == {"tied": "w"}


@pytest.mark.parametrize(
    ("fields", "data_length", "message"),
    [
        ({"a": tensor(offsets=[1, 4])}, 4, "hole"),
        ({"a": tensor(), "b": tensor(offsets=[4, 7])}, 7, "hole"),
        ({"a": tensor(), "b": tensor(offsets=[2, 5])}, 5, "overlap"),
        ({"a": tensor(), "b": tensor()}, 3, "overlap"),
        ({"a": tensor()}, 4, "end at byte"),
        ({"a": tensor()}, 2, "end at byte"),
        ({}, 1, "end at byte"),
        ({"a": tensor(shape=[4])}, 3, "is 4 bytes, its offsets span 3"),
        ({"a": tensor(offsets=[3, 0])}, 3, "span -3"),
        ({"a": tensor("F31")}, 3, "dtype 'F31' is not one of"),
        ({"a": tensor("F4", [3], [0, 2])}, 2, "whole bytes"),
        ({"a": tensor("F6_E2M3", [3], [0, 3])}, 3, "whole bytes"),
        ({"a": tensor(shape=[2**32, 2**32], offsets=[0, 0])}, 0, "overflows"),
        ({"a": tensor("F64", [2**62], [0, 0])}, 0, "overflows"),
        ({"a": tensor(shape=[2**63, 2, 0], offsets=[0, 0])}, 0, "overflows"),
        ({"a": tensor(shape=[2**64], offsets=[0, 0])}, 0, "shape is not"),
        ({"a": tensor(shape=[-3])}, 3, "shape is not"),
        ({"a": tensor(shape=[3.0])}, 3, "shape is not"),
        ({"a": tensor(shape=[True], offsets=[0, 1])}, 1, "shape is not"),
        ({"a": tensor(shape=3)}, 3, "shape is not"),
        ({"a": tensor(offsets=[0, 3, 3])}, 3, "data_offsets is not"),
        ({"a": tensor(offsets=[-1, 2])}, 3, "data_offsets is not"),
        ({"a": tensor(offsets="03")}, 3, "data_offsets is not"),
        ({"a": {"shape": [3], "data_offsets": [0, 3]}}, 3, "dtype is not"),
        ({"a": [1]}, 3, "not a JSON object"),
        ({"__metadata__": {"a": 1}}, 0, "not a string"),
        ({"__metadata__": ["a"]}, 0, "not a map"),
        ({"__metadata__": None}, 0, "not a map"),
        ({"__metadata__": {"a": "\ud800"}}, 0, "UTF-8"),
        ({"\ud800": tensor()}, 3, "UTF-8"),
    ],
)
def test_a_header_that_breaks_a_rule_is_refused(fields: dict[str, Any], data_length: int, message: str) -> None:
    assert message in refusal(framed(fields), data_length)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "begin with"),
        (b" {}", "begin with"),
        (b"[]", "begin with"),
        (b"{", "not JSON"),
        (b"{} x", "not JSON"),
        (b'{"a": NaN}', "not JSON"),
        (b'{"\xff": 1}', "not JSON"),
        (b'{"a": ' + b"9" * 6000 + b"}", "not JSON"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested"),
        (b'{"a": 1, "a": 2}', "'a' is there twice"),
        (b'{"__metadata__": {}, "__metadata__": {}}', "'__metadata__' is there twice"),
        (b'{"__metadata__": {"k": "1", "k": "1"}}', "'k' is there twice"),
        (b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [3], "data_offsets": [0, 3]}}', "'dtype' is there twice"),
    ],
)
def test_text_that_is_no_header_is_refused(text: bytes, message: str) -> None:
    assert message in refusal(framed(text), 3)


def test_the_length_of_the_header_is_bounded_by_the_format_and_by_the_file() -> None:
    with pytest.raises(SafetensorsError, match="too short"):
        header_span(b"\0" * 7, 7)
    with pytest.raises(SafetensorsError, match="allows 100000000"):
        header_span((HEADER_BYTES_MAX + 1).to_bytes(8, "little"), 1 << 40)
    with pytest.raises(SafetensorsError, match="in a file of 107"):
        header_span((100).to_bytes(8, "little"), 107)
    assert header_span(HEADER_BYTES_MAX.to_bytes(8, "little"), 1 << 40) == HEADER_BYTES_MAX + 8
    with pytest.raises(SafetensorsError, match="only 9 of them"):
        parse_header((100).to_bytes(8, "little") + b"{", 108)


def test_the_dtypes_are_those_of_the_reference_implementation() -> None:
    for dtype, bits in DTYPES.items():
        head = framed({"a": tensor(dtype, [8], [0, bits])})
        [(_, view)] = safetensors.deserialize(head + bytes(bits))
        assert view["dtype"] == dtype
        assert parse_header(head, len(head) + bits).tensors[0].dtype == dtype


def test_what_cannot_be_parsed_back_is_not_built() -> None:
    with pytest.raises(SafetensorsError, match="taken"):
        build_header([TensorSpec("a", "U8", (1,)), TensorSpec("a", "U8", (1,))])
    with pytest.raises(SafetensorsError, match="taken"):
        build_header([TensorSpec("__metadata__", "U8", (1,))])
    with pytest.raises(SafetensorsError, match=r"'a'.*whole bytes"):
        build_header([TensorSpec("a", "F4", (1,))])
    with pytest.raises(SafetensorsError, match="UTF-8"):
        build_header([TensorSpec("\ud800", "U8", (1,))])


names = st.text(st.characters(codec="utf-8"), max_size=8).filter(lambda name: name != "__metadata__")
specs = st.lists(
    st.builds(
        TensorSpec,
        names,
        st.sampled_from(sorted(DTYPES)),
        st.lists(st.sampled_from([0, 1, 4, 8, 12]), max_size=3).map(tuple),
    ),
    max_size=6,
    unique_by=lambda spec: spec.name,
)


@given(
    specs, st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), st.text("xyzü", max_size=5), max_size=3)
)
def test_built_headers_parse_here_and_in_the_reference_implementation(
    tensors: list[TensorSpec], metadata: dict[str, str]
) -> None:
    assume(all(DTYPES[t.dtype] % 8 == 0 or t.shape for t in tensors))
    assume(all(DTYPES[t.dtype] % 8 == 0 or any(n % 4 == 0 for n in t.shape) for t in tensors))
    tensors = payload_order(tensors)
    head = build_header(tensors, metadata)
    size = sum(data_bytes(t.dtype, t.shape) for t in tensors)
    header = parse_header(head, len(head) + size)
    assert header.header_bytes % 8 == 0
    assert header.metadata == metadata
    assert {(t.name, t.dtype, t.shape) for t in header.tensors} == {(t.name, t.dtype, t.shape) for t in tensors}
    theirs = dict(safetensors.deserialize(head + bytes(size)))
    assert {(n, v["dtype"], tuple(v["shape"])) for n, v in theirs.items()} == {
        (t.name, t.dtype, t.shape) for t in tensors
    }


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.sampled_from(["U8", "F4", "x", "dtype"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "b", "__metadata__", "dtype", "shape", "data_offsets"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(
    json_values | st.builds(lambda a, b: {"a": tensor(shape=a, offsets=b)}, json_values, json_values), st.integers(0, 9)
)
def test_any_json_is_either_refused_or_accepted_by_the_reference_too(value: Any, data_length: int) -> None:
    head = framed(json.dumps(value))
    try:
        header = parse_header(head, len(head) + data_length)
    except SafetensorsError:
        return
    assert {t.name for t in header.tensors} == {name for name, _ in safetensors.deserialize(head + bytes(data_length))}


@given(st.binary(max_size=64), st.integers(0, 80))
def test_any_bytes_are_either_a_header_or_refused(data: bytes, file_bytes: int) -> None:
    try:
        header = parse_header(data, file_bytes)
    except SafetensorsError:
        return
    assert header.header_bytes <= len(data)
