"""What an answer of the coordinator to a publisher means: an error to raise, or a call to make again."""

from __future__ import annotations

import random

import grpc
import grpc.aio

from chappe.core.effects import PublishErrorKind
from chappe.errors import (
    ChappeError,
    PublicationCancelledError,
    PublicationFailedError,
    RefusedError,
    SupersededError,
    UsageError,
    VersionConflictError,
)
from chappe.wire.failures import decode_kind

_ERRORS: dict[str, type[ChappeError]] = {
    PublishErrorKind.CONFLICT: VersionConflictError,
    PublishErrorKind.INVALID: UsageError,
    PublishErrorKind.NO_WORKERS: PublicationFailedError,
    PublishErrorKind.NOT_FOUND: PublicationFailedError,
    PublishErrorKind.FAILED: PublicationFailedError,
    PublishErrorKind.CANCELLED: PublicationCancelledError,
    PublishErrorKind.SUPERSEDED: SupersededError,
}
REFUSED_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""Asking again would change nothing."""
_RETRY_S_MIN, _RETRY_S_MAX = 0.1, 2.0
_ORIGIN_JOINS, _RELAYS_JOIN = 2, 12
"""So often a call is made again: at once, and for some 15 s."""


def is_transient(error: grpc.aio.AioRpcError) -> bool:
    """The coordinator is away, and may come back."""
    return not decode_kind(error.trailing_metadata()) and error.code() in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
    )


def comes_too_early(error: grpc.aio.AioRpcError, failures: int, *, accepted: bool) -> bool:
    """A coordinator that was started again may be asked before this origin has joined it, and where it has lost its
    state, before any relay has: of a publication that was accepted once that is no refusal."""
    match decode_kind(error.trailing_metadata()):
        case PublishErrorKind.INVALID:
            return failures < _ORIGIN_JOINS
        case PublishErrorKind.NO_WORKERS:
            return accepted and failures < _RELAYS_JOIN
    return False


def explain(error: grpc.aio.AioRpcError, what: str) -> ChappeError:
    """The error for the caller."""
    details = error.details() or error.code().name
    kind = decode_kind(error.trailing_metadata())
    if kind in _ERRORS:
        return _ERRORS[kind](details)
    if error.code() in REFUSED_CODES:
        return RefusedError(f"the coordinator does not take {what}: {details}")
    return PublicationFailedError(f"{what}: {error.code().name}: {details}")


def retry_delay_s(failures: int) -> float:
    """Longer after each failure in a row, with jitter, so that a restarted coordinator is not met by all at once."""
    return min(_RETRY_S_MAX, _RETRY_S_MIN * 2.0 ** min(failures - 1, 8)) * random.uniform(0.5, 1.5)  # noqa: S311
