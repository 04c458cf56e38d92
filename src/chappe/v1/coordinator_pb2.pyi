from chappe.v1 import relay_pb2 as _relay_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_RELAY: _ClassVar[Role]
    ROLE_ORIGIN: _ClassVar[Role]

class ObjectState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECT_STATE_UNSPECIFIED: _ClassVar[ObjectState]
    OBJECT_STATE_RECEIVING: _ClassVar[ObjectState]
    OBJECT_STATE_RECEIVED: _ClassVar[ObjectState]
    OBJECT_STATE_VERIFIED: _ClassVar[ObjectState]
    OBJECT_STATE_INSTALLED: _ClassVar[ObjectState]
    OBJECT_STATE_FAILED: _ClassVar[ObjectState]
    OBJECT_STATE_DISK_FULL: _ClassVar[ObjectState]

class Dialable(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIALABLE_UNSPECIFIED: _ClassVar[Dialable]
    DIALABLE_NO: _ClassVar[Dialable]

class Dialer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIALER_UNSPECIFIED: _ClassVar[Dialer]
    DIALER_CHILD: _ClassVar[Dialer]
    DIALER_PARENT: _ClassVar[Dialer]

class Duty(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DUTY_UNSPECIFIED: _ClassVar[Duty]
    DUTY_ACTIVE: _ClassVar[Duty]
    DUTY_STANDBY: _ClassVar[Duty]

class Topology(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPOLOGY_UNSPECIFIED: _ClassVar[Topology]
    TOPOLOGY_CHAINS: _ClassVar[Topology]
    TOPOLOGY_STAR: _ClassVar[Topology]
    TOPOLOGY_STRIPED: _ClassVar[Topology]
    TOPOLOGY_AUTO: _ClassVar[Topology]
ROLE_UNSPECIFIED: Role
ROLE_RELAY: Role
ROLE_ORIGIN: Role
OBJECT_STATE_UNSPECIFIED: ObjectState
OBJECT_STATE_RECEIVING: ObjectState
OBJECT_STATE_RECEIVED: ObjectState
OBJECT_STATE_VERIFIED: ObjectState
OBJECT_STATE_INSTALLED: ObjectState
OBJECT_STATE_FAILED: ObjectState
OBJECT_STATE_DISK_FULL: ObjectState
DIALABLE_UNSPECIFIED: Dialable
DIALABLE_NO: Dialable
DIALER_UNSPECIFIED: Dialer
DIALER_CHILD: Dialer
DIALER_PARENT: Dialer
DUTY_UNSPECIFIED: Duty
DUTY_ACTIVE: Duty
DUTY_STANDBY: Duty
TOPOLOGY_UNSPECIFIED: Topology
TOPOLOGY_CHAINS: Topology
TOPOLOGY_STAR: Topology
TOPOLOGY_STRIPED: Topology
TOPOLOGY_AUTO: Topology

class Holding(_message.Message):
    __slots__ = ("object_id", "version", "root", "state", "chunks", "chunks_total", "reason")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    version: int
    root: str
    state: ObjectState
    chunks: _containers.RepeatedCompositeFieldContainer[_relay_pb2.Range]
    chunks_total: int
    reason: str
    def __init__(self, object_id: _Optional[str] = ..., version: _Optional[int] = ..., root: _Optional[str] = ..., state: _Optional[_Union[ObjectState, str]] = ..., chunks: _Optional[_Iterable[_Union[_relay_pb2.Range, _Mapping]]] = ..., chunks_total: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class HeldEdge(_message.Message):
    __slots__ = ("object_id", "stripe", "parent", "epoch")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    stripe: int
    parent: str
    epoch: int
    def __init__(self, object_id: _Optional[str] = ..., stripe: _Optional[int] = ..., parent: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "role", "worker_id", "name", "generation", "run", "address", "uplink_bytes_per_s", "downlink_bytes_per_s", "price_per_hour", "rollouts_per_second", "holdings", "edges", "assignment_epoch", "dialable", "data_port", "stripes")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UPLINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    HOLDINGS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DIALABLE_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    STRIPES_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    role: Role
    worker_id: str
    name: str
    generation: int
    run: str
    address: str
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    price_per_hour: float
    rollouts_per_second: float
    holdings: _containers.RepeatedCompositeFieldContainer[Holding]
    edges: _containers.RepeatedCompositeFieldContainer[HeldEdge]
    assignment_epoch: int
    dialable: Dialable
    data_port: int
    stripes: bool
    def __init__(self, protocol_version: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., worker_id: _Optional[str] = ..., name: _Optional[str] = ..., generation: _Optional[int] = ..., run: _Optional[str] = ..., address: _Optional[str] = ..., uplink_bytes_per_s: _Optional[float] = ..., downlink_bytes_per_s: _Optional[float] = ..., price_per_hour: _Optional[float] = ..., rollouts_per_second: _Optional[float] = ..., holdings: _Optional[_Iterable[_Union[Holding, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[HeldEdge, _Mapping]]] = ..., assignment_epoch: _Optional[int] = ..., dialable: _Optional[_Union[Dialable, str]] = ..., data_port: _Optional[int] = ..., stripes: _Optional[bool] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class HoldingChanged(_message.Message):
    __slots__ = ("holding",)
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    holding: Holding
    def __init__(self, holding: _Optional[_Union[Holding, _Mapping]] = ...) -> None: ...

class ParentConnected(_message.Message):
    __slots__ = ("object_id", "stripe", "parent", "epoch")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    stripe: int
    parent: str
    epoch: int
    def __init__(self, object_id: _Optional[str] = ..., stripe: _Optional[int] = ..., parent: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ParentLost(_message.Message):
    __slots__ = ("object_id", "stripe", "parent", "epoch", "reason")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    stripe: int
    parent: str
    epoch: int
    reason: str
    def __init__(self, object_id: _Optional[str] = ..., stripe: _Optional[int] = ..., parent: _Optional[str] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("object_id", "version", "kind", "payload_bytes", "snapshot_bytes", "chunks_total", "root", "changed_elements", "compared_elements", "changed_bytes", "open_end")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    COMPARED_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    CHANGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_END_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    version: int
    kind: _relay_pb2.ObjectKind
    payload_bytes: int
    snapshot_bytes: int
    chunks_total: int
    root: str
    changed_elements: int
    compared_elements: int
    changed_bytes: int
    open_end: bool
    def __init__(self, object_id: _Optional[str] = ..., version: _Optional[int] = ..., kind: _Optional[_Union[_relay_pb2.ObjectKind, str]] = ..., payload_bytes: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ..., chunks_total: _Optional[int] = ..., root: _Optional[str] = ..., changed_elements: _Optional[int] = ..., compared_elements: _Optional[int] = ..., changed_bytes: _Optional[int] = ..., open_end: _Optional[bool] = ...) -> None: ...

class RootAnnounced(_message.Message):
    __slots__ = ("object_id", "root")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    root: str
    def __init__(self, object_id: _Optional[str] = ..., root: _Optional[str] = ...) -> None: ...

class SourceFailed(_message.Message):
    __slots__ = ("object_id", "reason")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    reason: str
    def __init__(self, object_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LinkSample(_message.Message):
    __slots__ = ("peer", "sending", "bytes_per_s", "busy_s", "bytes", "streams", "tcp")
    PEER_FIELD_NUMBER: _ClassVar[int]
    SENDING_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TCP_FIELD_NUMBER: _ClassVar[int]
    peer: str
    sending: bool
    bytes_per_s: float
    busy_s: float
    bytes: int
    streams: int
    tcp: bool
    def __init__(self, peer: _Optional[str] = ..., sending: _Optional[bool] = ..., bytes_per_s: _Optional[float] = ..., busy_s: _Optional[float] = ..., bytes: _Optional[int] = ..., streams: _Optional[int] = ..., tcp: _Optional[bool] = ...) -> None: ...

class LinkReport(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[LinkSample]
    def __init__(self, samples: _Optional[_Iterable[_Union[LinkSample, _Mapping]]] = ...) -> None: ...

class ProbeResult(_message.Message):
    __slots__ = ("order", "up_bytes_per_s", "down_bytes_per_s", "bytes", "seconds", "error")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    UP_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DOWN_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    order: str
    up_bytes_per_s: float
    down_bytes_per_s: float
    bytes: int
    seconds: float
    error: str
    def __init__(self, order: _Optional[str] = ..., up_bytes_per_s: _Optional[float] = ..., down_bytes_per_s: _Optional[float] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., error: _Optional[str] = ...) -> None: ...

class RolloutRate(_message.Message):
    __slots__ = ("rollouts_per_second",)
    ROLLOUTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    rollouts_per_second: float
    def __init__(self, rollouts_per_second: _Optional[float] = ...) -> None: ...

class LearnerProgress(_message.Message):
    __slots__ = ("version", "admitted", "discarded")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    version: int
    admitted: int
    discarded: int
    def __init__(self, version: _Optional[int] = ..., admitted: _Optional[int] = ..., discarded: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("hello", "heartbeat", "acknowledge", "holding", "parent_connected", "parent_lost", "offer", "root", "source_failed", "leaving", "links", "probe_result", "rollouts", "learner")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    PARENT_CONNECTED_FIELD_NUMBER: _ClassVar[int]
    PARENT_LOST_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FAILED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    PROBE_RESULT_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    acknowledge: Acknowledge
    holding: HoldingChanged
    parent_connected: ParentConnected
    parent_lost: ParentLost
    offer: Offer
    root: RootAnnounced
    source_failed: SourceFailed
    leaving: Leaving
    links: LinkReport
    probe_result: ProbeResult
    rollouts: RolloutRate
    learner: LearnerProgress
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., holding: _Optional[_Union[HoldingChanged, _Mapping]] = ..., parent_connected: _Optional[_Union[ParentConnected, _Mapping]] = ..., parent_lost: _Optional[_Union[ParentLost, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., root: _Optional[_Union[RootAnnounced, _Mapping]] = ..., source_failed: _Optional[_Union[SourceFailed, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ..., links: _Optional[_Union[LinkReport, _Mapping]] = ..., probe_result: _Optional[_Union[ProbeResult, _Mapping]] = ..., rollouts: _Optional[_Union[RolloutRate, _Mapping]] = ..., learner: _Optional[_Union[LearnerProgress, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("run", "token_key", "lease_s", "heartbeat_s")
    RUN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    run: str
    token_key: bytes
    lease_s: float
    heartbeat_s: float
    def __init__(self, run: _Optional[str] = ..., token_key: _Optional[bytes] = ..., lease_s: _Optional[float] = ..., heartbeat_s: _Optional[float] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("worker_id", "name", "address", "data_port")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    name: str
    address: str
    data_port: int
    def __init__(self, worker_id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., data_port: _Optional[int] = ...) -> None: ...

class Fallback(_message.Message):
    __slots__ = ("parent", "token")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    parent: Peer
    token: _relay_pb2.EdgeToken
    def __init__(self, parent: _Optional[_Union[Peer, _Mapping]] = ..., token: _Optional[_Union[_relay_pb2.EdgeToken, _Mapping]] = ...) -> None: ...

class ChildSlot(_message.Message):
    __slots__ = ("child", "slot", "generation", "epoch", "token", "dialer")
    CHILD_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DIALER_FIELD_NUMBER: _ClassVar[int]
    child: Peer
    slot: int
    generation: int
    epoch: int
    token: _relay_pb2.EdgeToken
    dialer: Dialer
    def __init__(self, child: _Optional[_Union[Peer, _Mapping]] = ..., slot: _Optional[int] = ..., generation: _Optional[int] = ..., epoch: _Optional[int] = ..., token: _Optional[_Union[_relay_pb2.EdgeToken, _Mapping]] = ..., dialer: _Optional[_Union[Dialer, str]] = ...) -> None: ...

class Edge(_message.Message):
    __slots__ = ("object_id", "stripe", "parent", "dialer", "token", "fallbacks", "children", "epoch", "stripes", "expected_bytes_per_s")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    DIALER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FALLBACKS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STRIPES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    stripe: int
    parent: Peer
    dialer: Dialer
    token: _relay_pb2.EdgeToken
    fallbacks: _containers.RepeatedCompositeFieldContainer[Fallback]
    children: _containers.RepeatedCompositeFieldContainer[ChildSlot]
    epoch: int
    stripes: _relay_pb2.StripeMap
    expected_bytes_per_s: float
    def __init__(self, object_id: _Optional[str] = ..., stripe: _Optional[int] = ..., parent: _Optional[_Union[Peer, _Mapping]] = ..., dialer: _Optional[_Union[Dialer, str]] = ..., token: _Optional[_Union[_relay_pb2.EdgeToken, _Mapping]] = ..., fallbacks: _Optional[_Iterable[_Union[Fallback, _Mapping]]] = ..., children: _Optional[_Iterable[_Union[ChildSlot, _Mapping]]] = ..., epoch: _Optional[int] = ..., stripes: _Optional[_Union[_relay_pb2.StripeMap, _Mapping]] = ..., expected_bytes_per_s: _Optional[float] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("object_id", "version", "root", "kind", "payload_bytes", "snapshot_bytes")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    version: int
    root: str
    kind: _relay_pb2.ObjectKind
    payload_bytes: int
    snapshot_bytes: int
    def __init__(self, object_id: _Optional[str] = ..., version: _Optional[int] = ..., root: _Optional[str] = ..., kind: _Optional[_Union[_relay_pb2.ObjectKind, str]] = ..., payload_bytes: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("epoch", "targets", "edges", "keep_versions", "duty", "duty_reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    KEEP_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DUTY_FIELD_NUMBER: _ClassVar[int]
    DUTY_REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    targets: _containers.RepeatedCompositeFieldContainer[Target]
    edges: _containers.RepeatedCompositeFieldContainer[Edge]
    keep_versions: _containers.RepeatedScalarFieldContainer[int]
    duty: Duty
    duty_reason: str
    def __init__(self, epoch: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., edges: _Optional[_Iterable[_Union[Edge, _Mapping]]] = ..., keep_versions: _Optional[_Iterable[int]] = ..., duty: _Optional[_Union[Duty, str]] = ..., duty_reason: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Released(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProbeOrder(_message.Message):
    __slots__ = ("order", "peer", "token", "bytes_max", "seconds_max")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SECONDS_MAX_FIELD_NUMBER: _ClassVar[int]
    order: str
    peer: Peer
    token: _relay_pb2.EdgeToken
    bytes_max: int
    seconds_max: float
    def __init__(self, order: _Optional[str] = ..., peer: _Optional[_Union[Peer, _Mapping]] = ..., token: _Optional[_Union[_relay_pb2.EdgeToken, _Mapping]] = ..., bytes_max: _Optional[int] = ..., seconds_max: _Optional[float] = ...) -> None: ...

class PublicationWanted(_message.Message):
    __slots__ = ("learner_version", "fleet_version", "reason")
    LEARNER_VERSION_FIELD_NUMBER: _ClassVar[int]
    FLEET_VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    learner_version: int
    fleet_version: int
    reason: str
    def __init__(self, learner_version: _Optional[int] = ..., fleet_version: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("welcome", "assignment", "refused", "released", "probe", "wanted")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    assignment: Assignment
    refused: Refused
    released: Released
    probe: ProbeOrder
    wanted: PublicationWanted
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., released: _Optional[_Union[Released, _Mapping]] = ..., probe: _Optional[_Union[ProbeOrder, _Mapping]] = ..., wanted: _Optional[_Union[PublicationWanted, _Mapping]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("origin_id", "version", "until", "topology", "chains", "elapsed_s", "snapshot_bytes", "object_id", "payload", "base_root", "delta_object_id", "no_delta", "older", "t_train_s", "compressed")
    ORIGIN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BASE_ROOT_FIELD_NUMBER: _ClassVar[int]
    DELTA_OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    NO_DELTA_FIELD_NUMBER: _ClassVar[int]
    OLDER_FIELD_NUMBER: _ClassVar[int]
    T_TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_FIELD_NUMBER: _ClassVar[int]
    origin_id: str
    version: int
    until: float
    topology: Topology
    chains: int
    elapsed_s: float
    snapshot_bytes: int
    object_id: str
    payload: str
    base_root: str
    delta_object_id: str
    no_delta: str
    older: _containers.RepeatedCompositeFieldContainer[DeltaFrom]
    t_train_s: float
    compressed: Compressed
    def __init__(self, origin_id: _Optional[str] = ..., version: _Optional[int] = ..., until: _Optional[float] = ..., topology: _Optional[_Union[Topology, str]] = ..., chains: _Optional[int] = ..., elapsed_s: _Optional[float] = ..., snapshot_bytes: _Optional[int] = ..., object_id: _Optional[str] = ..., payload: _Optional[str] = ..., base_root: _Optional[str] = ..., delta_object_id: _Optional[str] = ..., no_delta: _Optional[str] = ..., older: _Optional[_Iterable[_Union[DeltaFrom, _Mapping]]] = ..., t_train_s: _Optional[float] = ..., compressed: _Optional[_Union[Compressed, _Mapping]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("run", "version", "chunk_bytes", "object_id", "root", "base_root", "older_base_roots", "compressed")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    BASE_ROOT_FIELD_NUMBER: _ClassVar[int]
    OLDER_BASE_ROOTS_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: int
    chunk_bytes: int
    object_id: str
    root: str
    base_root: str
    older_base_roots: _containers.RepeatedScalarFieldContainer[str]
    compressed: bool
    def __init__(self, run: _Optional[str] = ..., version: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., object_id: _Optional[str] = ..., root: _Optional[str] = ..., base_root: _Optional[str] = ..., older_base_roots: _Optional[_Iterable[str]] = ..., compressed: _Optional[bool] = ...) -> None: ...

class DeltaFrom(_message.Message):
    __slots__ = ("base_root", "object_id")
    BASE_ROOT_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    base_root: str
    object_id: str
    def __init__(self, base_root: _Optional[str] = ..., object_id: _Optional[str] = ...) -> None: ...

class Compressed(_message.Message):
    __slots__ = ("object_id", "payload_bytes", "encode_bytes_per_s", "decode_bytes_per_s")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENCODE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    payload_bytes: int
    encode_bytes_per_s: float
    decode_bytes_per_s: float
    def __init__(self, object_id: _Optional[str] = ..., payload_bytes: _Optional[int] = ..., encode_bytes_per_s: _Optional[float] = ..., decode_bytes_per_s: _Optional[float] = ...) -> None: ...

class AlreadyPublished(_message.Message):
    __slots__ = ("root", "publication")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PUBLICATION_FIELD_NUMBER: _ClassVar[int]
    root: str
    publication: PublicationStatus
    def __init__(self, root: _Optional[str] = ..., publication: _Optional[_Union[PublicationStatus, _Mapping]] = ...) -> None: ...

class PublishEvent(_message.Message):
    __slots__ = ("accepted", "already", "progress", "finished")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ALREADY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    accepted: Accepted
    already: AlreadyPublished
    progress: PublicationStatus
    finished: PublicationStatus
    def __init__(self, accepted: _Optional[_Union[Accepted, _Mapping]] = ..., already: _Optional[_Union[AlreadyPublished, _Mapping]] = ..., progress: _Optional[_Union[PublicationStatus, _Mapping]] = ..., finished: _Optional[_Union[PublicationStatus, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Chain(_message.Message):
    __slots__ = ("names", "stripe")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    stripe: int
    def __init__(self, names: _Optional[_Iterable[str]] = ..., stripe: _Optional[int] = ...) -> None: ...

class Fractions(_message.Message):
    __slots__ = ("received", "verified", "installed")
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    received: float
    verified: float
    installed: float
    def __init__(self, received: _Optional[float] = ..., verified: _Optional[float] = ..., installed: _Optional[float] = ...) -> None: ...

class PublicationStatus(_message.Message):
    __slots__ = ("run", "version", "root", "kind", "payload_bytes", "snapshot_bytes", "targeted", "installed", "lost", "installed_fraction", "t_bcast", "floor_s", "chains", "fractions", "state", "reason", "objects", "elapsed_s", "topology", "payloads", "payload_reason", "layout_reason", "stripe_weights", "rate_bytes_per_s", "striped_s", "plain_s", "floor_source")
    class TBcastEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    TARGETED_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    T_BCAST_FIELD_NUMBER: _ClassVar[int]
    FLOOR_S_FIELD_NUMBER: _ClassVar[int]
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    FRACTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_REASON_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_REASON_FIELD_NUMBER: _ClassVar[int]
    STRIPE_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    RATE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    STRIPED_S_FIELD_NUMBER: _ClassVar[int]
    PLAIN_S_FIELD_NUMBER: _ClassVar[int]
    FLOOR_SOURCE_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: int
    root: str
    kind: str
    payload_bytes: int
    snapshot_bytes: int
    targeted: int
    installed: int
    lost: _containers.RepeatedScalarFieldContainer[str]
    installed_fraction: float
    t_bcast: _containers.ScalarMap[str, float]
    floor_s: float
    chains: _containers.RepeatedCompositeFieldContainer[Chain]
    fractions: Fractions
    state: str
    reason: str
    objects: _containers.RepeatedScalarFieldContainer[str]
    elapsed_s: float
    topology: str
    payloads: _containers.RepeatedCompositeFieldContainer[ObjectStatus]
    payload_reason: str
    layout_reason: str
    stripe_weights: _containers.RepeatedScalarFieldContainer[int]
    rate_bytes_per_s: float
    striped_s: float
    plain_s: float
    floor_source: str
    def __init__(self, run: _Optional[str] = ..., version: _Optional[int] = ..., root: _Optional[str] = ..., kind: _Optional[str] = ..., payload_bytes: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ..., targeted: _Optional[int] = ..., installed: _Optional[int] = ..., lost: _Optional[_Iterable[str]] = ..., installed_fraction: _Optional[float] = ..., t_bcast: _Optional[_Mapping[str, float]] = ..., floor_s: _Optional[float] = ..., chains: _Optional[_Iterable[_Union[Chain, _Mapping]]] = ..., fractions: _Optional[_Union[Fractions, _Mapping]] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., objects: _Optional[_Iterable[str]] = ..., elapsed_s: _Optional[float] = ..., topology: _Optional[str] = ..., payloads: _Optional[_Iterable[_Union[ObjectStatus, _Mapping]]] = ..., payload_reason: _Optional[str] = ..., layout_reason: _Optional[str] = ..., stripe_weights: _Optional[_Iterable[int]] = ..., rate_bytes_per_s: _Optional[float] = ..., striped_s: _Optional[float] = ..., plain_s: _Optional[float] = ..., floor_source: _Optional[str] = ...) -> None: ...

class ObjectStatus(_message.Message):
    __slots__ = ("object_id", "kind", "payload_bytes", "targeted", "installed", "base_root", "changed_elements", "compared_elements", "alarm")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    TARGETED_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    BASE_ROOT_FIELD_NUMBER: _ClassVar[int]
    CHANGED_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    COMPARED_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    ALARM_FIELD_NUMBER: _ClassVar[int]
    object_id: str
    kind: str
    payload_bytes: int
    targeted: int
    installed: int
    base_root: str
    changed_elements: int
    compared_elements: int
    alarm: str
    def __init__(self, object_id: _Optional[str] = ..., kind: _Optional[str] = ..., payload_bytes: _Optional[int] = ..., targeted: _Optional[int] = ..., installed: _Optional[int] = ..., base_root: _Optional[str] = ..., changed_elements: _Optional[int] = ..., compared_elements: _Optional[int] = ..., alarm: _Optional[str] = ...) -> None: ...

class RelayStatus(_message.Message):
    __slots__ = ("name", "state", "parent", "chain", "position", "received", "verified", "installed", "rank", "downlink_bytes_per_s", "uplink_bytes_per_s", "source", "reason", "worker_id", "address", "progress", "uplink_source", "downlink_source", "uplink_age_s", "downlink_age_s", "demoted", "dialable", "duty", "duty_reason", "price_per_hour", "rollouts_per_s", "rollouts_source", "transport")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    UPLINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    UPLINK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_SOURCE_FIELD_NUMBER: _ClassVar[int]
    UPLINK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    DOWNLINK_AGE_S_FIELD_NUMBER: _ClassVar[int]
    DEMOTED_FIELD_NUMBER: _ClassVar[int]
    DIALABLE_FIELD_NUMBER: _ClassVar[int]
    DUTY_FIELD_NUMBER: _ClassVar[int]
    DUTY_REASON_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    parent: str
    chain: int
    position: int
    received: int
    verified: int
    installed: int
    rank: int
    downlink_bytes_per_s: float
    uplink_bytes_per_s: float
    source: str
    reason: str
    worker_id: str
    address: str
    progress: float
    uplink_source: str
    downlink_source: str
    uplink_age_s: float
    downlink_age_s: float
    demoted: bool
    dialable: str
    duty: str
    duty_reason: str
    price_per_hour: float
    rollouts_per_s: float
    rollouts_source: str
    transport: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., parent: _Optional[str] = ..., chain: _Optional[int] = ..., position: _Optional[int] = ..., received: _Optional[int] = ..., verified: _Optional[int] = ..., installed: _Optional[int] = ..., rank: _Optional[int] = ..., downlink_bytes_per_s: _Optional[float] = ..., uplink_bytes_per_s: _Optional[float] = ..., source: _Optional[str] = ..., reason: _Optional[str] = ..., worker_id: _Optional[str] = ..., address: _Optional[str] = ..., progress: _Optional[float] = ..., uplink_source: _Optional[str] = ..., downlink_source: _Optional[str] = ..., uplink_age_s: _Optional[float] = ..., downlink_age_s: _Optional[float] = ..., demoted: _Optional[bool] = ..., dialable: _Optional[str] = ..., duty: _Optional[str] = ..., duty_reason: _Optional[str] = ..., price_per_hour: _Optional[float] = ..., rollouts_per_s: _Optional[float] = ..., rollouts_source: _Optional[str] = ..., transport: _Optional[str] = ...) -> None: ...

class OriginStatus(_message.Message):
    __slots__ = ("name", "worker_id", "address", "state", "uplink_bytes_per_s", "source", "age_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    UPLINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    worker_id: str
    address: str
    state: str
    uplink_bytes_per_s: float
    source: str
    age_s: float
    def __init__(self, name: _Optional[str] = ..., worker_id: _Optional[str] = ..., address: _Optional[str] = ..., state: _Optional[str] = ..., uplink_bytes_per_s: _Optional[float] = ..., source: _Optional[str] = ..., age_s: _Optional[float] = ...) -> None: ...

class TrainingStatus(_message.Message):
    __slots__ = ("verdict", "reason", "kappa", "batch", "gamma", "fraction", "t_train_s", "t_train_source", "t_bcast_s", "tail_s", "t_bcast_source", "slack_s", "required_rollouts_per_s", "pool_rollouts_per_s", "required_workers", "active_workers", "bubble", "learner_version", "fleet_version", "admitted", "discarded")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KAPPA_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    FRACTION_FIELD_NUMBER: _ClassVar[int]
    T_TRAIN_S_FIELD_NUMBER: _ClassVar[int]
    T_TRAIN_SOURCE_FIELD_NUMBER: _ClassVar[int]
    T_BCAST_S_FIELD_NUMBER: _ClassVar[int]
    TAIL_S_FIELD_NUMBER: _ClassVar[int]
    T_BCAST_SOURCE_FIELD_NUMBER: _ClassVar[int]
    SLACK_S_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_ROLLOUTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    POOL_ROLLOUTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_WORKERS_FIELD_NUMBER: _ClassVar[int]
    BUBBLE_FIELD_NUMBER: _ClassVar[int]
    LEARNER_VERSION_FIELD_NUMBER: _ClassVar[int]
    FLEET_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    verdict: str
    reason: str
    kappa: int
    batch: float
    gamma: float
    fraction: float
    t_train_s: float
    t_train_source: str
    t_bcast_s: float
    tail_s: float
    t_bcast_source: str
    slack_s: float
    required_rollouts_per_s: float
    pool_rollouts_per_s: float
    required_workers: int
    active_workers: int
    bubble: float
    learner_version: int
    fleet_version: int
    admitted: int
    discarded: int
    def __init__(self, verdict: _Optional[str] = ..., reason: _Optional[str] = ..., kappa: _Optional[int] = ..., batch: _Optional[float] = ..., gamma: _Optional[float] = ..., fraction: _Optional[float] = ..., t_train_s: _Optional[float] = ..., t_train_source: _Optional[str] = ..., t_bcast_s: _Optional[float] = ..., tail_s: _Optional[float] = ..., t_bcast_source: _Optional[str] = ..., slack_s: _Optional[float] = ..., required_rollouts_per_s: _Optional[float] = ..., pool_rollouts_per_s: _Optional[float] = ..., required_workers: _Optional[int] = ..., active_workers: _Optional[int] = ..., bubble: _Optional[float] = ..., learner_version: _Optional[int] = ..., fleet_version: _Optional[int] = ..., admitted: _Optional[int] = ..., discarded: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("run", "relays", "publications", "origins", "training")
    RUN_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    ORIGINS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    run: str
    relays: _containers.RepeatedCompositeFieldContainer[RelayStatus]
    publications: _containers.RepeatedCompositeFieldContainer[PublicationStatus]
    origins: _containers.RepeatedCompositeFieldContainer[OriginStatus]
    training: TrainingStatus
    def __init__(self, run: _Optional[str] = ..., relays: _Optional[_Iterable[_Union[RelayStatus, _Mapping]]] = ..., publications: _Optional[_Iterable[_Union[PublicationStatus, _Mapping]]] = ..., origins: _Optional[_Iterable[_Union[OriginStatus, _Mapping]]] = ..., training: _Optional[_Union[TrainingStatus, _Mapping]] = ...) -> None: ...
