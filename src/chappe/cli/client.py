"""How a command talks to the coordinator: one channel, and gRPC's status codes turned into Chappe's errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from chappe.cli.settings import Settings, TlsSettings
from chappe.errors import (
    ChappeError,
    ConfigError,
    CoordinatorUnavailableError,
    PublicationError,
    RefusedError,
    UsageError,
)
from chappe.hop.net import COORDINATOR_NAME, Address, Tls, check_plaintext, load_tls, open_channel, parse_address
from chappe.v1 import coordinator_pb2 as pb
from chappe.v1 import coordinator_pb2_grpc

CALL_TIMEOUT_S = 10.0


class CoordinatorAddress(Settings):
    """Whom to ask."""

    coordinator: str = "127.0.0.1:7400"
    """HOST:PORT of the coordinator."""


DEFAULT_COORDINATOR = CoordinatorAddress()


def tls_files(tls: TlsSettings) -> Tls | None:
    """Read the PEM files that the flags name. Raises UsageError naming the flag."""
    return load_tls(tls.tls_cert, tls.tls_key, tls.tls_ca)


def address_of(flag: str, text: str) -> Address:
    """Parse `HOST:PORT`. Raises ConfigError naming the flag."""
    try:
        return parse_address(text)
    except UsageError as error:
        raise ConfigError(f"{flag}: {error}") from error


@asynccontextmanager
async def connect(where: CoordinatorAddress, tls: TlsSettings) -> AsyncIterator[coordinator_pb2_grpc.CoordinatorStub]:
    """The coordinator's stub. An RPC error inside the block is raised as a ChappeError."""
    address = address_of("--coordinator", where.coordinator)
    files = tls_files(tls)
    check_plaintext({"--coordinator": address}, files, tls.insecure)
    channel = open_channel(address, files, COORDINATOR_NAME)
    try:
        yield coordinator_pb2_grpc.CoordinatorStub(channel)
    except grpc.aio.AioRpcError as error:
        raise explain(error, address) from error
    finally:
        await channel.close()


async def get_status(where: CoordinatorAddress, tls: TlsSettings) -> pb.Status:
    """The fleet as the coordinator sees it now."""
    async with connect(where, tls) as stub:
        answer: pb.Status = await stub.GetStatus(pb.StatusRequest(), timeout=CALL_TIMEOUT_S)
        return answer


def explain(error: grpc.aio.AioRpcError, address: Address) -> ChappeError:
    """The error that a person can act on."""
    code, details = error.code(), error.details() or error.code().name
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return CoordinatorUnavailableError(
            f"the coordinator at {address} does not answer ({details}): is it running, and is --coordinator right?"
        )
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return RefusedError(details)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return UsageError(details)
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
        return CoordinatorUnavailableError(f"what answers at {address} is no coordinator, or in trouble: {details}")
    return PublicationError(details)
