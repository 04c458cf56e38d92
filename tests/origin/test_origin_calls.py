"""What a failed call means: to the caller, or to nobody because it is made again."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

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
from chappe.origin.calls import comes_too_early, explain, is_transient, retry_delay_s
from chappe.wire.failures import encode_kind


def failed(code: grpc.StatusCode, kind: str = "", details: str = "what happened") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*encode_kind(kind)), details=details)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (PublishErrorKind.CONFLICT, VersionConflictError),
        (PublishErrorKind.INVALID, UsageError),
        (PublishErrorKind.NO_WORKERS, PublicationFailedError),
        (PublishErrorKind.NOT_FOUND, PublicationFailedError),
        (PublishErrorKind.FAILED, PublicationFailedError),
        (PublishErrorKind.CANCELLED, PublicationCancelledError),
        (PublishErrorKind.SUPERSEDED, SupersededError),
    ],
)
def test_every_kind_is_an_error_of_its_own(kind: PublishErrorKind, error: type[ChappeError]) -> None:
    meaning = explain(failed(grpc.StatusCode.ABORTED, kind.value), "version 3")
    assert type(meaning) is error
    assert str(meaning) == "what happened"


def test_no_kind_is_left_out() -> None:
    plain = type(explain(failed(grpc.StatusCode.UNKNOWN), "version 3"))
    for kind in PublishErrorKind:
        meaning = explain(failed(grpc.StatusCode.UNKNOWN, kind.value), "version 3")
        assert type(meaning) is not plain or str(meaning) == "what happened"


def test_a_code_without_a_kind_says_of_what_it_speaks() -> None:
    refused = explain(failed(grpc.StatusCode.PERMISSION_DENIED, details="not yours"), "version 3")
    assert isinstance(refused, RefusedError)
    assert "version 3: not yours" in str(refused)
    broken = explain(failed(grpc.StatusCode.INTERNAL), "version 3")
    assert isinstance(broken, PublicationFailedError)
    assert "version 3: INTERNAL" in str(broken)


def test_only_an_absent_coordinator_is_asked_again() -> None:
    assert is_transient(failed(grpc.StatusCode.UNAVAILABLE))
    assert is_transient(failed(grpc.StatusCode.CANCELLED))  # it closed the stream while stopping
    assert not is_transient(failed(grpc.StatusCode.CANCELLED, PublishErrorKind.CANCELLED.value))
    assert not is_transient(failed(grpc.StatusCode.INTERNAL))


def test_delays_grow_to_a_bound() -> None:
    delays = [retry_delay_s(failures) for failures in range(1, 40)]
    assert 0.05 <= delays[0] <= 0.15
    assert all(1.0 <= delay <= 3.0 for delay in delays[8:])


@pytest.mark.parametrize(
    ("kind", "accepted", "failures", "again"),
    [
        (PublishErrorKind.INVALID, False, 1, True),  # before the origin is there again
        (PublishErrorKind.INVALID, True, 2, False),
        (PublishErrorKind.NO_WORKERS, True, 11, True),  # of a coordinator that has lost its state: before the relays
        (PublishErrorKind.NO_WORKERS, True, 12, False),
        (PublishErrorKind.NO_WORKERS, False, 0, False),  # there really are none
        (PublishErrorKind.CONFLICT, True, 0, False),
    ],
)
def test_a_restarted_coordinator_may_be_asked_too_early(
    kind: PublishErrorKind, accepted: bool, failures: int, again: bool
) -> None:
    assert comes_too_early(failed(grpc.StatusCode.ABORTED, kind.value), failures, accepted=accepted) is again
