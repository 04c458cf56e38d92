"""What a failed call to the coordinator says to a person."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from chappe.cli.client import explain
from chappe.errors import CoordinatorUnavailableError, PublicationError
from chappe.hop.net import Address


def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN])
def test_somebody_else_answers_there(code: grpc.StatusCode) -> None:
    error = explain(failed(code, "Received http2 header with status: 404"), Address("10.0.0.1", 80))
    assert isinstance(error, CoordinatorUnavailableError)
    assert "10.0.0.1:80" in str(error)
    assert "404" in str(error)


def test_what_the_coordinator_says_is_left_alone() -> None:
    error = explain(failed(grpc.StatusCode.NOT_FOUND, "no publication of version 7"), Address("10.0.0.1", 80))
    assert (type(error), str(error)) == (PublicationError, "no publication of version 7")
