from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ObjectKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECT_KIND_UNSPECIFIED: _ClassVar[ObjectKind]
    OBJECT_KIND_FULL: _ClassVar[ObjectKind]
    OBJECT_KIND_FULL_COMPRESSED: _ClassVar[ObjectKind]
    OBJECT_KIND_DELTA: _ClassVar[ObjectKind]

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_COMPLETE: _ClassVar[EndReason]
    END_REASON_BUSY: _ClassVar[EndReason]
    END_REASON_EVICTED: _ClassVar[EndReason]
    END_REASON_STALE: _ClassVar[EndReason]
    END_REASON_BAD_TOKEN: _ClassVar[EndReason]
    END_REASON_UNKNOWN_OBJECT: _ClassVar[EndReason]
    END_REASON_DROPPED: _ClassVar[EndReason]
    END_REASON_LEAVING: _ClassVar[EndReason]
OBJECT_KIND_UNSPECIFIED: ObjectKind
OBJECT_KIND_FULL: ObjectKind
OBJECT_KIND_FULL_COMPRESSED: ObjectKind
OBJECT_KIND_DELTA: ObjectKind
END_REASON_UNSPECIFIED: EndReason
END_REASON_COMPLETE: EndReason
END_REASON_BUSY: EndReason
END_REASON_EVICTED: EndReason
END_REASON_STALE: EndReason
END_REASON_BAD_TOKEN: EndReason
END_REASON_UNKNOWN_OBJECT: EndReason
END_REASON_DROPPED: EndReason
END_REASON_LEAVING: EndReason

class Range(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class FileEntry(_message.Message):
    __slots__ = ("path", "size_bytes")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class TensorEntry(_message.Message):
    __slots__ = ("name", "dtype", "shape", "file", "begin", "end")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    file: int
    begin: int
    end: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., file: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("format", "object_id", "kind", "digest_algorithm", "payload_bytes", "snapshot_bytes", "chunk_bytes", "chunks_per_page", "files", "tensors", "base_root", "open_end")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_PER_PAGE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    BASE_ROOT_FIELD_NUMBER: _ClassVar[int]
    OPEN_END_FIELD_NUMBER: _ClassVar[int]
    format: int
    object_id: str
    kind: ObjectKind
    digest_algorithm: str
    payload_bytes: int
    snapshot_bytes: int
    chunk_bytes: int
    chunks_per_page: int
    files: _containers.RepeatedCompositeFieldContainer[FileEntry]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorEntry]
    base_root: str
    open_end: bool
    def __init__(self, format: _Optional[int] = ..., object_id: _Optional[str] = ..., kind: _Optional[_Union[ObjectKind, str]] = ..., digest_algorithm: _Optional[str] = ..., payload_bytes: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., chunks_per_page: _Optional[int] = ..., files: _Optional[_Iterable[_Union[FileEntry, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[TensorEntry, _Mapping]]] = ..., base_root: _Optional[str] = ..., open_end: _Optional[bool] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("index", "digests", "lengths", "signature", "end_bytes")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    END_BYTES_FIELD_NUMBER: _ClassVar[int]
    index: int
    digests: bytes
    lengths: _containers.RepeatedScalarFieldContainer[int]
    signature: bytes
    end_bytes: int
    def __init__(self, index: _Optional[int] = ..., digests: _Optional[bytes] = ..., lengths: _Optional[_Iterable[int]] = ..., signature: _Optional[bytes] = ..., end_bytes: _Optional[int] = ...) -> None: ...

class HeaderPart(_message.Message):
    __slots__ = ("part", "parts", "data")
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    part: int
    parts: int
    data: bytes
    def __init__(self, part: _Optional[int] = ..., parts: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class EdgeClaims(_message.Message):
    __slots__ = ("run", "object_id", "stripe", "slot", "parent", "child", "child_generation", "epoch", "fallback")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CHILD_FIELD_NUMBER: _ClassVar[int]
    CHILD_GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    run: str
    object_id: str
    stripe: int
    slot: int
    parent: str
    child: str
    child_generation: int
    epoch: int
    fallback: bool
    def __init__(self, run: _Optional[str] = ..., object_id: _Optional[str] = ..., stripe: _Optional[int] = ..., slot: _Optional[int] = ..., parent: _Optional[str] = ..., child: _Optional[str] = ..., child_generation: _Optional[int] = ..., epoch: _Optional[int] = ..., fallback: _Optional[bool] = ...) -> None: ...

class EdgeToken(_message.Message):
    __slots__ = ("claims", "signature")
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    claims: bytes
    signature: bytes
    def __init__(self, claims: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class StripeMap(_message.Message):
    __slots__ = ("weights", "run")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    weights: _containers.RepeatedScalarFieldContainer[int]
    run: int
    def __init__(self, weights: _Optional[_Iterable[int]] = ..., run: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("protocol_version", "object_id", "stripe", "token", "lacks_header", "lacks_pages", "lacks_chunks", "rejected_chunks", "stripes", "accepts_tcp", "expected_bytes_per_s", "tcp_secret", "streams")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LACKS_HEADER_FIELD_NUMBER: _ClassVar[int]
    LACKS_PAGES_FIELD_NUMBER: _ClassVar[int]
    LACKS_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STRIPES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTS_TCP_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    TCP_SECRET_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    object_id: str
    stripe: int
    token: EdgeToken
    lacks_header: bool
    lacks_pages: _containers.RepeatedCompositeFieldContainer[Range]
    lacks_chunks: _containers.RepeatedCompositeFieldContainer[Range]
    rejected_chunks: _containers.RepeatedScalarFieldContainer[int]
    stripes: StripeMap
    accepts_tcp: bool
    expected_bytes_per_s: float
    tcp_secret: bytes
    streams: int
    def __init__(self, protocol_version: _Optional[int] = ..., object_id: _Optional[str] = ..., stripe: _Optional[int] = ..., token: _Optional[_Union[EdgeToken, _Mapping]] = ..., lacks_header: _Optional[bool] = ..., lacks_pages: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., lacks_chunks: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., rejected_chunks: _Optional[_Iterable[int]] = ..., stripes: _Optional[_Union[StripeMap, _Mapping]] = ..., accepts_tcp: _Optional[bool] = ..., expected_bytes_per_s: _Optional[float] = ..., tcp_secret: _Optional[bytes] = ..., streams: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("index", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Chunks(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("chunks_held", "chunks_total", "complete")
    CHUNKS_HELD_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    chunks_held: int
    chunks_total: int
    complete: bool
    def __init__(self, chunks_held: _Optional[int] = ..., chunks_total: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: EndReason
    detail: str
    def __init__(self, reason: _Optional[_Union[EndReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class TcpOffer(_message.Message):
    __slots__ = ("port", "secret")
    PORT_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    port: int
    secret: bytes
    def __init__(self, port: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...

class TcpSwitch(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TcpMore(_message.Message):
    __slots__ = ("port", "secrets")
    PORT_FIELD_NUMBER: _ClassVar[int]
    SECRETS_FIELD_NUMBER: _ClassVar[int]
    port: int
    secrets: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, port: _Optional[int] = ..., secrets: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("header", "page", "chunks", "watermark", "end", "tcp_offer", "tcp_switch", "tcp_more")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TCP_OFFER_FIELD_NUMBER: _ClassVar[int]
    TCP_SWITCH_FIELD_NUMBER: _ClassVar[int]
    TCP_MORE_FIELD_NUMBER: _ClassVar[int]
    header: HeaderPart
    page: Page
    chunks: Chunks
    watermark: Watermark
    end: End
    tcp_offer: TcpOffer
    tcp_switch: TcpSwitch
    tcp_more: TcpMore
    def __init__(self, header: _Optional[_Union[HeaderPart, _Mapping]] = ..., page: _Optional[_Union[Page, _Mapping]] = ..., chunks: _Optional[_Union[Chunks, _Mapping]] = ..., watermark: _Optional[_Union[Watermark, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., tcp_offer: _Optional[_Union[TcpOffer, _Mapping]] = ..., tcp_switch: _Optional[_Union[TcpSwitch, _Mapping]] = ..., tcp_more: _Optional[_Union[TcpMore, _Mapping]] = ...) -> None: ...

class PushHello(_message.Message):
    __slots__ = ("protocol_version", "object_id", "stripe", "token", "dials_tcp")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIALS_TCP_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    object_id: str
    stripe: int
    token: EdgeToken
    dials_tcp: bool
    def __init__(self, protocol_version: _Optional[int] = ..., object_id: _Optional[str] = ..., stripe: _Optional[int] = ..., token: _Optional[_Union[EdgeToken, _Mapping]] = ..., dials_tcp: _Optional[bool] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("hello", "reply")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    hello: PushHello
    reply: FetchReply
    def __init__(self, hello: _Optional[_Union[PushHello, _Mapping]] = ..., reply: _Optional[_Union[FetchReply, _Mapping]] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("lacks", "tcp_offer")
    LACKS_FIELD_NUMBER: _ClassVar[int]
    TCP_OFFER_FIELD_NUMBER: _ClassVar[int]
    lacks: FetchRequest
    tcp_offer: TcpOffer
    def __init__(self, lacks: _Optional[_Union[FetchRequest, _Mapping]] = ..., tcp_offer: _Optional[_Union[TcpOffer, _Mapping]] = ...) -> None: ...

class ProbeMessage(_message.Message):
    __slots__ = ("protocol_version", "want_bytes", "token", "seconds_max", "got_bytes", "got_seconds", "refused", "acknowledges", "taken_bytes", "all_sent", "filler")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    WANT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECONDS_MAX_FIELD_NUMBER: _ClassVar[int]
    GOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    GOT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALL_SENT_FIELD_NUMBER: _ClassVar[int]
    FILLER_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    want_bytes: int
    token: EdgeToken
    seconds_max: float
    got_bytes: int
    got_seconds: float
    refused: str
    acknowledges: bool
    taken_bytes: int
    all_sent: bool
    filler: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., want_bytes: _Optional[int] = ..., token: _Optional[_Union[EdgeToken, _Mapping]] = ..., seconds_max: _Optional[float] = ..., got_bytes: _Optional[int] = ..., got_seconds: _Optional[float] = ..., refused: _Optional[str] = ..., acknowledges: _Optional[bool] = ..., taken_bytes: _Optional[int] = ..., all_sent: _Optional[bool] = ..., filler: _Optional[bytes] = ...) -> None: ...
