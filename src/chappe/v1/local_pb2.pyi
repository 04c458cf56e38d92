from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class CurrentRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("newer_than",)
    NEWER_THAN_FIELD_NUMBER: _ClassVar[int]
    newer_than: int
    def __init__(self, newer_than: _Optional[int] = ...) -> None: ...

class EnsureRequest(_message.Message):
    __slots__ = ("learner_version", "max_gap")
    LEARNER_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_GAP_FIELD_NUMBER: _ClassVar[int]
    learner_version: int
    max_gap: int
    def __init__(self, learner_version: _Optional[int] = ..., max_gap: _Optional[int] = ...) -> None: ...

class ConfirmRequest(_message.Message):
    __slots__ = ("version", "ok", "reason")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    version: int
    ok: bool
    reason: str
    def __init__(self, version: _Optional[int] = ..., ok: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class ConfirmReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Landed(_message.Message):
    __slots__ = ("run", "version", "root", "path", "installed")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    INSTALLED_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: int
    root: str
    path: str
    installed: bool
    def __init__(self, run: _Optional[str] = ..., version: _Optional[int] = ..., root: _Optional[str] = ..., path: _Optional[str] = ..., installed: _Optional[bool] = ...) -> None: ...

class RolloutReport(_message.Message):
    __slots__ = ("rollouts_per_second",)
    ROLLOUTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    rollouts_per_second: float
    def __init__(self, rollouts_per_second: _Optional[float] = ...) -> None: ...

class DutyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DutyState(_message.Message):
    __slots__ = ("duty", "reason", "worker")
    DUTY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    duty: str
    reason: str
    worker: str
    def __init__(self, duty: _Optional[str] = ..., reason: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...
