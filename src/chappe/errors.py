"""Every error that Chappe raises, in one tree. The class says who is at fault, the message what to do next.

ChappeError
├── UsageError            the caller named something wrong (exit code 2)
│   └── ConfigError       a flag, variable or configuration file
├── SnapshotError         the snapshot to publish is not one
│   ├── SafetensorsError  a file breaks the rules of the format
│   ├── UnsafePathError   a name that leads out of the snapshot
│   └── SnapshotChangedError   its bytes changed while it was being published
├── PeerError             another node broke the protocol
│   ├── ManifestError     header, page or root that cannot be true
│   ├── ChunkMismatchError     bytes that do not match their page
│   ├── CodecError             an encoded chunk that no encoder makes, or that does not fit its snapshot
│   ├── BadTokenError          an edge token that the coordinator did not sign
│   └── RootMismatchError      all chunks match their pages, the whole does not match the announced root
├── PublicationError      the publication did not get where it should
│   ├── VersionConflictError   this version exists with other bytes, or a newer one does
│   ├── PublicationFailedError, PublicationCancelledError, SupersededError
│   └── PublicationTimeoutError
├── StoreError            the store on this host
│   ├── StoreLockedError, WrongRunError, StoreCorruptError
│   ├── StateAwayError         the coordinator's database cannot be used now, and may come back
│   ├── DeltaError             a delta that cannot be applied here: the version must come as another object
│   └── DiskFullError
├── CoordinatorUnavailableError
├── RelaydUnavailableError     no relayd answers for this store
├── RefusedError          the coordinator does not take this node
└── WaitTimeoutError      a Subscriber's wait ran out
"""

from __future__ import annotations


class ChappeError(Exception):
    """Base of all errors."""


class UsageError(ChappeError):
    """The caller named something wrong: nothing was done. Exit code 2."""


class ConfigError(UsageError):
    """A flag, variable or configuration file has a bad value."""


class SnapshotError(ChappeError):
    """What was given to publish is not a snapshot."""


class SafetensorsError(SnapshotError):
    """A file breaks the rules of the safetensors format."""


class UnsafePathError(SnapshotError):
    """A file name leads out of the snapshot's directory, or could on some host."""


class SnapshotChangedError(SnapshotError):
    """The files changed while they were being published. Nothing of it was announced as a version."""


class PeerError(ChappeError):
    """Another node broke the protocol."""


class ManifestError(PeerError):
    """A header, page or root that cannot be true."""


class ChunkMismatchError(PeerError):
    """The bytes of a chunk do not have the digest that its page states."""

    def __init__(self, chunk: int) -> None:
        super().__init__(f"chunk {chunk} does not match its page")
        self.chunk = chunk

    def __reduce__(self) -> tuple[type[ChunkMismatchError], tuple[int]]:
        return type(self), (self.chunk,)


class CodecError(PeerError):
    """A chunk of a delta or of a compressed snapshot that no encoder makes, or that does not fit its snapshot."""


class BadTokenError(PeerError):
    """An edge token that the coordinator did not sign, or that cannot be read."""


class RootMismatchError(PeerError):
    """Every chunk matched its page, and the whole still is not what was announced."""


class PublicationError(ChappeError):
    """A publication did not get where it should."""


class VersionConflictError(PublicationError):
    """This version exists with other bytes, or a newer one does."""


class PublicationFailedError(PublicationError):
    """The publication ended without reaching what was asked for."""


class PublicationCancelledError(PublicationError):
    """Somebody cancelled it."""


class SupersededError(PublicationError):
    """A newer version was published before this one got there."""


class PublicationTimeoutError(PublicationError):
    """The asked fraction was not reached in time. The publication goes on."""


class StoreError(ChappeError):
    """The store on this host."""


class StoreLockedError(StoreError):
    """Another process uses this store."""


class WrongRunError(StoreError):
    """The store belongs to another run."""


class StoreCorruptError(StoreError):
    """Something in the store is not what this program wrote."""


class StateAwayError(StoreError):
    """The coordinator's database cannot be used now: nothing of what was to be written is there for sure. It may come
    back, and then the same can be written again."""


class DeltaError(StoreError):
    """A delta that does not give the announced version here: its base is not here or not what it was, or the delta is
    wrong. Nothing was changed; the version has to come as another object: `part` names one of which the store holds
    what came out right, if any."""

    def __init__(self, message: str, part: str = "") -> None:
        super().__init__(message)
        self.part = part


class DiskFullError(StoreError):
    """No room for the object. The previous version keeps serving; the transfer goes on when there is room."""


class CoordinatorUnavailableError(ChappeError):
    """The coordinator cannot be reached."""


class RelaydUnavailableError(ChappeError):
    """No relayd answers for this store on this host."""


class RefusedError(ChappeError):
    """The coordinator does not take this node: the message says why."""


class WaitTimeoutError(ChappeError, TimeoutError):
    """What was waited for did not come in time."""
