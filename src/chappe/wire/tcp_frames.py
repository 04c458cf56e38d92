"""What is said on a hop's bare TCP connection. Everything here is read from a peer: no length is believed unchecked.

    child:   "chappe1\\n" and the 32 bytes of `TcpOffer.secret`, then nothing more
             (where the parent dials, it is the parent that says this, and the child answers with the byte 1)
    parent:  frames:   kind u32 | length u32 | index u64   little-endian, then `length` bytes
             kind 1    a chunk: `index` is its number, the bytes are its own
             kind 2    a FetchReply without chunks, serialized; `index` is 0

A chunk's head has a fixed size, so that its bytes go from a file to the socket, and from the socket to where they are
hashed, without being packed or unpacked on the way.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from chappe.core.manifest import CHUNK_BYTES_MAX
from chappe.errors import PeerError

SECRET_BYTES = 32
TAKEN = b"\x01"
"""What a child answers to the hello of a parent that has dialled it."""
_MAGIC = b"chappe1\n"
HELLO_BYTES = len(_MAGIC) + SECRET_BYTES
_HEAD = struct.Struct("<IIQ")
HEAD_BYTES = _HEAD.size
BODY_BYTES_MAX = CHUNK_BYTES_MAX
"""Of any frame: a chunk, or the largest message, a piece of a header of 1 MiB."""
STREAMS_MAX = 16
STREAMS_AUTO = 0
"""As a number of data connections: one, and more where a link needs it."""
"""Connections of one Fetch."""


class FrameKind(IntEnum):
    CHUNK = 1
    MESSAGE = 2


_KINDS = {int(kind): kind for kind in FrameKind}


class FrameHead(NamedTuple):
    kind: FrameKind
    length: int
    number: int


def encode_hello(secret: bytes) -> bytes:
    return _MAGIC + secret


def decode_hello(data: bytes) -> bytes | None:
    """The secret, or None for anything that is not a hello."""
    return data[len(_MAGIC) :] if len(data) == HELLO_BYTES and data.startswith(_MAGIC) else None


def encode_chunk_head(index: int, length: int) -> bytes:
    return _HEAD.pack(FrameKind.CHUNK, length, index)


def encode_message(reply: bytes) -> bytes:
    """The frame of a serialized FetchReply."""
    return _HEAD.pack(FrameKind.MESSAGE, len(reply), 0) + reply


def decode_head(data: bytes | bytearray | memoryview) -> FrameHead:
    """Of the `HEAD_BYTES` bytes before a body. Raises PeerError."""
    kind, length, index = _HEAD.unpack(data)
    known = _KINDS.get(kind)
    if known is None:
        raise PeerError(f"a frame of kind {kind}")
    if known is FrameKind.MESSAGE and index != 0:
        raise PeerError(f"a message with the number {index}")
    if not 1 <= length <= BODY_BYTES_MAX:
        raise PeerError(f"a frame of {length} bytes; 1 to {BODY_BYTES_MAX} are allowed")
    return FrameHead(known, length, index)
