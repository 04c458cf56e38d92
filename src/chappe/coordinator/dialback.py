"""Can peers dial the address that a node advertises? The coordinator tries it once at every join.

A connection that comes up (with TLS: to a node of that name) is a yes. At most a few are tried at a time, so that a
fleet that reconnects all at once is not a storm of handshakes; the verdict is the fleet's to use.
"""

from __future__ import annotations

import asyncio

import grpc

from chappe.errors import ChappeError
from chappe.hop.net import Tls, open_channel, parse_address

LIMIT_S = 3.0
AT_ONCE_MAX = 32


class DialBack:
    def __init__(self, tls: Tls | None, limit_s: float = LIMIT_S) -> None:
        self._tls = tls
        self._limit_s = limit_s
        self._turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def try_address(self, address: str, name: str) -> bool:
        """Whether a connection to it comes up in time."""
        async with self._turn:
            try:
                channel = open_channel(parse_address(address, ""), self._tls, name)
            except ChappeError:  # it is no address
                return False
            try:
                async with asyncio.timeout(self._limit_s):
                    await channel.channel_ready()
            except (TimeoutError, grpc.RpcError):
                return False
            finally:
                await channel.close()
        return True
