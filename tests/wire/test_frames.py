"""The byte-level codec against protobuf's own, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import PeerError
from chappe.v1.relay_pb2 import End, EndReason, FetchReply, HeaderPart, Page, PushHello, PushRequest, Watermark
from chappe.wire.frames import (
    ChunkBatch,
    PageFrame,
    decode_push,
    decode_reply,
    encode_chunks,
    encode_end,
    encode_header_part,
    encode_page,
    encode_pushed,
    encode_watermark,
)

chunk_lists = st.lists(st.tuples(st.integers(0, (1 << 64) - 1), st.binary(max_size=300)), min_size=1, max_size=32)


def as_lists(reply: object) -> list[tuple[int, bytes]]:
    assert isinstance(reply, ChunkBatch)
    return [(index, bytes(data)) for index, data in reply.chunks]


@given(chunk_lists)
def test_protobuf_reads_what_this_writes(chunks: list[tuple[int, bytes]]) -> None:
    reply = FetchReply.FromString(encode_chunks(chunks))
    assert [(c.index, c.data) for c in reply.chunks.chunks] == chunks


@given(chunk_lists)
def test_this_reads_what_protobuf_writes(chunks: list[tuple[int, bytes]]) -> None:
    reply = FetchReply()
    for index, data in chunks:
        reply.chunks.chunks.add(index=index, data=data)
    assert as_lists(decode_reply(reply.SerializeToString())) == chunks


@given(chunk_lists)
def test_round_trip_also_inside_a_push(chunks: list[tuple[int, bytes]]) -> None:
    message = encode_chunks(chunks)
    assert as_lists(decode_reply(message)) == chunks
    assert as_lists(decode_push(encode_pushed(message))) == chunks
    assert PushRequest.FromString(encode_pushed(message)).reply == FetchReply.FromString(message)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_protobuf_reads_them_or_refused(message: bytes) -> None:
    try:
        got = decode_reply(message)
    except PeerError:
        return
    reply = FetchReply.FromString(message)
    if isinstance(got, ChunkBatch):
        assert as_lists(got) == [(c.index, c.data) for c in reply.chunks.chunks]
    elif isinstance(got, PageFrame):
        assert Page.FromString(got.data) == reply.page
    else:
        assert got in (reply.header, reply.watermark, reply.end)


@given(chunk_lists, st.data())
def test_a_chunk_message_cut_or_changed_anywhere_is_never_read_differently(
    chunks: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    message = bytearray(encode_chunks(chunks))
    at = data.draw(st.integers(0, len(message) - 1))
    if data.draw(st.booleans()):
        del message[at:]
    else:
        message[at] = data.draw(st.integers(0, 255))
    test_any_bytes_are_read_as_protobuf_reads_them_or_refused.hypothesis.inner_test(bytes(message))  # type: ignore[attr-defined]


@pytest.mark.parametrize("last", [b"\x02", b"\x80\x00"])
def test_an_index_of_more_than_64_bits_is_left_to_protobuf(last: bytes) -> None:
    field = b"\x08" + b"\x80" * 9 + last + b"\x7a\x00"
    chunk = b"\x0a" + bytes([len(field)]) + field
    test_any_bytes_are_read_as_protobuf_reads_them_or_refused.hypothesis.inner_test(  # type: ignore[attr-defined]
        b"\x1a" + bytes([len(chunk)]) + chunk
    )


def test_fields_in_another_order_are_left_to_protobuf() -> None:
    message = b"\x1a\x07\x0a\x05" + b"\x7a\x01x" + b"\x08\x05"
    assert as_lists(decode_reply(message)) == [(5, b"x")]


def test_the_other_replies() -> None:
    page = Page(index=3, digests=b"d" * 16)
    assert decode_reply(encode_page(page.SerializeToString())) == PageFrame(page.SerializeToString())
    part = HeaderPart(part=0, parts=2, data=b"x")
    assert decode_reply(encode_header_part(part)) == part
    assert decode_reply(encode_watermark(3, None, complete=False)) == Watermark(chunks_held=3)
    assert decode_reply(encode_watermark(3, 3, complete=True)) == Watermark(
        chunks_held=3, chunks_total=3, complete=True
    )
    end = End(reason=EndReason.END_REASON_BUSY, detail="why")
    assert decode_reply(encode_end(EndReason.END_REASON_BUSY, "why")) == end


def test_the_introduction_of_a_push() -> None:
    hello = PushHello(protocol_version=1, object_id="o")
    assert decode_push(PushRequest(hello=hello).SerializeToString()) == hello


@pytest.mark.parametrize(
    "message", [b"", b"\xff\xff", b"\x1a", b"\x1a\x05", FetchReply(chunks={}).SerializeToString(), b"\x1a\x00"]
)
def test_what_is_not_a_reply(message: bytes) -> None:
    with pytest.raises(PeerError):
        decode_reply(message)
    with pytest.raises(PeerError):
        decode_push(encode_pushed(message))


def test_a_page_is_not_parsed_and_data_is_not_copied() -> None:
    message = encode_chunks([(1, b"a" * 100)])
    reply = decode_reply(message)
    assert isinstance(reply, ChunkBatch)
    view = reply.chunks[0][1]
    assert isinstance(view, memoryview)
    assert view.obj is message
