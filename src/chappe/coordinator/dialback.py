"""Can peers dial the address that a node advertises? The coordinator tries it at every join, and again while it cannot.

A connection that comes up (with TLS: to a node of that name) is a yes. At most a few are tried at a time, so that a
fleet that reconnects all at once is not a storm of handshakes; the verdict is the fleet's to use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from chappe.errors import ChappeError
from chappe.hop.net import Tls, open_channel, parse_address

LIMIT_S = 3.0
AT_ONCE_MAX = 32
AGAIN_S = 15.0
AGAIN_MAX_S = 600.0


class DialBack:
    def __init__(self, tls: Tls | None, limit_s: float = LIMIT_S) -> None:
        self._tls = tls
        self._limit_s = limit_s
        self._turn = asyncio.Semaphore(AT_ONCE_MAX)

    async def attempts(self, address: str, name: str) -> AsyncIterator[bool]:
        """Whether it is reached, until it is. An outage at the join must not pass for NAT as long as the session lasts.

        Twice as long between two attempts each time, up to ten minutes: a host behind NAT stays there.
        """
        pause_s = AGAIN_S
        while True:
            reachable = await self.try_address(address, name)
            yield reachable
            if reachable:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_MAX_S)

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
