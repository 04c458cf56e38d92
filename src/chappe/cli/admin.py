"""`chappe cancel`, `chappe drain` and `chappe forget`: one request to the coordinator each."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from chappe.cli.client import CALL_TIMEOUT_S, DEFAULT_COORDINATOR, CoordinatorAddress, connect
from chappe.cli.settings import NO_TLS, Flat, TlsSettings
from chappe.errors import UsageError
from chappe.v1 import coordinator_pb2

Where = Annotated[CoordinatorAddress, Flat]
WithTls = Annotated[TlsSettings, Flat]


def cancel(version: int, /, *, where: Where = DEFAULT_COORDINATOR, tls: WithTls = NO_TLS) -> int:
    """Stop the publication of a version. Workers keep the version they have.

    Parameters
    ----------
    version
        The version whose publication is to stop.
    """
    if version < 1:
        raise UsageError(f"VERSION {version}: versions start at 1 (`chappe status` lists them)")

    async def call() -> None:
        async with connect(where, tls) as stub:
            await stub.Cancel(coordinator_pb2.CancelRequest(version=version), timeout=CALL_TIMEOUT_S)

    asyncio.run(call())
    print(f"version {version}: cancelled")
    return 0


def drain(
    name: Annotated[str, Parameter(show_env_var=False)],
    /,
    *,
    where: Where = DEFAULT_COORDINATOR,
    tls: WithTls = NO_TLS,
) -> int:
    """Move a worker out of its chain gracefully: its child gets another parent first. It stays out until restarted.

    Parameters
    ----------
    name
        The worker's name.
    """

    async def call() -> None:
        async with connect(where, tls) as stub:
            await stub.Drain(coordinator_pb2.DrainRequest(name=name), timeout=CALL_TIMEOUT_S)

    asyncio.run(call())
    print(f"{name}: drained")
    return 0


def forget(
    name: Annotated[str, Parameter(show_env_var=False)],
    /,
    *,
    where: Where = DEFAULT_COORDINATOR,
    tls: WithTls = NO_TLS,
) -> int:
    """Drop a worker that is dead and will not come back. A living one is refused: drain it.

    Parameters
    ----------
    name
        The worker's name.
    """

    async def call() -> None:
        async with connect(where, tls) as stub:
            await stub.Forget(coordinator_pb2.ForgetRequest(name=name), timeout=CALL_TIMEOUT_S)

    asyncio.run(call())
    print(f"{name}: forgotten")
    return 0
