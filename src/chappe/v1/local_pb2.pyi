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
