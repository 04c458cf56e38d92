"""Fetch replies as bytes. They are ordinary protobuf messages; this module only spares the copies on the hot path.

    FetchReply { chunks = 3 { chunks = 1 { index = 1, data = 15 } ... } }

A protobuf object copies a chunk's bytes on the way in and on the way out. Here a message is joined once from the chunk
itself, and read as views into the message that arrived. Whatever is not spelled in the one usual way (fields in
order, each once) is left to protobuf: any gRPC client can speak to a relay, and any relay to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from chappe.errors import PeerError
from chappe.v1.relay_pb2 import (
    End,
    EndReason,
    FetchReply,
    HeaderPart,
    PushHello,
    PushRequest,
    TcpMore,
    TcpOffer,
    TcpSwitch,
    Watermark,
)

PROTOCOL_VERSION = 1
CHUNKS_PER_MESSAGE_MAX = 32

_REPLY_PAGE = 0x12  # field 2, length-delimited
_REPLY_CHUNKS = 0x1A  # field 3
_CHUNKS_CHUNK = 0x0A  # field 1
_CHUNK_INDEX = 0x08  # field 1, varint
_TOO_LARGE = 1 << 64  # for a varint: protobuf takes no more than 64 bits of it
_CHUNK_DATA = 0x7A  # field 15
_PUSH_REPLY = 0x12  # field 2 of PushRequest

Data = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """Chunks that came together: (index, bytes). The bytes may be views that keep the message alive."""

    chunks: list[tuple[int, Data]]


@dataclass(frozen=True, slots=True)
class PageFrame:
    """A serialized Page."""

    data: bytes


Reply = ChunkBatch | PageFrame | HeaderPart | Watermark | End | TcpOffer | TcpSwitch | TcpMore


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_chunks(chunks: Sequence[tuple[int, Data]]) -> bytes:
    """A FetchReply with these chunks. One copy of their bytes."""
    parts: list[Data] = [b""]
    total = 0
    for index, data in chunks:
        field = b"\x08" + _varint(index) + b"\x7a" + _varint(len(data))
        head = b"\x0a" + _varint(len(field) + len(data)) + field
        parts += (head, data)
        total += len(head) + len(data)
    parts[0] = b"\x1a" + _varint(total)
    return b"".join(parts)


def encode_page(page: bytes) -> bytes:
    """A FetchReply with this serialized Page."""
    return b"\x12" + _varint(len(page)) + page


def encode_header_part(part: HeaderPart) -> bytes:
    return FetchReply(header=part).SerializeToString()


def encode_watermark(chunks_held: int, chunks_total: int | None, complete: bool) -> bytes:
    mark = Watermark(chunks_held=chunks_held, chunks_total=chunks_total or 0, complete=complete)
    return FetchReply(watermark=mark).SerializeToString()


def encode_end(reason: EndReason, detail: str = "") -> bytes:
    return FetchReply(end=End(reason=reason, detail=detail)).SerializeToString()


def encode_tcp_offer(port: int, secret: bytes) -> bytes:
    return FetchReply(tcp_offer=TcpOffer(port=port, secret=secret)).SerializeToString()


def encode_tcp_switch() -> bytes:
    return FetchReply(tcp_switch=TcpSwitch()).SerializeToString()


def encode_tcp_more(port: int, secrets: Sequence[bytes]) -> bytes:
    return FetchReply(tcp_more=TcpMore(port=port, secrets=secrets)).SerializeToString()


def encode_pushed(reply: bytes) -> bytes:
    """A PushRequest with this serialized FetchReply."""
    return b"\x12" + _varint(len(reply)) + reply


def decode_reply(message: bytes) -> Reply:
    """Read a FetchReply. Raises PeerError for anything that is not one."""
    return _decode_reply(memoryview(message))


def decode_push(message: bytes) -> PushHello | Reply:
    """Read a PushRequest: the parent's introduction, or a reply. Raises PeerError."""
    view = memoryview(message)
    body = _sole_field(view, _PUSH_REPLY)
    if body is not None:
        return _decode_reply(body)
    try:
        request = PushRequest.FromString(message)
    except DecodeError as error:
        raise PeerError("a message that is not a PushRequest") from error
    match request.WhichOneof("message"):
        case "hello":
            return request.hello
        case "reply":
            return _decode_reply(memoryview(request.reply.SerializeToString()))
    raise PeerError("an empty PushRequest")


def _decode_reply(view: memoryview) -> Reply:
    body = _sole_field(view, _REPLY_CHUNKS)
    if body is not None:
        chunks = _split_chunks(body)
        if chunks is not None:
            return ChunkBatch(chunks)
    body = _sole_field(view, _REPLY_PAGE)
    if body is not None:
        return PageFrame(bytes(body))
    return _decode_slowly(view)


def _decode_slowly(view: memoryview) -> Reply:
    try:
        reply = FetchReply.FromString(bytes(view))
    except DecodeError as error:
        raise PeerError("a message that is not a FetchReply") from error
    match reply.WhichOneof("message"):
        case "chunks":
            return ChunkBatch(_checked([(c.index, c.data) for c in reply.chunks.chunks]))
        case "page":
            return PageFrame(reply.page.SerializeToString())
        case "header":
            return reply.header
        case "watermark":
            return reply.watermark
        case "end":
            return reply.end
        case "tcp_offer":
            return reply.tcp_offer
        case "tcp_switch":
            return reply.tcp_switch
        case "tcp_more":
            return reply.tcp_more
    raise PeerError("an empty FetchReply")


def _checked(chunks: list[tuple[int, Data]]) -> list[tuple[int, Data]]:
    if not 1 <= len(chunks) <= CHUNKS_PER_MESSAGE_MAX:
        raise PeerError(f"a message of {len(chunks)} chunks; 1 to {CHUNKS_PER_MESSAGE_MAX} are allowed")
    return chunks


def _sole_field(view: memoryview, tag: int) -> memoryview | None:
    """The body of the length-delimited field `tag` when the message is exactly this field, else None."""
    if len(view) < 2 or view[0] != tag:
        return None
    length, at = _read_varint(view, 1)
    return view[at:] if at + length == len(view) else None


def _split_chunks(view: memoryview) -> list[tuple[int, Data]] | None:
    """The chunks of a Chunks message in the usual spelling, else None."""
    chunks: list[tuple[int, Data]] = []
    at, end = 0, len(view)
    while at < end:
        if view[at] != _CHUNKS_CHUNK:
            return None
        length, at = _read_varint(view, at + 1)
        stop = at + length
        if stop > end:
            return None
        index = 0
        if at < stop and view[at] == _CHUNK_INDEX:
            index, at = _read_varint(view, at + 1)
        if index >= _TOO_LARGE or at >= stop or view[at] != _CHUNK_DATA:
            return None
        length, at = _read_varint(view, at + 1)
        if at + length != stop:
            return None
        chunks.append((index, view[at:stop]))
        at = stop
    return _checked(chunks)


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """A varint and where it ends. One that is cut off or too long is an impossible length, which no caller accepts."""
    number = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    return _TOO_LARGE, at
